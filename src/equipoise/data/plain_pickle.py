"""Read a pickle of plain values and uint8 arrays without unpickling it.

A pickle is a program. Allowing only harmless classes is not enough: `numpy.dtype` can be told that an array of bytes
holds objects, and then bytes become pointers. Here no class is looked up, no function called and no state set: a loop
over the opcodes builds dictionaries, lists, tuples, text, bytes and numbers; an array that the program asks for is made
here, from a shape and bytes that fit each other. Everything else is a ValueError.

It knows the ways in which Python 2 and 3 and NumPy 1 and 2 write these values, in any protocol:

    numpy.core.multiarray._reconstruct(ndarray, (0,), b"b")  then BUILD (1, shape, dtype("u1"), fortran, bytes)
    numpy.core.numeric._frombuffer(bytes, dtype("u1"), shape, order)      NumPy 2 calls numpy.core numpy._core
    _codecs.encode(text, "latin1")                                        bytes of Python 3 in protocols 0 to 2
"""

from __future__ import annotations

import math
import pickletools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

VALUES = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
FIXED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
ONE_ITEM = {"APPEND": 1, "SETITEM": 2}
FUNCTIONS = {
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "numpy.core.multiarray _reconstruct": "array",
    "numpy._core.multiarray _reconstruct": "array",
    "numpy.core.numeric _frombuffer": "buffer",
    "numpy._core.numeric _frombuffer": "buffer",
    "_codecs encode": "encode",
}


@dataclass(eq=False)
class _Made:
    """A placeholder for a function, for the type uint8, or for an array that is made later."""

    what: str
    array: NDArray[np.uint8] | None = None


class _Machine:
    """The stack, the marks in it, and the memo; each method is a kind of opcode."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in VALUES:
            stack.append(bytes(argument) if isinstance(argument, bytearray) else argument)
        elif name in FIXED:
            stack.append(FIXED[name])
        elif name in EMPTY:
            stack.append(EMPTY[name]())
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else int(argument)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[int(argument)])
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name in TUPLES:
            stack.append(tuple(reversed([stack.pop() for _ in range(TUPLES[name])])))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(self.function(argument))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_called(stack.pop(), arguments))
        elif name == "BUILD":
            state = stack.pop()
            _build(stack[-1], state)
        elif name not in ("PROTO", "FRAME", "STOP"):
            self.collect(name)

    def collect(self, name: str) -> None:
        """Opcodes that collect what is on the stack into a list, a dictionary or a tuple."""
        stack = self.stack
        start = len(stack) - ONE_ITEM[name] if name in ONE_ITEM else self.marks.pop()
        items = stack[start:]
        del stack[start:]
        if name in ("LIST", "TUPLE"):
            stack.append(items if name == "LIST" else tuple(items))
        elif name in ("APPEND", "APPENDS") and isinstance(stack[-1], list):
            stack[-1].extend(items)
        elif name in ("DICT", "SETITEM", "SETITEMS"):
            if name == "DICT":
                stack.append({})
            keys, values = items[::2], items[1::2]
            if not isinstance(stack[-1], dict) or not all(isinstance(key, str) for key in keys):
                raise ValueError("a dictionary whose keys are not text")
            stack[-1].update(zip(keys, values, strict=True))
        else:
            raise ValueError(f"the opcode {name}, which no CIFAR file needs")

    def function(self, named: str | None) -> _Made:
        if named is None:
            named = " ".join(reversed([self.stack.pop(), self.stack.pop()]))
        if named not in FUNCTIONS:
            raise ValueError(f"it asks for {named.replace(' ', '.', 1):.60}, which no CIFAR file needs")
        return _Made(FUNCTIONS[named])


def read_pickle(data: bytes) -> dict[str, Any]:
    """The dictionary in a pickle; Python 2 text is read as latin-1, and arrays are uint8.

    >>> import pickle
    >>> read_pickle(pickle.dumps({"data": np.arange(3, dtype=np.uint8), "labels": [1, 2]}))
    {'data': array([0, 1, 2], dtype=uint8), 'labels': [1, 2]}
    """
    machine = _Machine()
    try:
        with warnings.catch_warnings(action="ignore"):  # about escapes in text that Python 2 wrote
            for code, argument, _ in pickletools.genops(data):
                machine.step(code.name, argument)
        (found,) = machine.stack
    except (LookupError, TypeError, RecursionError) as error:  # a stack with too few entries
        raise ValueError(f"not a pickle of plain values: {type(error).__name__} {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, not a dictionary")
    return {key: value.array if isinstance(value, _Made) else value for key, value in found.items()}


def _called(function: Any, arguments: Any) -> Any:
    match function, arguments:
        case _Made("encode"), (str(text), "latin1" | "latin-1"):
            return text.encode("latin-1")
        case _Made("dtype"), ("u1" | "|u1", *_):
            return _Made("uint8")
        case _Made("array"), (_Made("ndarray"), *_):
            return _Made("filled later")
        case _Made("buffer"), (bytes(data), _Made("uint8"), tuple(shape), "C" | "F" as order):
            return _Made("filled", _array(shape, data, order == "F"))
    raise ValueError("it makes something other than an array of uint8")


def _build(made: Any, state: Any) -> None:
    match made, state:
        case _Made("uint8"), _:  # byte order and alignment, which a byte does not have
            return
        case _Made("filled later"), (_, tuple(shape), _Made("uint8"), fortran, bytes() | str() as data):
            made.array = _array(shape, data if isinstance(data, bytes) else data.encode("latin-1"), bool(fortran))
            return
    raise ValueError("it sets the state of something other than an array of uint8")


def _array(shape: tuple[Any, ...], data: bytes, fortran: bool) -> NDArray[np.uint8]:
    if len(shape) > 4 or not all(type(side) is int and 0 <= side < 2**32 for side in shape):
        raise ValueError(
            f"an array of a shape with {len(shape)} entries that are not its sides"
        )  # not printed: it may be endless
    if math.prod(shape) != len(data):
        raise ValueError(f"an array of shape {shape} with {len(data)} bytes")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")

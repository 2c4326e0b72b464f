"""Pickles are read without unpickling: plain values and uint8 arrays come through, nothing else does anything."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cifar_files import write_cifar10

from equipoise.data import plain_pickle as module
from equipoise.data.cifar import count_cifar, load_cifar
from equipoise.data.plain_pickle import read_pickle

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 3072)).astype(np.uint8)
CONTENT: dict[str, Any] = {
    "data": IMAGES,
    "labels": [3, 0, 1, 2**40],
    "label_names": ["cat", "猫", ""],
    "other": (None, True, False, 1.5, -7, b"bytes", b"", {"deep": [[]]}),
}
PYTHON2 = (  # as cPickle of Python 2 with an old NumPy writes it
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
    b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
    b"K\x00tb\x89U\x06\x00\x01\x02\xfd\xfe\xfftbU\x06labelsq\x08]q\x09(K\x01K\x00eu."
)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("numpy", ["numpy.core", "numpy._core"])
def test_what_cifars_files_hold_is_read_as_any_python_writes_it(protocol: int, order: Any, numpy: str) -> None:
    content = CONTENT | {"data": IMAGES.copy(order)}
    content["other"] = tuple(value for value in content["other"] if value != b"" or protocol > 2)
    written = pickle.dumps(content, protocol=protocol)
    if protocol < 4:  # these write the module's name and not its length
        written = written.replace(b"numpy._core", numpy.encode())
    found = read_pickle(written)
    np.testing.assert_array_equal(found.pop("data"), IMAGES)
    assert found == {key: value for key, value in content.items() if key != "data"}


def test_a_file_of_python_2_is_read() -> None:
    found = read_pickle(PYTHON2)
    assert found["data"].tolist() == [[0, 1, 2], [253, 254, 255]]
    assert (found["data"].dtype, found["labels"]) == (np.uint8, [1, 0])


def test_an_array_that_occurs_twice_is_read_twice() -> None:
    found = read_pickle(pickle.dumps({"a": IMAGES, "b": IMAGES}, protocol=2))
    np.testing.assert_array_equal(found["a"], found["b"])


# An object dtype whose flags are set to 0 says that it holds no references: NumPy then takes the bytes for pointers.
POINTERS = (
    b"\x80\x02}(U\x04data" + pickle.dumps(IMAGES[:1], protocol=2)[2:-1] + b"U\x06labels]("
    b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    b"(K\x01)cnumpy\ndtype\nU\x02O8\x89\x88\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    b"\x89U\x08AAAAAAAAtbeu."
)
DEEP = b"\x80\x02}(" + b")" + b"\x85" * 300_000 + b"K\x01u."  # a key whose hash overflows the stack


def test_bytes_never_become_pointers_and_no_key_is_too_deep_to_hash(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    for content in (POINTERS, DEEP):
        (folder / "data_batch_1").write_bytes(content)
        code = f"from equipoise.data.sources import read_source; read_source({str(folder)!r}).prior"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr  # an error of Python, and not a signal
        assert "data_batch_1 is damaged" in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (POINTERS, "something other than an array of uint8"),
        (DEEP, "keys are not text"),
        (b"cos\nsystem\n(S'true'\ntR.", r"it asks for os\.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", r"it asks for os\.system"),
        (b"\x80\x02c__builtin__\neval\nU\x011\x85R.", "it asks for __builtin__.eval"),
        (b"(S'true'\nios\nsystem\n.", "INST"),
        (b"\x80\x02}h\xff.", "KeyError 255"),
        (b"\x80\x02]r\xff\xff\xff\xff.", "holds a list"),
        (pickle.dumps({"data": np.array(["a"], object)}, 2), "something other"),
        (pickle.dumps({"data": np.zeros(3)}, 2), "something other"),
        (pickle.dumps({"data": np.int64(3)}, 2), "scalar"),
        (PYTHON2.replace(b"K\x02K\x03\x86", b")" + b"\x85" * 9000), "a shape with 1 entries"),
        (PYTHON2.replace(b"K\x02K\x03\x86", b"K\x03K\x03\x86"), r"shape \(3, 3\) with 6 bytes"),
        (PYTHON2.replace(b"K\x02K\x03\x86", b"G?\xf0\x00\x00\x00\x00\x00\x00K\x06\x86"), "shape"),
    ],
)
def test_what_is_not_plain_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_pickle(content)


def mutated(content: bytes, seed: int) -> bytes:
    """Some bytes changed, removed, repeated or replaced by opcodes that do something."""
    random = np.random.default_rng(seed)
    data = bytearray(content)
    for _ in range(int(random.integers(1, 6))):
        place, length = int(random.integers(len(data))), int(random.integers(1, 9))
        kind = random.integers(5)
        if kind == 0:
            data[place] = int(random.integers(256))
        elif kind == 1:
            del data[place : place + length]
        elif kind == 2:
            data[place:place] = data[place : place + length]
        elif kind == 3:
            data[place] = int(random.choice(list(b"cbRtieuqrhjsa0123.()]}\x81\x85\x86\x87\x88\x93\x94")))
        else:
            other = int(random.integers(len(data)))
            data[place : place + length] = data[other : other + length]
        data = data or bytearray(b".")
    return bytes(data)


def test_no_mutation_of_a_file_does_anything_but_load_or_raise_a_value_error() -> None:
    small = {"data": IMAGES[:, :6].copy(), "labels": [1, 0, 1, 1], "names": ["cat", "owl"]}
    files = [pickle.dumps(small, protocol) for protocol in range(6)] + [PYTHON2, POINTERS]
    loaded = refused = 0
    for seed in range(8000):
        try:
            found = read_pickle(mutated(files[seed % len(files)], seed))
        except ValueError:
            refused += 1
        else:
            loaded += 1
            assert all(not isinstance(value, np.ndarray) or value.dtype == np.uint8 for value in found.values())
    assert loaded > 100
    assert refused > 3000


@pytest.mark.parametrize("label", [1.5, "1", True, -1, 2**80, [1], 100])
def test_a_label_that_is_no_class_is_named(tmp_path: Path, label: Any) -> None:
    folder = write_cifar10(tmp_path)
    content = pickle.loads((folder / "data_batch_3").read_bytes())
    content["labels"][5] = label
    (folder / "data_batch_3").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match=r"data_batch_3 is damaged \(label 5 is not a class from 0 to 99"):
        count_cifar(tmp_path, "cifar10")
    with pytest.warns(UserWarning, match="MD5"), pytest.raises(ValueError, match="label 5 is not a class"):
        load_cifar(tmp_path, "cifar10")


def test_a_shape_that_would_take_forever_to_print_or_to_multiply_is_refused_at_once() -> None:
    shape: object = ()
    for _ in range(200):
        shape = (shape, shape)  # 2^200 brackets in print
    with pytest.raises(ValueError, match="a shape with 2 entries that are not its sides"):
        module._array(shape, b"1234", False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a shape with 400000 entries"):
        module._array((2,) * 400_000, b"1234", False)

"""What `torch.compile` may do with a `Prior`: its shift is a constant of the graph, guarded by its identity.

Vectors have no such guard, so they are refused in a graph; torch before 2.12 cannot take a `Prior` into a graph at all.
"""

from __future__ import annotations

from typing import Any, TypeVar

Function = TypeVar("Function")


def constant(function: Function) -> Function:
    """Let Dynamo call `function` once per graph instead of tracing the NumPy inside.

    `torch.compiler.assume_constant_result` sets this mark too, and imports all of Dynamo.
    """
    setattr(function, "_dynamo_marked_constant", True)  # noqa: B010
    return function


@constant
def compiles_priors() -> bool:
    """Whether a compiled graph can take a `Prior`: torch 2.12 or newer."""
    import torch

    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 12)


def refuse_priors() -> None:
    """Refuse a `Prior` under a compiler that is too old for it."""
    import torch

    if torch.compiler.is_dynamo_compiling() and not compiles_priors():
        raise TypeError(
            f"torch {torch.__version__} cannot take a Prior into a compiled graph, torch 2.12 can: compile a module "
            "that holds the shift, as the losses and Rebalanced do, or call this outside of torch.compile"
        )


def refuse_vector(value: Any) -> None:
    """Refuse a vector under a compiler, which would keep the one from the first call."""
    import torch

    if torch.compiler.is_dynamo_compiling():
        raise TypeError(
            f"a {type(value).__name__} cannot be a constant of a compiled graph: pass a Prior made outside of it, "
            "e.g. Prior.from_probabilities(p)"
        )

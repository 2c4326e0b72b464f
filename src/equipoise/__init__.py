"""Equipoise: train on the data you have, predict for the world you want.

A `Prior` holds how often each class occurs. Count it once, and pass it to a loss, a sampler, an evaluation and the
model that you serve.

Every public name is typed once, in `__init__.pyi`, and imported when it is first used: `import equipoise` imports
neither torch nor NumPy.
"""

from __future__ import annotations

import ast
import pkgutil
import sys
from typing import Any

__version__ = "0.1.0"


def _homes() -> dict[str, str]:
    """The module that each public name comes from."""
    stub = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_HOMES = _homes()
# not eq.sklearn, which needs an extra: `from equipoise import *` must not
__all__ = sorted(name for name, home in _HOMES.items() if home != "equipoise.integrations")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
    value = globals()[name] = getattr(__import__(_HOMES[name], fromlist=[name]), name)
    _allow_priors()
    return value


def _allow_priors() -> None:
    """Let `torch.load(weights_only=True)` read a `Prior` among saved hyper-parameters, once torch is imported."""
    if "torch" in sys.modules and hasattr(sys.modules["torch"], "serialization"):
        from equipoise.prior import restored_prior

        sys.modules["torch"].serialization.add_safe_globals([restored_prior])


_allow_priors()


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

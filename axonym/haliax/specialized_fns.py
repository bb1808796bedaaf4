"""`haliax.specialized_fns`: operations with kernels of their own."""

from typing import Any

from . import core


def __getattr__(name: str) -> Any:
    if name != "top_k":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return core.top_k

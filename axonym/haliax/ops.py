"""`haliax.ops`: operations on named arrays, which are those of `core`."""

from typing import Any

from . import core


def __getattr__(name: str) -> Any:
    return getattr(core, name)

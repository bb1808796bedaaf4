"""`haliax.ops`: operations on named arrays, which are those of `core`."""

from typing import Any

from ..named._base import NamedBase
from . import core


def raw_array_or_scalar(x: Any) -> Any:
    """Returns the plain array of a named array, and anything else as it is.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.ops.raw_array_or_scalar(hax.ones({"i": 2})), hax.ops.raw_array_or_scalar(2.0)
        (Array([1., 1.], dtype=float32), 2.0)
    """
    return x.array if isinstance(x, NamedBase) else x


def __getattr__(name: str) -> Any:
    return getattr(core, name)

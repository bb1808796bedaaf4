"""`haliax.hof`: functions of functions."""

from collections.abc import Callable
from typing import Any

from ..named import _transforms
from ._adapt import adapt
from ._checkpoint import ScanCheckpointPolicy as ScanCheckpointPolicy
from .core import fold as fold, map as map, scan as scan


def vmap(fn: Callable[..., Any], axis: Any, *, default: Any = None, args: Any = (), kwargs: Any = None) -> Any:
    """Vectorises a function over a named axis; see `axonym.vmap`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.vmap(lambda row: row.sum(), "batch")(hax.ones({"batch": 2, "embed": 3})).array
        Array([3., 3.], dtype=float32)
    """
    options = {} if default is None else {"default": default}
    return adapt(_transforms.vmap(fn, axis, args=tuple(args), kwargs=kwargs, **options))

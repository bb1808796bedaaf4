"""Operations along axes that must not be sharded meanwhile; the axes stay, their sizes may change."""

from collections.abc import Callable, Hashable
from typing import Any

from .._ambient import replicate_dims, reshard_by_name
from .._axis import Names
from .._base import N, with_array
from .._cached_jit import cached_jit


def apply_unsharded(
    fn: Callable[..., Any], x: N, dims: tuple[int, ...], *static: Hashable, args: tuple[Any, ...] = ()
) -> N:
    """Applies a positional function along axes that are not sharded meanwhile on an Explicit mesh.

    Args:
        fn: Function of a plain array, the positions of the axes, `static` and `args`, which keeps all axes.
        x: Array of any axes.
        dims: Positions of the axes along which it runs.
        *static: Further static arguments.
        args: Further arguments, which may be traced.

    Returns:
        Array with the axes of `x`, sharded by their names.
    """
    return with_array(x, cached_jit(_apply_to_replicated_dims, fn, x.names, dims, static)(x.array, *args))


def _apply_to_replicated_dims(
    fn: Callable[..., Any], names: Names, dims: tuple[int, ...], static: tuple[Any, ...], array: Any, *args: Any
) -> Any:
    return reshard_by_name(fn(replicate_dims(array, dims), dims, *static, *args), names)

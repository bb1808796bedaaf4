"""Operations along axes that must not be divided over devices while they run; the axes stay, their sizes may change."""

from collections.abc import Callable, Hashable
from typing import Any

from .._ambient import replicate_dims, reshard_by_name
from .._axis import Names
from .._base import N, with_array
from .._cached_jit import cached_jit


def apply_unsharded(
    fn: Callable[..., Any], x: N, dims: tuple[int, ...], *static: Hashable, args: tuple[Any, ...] = ()
) -> N:
    """Applies a positional function along some axes, which no Explicit mesh axis divides as it runs.

    Args:
        fn: Function of a plain array, the positions of the axes, what is static and `args`, which keeps all axes.
        x: Array of any axes.
        dims: Positions of the axes along which it runs.
        *static: What else it takes that is known before it is compiled.
        args: What else it takes that may be traced.

    Returns:
        Array with the axes of `x`, sharded as their names say.
    """
    return with_array(x, cached_jit(_apply_to_replicated_dims, fn, x.names, dims, static)(x.array, *args))


def _apply_to_replicated_dims(
    fn: Callable[..., Any], names: Names, dims: tuple[int, ...], static: tuple[Any, ...], array: Any, *args: Any
) -> Any:
    return reshard_by_name(fn(replicate_dims(array, dims), dims, *static, *args), names)

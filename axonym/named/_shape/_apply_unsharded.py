"""Operations along axes that must not be sharded meanwhile; the axes stay, their sizes may change."""

from collections.abc import Callable, Hashable
from typing import Any

from .._ambient import replicate_dims, reshard_by_name, use_operand_shardings
from .._axis import Names
from .._base import N, with_array
from .._broadcasting import cached_jit


def apply_unsharded(
    fn: Callable[..., Any], x: N, dims: tuple[int, ...], *static: Hashable, args: tuple[Any, ...] = ()
) -> N:
    """Applies a positional function along axes that are replicated meanwhile on an Explicit mesh.

    The result is sharded by its names again, as a mapping or the array itself says.

    `fn` takes a plain array, the positions `dims`, `static` and `args`, which may be traced, and keeps all axes.
    """
    return with_array(x, cached_jit(_apply_to_replicated_dims, fn, x.names, dims, static)(x.array, *args))


def _apply_to_replicated_dims(
    fn: Callable[..., Any], names: Names, dims: tuple[int, ...], static: tuple[Any, ...], array: Any, *args: Any
) -> Any:
    with use_operand_shardings((names,), (array,)):
        return reshard_by_name(fn(replicate_dims(array, dims), dims, *static, *args), names)

"""Operations along axes that must not be divided over devices while they run; the axes stay, their sizes may change."""

from collections.abc import Callable, Hashable
from typing import Any

from .._ambient import resharded, undivided
from .._axis import Names
from .._base import N, like
from .._plan import planned


def over_whole(fn: Callable[..., Any], x: N, dims: tuple[int, ...], *static: Hashable, args: tuple[Any, ...] = ()) -> N:
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
    return like(x, planned(_run, fn, x.names, dims, static)(x.array, *args))


def _run(
    fn: Callable[..., Any], names: Names, dims: tuple[int, ...], static: tuple[Any, ...], array: Any, *args: Any
) -> Any:
    return resharded(fn(undivided(array, dims), dims, *static, *args), names)

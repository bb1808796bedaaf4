"""Maxima, minima and clipping of elements."""

from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._base import A, N
from .._broadcasting import apply_binary, apply_broadcast, apply_unary
from . import _jitted


@overload
def maximum(x: N, y: N | ArrayLike) -> N: ...
@overload
def maximum(x: ArrayLike, y: N) -> N: ...
@overload
def maximum(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def maximum(x: Any, y: Any) -> Any:
    """Returns the larger of `x` and `y`, broadcast by name; see `jax.numpy.maximum`.

    Example:
        >>> import axonym as nym
        >>> nym.maximum(nym.named([3.0], "i"), 5.0).item()
        5.0
    """
    return apply_binary(_jitted.maximum, x, y)


@overload
def minimum(x: N, y: N | ArrayLike) -> N: ...
@overload
def minimum(x: ArrayLike, y: N) -> N: ...
@overload
def minimum(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def minimum(x: Any, y: Any) -> Any:
    """Returns the smaller of `x` and `y`, broadcast by name; see `jax.numpy.minimum`.

    Example:
        >>> import axonym as nym
        >>> nym.minimum(nym.named([3.0], "i"), 5.0).item()
        3.0
    """
    return apply_binary(_jitted.minimum, x, y)


@overload
def fmax(x: N, y: N | ArrayLike) -> N: ...
@overload
def fmax(x: ArrayLike, y: N) -> N: ...
@overload
def fmax(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def fmax(x: Any, y: Any) -> Any:
    """Returns the larger of `x` and `y`, the number if one is NaN, broadcast by name; see `jax.numpy.fmax`.

    Example:
        >>> import axonym as nym
        >>> nym.fmax(nym.named([3.0], "i"), 5.0).item()
        5.0
    """
    return apply_binary(jnp.fmax, x, y)


@overload
def fmin(x: N, y: N | ArrayLike) -> N: ...
@overload
def fmin(x: ArrayLike, y: N) -> N: ...
@overload
def fmin(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def fmin(x: Any, y: Any) -> Any:
    """Returns the smaller of `x` and `y`, the number if one is NaN, broadcast by name; see `jax.numpy.fmin`.

    Example:
        >>> import axonym as nym
        >>> nym.fmin(nym.named([3.0], "i"), 5.0).item()
        3.0
    """
    return apply_binary(jnp.fmin, x, y)


def clip(x: A, min: Any = None, max: Any = None) -> A:
    """Limits the elements of `x` to a range; see `jax.numpy.clip`.

    Args:
        x: Array of any axes.
        min: Lower bound, a scalar or a named array; no bound if None.
        max: Upper bound, a scalar or a named array; no bound if None.

    Returns:
        Array with the broadcast axes.

    Raises:
        ValueError: If the operands do not broadcast by name.

    Example:
        >>> import axonym as nym
        >>> nym.clip(nym.arange(nym.Axis("i", 4)), 1, 2).array
        Array([1, 1, 2, 2], dtype=int32)
    """
    if (min is None) == (max is None):
        return apply_unary(jnp.clip, x) if min is None else apply_broadcast(jnp.clip, x, min, max)
    bounded: Any = x if min is None else maximum(x, min)
    return bounded if max is None else minimum(bounded, max)

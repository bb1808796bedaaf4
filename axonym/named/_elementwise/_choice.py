"""Choice: the larger and the smaller, bounds, replacements, and elements that a condition picks."""

import functools
from collections.abc import Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._ambient import replicate_dims, reshard_by_name
from .._axis import Axis, parse_one_axis
from .._base import A, N, check_named, with_array
from .._broadcasting import apply_binary, apply_broadcast, apply_unary
from .._cached_jit import cached_jit
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
        min: Lower bound, a scalar or a named array; None for none.
        max: Upper bound, a scalar or a named array; None for none.

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


def nan_to_num(x: A, nan: ArrayLike = 0.0, posinf: ArrayLike | None = None, neginf: ArrayLike | None = None) -> A:
    """Replaces NaN and infinite elements by numbers; see `jax.numpy.nan_to_num`.

    Args:
        x: Array of any axes.
        nan: The number for NaN.
        posinf: The number for infinity, the largest of the element type by default.
        neginf: The number for minus infinity, the lowest of the element type by default.

    Returns:
        Array with the axes of `x`.

    Example:
        >>> import axonym as nym
        >>> nym.nan_to_num(nym.named([float("nan"), 2.0], "i"), nan=1.0).array
        Array([1., 2.], dtype=float32)
    """
    return apply_unary(functools.partial(jnp.nan_to_num, nan=nan, posinf=posinf, neginf=neginf), x)


@overload
def where(condition: N, x: N | ArrayLike, y: N | ArrayLike) -> N: ...
@overload
def where(condition: ArrayLike, x: N, y: N | ArrayLike) -> N: ...
@overload
def where(condition: ArrayLike, x: ArrayLike, y: N) -> N: ...
@overload
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> jax.Array: ...
@overload
def where(condition: N, *, fill_value: Any = 0, new_axis: Axis) -> tuple[N, ...]: ...
def where(condition: Any, x: Any = None, y: Any = None, *, fill_value: Any = 0, new_axis: Axis | None = None) -> Any:
    """Takes elements of `x` where the condition holds and of `y` where it does not; see `jax.numpy.where`.

    Of the condition alone it returns where its true elements lie, as many of them as a new axis has room for.

    Args:
        condition: Boolean array, or a scalar.
        x: Named array or scalar.
        y: Named array or scalar.
        fill_value: The position that stands for missing ones if there are fewer true elements than `new_axis` has
            room for; a scalar, or one for each axis.
        new_axis: Axis of the positions, if neither `x` nor `y` is given.

    Returns:
        Array with the broadcast axes; all three are computed, nothing is skipped. Of the condition alone, a tuple of
        integer arrays over the new axis, one for each axis of the condition.

    Raises:
        ValueError: If the operands do not broadcast by name, or only one of `x` and `y` is given.
        TypeError: If one of them is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> i = nym.arange(nym.Axis("i", 4))
        >>> nym.where(i < 2, i, -1).array
        Array([ 0,  1, -1, -1], dtype=int32)
        >>> (found,) = nym.where(i < 2, fill_value=-1, new_axis=nym.Axis("found", 3))
        >>> found.array
        Array([ 0,  1, -1], dtype=int32)
    """
    if new_axis is not None and x is None and y is None:
        return _true_positions(condition, fill_value, parse_one_axis(new_axis))
    if x is None or y is None or new_axis is not None:
        raise ValueError(
            "`where` needs both `x` and `y`, or neither of them and a `new_axis` for the positions of true elements"
        )
    return apply_broadcast(jnp.where, condition, x, y)


def _true_positions(condition: N, fill_value: Any, new_axis: Axis) -> tuple[N, ...]:
    check_named(condition)
    if not condition.names:
        raise ValueError("a condition without axes has no positions")
    positions = cached_jit(_found, new_axis.size, new_axis.name)(condition.array, fill_value)
    return tuple(with_array(condition, one, (new_axis.name,)) for one in positions)


def _found(size: int, name: str, array: Any, fill_value: Any) -> tuple[Any, ...]:
    found = jnp.where(replicate_dims(array, range(array.ndim)), size=size, fill_value=fill_value)
    return tuple(reshard_by_name(one, (name,)) for one in found)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """Takes each element from the choice of the first condition that holds there; see `jax.numpy.select`.

    Args:
        condlist: Boolean arrays, or scalars.
        choicelist: As many named arrays or scalars.
        default: Named array or scalar, for elements where no condition holds.

    Returns:
        Array with the broadcast axes; all choices are computed, nothing is skipped.

    Raises:
        ValueError: If there is not one choice for each condition, or the operands do not broadcast by name.
        TypeError: If one of them is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> i = nym.arange(nym.Axis("i", 4))
        >>> nym.select([i < 1, i < 3], [-1, i * i], default=9).array
        Array([-1,  1,  4,  9], dtype=int32)
    """
    conditions, choices = tuple(condlist), tuple(choicelist)
    if not conditions or len(conditions) != len(choices):
        raise ValueError(
            f"`select` takes one choice for each condition, at least one: {len(conditions)} conditions and "
            f"{len(choices)} choices were given"
        )
    return apply_broadcast(_selected, *conditions, *choices, default)


def _selected(*operands: Any) -> Any:
    count = len(operands) // 2
    return jnp.select(operands[:count], operands[count:-1], operands[-1])

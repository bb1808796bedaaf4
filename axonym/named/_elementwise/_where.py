"""Choosing elements by conditions: `where` and `select`."""

from collections.abc import Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._ambient import replicate_dims, reshard_by_name
from .._axis import Axis, format_value, parse_one_axis
from .._base import N, check_named, with_array
from .._broadcasting import apply_broadcast
from .._cached_jit import cached_jit


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
    """Takes elements of `x` where the condition is true and of `y` elsewhere; see `jax.numpy.where`.

    For the condition alone it returns the positions of its true elements, as many as the size of `new_axis`.

    Args:
        condition: Boolean array, or a scalar.
        x: Named array or scalar.
        y: Named array or scalar.
        fill_value: The position to use where there are fewer true elements than the size of `new_axis`; a scalar, or
            one for each axis.
        new_axis: Axis of the positions, if neither `x` nor `y` is given.

    Returns:
        Array with the broadcast axes; both branches are computed. It is named if one operand is, even the condition
        alone: `.scalar()` returns the plain array of a result without axes. For the condition alone, a tuple of integer
        arrays over the new axis, one for each axis of the condition.

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
        return _find_true_positions(condition, fill_value, parse_one_axis(new_axis))
    if x is None or y is None or new_axis is not None:
        raise ValueError(
            "`where` needs both `x` and `y`, or neither of them and a `new_axis` for the positions of true elements"
        )
    return apply_broadcast(jnp.where, condition, x, y)


def _find_true_positions(condition: N, fill_value: Any, new_axis: Axis) -> tuple[N, ...]:
    check_named(condition)
    if not condition.names:
        raise ValueError("a condition without axes has no positions")
    positions = cached_jit(_compute_positions, new_axis.size, new_axis.name)(condition.array, fill_value)
    return tuple(with_array(condition, one, (new_axis.name,)) for one in positions)


def _compute_positions(size: int, name: str, array: Any, fill_value: Any) -> tuple[Any, ...]:
    found = jnp.where(replicate_dims(array, range(array.ndim)), size=size, fill_value=fill_value)
    return tuple(reshard_by_name(one, (name,)) for one in found)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """Takes each element from the choice of its first true condition; see `jax.numpy.select`.

    Args:
        condlist: Boolean arrays, or scalars.
        choicelist: As many named arrays or scalars.
        default: Named array or scalar, for elements without a true condition.

    Returns:
        Array with the broadcast axes; all choices are computed.

    Raises:
        ValueError: If there is not one choice for each condition, or the operands do not broadcast by name.
        TypeError: If one of them is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> i = nym.arange(nym.Axis("i", 4))
        >>> nym.select([i < 1, i < 3], [-1, i * i], default=9).array
        Array([-1,  1,  4,  9], dtype=int32)
    """
    if not isinstance(condlist, Sequence) or not isinstance(choicelist, Sequence):
        raise TypeError(
            f"`select` takes a list of conditions and a list of choices, not {format_value(condlist)} and "
            f"{format_value(choicelist)}."
        )
    conditions, choices = tuple(condlist), tuple(choicelist)
    if not conditions or len(conditions) != len(choices):
        raise ValueError(
            f"`select` takes one choice for each condition, at least one: {len(conditions)} conditions and "
            f"{len(choices)} choices were given"
        )
    return apply_broadcast(_compute_select, *conditions, *choices, default)


def _compute_select(*operands: Any) -> Any:
    count = len(operands) // 2
    return jnp.select(operands[:count], operands[count:-1], operands[-1])

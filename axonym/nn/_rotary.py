"""Rotary position embedding over named axes."""

import jax.numpy as jnp

from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelector, axis_name, format_axes
from ..named._base import format_shape
from ..named._creation import arange
from ..named._elementwise._trigonometric import cos, sin
from ..named._named_call import enter_function_scope
from ..named._shape._broadcast import broadcast_axis
from ..named._shape._concatenate import concatenate
from ..named._shape._split import split
from ._inputs import check_input


def rotary_embedding(
    x: NamedArray, Pos: AxisSelector, Key: AxisSelector, *, positions: NamedArray | None = None, theta: float = 10000.0
) -> NamedArray:
    """Rotates pairs of elements by angles that grow with the position (Su et al., 2021).

    Element `i` of the first half of `Key` is paired with element `i` of the second half, and the pair is rotated by
    `position * theta ** (-2 i / size)` radians.

    Args:
        x: Array with both axes and any others, such as queries or keys.
        Pos: The axis of positions.
        Key: The axis whose elements are rotated, of even size.
        positions: Position of each element along `Pos`, with any other axes of `x`; counted from 0 if None.
        theta: Base of the angles.

    Returns:
        Array with the axes and the dtype of `x`.

    Raises:
        ValueError: If `x` lacks an axis, the size of `Key` is odd, or `positions` lacks `Pos` or has an axis that `x`
            lacks.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[1.0, 0.0], [1.0, 0.0]], ("pos", "head_dim"))
        >>> rotated = nym.nn.rotary_embedding(x, "pos", "head_dim")
        >>> [[f"{value:.2f}" for value in row] for row in rotated.array]
        [['1.00', '0.00'], ['0.54', '0.84']]
    """
    check_input("rotary_embedding", x, (Pos, Key))
    axis = x.resolve_axis(Key)
    if axis.size % 2:
        raise ValueError(f"rotary_embedding: axis {axis.name!r} has size {axis.size}, which is odd")
    with enter_function_scope("rotary_embedding", (axis_name(Pos), axis.name)):
        return _rotate_pairs(x, Pos, axis, positions, theta)


def _rotate_pairs(
    x: NamedArray, Pos: AxisSelector, axis: Axis, positions: NamedArray | None, theta: float
) -> NamedArray:
    half = axis.resize(axis.size // 2)
    positions = arange(x.resolve_axis(Pos)) if positions is None else _check_positions(x, Pos, axis, positions)
    frequencies = theta ** (arange(half, dtype=jnp.float32) * (-2 / axis.size))
    angles = broadcast_axis(frequencies, positions.axes) * positions.astype(jnp.float32)
    cosine, sine = cos(angles).astype(x.dtype), sin(angles).astype(x.dtype)
    first, second = split(x, axis, (half, half))
    return concatenate(axis, (first * cosine - second * sine, second * cosine + first * sine))


def _check_positions(x: NamedArray, Pos: AxisSelector, Key: Axis, positions: NamedArray) -> NamedArray:
    check_input("rotary_embedding (positions)", positions, Pos)
    if extra := [name for name in positions.names if name not in x.names or name == Key.name]:
        raise ValueError(
            f"rotary_embedding: `positions` {format_shape(positions)} has axes {format_axes(extra)}; allowed are the "
            f"axes of {format_shape(x)} except {Key.name!r}"
        )
    return positions

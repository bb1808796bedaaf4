"""Rotary position embedding over named axes."""

import jax
import jax.numpy as jnp

from ..named._arguments import check_integer, check_number
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelector, axis_name
from ..named._base import format_shape, get_plain_array
from ..named._creation import arange
from ..named._elementwise._functions import cos, sin
from ..named._format import format_axes, format_value
from ..named._named_call import enter_function_scope
from ..named._shape._broadcast import broadcast_axis
from ..named._shape._concatenate import concatenate, split, stack, unbind
from ..named._shape._flatten import flatten_axes, unflatten_axis
from ..named._shape._rearrange import rearrange
from ._inputs import check_input
from ._rotary_scaling import RotaryScaling, compute_rotary_frequencies


def rotary_embedding(
    x: NamedArray,
    Pos: AxisSelector,
    Key: AxisSelector,
    *,
    positions: NamedArray | None = None,
    theta: float = 10000.0,
    scaling: RotaryScaling | None = None,
    rotary_size: int | None = None,
    interleaved: bool = False,
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
        scaling: How the angles change for sequences longer than those trained on: a `LinearRotaryScaling`,
            `DynamicRotaryScaling`, `Llama3RotaryScaling` or `YarnRotaryScaling`.
        rotary_size: How many elements of `Key` are rotated, an even number; the others stay as they are. All if None.
        interleaved: Whether element `2 i` is paired with element `2 i + 1` instead.

    Returns:
        Array with the axes and the dtype of `x`.

    Raises:
        ValueError: If `x` lacks an axis, the number of rotated elements is odd or does not fit `Key`, or `positions`
            lacks `Pos` or has an axis that `x` lacks.
        TypeError: If `scaling` is not a scaling, or `x` has no floating-point numbers.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[1.0, 0.0], [1.0, 0.0]], ("pos", "head_dim"))
        >>> rotated = nym.nn.rotary_embedding(x, "pos", "head_dim")
        >>> [[f"{value:.2f}" for value in row] for row in rotated.array]
        [['1.00', '0.00'], ['0.54', '0.84']]
    """
    check_input("rotary_embedding", x, (Pos, Key))
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"rotary_embedding: the input is of floating-point numbers, not {x.dtype}; convert it first.")
    if not isinstance(get_plain_array(theta), jax.Array):
        check_number("rotary_embedding: `theta`", theta, above=0)
    axis = x.resolve_axis(Key)
    size = _check_rotary_size(axis, rotary_size)
    if scaling is not None and not isinstance(scaling, RotaryScaling):
        raise TypeError(
            f"rotary_embedding: `scaling` is made by `LinearRotaryScaling` and the like, it is not "
            f"{format_value(scaling)}."
        )
    with enter_function_scope("rotary_embedding", (axis_name(Pos), axis.name)):
        positions = arange(x.resolve_axis(Pos)) if positions is None else _check_positions(x, Pos, axis, positions)
        rotated, *rest = split(x, axis, (axis.resize(size), axis.resize(axis.size - size))) if rotary_size else (x,)
        cosine, sine = _compute_rotation(positions, axis.resize(size // 2), theta, scaling)
        rotate = _rotate_interleaved if interleaved else _rotate_halves
        rotated = rotate(rotated, axis.resize(size), cosine.astype(x.dtype), sine.astype(x.dtype))
        return concatenate(axis, (rotated, *rest)) if rest else rotated


def _check_rotary_size(axis: Axis, rotary_size: int | None) -> int:
    """Returns how many elements of an axis are rotated."""
    size = axis.size if rotary_size is None else check_integer("rotary_embedding: `rotary_size`", rotary_size)
    if rotary_size is not None and not 0 < size <= axis.size:
        raise ValueError(
            f"rotary_embedding: `rotary_size` is {rotary_size}, and axis {axis.name!r} has size {axis.size}; give an "
            "even number of its elements"
        )
    if size % 2:
        what = f"axis {axis.name!r} has size" if rotary_size is None else "`rotary_size` is"
        raise ValueError(f"rotary_embedding: {what} {size}, which is odd")
    return size


def _compute_rotation(
    positions: NamedArray, Half: Axis, theta: float, scaling: RotaryScaling | None
) -> tuple[NamedArray, NamedArray]:
    """Returns cosine and sine of the angle of each pair at each position."""
    if scaling is None:
        frequencies, factor = compute_rotary_frequencies(Half, theta), 1.0
    else:
        frequencies, factor = scaling.compute_frequencies(Half, theta, positions), scaling.compute_attention_factor()
    angles = broadcast_axis(frequencies, positions.axes) * positions.astype(jnp.float32)
    cosine, sine = cos(angles), sin(angles)
    return (cosine, sine) if factor == 1 else (cosine * factor, sine * factor)


def _rotate_halves(x: NamedArray, axis: Axis, cosine: NamedArray, sine: NamedArray) -> NamedArray:
    half = axis.resize(axis.size // 2)
    first, second = split(x, axis, (half, half))
    return concatenate(axis, (first * cosine - second * sine, second * cosine + first * sine))


def _rotate_interleaved(x: NamedArray, axis: Axis, cosine: NamedArray, sine: NamedArray) -> NamedArray:
    half, pair = axis.resize(axis.size // 2), Axis("_pair", 2)
    first, second = unbind(unflatten_axis(x, axis, (half, pair)), pair)
    rotated = stack(pair, (first * cosine - second * sine, second * cosine + first * sine))
    return rearrange(flatten_axes(rotated, (half, pair), axis), x.names)


def _check_positions(x: NamedArray, Pos: AxisSelector, Key: Axis, positions: NamedArray) -> NamedArray:
    check_input("rotary_embedding (positions)", positions, Pos)
    if extra := [name for name in positions.names if name not in x.names or name == Key.name]:
        raise ValueError(
            f"rotary_embedding: `positions` {format_shape(positions)} has axes {format_axes(extra)}; allowed are the "
            f"axes of {format_shape(x)} except {Key.name!r}"
        )
    return positions

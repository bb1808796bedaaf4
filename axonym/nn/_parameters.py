"""What layers share: parameters where they are used, and errors that name the layer."""

from typing import Any

import jax.numpy as jnp

from ..named._ambient import gather_parameter
from ..named._array import NamedArray
from ..named._axis import AxisSelection, AxisSpec, Names, find_axes, format_axes, parse_axes
from ..named._base import format_shape


def in_use(parameter: NamedArray) -> NamedArray:
    """Returns a parameter as the mapping in force shards it: under FSDP, gathered where it is used."""
    return gather_parameter(parameter)


def cast(x: NamedArray, dtype: Any) -> NamedArray:
    """Returns an array of an element type: itself if it has that type already, and not only weakly."""
    same = x.array.dtype == dtype and not getattr(x.array, "weak_type", False)
    return x if same else x.astype(dtype)


def widened(x: NamedArray) -> NamedArray:
    """Returns an array in float32 at least."""
    return cast(x, jnp.promote_types(x.array.dtype, jnp.float32))


def shown(axes: AxisSpec) -> str:
    """Shows axes as error messages do, without the brackets."""
    one = parse_axes(axes)
    return format_axes([axis.name for axis in one], [axis.size for axis in one])[1:-1]


def check_input(layer: str, x: Any, axis: AxisSelection, new: Names = ()) -> tuple[int, ...]:
    """Returns where the axes of a layer are in its input, after checking that it has none that the layer adds.

    Raises:
        TypeError: If the input is not a named array.
        ValueError: If an axis is missing, has another size, or is there already.
    """
    if not isinstance(x, NamedArray):
        raise TypeError(f"{layer}: the input must be a named array, not {type(x).__name__}; use `axonym.named`.")
    try:
        dims = find_axes(x.names, x.array.shape, axis)
    except ValueError as error:
        raise ValueError(f"{layer}: {error}") from None
    if clash := [name for name in new if name in x.names]:
        raise ValueError(f"{layer}: the input {format_shape(x)} has the output axis {clash[0]!r} already; `rename` it")
    return dims

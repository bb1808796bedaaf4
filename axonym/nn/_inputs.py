"""Checks and conversions of the inputs of layers; errors name the layer."""

from typing import Any

import jax.numpy as jnp

from ..named._array import NamedArray
from ..named._axis import AxisSelection, AxisSpec, Names, find_axes, get_names_and_sizes, parse_axes
from ..named._base import format_shape
from ..named._format import format_axes
from ..named._traceback import strip_library_frames


def cast_array(x: NamedArray, dtype: Any) -> NamedArray:
    """Returns an array of a dtype: `x` itself if it has that dtype already and is not weakly typed."""
    same = x.array.dtype == dtype and not getattr(x.array, "weak_type", False)
    return x if same else x.astype(dtype)


def widen_array(x: NamedArray) -> NamedArray:
    """Returns an array in float32 at least."""
    return cast_array(x, widen_dtype(x.array.dtype))


def widen_dtype(*operands: Any) -> Any:
    """Returns the common dtype of arrays or dtypes, float32 at least."""
    return jnp.promote_types(jnp.result_type(*operands), jnp.float32)


def format_layer_axes(axes: AxisSpec) -> str:
    """Formats axes as error messages do, without the parentheses."""
    return format_axes(*get_names_and_sizes(parse_axes(axes)))[1:-1]


def check_input(layer: str, x: Any, axis: AxisSelection, new: Names = ()) -> tuple[int, ...]:
    """Returns the positions of a layer's axes in its input, which must not have the axes that the layer adds."""
    if not isinstance(x, NamedArray):
        raise strip_library_frames(
            TypeError(f"{layer}: the input must be a named array, not {type(x).__name__}; use `axonym.named`.")
        )
    try:
        dims = find_axes(x.names, x.array.shape, axis)
    except ValueError as error:
        raise strip_library_frames(ValueError(f"{layer}: {error}")) from None
    if clash := [name for name in new if name in x.names]:
        raise strip_library_frames(
            ValueError(f"{layer}: the input {format_shape(x)} has the output axis {clash[0]!r} already; `rename` it")
        )
    return dims


def check_axes_among(function: str, operand: str, x: Any, whole: str, of: NamedArray) -> None:
    """Checks that an operand of a function is a named array that has no other axes than another operand."""
    check_input(f"{function} ({operand})", x, ())
    if extra := [name for name in x.names if name not in of.names]:
        raise strip_library_frames(
            ValueError(
                f"{function}: the {operand} {format_shape(x)} have axes {format_axes(extra)}, which the {whole} "
                f"{format_shape(of)} lack"
            )
        )

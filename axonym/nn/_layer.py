"""What layers share: their base class, and checks and casts of their inputs."""

import math
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._ground.errors import make_error
from .._ground.formats import format_axes
from .._ground.jax_compat import is_traced
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelection, AxisSpec, Names, find_axes, get_names_and_sizes, parse_axes
from ..named._base import format_shape


class Layer(eqx.Module):
    """A module whose fields are its parameters, made from axes by the static method `init`."""

    if not TYPE_CHECKING:  # type checkers report wrong arguments by themselves

        def __new__(cls, *args: Any, **kwargs: Any) -> "Layer":
            """Raises a TypeError for the arguments of `init`."""
            first = args[0] if args else None
            first = first[0] if isinstance(first, tuple) and first else first
            is_in_package = cls.__module__.startswith(f"{__package__}.")  # a subclass may have any `__init__`
            has_random_key = "key" in kwargs and "key" not in cls.__dataclass_fields__  # `KVCache` has such a field
            if is_in_package and (isinstance(first, Axis | int | str | type) or has_random_key):
                raise make_error(
                    TypeError, f"Axes and keys are arguments of `{cls.__name__}.init(...)`, which makes a new layer."
                )
            return super().__new__(cls)


def cast_array(x: NamedArray, dtype: Any) -> NamedArray:
    """Returns an array of a dtype: `x` itself if it has that dtype already and is not weakly typed."""
    has_dtype = x.array.dtype == dtype and not getattr(x.array, "weak_type", False)
    return x if has_dtype else x.astype(dtype)


def widen_array(x: NamedArray) -> NamedArray:
    """Returns an array in float32 at least."""
    return cast_array(x, widen_dtype(x.array.dtype))


def widen_dtype(*operands: Any) -> Any:
    """Returns the common dtype of arrays or dtypes, float32 at least, also where JAX forbids implicit conversions."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(jnp.result_type(*operands), jnp.float32)


def format_layer_axes(axes: AxisSpec) -> str:
    """Formats axes as error messages do, without the parentheses."""
    return format_axes(*get_names_and_sizes(parse_axes(axes)))[1:-1]


def check_input(layer: str, x: Any, axis: AxisSelection, new: Names = ()) -> tuple[int, ...]:
    """Returns the positions of a layer's axes in its input, which must not have the axes that the layer adds."""
    if not isinstance(x, NamedArray):
        remedy = "use `axonym.named`"
        if callable(x):  # a model
            remedy = "Optax calls labels that are a model, so pass it `lambda _: labels`"
        raise make_error(TypeError, f"{layer}: the input must be a named array, not {type(x).__name__}; {remedy}.")
    try:
        dims = find_axes(x.names, x.array.shape, axis)
    except ValueError as error:
        raise make_error(ValueError, f"{layer}: {error}") from None
    if clash := [name for name in new if name in x.names]:
        raise make_error(
            ValueError, f"{layer}: the input {format_shape(x)} has the output axis {clash[0]!r} already; `rename` it"
        )
    return dims


def check_axes_among(function: str, operand: str, x: Any, reference_name: str, reference: NamedArray) -> None:
    """Checks that an operand of a function is a named array that has no other axes than another operand."""
    check_input(f"{function} ({operand})", x, ())
    if extra := [name for name in x.names if name not in reference.names]:
        raise make_error(
            ValueError,
            f"{function}: the {operand} {format_shape(x)} have axes {format_axes(extra)}, which the "
            f"{reference_name} {format_shape(reference)} lack",
        )


def read_known_values(x: NamedArray) -> np.ndarray | None:
    """Returns the values of an array, None if they are traced or on devices of other processes."""
    if is_traced(x.array) or not getattr(x.array, "is_fully_addressable", True):
        return None
    return np.asarray(x.array)


def merge_axes(axes: tuple[Axis, ...], name: str) -> tuple[Axis, ...]:
    """Returns one axis of a name for several axes or none; a single axis stays."""
    if len(axes) == 1:
        return axes
    return (Axis(name, math.prod(axis.size for axis in axes)),)


def replace_axes(x: NamedArray, old: tuple[Axis, ...], new: tuple[Axis, ...]) -> NamedArray:
    """Returns an array with its axes merged into one, or one of them split into others."""
    if old == new:
        return x
    return x.flatten_axes(old, new[0]) if len(new) == 1 else x.unflatten_axis(old[0], new)

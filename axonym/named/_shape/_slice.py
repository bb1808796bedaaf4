"""Parts of an axis: slices, rolls and padding."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..._ground.arguments import check_integer
from ..._ground.caches import cached_jit
from ..._ground.formats import format_axes, format_value
from .._axis import Axis, AxisSelection, AxisSelector, axis_name, find_axes, find_axis, parse_one_axis
from .._base import N, NamedBase, check_named, format_shape, with_array
from .._broadcasting import apply_to_whole_axes, as_integer, get_scalar
from .._index import At, dslice, index
from .._numpy_input import check_values
from .._operation import replicate_axes
from .._sharding import reshard_by_name
from ._broadcast import rename


def slice(
    x: N,
    axis: AxisSelector | Mapping[Any, Any] | None = None,
    new_axis: AxisSelector | Mapping[Any, Any] | None = None,
    start: Any = 0,
    length: Any = None,
) -> N:
    """Returns a contiguous slice of an array; see `jax.lax.dynamic_slice`.

    There are two forms: `slice(x, axis, new_axis, start, length)` slices along one axis, and
    `slice(x, start={axis: first}, length={axis: number})` along several.

    Args:
        x: Array of any axes.
        axis: The axis to slice; or the mapping `start`.
        new_axis: The sliced axis, an `Axis` or, with `length`, a name; None keeps the name. Or the mapping `length`.
        start: First element, an integer or an integer scalar array, named or not, which may be traced; a negative start
            counts from the end. A slice that would reach past an end is moved back inside. As a mapping, one for each
            axis, 0 by default.
        length: Number of elements. As a mapping, one for each axis, an integer or the sliced `Axis`.

    Returns:
        Array with the sliced axes in place of the old ones.

    Raises:
        ValueError: If an axis or a length is missing or does not fit, or a name would occur twice.
        TypeError: If a start is not an integer.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 6))
        >>> nym.slice(x, "i", nym.Axis("j", 3), start=2)
        NamedArray(int32, j: 3, [2, 3, 4])
        >>> nym.slice(x, start={"i": 5}, length={"i": 2}).array
        Array([4, 5], dtype=int32)
    """
    check_named(x)
    starts, lengths = _parse_starts_and_lengths(axis, new_axis, start, length)
    starts, lengths = _key_by_name(x, starts), _key_by_name(x, lengths)
    if missing := [name for name in starts if name not in lengths]:
        raise ValueError(f"`slice` of axes {format_axes(missing)} of {format_shape(x)} needs their `length`")
    if not lengths:
        return x
    windows = {name: size if isinstance(size, Axis) else Axis(name, size) for name, size in lengths.items()}
    items = {
        window.name: _make_dslice(x, name, starts.get(name, 0), window.size, "slice")
        for name, window in windows.items()
    }
    renamed = rename(x, {name: window.name for name, window in windows.items()})
    # With this mode a window compiles to `dynamic_slice`, which moves it back inside.
    return index(renamed, items, mode="promise_in_bounds")


def _parse_starts_and_lengths(
    axis: Any, new_axis: Any, start: Any, length: Any
) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
    """Returns mappings from axis to start and to length, for either form of the arguments."""
    if isinstance(axis, Mapping):
        start, length = axis, length if new_axis is None else new_axis
    elif axis is not None:
        return {axis: start}, {axis: _parse_new_axis(axis, new_axis, length)}
    elif isinstance(start, int) and start == 0:
        start = {}
    if not isinstance(start, Mapping) or not isinstance(length, Mapping):
        raise TypeError(
            "`slice` takes an axis, or the mappings `start` and `length`, such as start={'pos': 2}, length={'pos': 3}."
        )
    return start, length


def _parse_new_axis(axis: AxisSelector, new_axis: Any, length: Any) -> Axis:
    if isinstance(new_axis, Axis) and length is None:
        return new_axis
    if length is None:
        raise ValueError(f"`slice` along {axis_name(axis)!r} needs `length`, or an `Axis` as `new_axis`")
    if isinstance(length, Axis):
        length, new_axis = length.size, length if new_axis is None else new_axis
    if isinstance(new_axis, Axis) and new_axis.size != length:
        raise ValueError(
            f"axis {new_axis.name!r} has size {new_axis.size}, a `length` of {length} was given to `slice`"
        )
    return Axis(axis_name(axis if new_axis is None else new_axis), length)


def _key_by_name(x: NamedBase, values: Mapping[Any, Any]) -> dict[str, Any]:
    dims = find_axes(x.names, x.array.shape, tuple(values))
    return {x.names[dim]: value for dim, value in zip(dims, values.values(), strict=True)}


def _make_dslice(x: NamedBase, name: str, start: Any, size: int, function: str) -> dslice:
    if size > x.array.shape[find_axis(x.names, x.array.shape, name)]:
        raise ValueError(f"{size} elements, given to `{function}`, do not fit into axis {name!r} of {format_shape(x)}")
    first = as_integer(start)
    if first is None:
        raise TypeError(
            f"`{function}` along {name!r} of {format_shape(x)} starts at an integer, not at {format_value(start)}."
        )
    return dslice(first, size)


def updated_slice(x: N, start: Mapping[Any, Any], update: NamedBase) -> N:
    """Updates a contiguous slice of an array; see `jax.lax.dynamic_update_slice`.

    Args:
        x: Array of any axes.
        start: First element to update for each axis that the slice does not fill, an integer or an integer scalar
            array, named or not, which may be traced; a negative start counts from the end. A slice that would reach
            past an end is moved back inside.
        update: The values, which give the size of the slice. They are repeated along the axes of `x` that they lack;
            along an axis in `start`, they update one element.

    Returns:
        Array with the axes and the element type of `x`.

    Raises:
        ValueError: If an axis is missing, the update does not fit, or it has axes that `x` lacks.
        TypeError: If a start is not an integer, or the element type of `x` cannot hold the update.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"pos": 4})
        >>> nym.updated_slice(x, {"pos": 1}, nym.ones({"pos": 2})).array
        Array([0., 1., 1., 0.], dtype=float32)
    """
    check_named(x)
    check_named(update)
    if not isinstance(start, Mapping):
        raise TypeError(
            f"`updated_slice` takes a mapping from axis to start, such as {{'pos': 2}}, not {format_value(start)}."
        )
    if extra := [name for name in update.names if name not in x.names]:
        raise ValueError(
            f"the update, {format_shape(update)}, has axes {format_axes(extra)} that {format_shape(x)} lacks"
        )
    starts, update_sizes = _key_by_name(x, start), dict(zip(update.names, update.array.shape, strict=True))
    for name, size in update_sizes.items():
        if name not in starts and size != x.axis_size(name):
            raise ValueError(
                f"axis {name!r} has size {size} in the update and size {x.axis_size(name)} in {format_shape(x)}; "
                "give its `start`"
            )
    items = {
        name: _make_dslice(x, name, first, update_sizes.get(name, 1), "updated_slice") for name, first in starts.items()
    }
    # The window is not sharded along its axes, so the update must not be either.
    names = tuple("" if name in items else name for name in update.names)
    array = reshard_by_name(replicate_axes(update.array, update.names, items), names)
    return At(x, items).set(with_array(update, array), mode="promise_in_bounds")


def roll(x: N, shift: Any, axis: AxisSelection) -> N:
    """Rolls elements along axes, from the end back to the start; see `jax.numpy.roll`.

    Args:
        x: Array of any axes.
        shift: The number of places, towards the end if positive: an integer or an integer scalar array, named or not,
            which may be traced; or a sequence of them, one for each axis.
        axis: The axis, or several.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If an axis is missing, or there is not one shift for each axis.
        TypeError: If a shift is not an integer.

    Example:
        >>> import axonym as nym
        >>> nym.roll(nym.arange(nym.Axis("i", 5)), 2, "i").array
        Array([3, 4, 0, 1, 2], dtype=int32)
    """
    check_named(x)
    dims = find_axes(x.names, x.array.shape, axis)
    shifts = tuple(shift) if isinstance(shift, Sequence) and not isinstance(shift, str) else (shift,) * len(dims)
    if len(shifts) != len(dims):
        raise ValueError(f"{len(shifts)} shifts were given for the axes {format_axes([x.names[dim] for dim in dims])}")
    numbers = tuple(map(as_integer, shifts))
    for number, places in zip(numbers, shifts, strict=True):
        if number is None:
            raise TypeError(
                f"{format_shape(x)} is rolled by an integer along each axis, not by {format_value(places)}."
            )
    if not dims:
        return x
    if all(isinstance(number, int) for number in numbers):
        return apply_to_whole_axes(_roll_static, x, dims, numbers)
    return apply_to_whole_axes(_roll_traced, x, dims, args=numbers)


def _roll_static(array: Any, dims: tuple[int, ...], shifts: tuple[int, ...]) -> Any:
    return jnp.roll(array, shifts, dims)


def _roll_traced(array: Any, dims: tuple[int, ...], *shifts: Any) -> Any:
    return jnp.roll(array, jnp.stack([jnp.asarray(shift) for shift in shifts]), dims)


def flip(x: N, axis: AxisSelection | None = None) -> N:
    """Reverses elements along axes; see `jax.numpy.flip`.

    Args:
        x: Array of any axes.
        axis: The axis, several, or None for all of them.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If an axis is missing or has another size.

    Example:
        >>> import axonym as nym
        >>> nym.flip(nym.arange(nym.Axis("i", 3)), "i").array
        Array([2, 1, 0], dtype=int32)
    """
    check_named(x)
    return with_array(x, cached_jit(_reverse_dims, find_axes(x.names, x.array.shape, axis))(x.array))


def _reverse_dims(dims: tuple[int, ...], array: Any) -> Any:
    return jax.lax.rev(array, dims)


_Widths: TypeAlias = tuple[tuple[int, int], ...]


def pad(
    x: N,
    pad_width: Mapping[Any, int | tuple[int, int]],
    *,
    mode: str = "constant",
    constant_values: Any = 0,
    **kwargs: Any,
) -> N:
    """Pads axes with values at both ends; see `jax.numpy.pad`.

    Args:
        x: Array of any axes.
        pad_width: For each axis, an `Axis` or its name, the number of elements to add at each end, or a pair of numbers
            before and after; the other axes stay as they are.
        mode: The values to add, as for `jax.numpy.pad`: "constant", "edge", "reflect", "wrap" and so on.
        constant_values: The value that "constant" adds, a scalar, or a pair of scalars before and after.
        **kwargs: Options of other modes: `end_values`, `stat_length`, `reflect_type`, one value each for all axes.

    Returns:
        Array with the axes of `x`, some of them longer.

    Raises:
        TypeError: If `pad_width` is not a mapping, a width not an integer, an option not a single value, or the
            element type of `x` cannot hold a value.
        ValueError: If an axis is missing or given twice, a width is negative or not a pair, or an integer is too large
            for the element type.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 3))
        >>> nym.pad(x, {"i": (2, 1)}, constant_values=7).array
        Array([7, 7, 0, 1, 2, 7], dtype=int32)
        >>> nym.pad(x, {"i": 1}, mode="wrap").array
        Array([2, 0, 1, 2, 0], dtype=int32)
    """
    check_named(x)
    if not isinstance(pad_width, Mapping):
        raise TypeError(
            f"`pad` takes a mapping from axis to widths, such as {{'pos': (0, 2)}}, not {format_value(pad_width)}."
        )
    dims = find_axes(x.names, x.array.shape, tuple(pad_width))
    widths = tuple(_parse_width(x, dim, width) for dim, width in zip(dims, pad_width.values(), strict=True))
    for name, value in kwargs.items():
        if not isinstance(value, str | int | float | complex | np.generic | None):
            raise TypeError(
                f"`{name}` of `pad` is one value for all axes, known before compilation, not {format_value(value)}."
            )
        if name == "end_values":
            check_values(value, x.dtype)
    if not dims:
        return x
    options = tuple(kwargs.items())
    if mode == "constant":
        # The values are operands: they may be traced, and others need no new program.
        constants = _parse_constants(x, constant_values)
        return apply_to_whole_axes(_pad_dims, x, dims, widths, mode, options, args=constants)
    return apply_to_whole_axes(_pad_dims, x, dims, widths, mode, options, by_compiler=True)


def _parse_width(x: NamedBase, dim: int, width: Any) -> tuple[int, int]:
    """Returns the numbers of elements to add before and after."""
    widths = tuple(width) if isinstance(width, tuple | list) else (width, width)
    if len(widths) != 2:
        raise ValueError(
            f"axis {x.names[dim]!r} is padded by a number, or by a pair of them, not by {format_value(width)}"
        )
    before, after = (check_integer("pad: a width", width) for width in widths)
    if before < 0 or after < 0:
        raise ValueError(
            f"axis {x.names[dim]!r} of {format_shape(x)} cannot be padded by a negative number of elements"
        )
    return before, after


def _parse_constants(x: NamedBase, value: Any) -> tuple[Any, ...]:
    """Returns the value to pad with, or the values before and after."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not 0 < len(values) < 3:
        raise ValueError(f"`constant_values` is a scalar, or a pair of them, not {format_value(value)}")
    constants = tuple(get_scalar("each value of `constant_values`", constant) for constant in values)
    for constant in constants:
        check_values(constant, x.dtype)
    return constants


def _pad_dims(
    array: Any, dims: tuple[int, ...], widths: _Widths, mode: str, options: tuple[Any, ...], *constants: Any
) -> Any:
    width_by_dim = dict(zip(dims, widths, strict=True))
    all_widths = [width_by_dim.get(dim, (0, 0)) for dim in range(array.ndim)]
    kwargs = dict(options)
    if len(constants) == 1:
        kwargs["constant_values"] = constants[0]
    elif constants:
        kwargs["constant_values"] = jnp.stack([jnp.asarray(value) for value in constants])
    return jnp.pad(array, all_widths, mode=mode, **kwargs)


def pad_left(x: N, axis: AxisSelector, new_axis: Axis, value: Any = 0) -> N:
    """Pads an axis with a value at the start.

    Args:
        x: Array of any axes.
        axis: The axis.
        new_axis: The padded axis, at least as long; it may have another name.
        value: The value to add, a scalar.

    Returns:
        Array with the new axis in place of the old one.

    Raises:
        TypeError: If the new axis has no size.
        ValueError: If the axis is missing, the new one is shorter, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> nym.pad_left(nym.arange(nym.Axis("i", 3)), "i", nym.Axis("j", 5), value=9)
        NamedArray(int32, j: 5, [9, 9, 0, 1, 2])
    """
    check_named(x)
    dim, new = find_axis(x.names, x.array.shape, axis), parse_one_axis(new_axis)
    width = new.size - x.array.shape[dim]
    if width < 0:
        raise ValueError(
            f"axis {x.names[dim]!r} of {format_shape(x)} is longer than {new.size}, to which it was padded"
        )
    return pad(rename(x, {x.names[dim]: new.name}), {new.name: (width, 0)}, constant_values=value)

"""Contiguous slices of an array, read and updated, whose starts may be traced."""

from collections.abc import Mapping
from typing import Any

from .._ambient import replicate_dims, reshard_by_name
from .._axis import Axis, AxisSelector, axis_name, find_axes, find_axis, format_axes, format_value
from .._base import N, NamedBase, check_named, format_shape, with_array
from .._broadcasting import as_integer
from .._index import At, dslice, index
from ._rename import rename


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
    first, size = _key_by_name(x, starts), _key_by_name(x, lengths)
    if without := [name for name in first if name not in size]:
        raise ValueError(f"`slice` of axes {format_axes(without)} of {format_shape(x)} needs their `length`")
    windows = {name: one if isinstance(one, Axis) else Axis(name, one) for name, one in size.items()}
    items = {
        window.name: _make_dslice(x, name, first.get(name, 0), window.size, "slice") for name, window in windows.items()
    }
    renamed = rename(x, {name: window.name for name, window in windows.items()})
    return index(renamed, items, mode="promise_in_bounds") if items else x  # `dynamic_slice` then moves it back inside


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


def _key_by_name(x: NamedBase, given: Mapping[Any, Any]) -> dict[str, Any]:
    dims = find_axes(x.names, x.array.shape, tuple(given))
    return {x.names[dim]: value for dim, value in zip(dims, given.values(), strict=True)}


def _make_dslice(x: NamedBase, name: str, start: Any, size: int, function: str) -> dslice:
    have = x.array.shape[find_axis(x.names, x.array.shape, name)]
    if size > have:
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
    first, have = _key_by_name(x, start), dict(zip(update.names, update.array.shape, strict=True))
    for name, size in have.items():
        if name not in first and size != x.axis_size(name):
            raise ValueError(
                f"axis {name!r} has size {size} in the update and size {x.axis_size(name)} in {format_shape(x)}; "
                "give its `start`"
            )
    items = {name: _make_dslice(x, name, one, have.get(name, 1), "updated_slice") for name, one in first.items()}
    array = replicate_dims(update.array, tuple(dim for dim, name in enumerate(update.names) if name in items))
    array = reshard_by_name(array, tuple("" if name in items else name for name in update.names))
    return At(x, items).set(with_array(update, array), mode="promise_in_bounds")

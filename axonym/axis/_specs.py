"""Conversion, comparison and algebra of axis specs.

For a spec that maps names to sizes, such as a dict or the shape of a named array, functions return a dict, for any
other a tuple; a single `Axis` is a spec of one axis. Axes without a size are represented by their names. Axes keep the
order of the first argument.
"""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypeAlias, overload

from .._ground.errors import make_error
from .._ground.formats import suggest_name
from ..named._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    AxisSpec,
    PartialAxisSpec,
    SizesByName,
    axis_name as _name,
    check_selected_once,
    check_unique_names,
    complete_order,
    parse_axes,
    parse_selection,
)


ShapeDict: TypeAlias = Mapping[str, int]
"""Sizes by name."""

PartialShapeDict: TypeAlias = Mapping[str, int | None]
"""Sizes by name, where a size may be unknown."""

PartialAxes: TypeAlias = tuple[AxisSelector, ...] | PartialShapeDict


def parse_axis_sizes(selection: AxisSelection | AxisSpec) -> dict[str, int | None]:
    """Returns the sizes of axes by name, None for an axis without a size."""
    selectors: Any = parse_selection(selection)  # pyright: ignore[reportArgumentType]
    check_selected_once(tuple(map(_name, selectors)))
    return {_name(selector): selector.size if isinstance(selector, Axis) else None for selector in selectors}


def convert_like(spec: Any, sizes: PartialShapeDict) -> Any:
    """Returns axes as a dict if the spec is a mapping, otherwise as a tuple."""
    if hasattr(spec, "items"):
        return dict(sizes)
    return tuple(name if size is None else Axis(name, size) for name, size in sizes.items())


def format_sizes(sizes: PartialShapeDict) -> str:
    """Formats axes for error messages, those without a size by their names."""
    return f"({', '.join(name if size is None else f'{name}: {size}' for name, size in sizes.items())})"


def check_axes_present(sizes: PartialShapeDict, selected: PartialShapeDict) -> None:
    """Raises a ValueError if a selected axis is missing or has another size."""
    for name, size in selected.items():
        if name not in sizes:
            suggestion = suggest_name(name, list(sizes))
            raise make_error(ValueError, f"no axis {name!r} in {format_sizes(sizes)}{suggestion}")
        if not _has_same_size(size, sizes[name]):
            raise ValueError(f"axis {name!r} has size {sizes[name]} here, {size} was asked for")


@overload
def axis_name(axis: AxisSelector) -> str: ...
@overload
def axis_name(axis: Sequence[AxisSelector] | PartialShapeDict | SizesByName) -> tuple[str, ...]: ...
def axis_name(axis: Any) -> str | tuple[str, ...]:
    """Returns the name of an axis, or the names of several.

    Args:
        axis: An `Axis` or a name; or a sequence of them, or a mapping from name to size.

    Returns:
        The name; for a sequence or a mapping a tuple of names.

    Raises:
        TypeError: If something is neither an `Axis` nor a name.

    Example:
        >>> import axonym as nym
        >>> nym.axis_name(nym.Axis("batch", 8)), nym.axis_name(["embed", nym.Axis("batch", 8)])
        ('batch', ('embed', 'batch'))
    """
    if isinstance(axis, str | Axis) or not isinstance(axis, Iterable) or hasattr(axis, "dtype"):
        return _name(axis)  # pyright: ignore[reportArgumentType]
    return tuple(map(_name, axis.keys() if hasattr(axis, "items") else axis))  # pyright: ignore


def axis_size(spec: AxisSpec) -> int:
    """Returns the number of elements along axes: the size of one axis, or the product of several sizes.

    Args:
        spec: An `Axis`, a sequence of them, or a mapping from name to size.

    Raises:
        TypeError: If an axis has no size.
        ValueError: If a name is given twice.

    Example:
        >>> import axonym as nym
        >>> nym.axis.axis_size(nym.Axis("batch", 8)), nym.axis.axis_size({"batch": 8, "embed": 4})
        (8, 32)
    """
    return math.prod(axis.size for axis in parse_axes(spec))


def axis_spec_to_shape_dict(spec: AxisSpec) -> dict[str, int]:
    """Returns the axes of a spec as a dict from name to size. Arguments as for `axis_size`.

    Example:
        >>> import axonym as nym
        >>> nym.axis.axis_spec_to_shape_dict(nym.make_axes(batch=8, embed=4))
        {'batch': 8, 'embed': 4}
    """
    return {axis.name: axis.size for axis in parse_axes(spec)}


def axis_spec_to_tuple(spec: AxisSpec) -> tuple[Axis, ...]:
    """Returns the axes of a spec as a tuple. Arguments as for `axis_size`.

    Example:
        >>> import axonym as nym
        >>> nym.axis.axis_spec_to_tuple({"batch": 8})
        (Axis(name='batch', size=8),)
    """
    return parse_axes(spec)


def to_jax_shape(shape: AxisSpec | int | Sequence[Axis | int]) -> tuple[int, ...]:
    """Returns the sizes of axes as a shape that JAX takes.

    Args:
        shape: An `Axis`, a mapping from name to size, an integer, or a sequence of axes and integers.

    Raises:
        TypeError: If an axis has no size.
        ValueError: If a name is given twice.

    Example:
        >>> import axonym as nym
        >>> nym.axis.to_jax_shape({"batch": 8, "embed": 4}), nym.axis.to_jax_shape((nym.Axis("batch", 8), 3))
        ((8, 4), (8, 3))
    """
    items: Any = (shape,) if hasattr(shape, "__index__") else shape
    if not isinstance(items, tuple | list) or hasattr(items, "items"):
        items = parse_axes(items)
    axes = iter(parse_axes(tuple(item for item in items if not hasattr(item, "__index__"))))
    return tuple(operator.index(item) if hasattr(item, "__index__") else next(axes).size for item in items)


@overload
def resolve_axis(spec: AxisSpec, selection: AxisSelector) -> Axis: ...
@overload
def resolve_axis(spec: AxisSpec, selection: PartialShapeDict | SizesByName) -> dict[str, int]: ...
@overload
def resolve_axis(spec: AxisSpec, selection: Sequence[AxisSelector]) -> tuple[Axis, ...]: ...
def resolve_axis(spec: AxisSpec, selection: Any) -> Any:
    """Returns the selected axes, with their sizes.

    Args:
        spec: The axes to select from: an `Axis`, a sequence of them, or a mapping from name to size.
        selection: An `Axis` or a name; or a sequence of them, or a mapping from name to size or None.

    Returns:
        An `Axis` for one selector, a dict for a mapping, a tuple for a sequence.

    Raises:
        TypeError: If an axis of the spec has no size, or a selector is not an axis.
        ValueError: If a selected axis is missing, has another size, or is selected twice.

    Example:
        >>> import axonym as nym
        >>> axes = nym.make_axes(batch=8, embed=4)
        >>> nym.axis.resolve_axis(axes, "embed")
        Axis(name='embed', size=4)
        >>> nym.axis.resolve_axis(axes, {"embed": None})
        {'embed': 4}
    """
    sizes, selected = axis_spec_to_shape_dict(spec), parse_axis_sizes(selection)
    check_axes_present(sizes, selected)
    if isinstance(selection, str | Axis):
        (name,) = selected
        return Axis(name, sizes[name])
    return convert_like(selection, {name: sizes[name] for name in selected})


@overload
def unsize_axes(
    spec: PartialShapeDict | SizesByName, to_unsize: AxisSelection | None = None
) -> dict[str, int | None]: ...
@overload
def unsize_axes(
    spec: AxisSelector | Sequence[AxisSelector], to_unsize: AxisSelection | None = None
) -> tuple[AxisSelector, ...]: ...
def unsize_axes(spec: Any, to_unsize: AxisSelection | None = None) -> Any:
    """Removes the sizes of axes, so that only their names remain.

    Args:
        spec: Axes, with or without sizes.
        to_unsize: The axes whose size is removed; None for all.

    Returns:
        A tuple in which those axes are names; for a mapping, a dict in which their sizes are None.

    Raises:
        TypeError: If something is not an axis.
        ValueError: If an axis of `to_unsize` is missing or has another size.

    Example:
        >>> import axonym as nym
        >>> nym.axis.unsize_axes(nym.make_axes(batch=8, embed=4), "batch")
        ('batch', Axis(name='embed', size=4))
        >>> nym.axis.unsize_axes({"batch": 8, "embed": 4})
        {'batch': None, 'embed': None}
    """
    sizes = parse_axis_sizes(spec)
    unsized = sizes if to_unsize is None else parse_axis_sizes(to_unsize)
    check_axes_present(sizes, unsized)
    return convert_like(spec, {name: None if name in unsized else size for name, size in sizes.items()})


def selects_axis(selector: AxisSelection, selected: AxisSelection) -> bool:
    """Returns whether a selection has every axis of another, with the same size where both have a size.

    Args:
        selector: The selection to search: one axis or several, by name or as `Axis`.
        selected: The axes to look for.

    Raises:
        TypeError: If something is not an axis.
        ValueError: If a selection has an axis twice.

    Example:
        >>> import axonym as nym
        >>> nym.axis.selects_axis(("batch", "embed"), nym.Axis("embed", 4)), nym.axis.selects_axis("batch", "embed")
        (True, False)
    """
    sizes = parse_axis_sizes(selector)
    return all(name in sizes and _has_same_size(size, sizes[name]) for name, size in parse_axis_sizes(selected).items())


def is_axis_compatible(first: AxisSelector, second: AxisSelector) -> bool:
    """Returns whether two selectors can mean the same axis: equal names, and equal sizes where both have a size.

    Args:
        first: An `Axis` or a name.
        second: An `Axis` or a name.

    Raises:
        TypeError: If one is neither an `Axis` nor a name.

    Example:
        >>> import axonym as nym
        >>> Embed = nym.Axis("embed", 4)
        >>> nym.axis.is_axis_compatible(Embed, "embed"), nym.axis.is_axis_compatible(Embed, Embed.resize(5))
        (True, False)
    """
    return selects_axis((first,), (second,))


def _has_same_size(first: int | None, second: int | None) -> bool:
    return first is None or second is None or first == second


@overload
def concat_axes(first: SizesByName, second: AxisSpec) -> dict[str, int]: ...
@overload
def concat_axes(first: Axis | Sequence[Axis], second: AxisSpec) -> tuple[Axis, ...]: ...
@overload
def concat_axes(first: AxisSelection, second: AxisSelection) -> PartialAxes: ...
def concat_axes(first: Any, second: Any) -> Any:
    """Returns the axes of one spec followed by the axes of another, which must differ.

    Args:
        first: One axis or several.
        second: One axis or several, none of them in `first`.

    Returns:
        A dict if `first` is a mapping, otherwise a tuple.

    Raises:
        TypeError: If something is not an axis.
        ValueError: If both have a name.

    Example:
        >>> import axonym as nym
        >>> Batch, Embed = nym.make_axes(batch=8, embed=4)
        >>> nym.axis.concat_axes({"batch": 8}, Embed)
        {'batch': 8, 'embed': 4}
        >>> nym.axis.concat_axes(Batch, Embed) == (Batch, Embed)
        True
    """
    first_sizes, second_sizes = parse_axis_sizes(first), parse_axis_sizes(second)
    if shared := [name for name in second_sizes if name in first_sizes]:
        raise ValueError(
            f"axis {shared[0]!r} is in both {format_sizes(first_sizes)} and {format_sizes(second_sizes)}; "
            "`union_axes` keeps it once"
        )
    return convert_like(first, first_sizes | second_sizes)


concat_axis_specs = concat_axes


@overload
def union_axes(first: SizesByName, second: AxisSpec) -> dict[str, int]: ...
@overload
def union_axes(first: Axis | Sequence[Axis], second: AxisSpec) -> tuple[Axis, ...]: ...
@overload
def union_axes(first: AxisSelection, second: AxisSelection) -> PartialAxes: ...
def union_axes(first: Any, second: Any) -> Any:
    """Returns the axes of one spec followed by the axes that only another has.

    Args:
        first: One axis or several.
        second: One axis or several.

    Returns:
        A dict if `first` is a mapping, otherwise a tuple. An axis with a size in only one of them has that size.

    Raises:
        TypeError: If something is not an axis.
        ValueError: If the sizes of an axis differ.

    Example:
        >>> import axonym as nym
        >>> nym.axis.union_axes({"batch": 8, "pos": 2}, {"pos": 2, "embed": 4})
        {'batch': 8, 'pos': 2, 'embed': 4}
    """
    first_sizes, second_sizes = parse_axis_sizes(first), parse_axis_sizes(second)
    names = dict.fromkeys((*first_sizes, *second_sizes))
    return convert_like(first, {name: _merge_sizes(name, first_sizes, second_sizes) for name in names})


@overload
def intersect_axes(first: SizesByName, second: AxisSelection) -> dict[str, int]: ...
@overload
def intersect_axes(first: Axis | Sequence[Axis], second: AxisSelection) -> tuple[Axis, ...]: ...
@overload
def intersect_axes(first: AxisSelection, second: AxisSelection) -> PartialAxes: ...
def intersect_axes(first: Any, second: Any) -> Any:
    """Returns the axes that two specs share, in the order of the first. Arguments as for `union_axes`.

    Raises:
        TypeError: If something is not an axis.
        ValueError: If the sizes of an axis differ.

    Example:
        >>> import axonym as nym
        >>> nym.axis.intersect_axes(nym.make_axes(batch=8, embed=4), ("embed", "pos"))
        (Axis(name='embed', size=4),)
    """
    first_sizes, second_sizes = parse_axis_sizes(first), parse_axis_sizes(second)
    shared = [name for name in first_sizes if name in second_sizes]
    return convert_like(first, {name: _merge_sizes(name, first_sizes, second_sizes) for name in shared})


def _merge_sizes(name: str, first_sizes: PartialShapeDict, second_sizes: PartialShapeDict) -> int | None:
    """Returns the size of an axis in two specs, which must agree if both give one."""
    first, second = first_sizes.get(name), second_sizes.get(name)
    if not _has_same_size(first, second):
        raise ValueError(
            f"axis {name!r} has size {first} and size {second} in {format_sizes(first_sizes)} and "
            f"{format_sizes(second_sizes)}"
        )
    return second if first is None else first


@overload
def eliminate_axes(spec: SizesByName, remove: AxisSelection) -> dict[str, int]: ...
@overload
def eliminate_axes(spec: Axis | Sequence[Axis], remove: AxisSelection) -> tuple[Axis, ...]: ...
@overload
def eliminate_axes(spec: AxisSelection, remove: AxisSelection) -> PartialAxes: ...
def eliminate_axes(spec: Any, remove: Any) -> Any:
    """Returns the axes of a spec without some, which it must have; see `without_axes` for axes that may be missing.

    Args:
        spec: One axis or several.
        remove: The axes to leave out, one or several.

    Returns:
        A dict if `spec` is a mapping, otherwise a tuple.

    Raises:
        TypeError: If something is not an axis.
        ValueError: If an axis to leave out is missing or has another size.

    Example:
        >>> import axonym as nym
        >>> nym.axis.eliminate_axes({"batch": 8, "embed": 4}, "batch")
        {'embed': 4}
    """
    check_axes_present(parse_axis_sizes(spec), parse_axis_sizes(remove))
    return without_axes(spec, remove)


@overload
def without_axes(spec: SizesByName, remove: AxisSelection, allow_mismatched_sizes: bool = False) -> dict[str, int]: ...
@overload
def without_axes(
    spec: Axis | Sequence[Axis], remove: AxisSelection, allow_mismatched_sizes: bool = False
) -> tuple[Axis, ...]: ...
@overload
def without_axes(spec: AxisSelection, remove: AxisSelection, allow_mismatched_sizes: bool = False) -> PartialAxes: ...
def without_axes(spec: Any, remove: Any, allow_mismatched_sizes: bool = False) -> Any:
    """Returns the axes of a spec without some, which may be missing.

    Args:
        spec: One axis or several.
        remove: The axes to leave out, one or several.
        allow_mismatched_sizes: Whether to leave out an axis of another size too, instead of raising an error.

    Returns:
        A dict if `spec` is a mapping, otherwise a tuple.

    Raises:
        TypeError: If something is not an axis.
        ValueError: If an axis to leave out has another size.

    Example:
        >>> import axonym as nym
        >>> nym.axis.without_axes({"batch": 8, "embed": 4}, ("batch", "pos"))
        {'embed': 4}
    """
    sizes, removed = parse_axis_sizes(spec), parse_axis_sizes(remove)
    if not allow_mismatched_sizes:
        check_axes_present(sizes, {name: size for name, size in removed.items() if name in sizes})
    return convert_like(spec, {name: size for name, size in sizes.items() if name not in removed})


@overload
def replace_axis(spec: SizesByName, old: AxisSelector, new: AxisSpec) -> dict[str, int]: ...
@overload
def replace_axis(spec: Axis | Sequence[Axis], old: AxisSelector, new: AxisSpec) -> tuple[Axis, ...]: ...
@overload
def replace_axis(spec: AxisSelection, old: AxisSelector, new: AxisSelection) -> PartialAxes: ...
def replace_axis(spec: Any, old: AxisSelector, new: Any) -> Any:
    """Returns the axes of a spec with one axis replaced by one or several.

    Args:
        spec: One axis or several.
        old: The axis to replace.
        new: Its replacement: one axis, several, or none.

    Returns:
        A dict if `spec` is a mapping, otherwise a tuple.

    Raises:
        TypeError: If something is not an axis.
        ValueError: If `old` is missing or has another size, or a new name is present already.

    Example:
        >>> import axonym as nym
        >>> nym.axis.replace_axis({"batch": 8, "embed": 4}, "embed", {"heads": 2, "head": 2})
        {'batch': 8, 'heads': 2, 'head': 2}
    """
    sizes, replaced, replacement = parse_axis_sizes(spec), parse_axis_sizes((old,)), parse_axis_sizes(new)
    check_axes_present(sizes, replaced)
    pairs: list[tuple[str, int | None]] = []
    for name, size in sizes.items():
        if name in replaced:
            pairs += replacement.items()
        else:
            pairs.append((name, size))
    check_unique_names(tuple(name for name, _ in pairs))
    return convert_like(spec, dict(pairs))


@overload
def rearrange_for_partial_order(
    partial: PartialAxisSpec | AxisSelector | EllipsisType, axes: SizesByName
) -> dict[str, int]: ...
@overload
def rearrange_for_partial_order(
    partial: PartialAxisSpec | AxisSelector | EllipsisType, axes: Axis | Sequence[Axis]
) -> tuple[Axis, ...]: ...
def rearrange_for_partial_order(partial: Any, axes: Any) -> Any:
    """Returns axes in a partial order, in which `...` means all others in their current order.

    Args:
        partial: The order: axes, or names of axes, and at most one `...`.
        axes: The axes to put in that order.

    Returns:
        All axes, a dict if `axes` is a mapping, otherwise a tuple.

    Raises:
        TypeError: If an axis of `axes` has no size, or an item of the order is not an axis.
        ValueError: If an axis of the order is missing, has another size or is named twice; if axes are left out without
            `...`; if `...` occurs twice.

    Example:
        >>> import axonym as nym
        >>> nym.axis.rearrange_for_partial_order(("embed", ...), {"batch": 8, "pos": 2, "embed": 4})
        {'embed': 4, 'batch': 8, 'pos': 2}
    """
    sizes = axis_spec_to_shape_dict(axes)
    order = complete_order(tuple(sizes), tuple(sizes.values()), _list_order_items(partial))
    return convert_like(axes, {name: sizes[name] for name in order})


def replace_missing_with_ellipsis(
    partial: PartialAxisSpec | AxisSelector | EllipsisType, axes: AxisSelection | AxisSpec
) -> tuple[AxisSelector | EllipsisType, ...]:
    """Returns a partial order with `...` in place of each run of axes that a spec lacks.

    Args:
        partial: Axes, or names of axes, and `...`.
        axes: The axes that are present.

    Returns:
        The items of the order whose axes are present, with a single `...` in place of each run of others.

    Raises:
        TypeError: If something is not an axis.
        ValueError: If an axis has another size in `axes`.

    Example:
        >>> import axonym as nym
        >>> nym.axis.replace_missing_with_ellipsis(("batch", "pos", "embed"), nym.make_axes(batch=8, embed=4))
        ('batch', Ellipsis, 'embed')
    """
    sizes, order = parse_axis_sizes(axes), []
    for item in _list_order_items(partial):
        selected = {} if item is ... else parse_axis_sizes((item,))
        if selected.keys() & sizes.keys():
            check_axes_present(sizes, selected)
            order.append(item)
        elif order[-1:] != [...]:
            order.append(...)
    return tuple(order)


def _list_order_items(partial: Any) -> tuple[Any, ...]:
    """Returns the items of a partial order, which may be a single item."""
    return (partial,) if partial is ... or isinstance(partial, str | Axis) else tuple(partial)

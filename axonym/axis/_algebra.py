"""The algebra of axes: concatenation, union, intersection, difference, replacement and order.

Each function returns axes in the form and order of its first argument; see `_specs.py`.
"""

from collections.abc import Sequence
from types import EllipsisType
from typing import Any, overload

from ..named._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    AxisSpec,
    PartialAxisSpec,
    SizesByName,
    check_unique_names,
    complete_order,
    parse_axes,
)
from ._specs import PartialAxes, check_axes_present, convert_like, format_sizes, parse_axis_sizes


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
    one, other = parse_axis_sizes(first), parse_axis_sizes(second)
    if twice := [name for name in other if name in one]:
        raise ValueError(
            f"axis {twice[0]!r} is in both {format_sizes(one)} and {format_sizes(other)}; `union_axes` keeps it once"
        )
    return convert_like(first, one | other)


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
    one, other = parse_axis_sizes(first), parse_axis_sizes(second)
    return convert_like(first, {**one, **{name: _merge_sizes(name, one, other) for name in (*one, *other)}})


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
    one, other = parse_axis_sizes(first), parse_axis_sizes(second)
    return convert_like(first, {name: _merge_sizes(name, one, other) for name in one if name in other})


def _merge_sizes(name: str, one: dict[str, int | None], other: dict[str, int | None]) -> int | None:
    """Returns the size of an axis in either spec, which must agree."""
    size, wanted = one.get(name), other.get(name)
    if size is not None and wanted is not None and size != wanted:
        raise ValueError(
            f"axis {name!r} has size {size} and size {wanted} in {format_sizes(one)} and {format_sizes(other)}"
        )
    return wanted if size is None else size


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
    found, wanted = parse_axis_sizes(spec), parse_axis_sizes(remove)
    check_axes_present(found, wanted)
    return convert_like(spec, {name: size for name, size in found.items() if name not in wanted})


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
    found, wanted = parse_axis_sizes(spec), parse_axis_sizes(remove)
    if not allow_mismatched_sizes:
        check_axes_present(found, {name: size for name, size in wanted.items() if name in found})
    return convert_like(spec, {name: size for name, size in found.items() if name not in wanted})


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
    found, wanted, replacement = parse_axis_sizes(spec), parse_axis_sizes((old,)), parse_axis_sizes(new)
    check_axes_present(found, wanted)
    pairs = [
        pair for name, size in found.items() for pair in (replacement.items() if name in wanted else [(name, size)])
    ]
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
    found = {axis.name: axis.size for axis in parse_axes(axes)}
    order = complete_order(tuple(found), tuple(found.values()), _list_order_items(partial))
    return convert_like(axes, {name: found[name] for name in order})


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
    found, result = parse_axis_sizes(axes), []
    for item in _list_order_items(partial):
        ((name, size),) = ((None, None),) if item is ... else parse_axis_sizes((item,)).items()
        kept = ... if name not in found else item
        if name in found:
            check_axes_present(found, {name: size})
        if kept is not ... or not result or result[-1] is not ...:
            result.append(kept)
    return tuple(result)


def _list_order_items(partial: Any) -> tuple[Any, ...]:
    """Returns the items of a partial order, which may be a single item."""
    return (partial,) if partial is ... or isinstance(partial, str | Axis) else tuple(partial)

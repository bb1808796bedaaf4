"""Selections and specs of axes as Haliax's `haliax.axis` resolves them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import axis as algebra
from ..named._axis import Axis, AxisSelection, AxisSelector, axis_name as get_name, parse_selection


def list_selectors(selection: AxisSelection) -> tuple[AxisSelector, ...]:
    """Returns the names and axes of a selection."""
    return tuple(selection) if isinstance(selection, Mapping) else parse_selection(selection)


def list_axes(spec: Any) -> tuple[Any, ...]:
    """Returns the axes of a spec, with their sizes where it has them."""
    return parse_selection(spec)


def resolve_selection(spec: Any, selection: AxisSelection) -> Any:
    """Returns the selected axes of a spec with their sizes: an `Axis`, a tuple or a dict, as the selection is."""
    found = {one.name: one for one in list_axes(spec)}

    def find(selector: AxisSelector) -> Axis:
        name = get_name(selector)
        if name not in found:
            raise ValueError(f"no axis {name!r} among {', '.join(found) or 'no axes'}")
        if isinstance(selector, Axis) and selector != found[name]:
            raise ValueError(f"axis {name!r} has size {found[name].size} here, {selector.size} was asked for")
        return found[name]

    if isinstance(selection, str | Axis):
        return find(selection)
    axes = tuple(find(one) for one in parse_selection(selection))
    return {one.name: one.size for one in axes} if isinstance(selection, Mapping) else axes


def axis_name(ax: AxisSelection) -> Any:
    """Returns the name of an axis, or a tuple of the names of several.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.axis_name(hax.make_axes(batch=2, embed=3))
        ('batch', 'embed')
    """
    return get_name(ax) if isinstance(ax, str | Axis) else tuple(get_name(one) for one in list_selectors(ax))


def is_axis_compatible(ax1: AxisSelector, ax2: AxisSelector) -> bool:
    """Returns whether two axes have the same name, whatever their sizes.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.axis.is_axis_compatible(hax.Axis("batch", 2), hax.Axis("batch", 3))
        True
    """
    return get_name(ax1) == get_name(ax2)


def rearrange_for_partial_order(partial_order: Sequence[Any], axes: Any) -> Any:
    """Returns axes in a partial order; of several `...`, each takes the axes before those after it.

    Args:
        partial_order: Names, axes and `...`.
        axes: The axes to order, or their names.

    Returns:
        The axes in order.

    Raises:
        ValueError: If an axis listed is missing or listed twice, or one is left out without a `...`.

    Example:
        >>> import axonym.haliax as hax
        >>> axes = hax.make_axes(a=2, b=3, c=4)
        >>> [axis.name for axis in hax.axis.rearrange_for_partial_order((..., "b", ...), axes)]
        ['a', 'b', 'c']
    """
    order = tuple(partial_order)
    if order.count(...) < 2 and all(isinstance(one, Axis) for one in axes):
        return algebra.rearrange_for_partial_order(order, axes)
    names = {get_name(one): one for one in axes}
    listed = [one if one is ... else get_name(one) for one in order]
    if twice := [name for name in names if listed.count(name) > 1]:
        raise ValueError(f"the order lists {twice[0]!r} more than once")
    if missing := [name for name in listed if name is not ... and name not in names]:
        raise ValueError(f"the order lists {missing[0]!r}, which is not among {', '.join(names)}")
    rest = [name for name in names if name not in listed]
    if rest and ... not in listed:
        raise ValueError(f"the order leaves out {', '.join(rest)}; add `...` for the others")
    return tuple(names[name] for name in fill_ellipses(listed, list(names), rest))


def fill_ellipses(listed: list[Any], names: list[str], rest: list[str]) -> Iterable[str]:
    """Yields the names of an order; the last ellipsis takes the rest, others what precedes the names after them."""
    last = len(listed) - 1 - listed[::-1].index(...) if ... in listed else -1
    for at, one in enumerate(listed):
        if one is not ...:
            yield one
            continue
        fronted = {name for name in listed[at + 1 : last] if name is not ...}
        taken = rest if at == last else _take_preceding(names, rest, fronted, listed[:at])
        yield from taken
        rest = [name for name in rest if name not in taken]


def _take_preceding(names: list[str], rest: list[str], fronted: set[str], before: list[Any]) -> list[str]:
    """Returns the names to take, which end at one of those that follow, or after some at one that was listed before."""
    taken: list[str] = []
    for name in names:
        if name in fronted or (taken and name in before):
            break
        taken += [name] if name in rest else []
    return taken


def resolve_axis(axis_spec: Any, axis_selection: AxisSelection) -> Any:
    """Returns the selected axes of a spec: an `Axis`, a tuple or a dict, as the selection is.

    Args:
        axis_spec: Axes with sizes.
        axis_selection: One of them, a sequence, or a mapping from names to sizes or None.

    Returns:
        The axes with the sizes of the spec.

    Raises:
        ValueError: If an axis is missing or has another size.

    Example:
        >>> import axonym.haliax as hax
        >>> axes = hax.make_axes(batch=2, embed=3)
        >>> hax.axis.resolve_axis(axes, "embed"), hax.axis.resolve_axis(axes, {"batch": None})
        (Axis(name='embed', size=3), {'batch': 2})
    """
    return resolve_selection(axis_spec, axis_selection)


def axis_spec_to_shape_dict(axis_spec: AxisSelection) -> dict[str, int | None]:
    """Returns the sizes of axes by name, None for those given by name alone.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.axis.axis_spec_to_shape_dict((hax.Axis("batch", 2), "embed"))
        {'batch': 2, 'embed': None}
    """
    return {get_name(one): one.size if isinstance(one, Axis) else None for one in parse_selection(axis_spec)}

"""Selections of axes, and orders in which `...` may occur several times, as Haliax's `haliax.axis` resolves them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import axis as algebra
from ..named._axis import Axis, AxisSelection, AxisSelector, axis_name as get_name, parse_selection


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
    axes_by_name: Any = {axis.name: axis for axis in parse_selection(axis_spec)}  # pyright: ignore[reportAttributeAccessIssue]

    def find(selector: AxisSelector) -> Axis:
        name = get_name(selector)
        if name not in axes_by_name:
            raise ValueError(f"no axis {name!r} among {', '.join(axes_by_name) or 'no axes'}")
        axis = axes_by_name[name]
        if isinstance(selector, Axis) and selector != axis:
            raise ValueError(f"axis {name!r} has size {axis.size} here, {selector.size} was asked for")
        return axis

    if isinstance(axis_selection, str | Axis):
        return find(axis_selection)
    axes = tuple(map(find, parse_selection(axis_selection)))
    return {axis.name: axis.size for axis in axes} if isinstance(axis_selection, Mapping) else axes


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
    if order.count(...) < 2 and all(isinstance(axis, Axis) for axis in axes):
        return algebra.rearrange_for_partial_order(order, axes)
    axes_by_name = {get_name(axis): axis for axis in axes}
    names_in_order = [item if item is ... else get_name(item) for item in order]
    if duplicates := [name for name in axes_by_name if names_in_order.count(name) > 1]:
        raise ValueError(f"the order lists {duplicates[0]!r} more than once")
    if missing := [name for name in names_in_order if name is not ... and name not in axes_by_name]:
        raise ValueError(f"the order lists {missing[0]!r}, which is not among {', '.join(axes_by_name)}")
    unlisted = [name for name in axes_by_name if name not in names_in_order]
    if unlisted and ... not in names_in_order:
        raise ValueError(f"the order leaves out {', '.join(unlisted)}; add `...` for the others")
    return tuple(axes_by_name[name] for name in fill_ellipses(names_in_order, list(axes_by_name)))


def fill_ellipses(order: list[Any], names: list[str]) -> Iterable[str]:
    """Yields the names of an order, with those that it does not list in place of its ellipses.

    The last ellipsis stands for all that remain. An earlier one stands for the unlisted names up to the first name that
    the order lists after it, or, once it stands for some, up to a name that the order lists before it.
    """
    unlisted = [name for name in names if name not in order]
    last_ellipsis = len(order) - 1 - order[::-1].index(...) if ... in order else -1
    for position, item in enumerate(order):
        if item is not ...:
            yield item
            continue
        if position == last_ellipsis:
            yield from unlisted
            continue
        names_before, names_after = order[:position], order[position + 1 : last_ellipsis]
        run: list[str] = []
        for name in names:
            if name in names_after or (run and name in names_before):
                break
            if name in unlisted:
                run.append(name)
        yield from run
        unlisted = [name for name in unlisted if name not in run]

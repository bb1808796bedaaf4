"""Conversion, lookup and comparison of axis specs.

For a spec that maps names to sizes, such as a dict or the shape of a named array, functions return a dict, for any
other a tuple; a single `Axis` is a spec of one axis. Axes without a size are represented by their names.
"""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, overload

from ..named._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    AxisSpec,
    SizesByName,
    axis_name as _name,
    check_selected_once,
    parse_axes,
    parse_selection,
)
from ..named._format import suggest_name
from ..named._traceback import strip_library_frames


ShapeDict: TypeAlias = Mapping[str, int]
"""Sizes by name."""

PartialShapeDict: TypeAlias = Mapping[str, int | None]
"""Sizes by name, where a size may be unknown."""

SizeByName: TypeAlias = dict[str, int | None]
PartialAxes: TypeAlias = tuple[AxisSelector, ...] | PartialShapeDict


def parse_axis_sizes(selection: AxisSelection | AxisSpec) -> SizeByName:
    """Returns the sizes of axes by name, None for an axis without a size."""
    chosen: Any = parse_selection(selection)  # pyright: ignore[reportArgumentType]
    check_selected_once(tuple(map(_name, chosen)))
    return {_name(one): one.size if isinstance(one, Axis) else None for one in chosen}


def convert_like(spec: Any, found: SizeByName) -> Any:
    """Returns axes as a dict if the spec is a mapping, otherwise as a tuple."""
    if hasattr(spec, "items"):
        return dict(found)
    return tuple(name if size is None else Axis(name, size) for name, size in found.items())


def format_sizes(found: SizeByName) -> str:
    """Formats axes for error messages, those without a size by their names."""
    return f"({', '.join(name if size is None else f'{name}: {size}' for name, size in found.items())})"


def check_axes_present(found: SizeByName, wanted: SizeByName) -> None:
    """Raises a ValueError if a wanted axis is missing or has another size."""
    for name, size in wanted.items():
        if name not in found:
            near = suggest_name(name, list(found))
            raise strip_library_frames(ValueError(f"no axis {name!r} in {format_sizes(found)}{near}"))
        if None not in (size, found[name]) and size != found[name]:
            raise ValueError(f"axis {name!r} has size {found[name]} here, {size} was asked for")


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
    given: Any = (shape,) if hasattr(shape, "__index__") else shape
    if not isinstance(given, tuple | list) or hasattr(given, "items"):
        given = parse_axes(given)
    named = iter(parse_axes(tuple(one for one in given if not hasattr(one, "__index__"))))
    return tuple(operator.index(one) if hasattr(one, "__index__") else next(named).size for one in given)


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
    known, wanted = axis_spec_to_shape_dict(spec), parse_axis_sizes(selection)
    check_axes_present({**known}, wanted)
    if isinstance(selection, str | Axis):
        (name,) = wanted
        return Axis(name, known[name])
    return convert_like(selection, {name: known[name] for name in wanted})


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
    found = parse_axis_sizes(spec)
    lose = found if to_unsize is None else parse_axis_sizes(to_unsize)
    check_axes_present(found, lose)
    return convert_like(spec, {name: None if name in lose else size for name, size in found.items()})


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
    found = parse_axis_sizes(selector)
    return all(name in found and _has_same_size(size, found[name]) for name, size in parse_axis_sizes(selected).items())


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
    sizes = [one.size if isinstance(one, Axis) else None for one in (first, second)]
    return _name(first) == _name(second) and _has_same_size(*sizes)


def _has_same_size(size: int | None, other: int | None) -> bool:
    return size is None or other is None or size == other

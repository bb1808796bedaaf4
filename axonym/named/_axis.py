"""Axes and how they are chosen: `Axis`, the selectors and specs that functions accept, and the algebra of names.

Nothing here knows arrays. Names are interned, so that two arrays with the same axes share one tuple of names and
comparing them costs one pointer comparison.
"""

import difflib
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Protocol, TypeAlias

from ._cache import cached_plan


Names: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis: what it is called and how many elements lie along it.

    Two axes are equal when name and size are equal. An `Axis` given as a selector must match the size it finds.

    Args:
        name: The name, a non-empty string.
        size: The number of elements, zero or more.

    Raises:
        TypeError: If the name is no string or the size no integer.
        ValueError: If the name is empty or the size negative.

    Example:
        >>> from axonym import Axis
        >>> Batch = Axis("batch", 8)
        >>> Batch.resize(16)
        Axis(name='batch', size=16)
        >>> Batch.alias("example")
        Axis(name='example', size=8)
    """

    name: str
    size: int

    def __post_init__(self) -> None:
        """Checks name and size, and interns the name."""
        if not isinstance(self.name, str):
            raise TypeError(f"The name of an `Axis` is a string, {self.name!r} is none.")
        (name,), size = intern_names((self.name,)), _as_size(self.name, self.size)
        if size < 0:
            raise ValueError(f"The size of axis {name!r} must not be negative, {size} was given.")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "size", size)

    def resize(self, size: int) -> "Axis":
        """Returns an axis of the same name with another size."""
        return Axis(self.name, size)

    def alias(self, name: str) -> "Axis":
        """Returns an axis of the same size with another name."""
        return Axis(name, self.size)

    def __str__(self) -> str:
        """Shows the axis as `name: size`."""
        return f"{self.name}: {self.size}"


def _as_size(name: str, size: Any) -> int:
    try:
        whole = None if isinstance(size, bool) else operator.index(size)
    except TypeError:
        whole = None
    if whole is None:
        raise TypeError(f"The size of axis {name!r} must be an integer, {format_value(size)} is none.")
    return whole


AxisSelector: TypeAlias = Axis | str
"""One axis: the `Axis` itself, or its name."""

AxisSelection: TypeAlias = AxisSelector | Sequence[AxisSelector] | Mapping[str, int | None]
"""One axis or several, by name or as `Axis`; a mapping gives sizes to check, or None."""


class SizesByName(Protocol):
    """What gives sizes by name: a mapping, or the shape of a named array."""

    def keys(self) -> Iterable[str]:
        """Returns the names."""
        ...

    def items(self) -> Iterable[tuple[str, int]]:
        """Returns pairs of name and size."""
        ...


AxisSpec: TypeAlias = Axis | Sequence[Axis] | SizesByName
"""The axes of a new array: an `Axis`, a sequence of them, or a mapping from name to size."""

PartialAxisSpec: TypeAlias = Sequence[AxisSelector | EllipsisType]
"""An order of axes in which `...` stands for those that are not named."""


@cached_plan
def intern_names(names: Names) -> Names:
    """Returns the one tuple that stands for these names.

    Raises:
        ValueError: If a name is empty.
    """
    if "" in names:
        raise ValueError("The name of an axis must not be empty.")
    return tuple(sys.intern(str(name)) for name in names)


def make_axes(**sizes: int) -> tuple[Axis, ...]:
    """Makes axes from keyword arguments, in the order given.

    Example:
        >>> import axonym as nym
        >>> nym.make_axes(batch=8, embed=64)
        (Axis(name='batch', size=8), Axis(name='embed', size=64))
    """
    return tuple(Axis(name, size) for name, size in sizes.items())


def axis_name(selection: AxisSelector) -> str:
    """Returns the name of an axis given as an `Axis` or by name.

    Raises:
        TypeError: If it is neither.

    Example:
        >>> import axonym as nym
        >>> nym.axis_name(nym.Axis("batch", 8)), nym.axis_name("embed")
        ('batch', 'embed')
    """
    if type(selection) is str:
        return selection
    if isinstance(selection, Axis):
        return selection.name
    if isinstance(selection, str):
        return str(selection)
    raise TypeError(f"An axis is given by an `Axis` or by its name, not by {format_value(selection)}.")


def parse_axes(spec: AxisSpec) -> tuple[Axis, ...]:
    """Returns the axes of a spec as a tuple.

    Raises:
        TypeError: If the spec holds something that has no size.
        ValueError: If a name is given twice.
    """
    if isinstance(spec, Axis):
        return (spec,)
    if (pairs := _get_items(spec)) is not None:
        return tuple(Axis(name, size) for name, size in pairs)
    axes: tuple[Any, ...] = (spec,) if isinstance(spec, str) or not isinstance(spec, Iterable) else tuple(spec)
    for axis in axes:
        if isinstance(axis, str):
            raise TypeError(f"A new axis needs a size: give `Axis({axis!r}, size)` instead of {axis!r}.")
        if not isinstance(axis, Axis):
            raise TypeError(f"A new axis is given by an `Axis`, with a name and a size, not by {format_value(axis)}.")
    check_unique_names(tuple(axis.name for axis in axes))
    return axes


def get_names_and_sizes(axes: Iterable[Axis]) -> tuple[Names, tuple[int, ...]]:
    """Returns the names of axes, and their sizes."""
    axes = tuple(axes)
    return tuple(axis.name for axis in axes), tuple(axis.size for axis in axes)


def parse_one_axis(spec: AxisSpec) -> Axis:
    """Returns the axis of a spec that has just one.

    Raises:
        TypeError: If it has no size.
        ValueError: If there are several or none.
    """
    axes = parse_axes(spec)
    if len(axes) != 1:
        raise ValueError(f"one axis is needed, not {format_axes(*get_names_and_sizes(axes))}")
    return axes[0]


def _get_items(spec: Any) -> Iterable[tuple[str, Any]] | None:
    """Returns names with sizes if the spec gives them so, as mappings do and the shapes of named arrays."""
    return spec.items() if hasattr(spec, "items") else None


def parse_selection(selection: AxisSelection) -> tuple[AxisSelector, ...]:
    """Returns the selectors of a selection as a tuple, which can be hashed."""
    if type(selection) is tuple:
        return selection
    if isinstance(selection, str | Axis):
        return (selection,)
    if (pairs := _get_items(selection)) is not None:
        return tuple(name if size is None else Axis(name, size) for name, size in pairs)
    if not isinstance(selection, Iterable):
        raise TypeError(f"An axis is given by an `Axis` or by its name, not by {format_value(selection)}.")
    return tuple(selection)


def make_hashable_selection(selection: AxisSelection | None) -> Any:
    """Returns a selection as something that caches take.

    Raises:
        TypeError: If it holds something that is no axis, which need not be hashable.
    """
    if selection is None or type(selection) is str:
        return selection
    chosen = parse_selection(selection)
    for one in chosen:
        if type(one) is not str:
            axis_name(one)
    return chosen


def check_unique_names(names: Names) -> None:
    """Raises a ValueError if an array would have two axes of one name."""
    if len(set(names)) != len(names):
        raise ValueError(
            f"axis {_find_repeated_name(names)!r} occurs more than once in {format_axes(names)}; names are unique within an array: "
            "`rename` one of them"
        )


def check_selected_once(names: Names) -> None:
    """Raises a ValueError if a selection names an axis twice."""
    if len(set(names)) != len(names):
        raise ValueError(f"axis {_find_repeated_name(names)!r} is given more than once in {format_axes(names)}")


def _find_repeated_name(names: Names) -> str:
    return next(name for name in names if names.count(name) > 1)


def format_value(x: Any) -> str:
    """Shows what was given instead of something else; of an array, or a list, only how large it is."""
    if isinstance(x, tuple):
        return f"({', '.join(map(format_value, x))})"
    if isinstance(x, list):
        return f"a list of length {len(x)}"
    shape = getattr(x, "shape", None)
    return repr(x) if shape is None else f"an array of shape {tuple(shape)}"


def format_axes(names: Sequence[str], sizes: Sequence[int] | None = None) -> str:
    """Shows names, and sizes if given, as error messages do: `(batch: 8, seq: 128)`."""
    if sizes is None or len(sizes) != len(names):
        return f"({', '.join(names)})"
    return f"({', '.join(f'{name}: {size}' for name, size in zip(names, sizes, strict=True))})"


def suggest_name(name: str, known: Sequence[str]) -> str:
    """Returns the end of an error message that names the closest known name, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def make_missing_axis_error(name: str, names: Names, sizes: Sequence[int] | None) -> ValueError:
    """Returns the error for an axis that an array does not have."""
    return ValueError(f"no axis {name!r} in {format_axes(names, sizes)}{suggest_name(name, names)}")


def find_axis(names: Names, sizes: Sequence[int], selector: AxisSelector) -> int:
    """Returns where the selected axis is.

    Raises:
        ValueError: If it is not there, or an `Axis` has another size.
    """
    if len(names) != len(sizes):
        check_rank(names, sizes)
    if type(selector) is str and selector in names:  # nearly always
        return names.index(selector)
    name = axis_name(selector)
    if name not in names:
        raise make_missing_axis_error(name, names, sizes)
    index = names.index(name)
    if isinstance(selector, Axis) and selector.size != sizes[index]:
        raise ValueError(f"axis {name!r} has size {sizes[index]} here, {selector.size} was asked for")
    return index


def find_axes(names: Names, sizes: Sequence[int], selection: AxisSelection | None) -> tuple[int, ...]:
    """Returns where the selected axes are; all of them if the selection is None."""
    if type(selection) is str:
        return (find_axis(names, sizes, selection),)
    check_rank(names, sizes)
    if selection is None:
        return tuple(range(len(names)))
    chosen = tuple([find_axis(names, sizes, selector) for selector in parse_selection(selection)])
    if len(set(chosen)) != len(chosen):
        check_selected_once(tuple(names[index] for index in chosen))
    return chosen


def check_rank(names: Names, sizes: Sequence[int]) -> None:
    """Raises a ValueError if an array has lost or gained an axis behind our back, as under `jax.vmap`."""
    if len(names) != len(sizes):
        raise ValueError(
            f"an array of shape {tuple(sizes)} bears the names {format_axes(names)}: `jax.vmap`, or the like, which knows "
            "no names, has changed its axes; use `axonym.vmap` or `axonym.scan`"
        )


def complete_order(names: Names, sizes: Sequence[int], order: PartialAxisSpec) -> Names:
    """Returns all names in a partial order, in which `...` stands for those not named, in their own order.

    Raises:
        ValueError: If a name is unknown or repeated, `...` occurs twice, or names are left out without it.
    """
    stated = tuple(names[find_axis(names, sizes, item)] for item in order if item is not ...)
    check_selected_once(stated)
    rest = tuple(name for name in names if name not in stated)
    holes = sum(item is ... for item in order)
    if holes > 1:
        raise ValueError("`...` may stand only once in an order of axes")
    if not holes:
        if rest:
            raise ValueError(
                f"the order {format_axes(stated)} leaves out {format_axes(rest)}; add `...` for the others"
            )
        return stated
    hole = next(index for index, item in enumerate(order) if item is ...)
    return stated[:hole] + rest + stated[hole:]

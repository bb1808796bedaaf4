"""`Axis`, the selectors and specs that functions accept for axes, and operations on tuples of names.

This module does not depend on arrays. Names are interned: arrays with the same axes share one tuple of names, so that
comparing them is comparing two pointers.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Protocol, TypeAlias

from .._ground.arguments import as_python_integer
from .._ground.caches import cached_plan
from .._ground.errors import make_error
from .._ground.formats import format_axes, format_value, suggest_name


Names: TypeAlias = tuple[str, ...]

Operand: TypeAlias = tuple[Names, tuple[int, ...]]
"""The names and sizes of an operand, both empty for a number."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis: its name and its size.

    Two axes are equal if their names and sizes are. An `Axis` given as a selector must have the size of the axis found.

    Args:
        name: The name, a non-empty string.
        size: The number of elements, zero or more.

    Raises:
        TypeError: If the name is not a string or the size not an integer.
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
            raise make_error(TypeError, f"The name of an `Axis` must be a string, not {format_value(self.name)}.")
        (name,) = intern_names((self.name,))
        size = as_python_integer(self.size)
        if size is None:
            raise make_error(TypeError, f"The size of axis {name!r} must be an integer, not {format_value(self.size)}.")
        if size < 0:
            raise make_error(ValueError, f"The size of axis {name!r} must not be negative, {size} was given.")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "size", size)

    def resize(self, size: int) -> "Axis":
        """Returns an axis of the same name with another size."""
        return Axis(self.name, size)

    def alias(self, new_name: str) -> "Axis":
        """Returns an axis of the same size with another name."""
        return Axis(new_name, self.size)

    def __str__(self) -> str:
        """Shows the axis as `name: size`."""
        return f"{self.name}: {self.size}"


AxisSelector: TypeAlias = Axis | str
"""One axis: the `Axis` itself, or its name."""

AxisSelection: TypeAlias = AxisSelector | Sequence[AxisSelector] | Mapping[str, int | None]
"""One axis or several, by name or as `Axis`; a mapping gives for each name the size to check, or None."""


class SizesByName(Protocol):
    """Sizes by name: a mapping, or the shape of a named array."""

    def keys(self) -> Iterable[str]: ...

    def items(self) -> Iterable[tuple[str, int]]: ...


AxesOrPositions: TypeAlias = AxisSelection | int | Sequence[int]
"""The axes of a named array, or the positions of the axes of a plain one."""

AxisSpec: TypeAlias = Axis | Sequence[Axis] | SizesByName
"""The axes of a new array: an `Axis`, a sequence of them, or a mapping from name to size."""

PartialAxisSpec: TypeAlias = Sequence[AxisSelector | EllipsisType]
"""An order of axes in which `...` means all axes that are not named."""


@cached_plan
def intern_names(names: Names) -> Names:
    """Returns the tuple of interned names that the cache keeps for all tuples equal to this one."""
    if "" in names:
        raise make_error(ValueError, "The name of an axis must not be empty.")
    return tuple(sys.intern(str(name)) for name in names)


def make_axes(**sizes: int) -> tuple[Axis, ...]:
    """Makes axes from keyword arguments, in the order given.

    Example:
        >>> import axonym as nym
        >>> nym.make_axes(batch=8, embed=64)
        (Axis(name='batch', size=8), Axis(name='embed', size=64))
    """
    return tuple(Axis(name, size) for name, size in sizes.items())


def axis_name(selection: AxisSelector, names: Names = ()) -> str:
    """Returns the name of an axis given as an `Axis` or by name; an error lists the known `names`."""
    if type(selection) is str:
        return selection
    if isinstance(selection, Axis):
        return selection.name
    if isinstance(selection, str):
        return str(selection)  # a plain string also for a subclass
    raise _make_selector_error(selection, names)


def _make_selector_error(selection: Any, names: Names) -> TypeError:
    hint = f"; the axes are {format_axes(names)}" if names else ""
    return make_error(
        TypeError, f"An axis is given by an `Axis` or by its name, not by {format_value(selection)}{hint}."
    )


def parse_axes(spec: AxisSpec) -> tuple[Axis, ...]:
    """Returns the axes of a spec as a tuple."""
    if isinstance(spec, Axis):
        return (spec,)
    if get_items := getattr(spec, "items", None):
        return tuple(Axis(name, size) for name, size in get_items())
    entries: Any = spec  # users pass what the type does not allow, which the loop below reports
    if type(entries) is not tuple:
        check_ordered(entries)
    if isinstance(entries, str) or not isinstance(entries, Iterable) or hasattr(entries, "dtype"):
        entries = (entries,)  # reported as a whole, not by its characters or elements
    axes: tuple[Any, ...] = tuple(entries)
    for axis in axes:
        if isinstance(axis, str):
            raise make_error(TypeError, f"A new axis needs a size: give `Axis({axis!r}, size)` instead of {axis!r}.")
        if not isinstance(axis, Axis):
            raise make_error(
                TypeError, f"A new axis is given by an `Axis`, with a name and a size, not by {format_value(axis)}."
            )
    check_unique_names(tuple(axis.name for axis in axes))
    return axes


def check_ordered(axes: Any) -> None:
    """Raises a TypeError if the axes of an array are a set, whose order differs from process to process."""
    if isinstance(axes, set | frozenset):
        raise make_error(TypeError, "The axes of an array have an order, which a set lacks; give them as a tuple.")


def get_names_and_sizes(axes: Iterable[Axis]) -> tuple[Names, tuple[int, ...]]:
    axes = tuple(axes)
    return tuple(axis.name for axis in axes), tuple(axis.size for axis in axes)


def parse_one_axis(spec: AxisSpec) -> Axis:
    """Returns the axis of a spec of exactly one axis."""
    axes = parse_axes(spec)
    if len(axes) != 1:
        raise make_error(ValueError, f"one axis is needed, not {format_axes(*get_names_and_sizes(axes))}")
    return axes[0]


def parse_selection(selection: AxisSelection, names: Names = ()) -> tuple[AxisSelector, ...]:
    """Returns the selectors of a selection as a tuple, which is hashable; an error lists the known `names`."""
    if type(selection) is tuple:
        return selection
    if isinstance(selection, str | Axis):
        return (selection,)
    if get_items := getattr(selection, "items", None):
        return tuple(name if size is None else Axis(name, size) for name, size in get_items())
    if not isinstance(selection, Iterable) or hasattr(selection, "dtype"):
        raise _make_selector_error(selection, names)
    return tuple(selection)


def make_hashable_selection(selection: AxisSelection | PartialAxisSpec | None, names: Names = ()) -> Any:
    """Returns a selection, or a partial order with `...`, as a cache key.

    Raises:
        TypeError: If an entry is not an axis; it might not be hashable, and the cache would raise a puzzling error.
    """
    if selection is None or type(selection) is str:
        return selection
    selectors: Any = parse_selection(selection, names)  # pyright: ignore[reportArgumentType]
    for axis in selectors:
        if type(axis) is not str and axis is not ...:
            axis_name(axis, names)  # for its error
    return selectors


def check_unique_names(names: Names) -> None:
    """Raises a ValueError if an array would have two axes with the same name."""
    if len(set(names)) != len(names):
        raise make_error(
            ValueError,
            f"axis {_find_repeated_name(names)!r} occurs more than once in {format_axes(names)}; names are unique "
            "within an array: `rename` one of them",
        )


def check_selected_once(names: Names) -> None:
    """Raises a ValueError if a selection names an axis twice."""
    if len(set(names)) != len(names):
        raise make_error(
            ValueError, f"axis {_find_repeated_name(names)!r} is given more than once in {format_axes(names)}"
        )


def _find_repeated_name(names: Names) -> str:
    return next(name for name in names if names.count(name) > 1)


def make_missing_axis_error(name: str, names: Names, sizes: Sequence[int] | None) -> ValueError:
    return make_error(ValueError, f"no axis {name!r} in {format_axes(names, sizes)}{suggest_name(name, names)}")


def find_axis(names: Names, sizes: Sequence[int], selector: AxisSelector) -> int:
    """Returns the position of the selected axis."""
    # Nearly all calls pass these two tests, without a call of `check_rank` or `axis_name`.
    if len(names) != len(sizes):
        check_rank(names, sizes)
    if type(selector) is str and selector in names:
        return names.index(selector)
    name = axis_name(selector, names)
    if name not in names:
        raise make_missing_axis_error(name, names, sizes)
    index = names.index(name)
    if isinstance(selector, Axis) and selector.size != sizes[index]:
        raise make_error(ValueError, f"axis {name!r} has size {sizes[index]} here, {selector.size} was asked for")
    return index


def find_axes(names: Names, sizes: Sequence[int], selection: AxisSelection | None) -> tuple[int, ...]:
    """Returns the positions of the selected axes; of all axes if the selection is None."""
    if type(selection) is str:
        return (find_axis(names, sizes, selection),)
    check_rank(names, sizes)
    if selection is None:
        return tuple(range(len(names)))
    dims = tuple([find_axis(names, sizes, selector) for selector in parse_selection(selection, names)])
    if len(set(dims)) != len(dims):
        check_selected_once(tuple(names[dim] for dim in dims))
    return dims


def check_rank(names: Names, sizes: Sequence[int]) -> None:
    """Raises a ValueError if an array lost or gained an axis without its names, as under `jax.vmap`."""
    if len(names) == len(sizes):
        return
    functions, remedy = "`jax.vmap`", "use `axonym.vmap` or `axonym.scan`"
    if len(sizes) > len(names):
        functions = "`jax.jacrev`, `jax.hessian`, `jax.vmap`"
        remedy = (
            "use `axonym.vmap`, and take Jacobians of plain arrays, as in "
            "`jax.jacrev(lambda array: fn(axonym.named(array, names)).array)(x.array)`"
        )
    raise make_error(
        ValueError,
        f"an array of shape {tuple(sizes)} has the names {format_axes(names)}: {functions} or a similar function, "
        f"which ignores names, has changed its axes; {remedy}",
    )


def check_matching_sizes(*operands: Operand) -> dict[str, int]:
    """Returns the size of each name of the operands; raises a ValueError if one name has two sizes."""
    known_sizes: dict[str, int] = {}
    for names, sizes in operands:
        check_rank(names, sizes)
        for name, size in zip(names, sizes, strict=True):
            if known_sizes.setdefault(name, size) != size:
                text = " and ".join(format_axes(names, sizes) for names, sizes in operands)
                raise make_error(ValueError, f"axis {name!r} has size {known_sizes[name]} and size {size} in {text}")
    return known_sizes


def complete_order(names: Names, sizes: Sequence[int], order: PartialAxisSpec) -> Names:
    """Returns all names in a partial order, in which `...` means all other names in the order of the array."""
    listed_names = tuple(names[find_axis(names, sizes, item)] for item in order if item is not ...)
    check_selected_once(listed_names)
    other_names = tuple(name for name in names if name not in listed_names)
    ellipses = [index for index, item in enumerate(order) if item is ...]
    if len(ellipses) > 1:
        raise make_error(ValueError, "`...` may occur only once in an order of axes")
    if ellipses:
        return listed_names[: ellipses[0]] + other_names + listed_names[ellipses[0] :]
    if other_names:
        raise make_error(
            ValueError,
            f"the order {format_axes(listed_names)} leaves out {format_axes(other_names)}; add `...` for the others",
        )
    return listed_names

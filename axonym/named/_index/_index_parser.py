"""What an index such as `x["batch", 0]` means: its items, and the plan of gathers and slices that follows."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.ma import MaskedArray

from ..._ground.arguments import check_integer
from ..._ground.caches import cached_plan
from ..._ground.errors import make_error
from ..._ground.formats import format_axes, format_value
from ..._ground.jax_compat import is_traced
from .._axis import (
    Axis,
    AxisSelector,
    Names,
    axis_name,
    check_matching_sizes,
    check_selected_once,
    find_axis,
    intern_names,
)
from .._base import NamedBase, format_shape
from .._broadcasting import as_integer, widen_integers
from .._numpy_input import MASK_PROBLEM


@dataclass(frozen=True, init=False)
class dslice:
    """A slice whose start may be traced and whose length is fixed; `ds` is the same.

    A slice that runs over an end raises an error if its start is known, as other indices do. If its start is a JAX
    array, elements over the end follow the `mode` of `axonym.index` and of `x.at`: by default, the nearest element is
    read and nothing is updated. Slices with a known start, and all slices with the mode "promise_in_bounds", compile to
    `jax.lax.dynamic_slice`. A negative start counts from the end.

    Args:
        start: First element, an integer or an integer scalar array, named or not.
        length: Number of elements, an integer or an `Axis` of that size.

    Example:
        >>> import axonym as nym
        >>> nym.arange(nym.Axis("i", 8))["i", nym.dslice(2, 3)].array
        Array([2, 3, 4], dtype=int32)
    """

    start: Any
    size: int | Axis

    def __init__(self, start: Any, length: int | Axis) -> None:
        """Stores both; they are checked when the slice is used as an index."""
        integer = as_integer(start)
        object.__setattr__(self, "start", start if integer is None else integer)
        object.__setattr__(self, "size", length)

    @property
    def length(self) -> int:
        """The number of elements."""
        return self.size.size if isinstance(self.size, Axis) else check_integer("the length of a `dslice`", self.size)

    @staticmethod
    def block(i: Any, size: int | Axis) -> "dslice":
        """Returns block number `i`, see `dblock`."""
        return dblock(i, size)


def dblock(i: Any, size: int | Axis) -> dslice:
    """Returns one of the equal blocks of an axis: `dslice(i * size, size)`.

    Args:
        i: Number of the block, an integer or an integer scalar array, named or not; a negative number counts from the
            end of an axis whose size is a multiple of `size`.
        size: Number of elements of a block, an integer or an `Axis` of that size.

    Returns:
        Slice whose start may be traced.

    Raises:
        TypeError: If the size is not an integer.

    Example:
        >>> import axonym as nym
        >>> nym.arange(nym.Axis("i", 8))["i", nym.dblock(1, 3)].array
        Array([3, 4, 5], dtype=int32)
    """
    number = as_integer(i)
    if number is None:
        raise TypeError(f"The number of a block must be an integer, not {format_value(i)}.")
    return dslice(number * dslice(0, size).length, size)


ds = dslice


class IndexEntry(NamedTuple):
    """The static part of the index of one axis."""

    position: int
    kind: str  # "scalar", "slice", "window", "unchecked window" (which may run over an end), "array" or "mask"
    detail: Any  # (), (start, stop, step), a length, or the names of the array


Entries: TypeAlias = tuple[IndexEntry, ...]

WINDOWS = "window", "unchecked window"


class Part(NamedTuple):
    """The static part of the index of one axis as written."""

    selector: AxisSelector
    kind: str  # this and the next as in `IndexEntry`
    detail: Any
    sizes: tuple[int, ...]  # of an array or a mask


class IndexPlan(NamedTuple):
    """The static part of an index, with entries in the order of the axes, and the axes of the result.

    A mask has no entry, because its axes stay as they are.
    """

    entries: Entries
    names: Names
    sizes: tuple[int, ...]
    array_entries: Entries  # the entries with an array or an integer


@cached_plan
def plan_index(
    names: Names, sizes: tuple[int, ...], parts: tuple[Part, ...]
) -> tuple[IndexPlan, tuple[int, ...], tuple[int, ...]]:
    """Returns the plan, the indices of the parts that hold the arrays of its entries, and the indices of the masks."""
    entries = [IndexEntry(find_axis(names, sizes, part.selector), part.kind, part.detail) for part in parts]
    check_selected_once(tuple(names[entry.position] for entry in entries))
    for entry, part in zip(entries, parts, strict=True):
        if entry.kind in WINDOWS and not 0 <= entry.detail <= sizes[entry.position]:
            raise ValueError(
                f"a `dslice` of {entry.detail} elements does not fit into axis {names[entry.position]!r} of "
                f"{format_axes(names, sizes)}"
            )
        if entry.kind == "mask":
            _check_mask_axes(names, sizes, names[entry.position], entry.detail, part.sizes)

    # Items are written in any order, and evaluated in the order of the axes.
    order = tuple(sorted(range(len(entries)), key=lambda i: entries[i].position))
    sorted_entries = tuple(entries[i] for i in order)
    index_sizes = {entry.position: part.sizes for entry, part in zip(entries, parts, strict=True)}
    axes = _compute_result_axes(names, sizes, sorted_entries, index_sizes)
    array_parts = tuple(i for i in order if entries[i].kind not in ("slice", "mask"))
    mask_parts = tuple(i for i, entry in enumerate(entries) if entry.kind == "mask")
    plan = IndexPlan(
        entries=tuple(entry for entry in sorted_entries if entry.kind != "mask"),
        names=intern_names(tuple(axes)),
        sizes=tuple(axes.values()),
        array_entries=tuple(entries[i] for i in array_parts),
    )
    return plan, array_parts, mask_parts


def _check_mask_axes(
    names: Names, sizes: tuple[int, ...], name: str, mask_names: Names, mask_sizes: tuple[int, ...]
) -> None:
    """Raises a ValueError if a mask lacks its axis, or has axes that the array lacks."""
    label, mask_axes = f"a mask for axis {name!r} of {format_axes(names, sizes)}", format_axes(mask_names, mask_sizes)
    if name not in mask_names:
        raise ValueError(f"{label} needs that axis, it has {mask_axes}")
    if not set(mask_names) <= set(names):
        raise ValueError(f"{label} must have axes of that array only, it has {mask_axes}")
    check_matching_sizes((names, sizes), (mask_names, mask_sizes))


def _compute_result_axes(
    names: Names, sizes: tuple[int, ...], entries: Entries, index_sizes: dict[int, tuple[int, ...]]
) -> dict[str, int]:
    """Returns the axes of the result: axes of index arrays replace the first axis indexed by an array with them."""
    lengths = list(sizes)
    index_axes: dict[int, tuple[Names, tuple[int, ...]]] = {}  # of the arrays, none for an integer, by dimension
    for dim, kind, detail in entries:
        if kind == "slice":
            lengths[dim] = len(range(sizes[dim])[slice(*detail)])
        elif kind in WINDOWS:
            lengths[dim] = detail
        elif kind != "mask":
            index_axes[dim] = detail, index_sizes[dim]

    index_names = {name for array_names, _ in index_axes.values() for name in array_names}
    for dim, kind, _ in entries:
        if kind != "array" and names[dim] in index_names:
            raise ValueError(
                f"axis {names[dim]!r} of {format_axes(names, sizes)} is indexed by itself and by an index "
                "array that has it"
            )
    dims = [dim for dim in range(len(names)) if dim not in index_axes]
    remaining_axes = tuple(names[dim] for dim in dims), tuple(lengths[dim] for dim in dims)
    check_matching_sizes(remaining_axes, *index_axes.values())

    axes: dict[str, int] = {}
    for dim, name in enumerate(names):
        array_names, array_sizes = index_axes.get(dim, ((name,), (lengths[dim],)))
        axes |= zip(array_names, array_sizes, strict=True)  # a name that is there keeps its place
    return axes


Index: TypeAlias = SupportsIndex | slice | dslice | Sequence[SupportsIndex] | NamedBase | jax.Array | np.ndarray
Items: TypeAlias = (
    Mapping[Any, Index]
    | tuple[()]
    | tuple[AxisSelector, Index]
    | tuple[AxisSelector, Index, AxisSelector, Index]
    | tuple[AxisSelector, Index, AxisSelector, Index, AxisSelector, Index]
    | tuple[AxisSelector, Index, AxisSelector, Index, AxisSelector, Index, AxisSelector, Index]
)


def parse_index(x: NamedBase, items: Items) -> tuple[tuple[Part, ...], tuple[Any, ...]]:
    """Returns the parts of an index, and for each the array or integer that it holds, or None."""
    parts: list[Part] = []
    arrays: list[Any] = []
    for selector, index in _iterate_items(x, items):
        try:
            name = axis_name(selector)
        except TypeError:
            if isinstance(items, tuple):
                raise _make_position_error(x, items) from None
            raise
        kind, detail, array = _parse_axis_index(x, name, index)
        parts.append(Part(selector, kind, detail, array.shape if kind in ("array", "mask") else ()))
        arrays.append(array)
    return tuple(parts), tuple(arrays)


def convert_mask(x: NamedBase, part: Part, array: Any) -> tuple[Part, Any]:
    """Returns a mask as the positions where it is True, and any other part unchanged."""
    if part.kind != "mask":
        return part, array
    name, mask_names = axis_name(part.selector), part.detail
    remedy = f"keep the axes and fill the other elements, as in `axonym.index(x, {{{name!r}: mask}}, fill=0)`"
    if len(mask_names) > 1:
        raise make_error(
            ValueError,
            f"a mask with the axes ({', '.join(mask_names)}) may pick a different number of elements along axis "
            f"{name!r} of {format_shape(x)} for each of them; {remedy}",
        )
    if is_traced(array):
        raise make_error(
            TypeError,
            f"axis {name!r} of {format_shape(x)} is indexed by a traced mask, so the number of elements it picks "
            f"is not known; {remedy}",
        )
    positions = np.flatnonzero(np.asarray(array))
    return Part(part.selector, "array", mask_names, positions.shape), positions


def check_index_range(x: NamedBase, plan: IndexPlan, arrays: tuple[Any, ...]) -> None:
    """Raises an IndexError for known integers that are out of range, because JAX would take other elements."""
    for (dim, kind, detail), array in zip(plan.array_entries, arrays, strict=True):
        # What a JAX array holds is not read: that would wait for its computation.
        if type(array) is int:
            low = high = array
        elif isinstance(array, np.ndarray) and array.size:
            low, high = array.min(), array.max()
        else:
            continue
        name, size = x.names[dim], x.array.shape[dim]
        if kind == "unchecked window":
            raise make_error(
                IndexError,
                f"a `dslice` of {detail} elements from {low} runs over the end of axis {name!r} of "
                f"{format_shape(x)}; if that is intended, give `mode`, as in "
                f"`axonym.index(x, {{{name!r}: index}}, mode='fill')` or "
                f"`x.at[{name!r}, index].set(value, mode='drop')`",
            )
        if kind != "window" and not -size <= low <= high < size:
            index_label = "an index" if np.ndim(array) else f"index {low}"
            raise make_error(
                IndexError,
                f"{index_label} of axis {name!r} of {format_shape(x)} is out of range for size {size}; if that is "
                f"intended, give `mode`, as in `axonym.index(x, {{{name!r}: index}}, mode='clip')` or "
                f"`x.at[{name!r}, index].set(value, mode='drop')`",
            )


def _iterate_items(x: NamedBase, items: Any) -> Iterable[tuple[AxisSelector, Any]]:
    if isinstance(items, tuple) and not len(items) % 2:
        return zip(items[::2], items[1::2], strict=True)
    if isinstance(items, Mapping):
        return items.items()
    raise _make_position_error(x, items)


def _make_position_error(x: NamedBase, items: Any) -> ValueError:
    first, last = (x.names[0], x.names[-1]) if x.names else ("pos", "batch")
    remedy = ""
    if getattr(items, "dtype", None) == np.bool_:
        remedy = f"; `axonym.where(mask, x, 0)` keeps the axes, and x[{first!r}, mask] picks along one"
    second = f"x[{first!r}, 3, {last!r}, 0:2], " if first != last else ""
    return make_error(
        ValueError,
        f"an index names its axes, as in x[{first!r}, 3], {second}or x[{{{first!r}: 3}}], not "
        f"x[{_format_positions(items)}]{remedy}",
    )


def _format_positions(items: Any) -> str:
    """Formats an index as it is written between brackets."""
    if isinstance(items, tuple):
        return ", ".join(map(_format_positions, items))
    if isinstance(items, slice):
        bounds = (items.start, items.stop) if items.step is None else (items.start, items.stop, items.step)
        return ":".join("" if i is None else format_value(i) for i in bounds)
    return "..." if items is ... else format_value(items)


def _parse_axis_index(x: NamedBase, name: str, index: Any) -> tuple[str, Any, Any]:
    """Returns the kind of an index, its other static detail, and the array or integer that it holds, or None."""
    if type(index) is int:
        return "scalar", (), index
    if isinstance(index, slice):
        bounds = index.start, index.stop, index.step
        try:
            return "slice", tuple([None if i is None else operator.index(i) for i in bounds]), None
        except TypeError:  # of JAX, for a traced integer, or of Python
            raise make_error(
                TypeError,
                f"a slice of axis {name!r} of {format_shape(x)} needs integers that are known before the program "
                "runs; `axonym.ds(start, length)` is a slice from a traced start",
            ) from None
    if isinstance(index, dslice):
        start = index.start if type(index.start) is int else _as_integer_array(x, name, index.start)
        if np.ndim(start):
            raise make_error(
                ValueError,
                f"a `dslice` of axis {name!r} of {format_shape(x)} starts at {format_value(start)}, not at an integer",
            )
        return _classify_window(x, name, start, index.length), index.length, start
    array = _as_index_array(index)
    if not isinstance(index, NamedBase) and array.ndim > 1:
        raise make_error(
            ValueError,
            f"an index of shape {array.shape} for axis {name!r} of {format_shape(x)} has no axis names; "
            "give it some with `axonym.named(index, axes)`",
        )
    names = index.names if isinstance(index, NamedBase) else (name,) * array.ndim
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 4:  # otherwise, skip `jnp.issubdtype`, which takes longer
        if names and array.dtype == np.bool_:
            return "mask", names, array
        array = _as_integer_array(x, name, index)
    return ("array", names, array) if names else ("scalar", (), array)


def _classify_window(x: NamedBase, name: str, start: Any, length: int) -> str:
    """Returns the kind of a window, by whether its start is known and it fits into its axis."""
    if isinstance(start, jax.Array):
        return "unchecked window"
    size, first = x.axis_size(name), int(start)
    if first < 0:
        first += size
    return "window" if 0 <= first <= size - length else "unchecked window"


def _as_index_array(index: Any) -> Any:
    array = index.array if isinstance(index, NamedBase) else index
    if isinstance(array, MaskedArray):
        raise TypeError(f"an index of shape {array.shape} {MASK_PROBLEM}")
    array = array if isinstance(array, jax.Array) else np.asarray(array)
    if isinstance(index, Sequence) and not array.size:
        return array.astype(int)  # NumPy makes floats of an empty list
    return array


def _as_integer_array(x: NamedBase, name: str, index: Any) -> Any:
    array = _as_index_array(index)
    if jnp.issubdtype(array.dtype, jnp.integer):
        return widen_integers(array)
    if jnp.issubdtype(array.dtype, jnp.bool_):
        raise make_error(
            TypeError,
            f"axis {name!r} of {format_shape(x)} is indexed by integers or by a mask with this axis, not by a "
            "single boolean; use `axonym.where` to choose by a condition",
        )
    label = format_value(index) if array.dtype.kind in "OUS" else array.dtype
    raise make_error(TypeError, f"axis {name!r} of {format_shape(x)} is indexed by integers, not by {label}")

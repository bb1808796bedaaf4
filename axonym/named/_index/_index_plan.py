"""Plans of indices: what is static about an index, checked against the axes once and found again."""

import functools
from typing import Any, NamedTuple, TypeAlias

from .._axis import AxisSelector, Names, check_selected_once, find_axis, format_axes, intern_names
from .._broadcasting import check_matching_sizes


class IndexEntry(NamedTuple):
    """What is static about the index of one axis: its kind, and the names or bounds that go with it."""

    position: int
    kind: str  # "scalar", "slice", "window", "array" or "mask"
    detail: Any  # (), (start, stop, step), a length, or the names of the array


Entries: TypeAlias = tuple[IndexEntry, ...]


Part: TypeAlias = tuple[AxisSelector, str, Any, tuple[int, ...]]
"""The index of one axis as it is written: the axis, kind and detail as in `IndexEntry`, and the shape of its array."""


class IndexPlan(NamedTuple):
    """What is static about an index: its entries in the order of the axes, and the axes of what it picks.

    A mask has no entry, because the axes it lies along stay as they are.
    """

    entries: Entries
    names: Names
    sizes: tuple[int, ...]
    held: Entries  # those entries that go with an array or an integer


@functools.lru_cache(maxsize=8192)
def plan_index(
    names: Names, sizes: tuple[int, ...], parts: tuple[Part, ...]
) -> tuple[IndexPlan, tuple[int, ...], tuple[int, ...]]:
    """Plans an index.

    Returns:
        The plan, then which parts hold the arrays of its entries, in their order, and which are masks.

    Raises:
        ValueError: If an axis is not there or indexed twice, or sizes do not fit.
    """
    given = [IndexEntry(find_axis(names, sizes, selector), kind, detail) for selector, kind, detail, _ in parts]
    check_selected_once(tuple(names[entry.position] for entry in given))
    for entry, part in zip(given, parts, strict=True):
        if entry.kind == "window" and not 0 <= entry.detail <= sizes[entry.position]:
            raise ValueError(
                f"a `dslice` of {entry.detail} elements does not fit into axis {names[entry.position]!r} of "
                f"{format_axes(names, sizes)}"
            )
        if entry.kind == "mask":
            _check_mask(names, sizes, names[entry.position], entry.detail, part[3])
    order = tuple(sorted(range(len(given)), key=lambda i: given[i].position))
    entries = tuple(given[i] for i in order)
    axes = _result_axes(names, sizes, entries, {given[i].position: part[3] for i, part in enumerate(parts)})
    arrays = tuple(i for i in order if given[i].kind not in ("slice", "mask"))
    masks = tuple(i for i, entry in enumerate(given) if entry.kind == "mask")
    left = tuple(entry for entry in entries if entry.kind != "mask")
    held = tuple(given[i] for i in arrays)
    return IndexPlan(left, intern_names(tuple(axes)), tuple(axes.values()), held), arrays, masks


def _check_mask(names: Names, sizes: tuple[int, ...], name: str, own: Names, lengths: tuple[int, ...]) -> None:
    """Raises a ValueError if a mask does not lie along its axis, or along others that are not there."""
    if name not in own:
        raise ValueError(
            f"a mask for axis {name!r} of {format_axes(names, sizes)} needs that axis, it has {format_axes(own, lengths)}"
        )
    if not set(own) <= set(names):
        raise ValueError(
            f"a mask for axis {name!r} of {format_axes(names, sizes)} has axes of that array only, not "
            f"{format_axes(own, lengths)}"
        )
    check_matching_sizes((names, sizes), (own, lengths))


def _result_axes(
    names: Names, sizes: tuple[int, ...], entries: Entries, shapes: dict[int, tuple[int, ...]]
) -> dict[str, int]:
    """Returns the axes left in place, and those of index arrays where the first axis that brings them stood."""
    lengths, picked = list(sizes), {}
    for at, kind, detail in entries:
        if kind == "slice":
            lengths[at] = len(range(sizes[at])[slice(*detail)])
        elif kind == "window":
            lengths[at] = detail
        elif kind != "mask":
            picked[at] = detail, shapes[at]
    brought = {name for own, _ in picked.values() for name in own}
    for at, kind, _ in entries:
        if kind != "array" and names[at] in brought:
            raise ValueError(
                f"axis {names[at]!r} of {format_axes(names, sizes)} is indexed by itself and by an index array that has it"
            )
    kept = [at for at in range(len(names)) if at not in picked]
    check_matching_sizes((tuple(names[at] for at in kept), tuple(lengths[at] for at in kept)), *picked.values())
    axes: dict[str, int] = {}
    for at, name in enumerate(names):
        axes |= zip(*picked.get(at, ((name,), (lengths[at],))), strict=True)
    return axes

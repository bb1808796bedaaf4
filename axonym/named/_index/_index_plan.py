"""Plans of indices: the static part of an index, checked against the axes once per signature."""

from typing import Any, NamedTuple, TypeAlias

from .._axis import AxisSelector, Names, check_selected_once, find_axis, format_axes, intern_names
from .._broadcasting import check_matching_sizes
from .._cache import cached_plan


class IndexEntry(NamedTuple):
    """The static part of the index of one axis."""

    position: int
    kind: str  # "scalar", "slice", "window", "unchecked window" (which may run over an end), "array" or "mask"
    detail: Any  # (), (start, stop, step), a length, or the names of the array


Entries: TypeAlias = tuple[IndexEntry, ...]

WINDOWS = "window", "unchecked window"


Part: TypeAlias = tuple[AxisSelector, str, Any, tuple[int, ...]]
"""The index of one axis as written: the axis, kind and detail as in `IndexEntry`, and the shape of its array."""


class IndexPlan(NamedTuple):
    """The static part of an index, with entries in the order of the axes, and the axes of the result.

    A mask has no entry, because its axes stay as they are.
    """

    entries: Entries
    names: Names
    sizes: tuple[int, ...]
    held: Entries  # the entries with an array or an integer


@cached_plan
def plan_index(
    names: Names, sizes: tuple[int, ...], parts: tuple[Part, ...]
) -> tuple[IndexPlan, tuple[int, ...], tuple[int, ...]]:
    """Returns the plan, the indices of the parts that hold the arrays of its entries, and the indices of the masks."""
    given = [IndexEntry(find_axis(names, sizes, selector), kind, detail) for selector, kind, detail, _ in parts]
    check_selected_once(tuple(names[entry.position] for entry in given))
    for entry, part in zip(given, parts, strict=True):
        if entry.kind in WINDOWS and not 0 <= entry.detail <= sizes[entry.position]:
            raise ValueError(
                f"a `dslice` of {entry.detail} elements does not fit into axis {names[entry.position]!r} of "
                f"{format_axes(names, sizes)}"
            )
        if entry.kind == "mask":
            _check_mask_axes(names, sizes, names[entry.position], entry.detail, part[3])
    order = tuple(sorted(range(len(given)), key=lambda i: given[i].position))
    entries = tuple(given[i] for i in order)
    axes = _compute_result_axes(names, sizes, entries, {given[i].position: part[3] for i, part in enumerate(parts)})
    arrays = tuple(i for i in order if given[i].kind not in ("slice", "mask"))
    masks = tuple(i for i, entry in enumerate(given) if entry.kind == "mask")
    kept = tuple(entry for entry in entries if entry.kind != "mask")
    held = tuple(given[i] for i in arrays)
    return IndexPlan(kept, intern_names(tuple(axes)), tuple(axes.values()), held), arrays, masks


def _check_mask_axes(names: Names, sizes: tuple[int, ...], name: str, own: Names, lengths: tuple[int, ...]) -> None:
    """Raises a ValueError if a mask lacks its axis, or has axes that the array lacks."""
    if name not in own:
        raise ValueError(
            f"a mask for axis {name!r} of {format_axes(names, sizes)} needs that axis, it has "
            f"{format_axes(own, lengths)}"
        )
    if not set(own) <= set(names):
        raise ValueError(
            f"a mask for axis {name!r} of {format_axes(names, sizes)} must have axes of that array only, it has "
            f"{format_axes(own, lengths)}"
        )
    check_matching_sizes((names, sizes), (own, lengths))


def _compute_result_axes(
    names: Names, sizes: tuple[int, ...], entries: Entries, shapes: dict[int, tuple[int, ...]]
) -> dict[str, int]:
    """Returns the axes of the result: axes of index arrays replace the first axis indexed by an array with them."""
    lengths, picked = list(sizes), {}
    for at, kind, detail in entries:
        if kind == "slice":
            lengths[at] = len(range(sizes[at])[slice(*detail)])
        elif kind in WINDOWS:
            lengths[at] = detail
        elif kind != "mask":
            picked[at] = detail, shapes[at]
    index_names = {name for own, _ in picked.values() for name in own}
    for at, kind, _ in entries:
        if kind != "array" and names[at] in index_names:
            raise ValueError(
                f"axis {names[at]!r} of {format_axes(names, sizes)} is indexed by itself and by an index "
                "array that has it"
            )
    kept = [at for at in range(len(names)) if at not in picked]
    check_matching_sizes((tuple(names[at] for at in kept), tuple(lengths[at] for at in kept)), *picked.values())
    axes: dict[str, int] = {}
    for at, name in enumerate(names):
        axes |= zip(*picked.get(at, ((name,), (lengths[at],))), strict=True)
    return axes

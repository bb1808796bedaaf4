"""Gather and scatter on plain arrays, for traced functions whose first arguments are static.

Slices and windows are cut, which moves less data than a gather; the rest is one gather or scatter. A mask only decides
which of the elements read or replaced are kept. A window that may run over an end is gathered, which takes as long, and
written as a slice from which the elements over the end are dropped.
"""

import functools
from collections.abc import Callable, Collection, Hashable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.lax import GatherScatterMode
from jax.sharding import AxisType

from ..._jax_compat import separate_slices
from .._ambient import get_out_sharding, reshard_by_name
from .._axis import Names
from .._broadcasting import align_axes
from .._cache import get_static_value
from .._operation import name_dims, run_operation
from .._traceback import strip_library_frames
from ._index_parser import WINDOWS, Entries, IndexEntry, IndexPlan


Options: TypeAlias = tuple[tuple[str, Hashable], ...]
"""Keyword arguments of the methods of `jax.numpy.ndarray.at`."""


def gather_elements(names: Names, plan: IndexPlan, options: Options, array: Any, *arrays: Any) -> Any:
    """Returns the indexed elements."""
    whole = {entry.position for entry in plan.entries if entry.kind != "array"}

    def gather(array: Any, *arrays: Any) -> Any:
        array = _replicate_dims(array, whole)
        window, start, entries, arrays = _pop_window(plan.entries, arrays)
        while window is not None:
            array = _read_window(array, window, start, options)
            window, start, entries, arrays = _pop_window(entries, arrays)
        index, natural = _make_positional_index(names, array.shape, plan.names, entries, arrays)
        sizes = tuple(plan.sizes[plan.names.index(name)] for name in natural)
        sharding = get_out_sharding(natural, sizes)
        picked = array.at[index].get(**_select_options(options, names, entries), out_sharding=sharding)
        return picked if natural == plan.names else jnp.transpose(picked, tuple(map(natural.index, plan.names)))

    index_names = [entry.detail if entry.kind == "array" else () for entry in plan.held]
    return run_operation(gather, [_omit_indexed(names, names, plan), *index_names], plan.names, array, *arrays)


def _replicate_dims(array: Any, dims: Collection[int]) -> Any:
    """Returns an array that is whole along these dimensions, each of which may have the name of an indexed axis."""
    positions = name_dims(array)
    return run_operation(lambda array: array, [positions], None, array, whole={positions[dim] for dim in dims})


def _omit_indexed(own: Names, names: Names, plan: IndexPlan) -> Names:
    """Returns names of axes with "" in place of those that are indexed, whose shardings the result does not have."""
    indexed = {names[entry.position] for entry in plan.entries}
    return tuple("" if name in indexed else name for name in own)


def gather_with_fill(
    names: Names,
    plan: IndexPlan,
    options: Options,
    masks: tuple[Names, ...],
    own: Names,
    array: Any,
    fill: Any,
    *rest: Any,
) -> Any:
    """Returns the indexed elements of an array in which `fill` replaces elements where a mask is False."""
    given, arrays = rest[: len(masks)], rest[len(masks) :]

    def gather(array: Any, fill: Any, *given: Any) -> Any:
        mask = _combine_masks(names, masks, array.shape, given)
        fill = _broadcast_by_name(fill, own, names, array.shape) if own else fill
        array = jnp.where(mask, reshard_by_name(array, names), fill)
        return gather_elements(names, plan, options, array, *arrays)

    return run_operation(gather, [names, own, *masks], None, array, fill, *given)


def scatter_values(
    names: Names, plan: IndexPlan, options: Options, own: Names, method: str, array: Any, value: Any, *arrays: Any
) -> Any:
    """Returns the array with the indexed elements updated by a value, or by a function for the method "apply"."""

    def scatter(array: Any, value: Any) -> Any:
        return _scatter_values(names, plan, options, own, method, array, value, *arrays)

    return run_operation(scatter, [names, _omit_indexed(own, names, plan)], None, array, value)


def _scatter_values(
    names: Names, plan: IndexPlan, options: Options, own: Names, method: str, array: Any, value: Any, *arrays: Any
) -> Any:
    mode = _get_mode(options)
    entries = plan.entries
    if mode == _CLIP:
        entries, arrays = _gather_windows(names, array.shape, entries, arrays)
    cut = {entry.position for entry in entries if entry.kind in WINDOWS}
    left = tuple("" if at in cut else name for at, name in enumerate(names))
    if cut and own:
        value = reshard_by_name(value, tuple(name if name in left else "" for name in own))

    def update(array: Any, value: Any, own: Names, entries: Entries, arrays: tuple[Any, ...]) -> Any:
        window, start, entries, arrays = _pop_window(entries, arrays)
        if window is not None:  # a slice moves less than a scatter

            def update_slice(part: Any, value: Any, own: Names) -> Any:
                return update(part, value, own, entries, arrays)

            if window.kind == "unchecked window" and mode != _PROMISED:
                name = names[window.position]
                return _update_unchecked_window(update_slice, array, value, own, name, window, start, method)
            part = jax.lax.dynamic_slice_in_dim(array, start, window.detail, axis=window.position)
            return _write_slice(array, update_slice(part, value, own), start, window.position)
        index, natural = _make_positional_index(names, array.shape, plan.names, entries, arrays)
        sharding = get_out_sharding(left, array.shape)
        unique = {"unique_indices": True} if has_unique_indices(names, entries) else {}
        kwargs = _select_options(options, names, entries) | unique
        if method == "apply":
            return _scatter_apply(value, kwargs, left, array, index)
        values = align_axes(convert_values(value, array.dtype), own, natural)
        if not entries:
            return _UPDATES[method](array, jnp.broadcast_to(values, array.shape, out_sharding=sharding))
        return getattr(array.at[index], method)(values, **kwargs, out_sharding=sharding)

    if not cut:
        return separate_slices(update(separate_slices(array), value, own, entries, arrays))
    array = reshard_by_name(_replicate_dims(array, cut), left)
    updated = update(separate_slices(array), value, own, entries, arrays)
    return reshard_by_name(separate_slices(updated), names)


def _update_unchecked_window(
    update: Callable[..., Any],
    array: Any,
    value: Any,
    own: Names,
    name: str,
    window: IndexEntry,
    start: Any,
    method: str,
) -> Any:
    """Returns an array with a slice updated, except for elements over an end: a slice that is moved back inside."""
    at, length, size = window.position, window.detail, array.shape[window.position]
    start = _count_from_front(start, size)
    first = jnp.clip(start, 0, size - length)
    place = jnp.arange(length) + (first - start)  # of each element of the moved slice among those of the value
    valid = (place >= 0) & (place < length)
    value, own = _shift_value(value, own, name, place, valid, method)
    part = jax.lax.dynamic_slice_in_dim(array, first, length, axis=at)
    valid = jnp.expand_dims(valid, tuple(dim for dim in range(array.ndim) if dim != at))
    return _write_slice(array, jnp.where(valid, update(part, value, own), part), first, at)


def scatter_where(
    names: Names,
    plan: IndexPlan,
    options: Options,
    own: Names,
    method: str,
    masks: tuple[Names, ...],
    array: Any,
    value: Any,
    *rest: Any,
) -> Any:
    """Returns the result of `scatter_values` where all masks are True, and the original elements elsewhere."""
    given, arrays = rest[: len(masks)], rest[len(masks) :]

    def scatter(array: Any, update: Any, *mask_arrays: Any) -> Any:
        mask = _combine_masks(names, masks, array.shape, mask_arrays)
        update_names = own
        if method in _SCALING:  # elements that stay must not make gradients NaN
            picked = gather_elements(names, plan, options, mask, *arrays)
            update = _broadcast_by_name(convert_values(update, array.dtype), own, plan.names, plan.sizes)
            update, update_names = jnp.where(picked, update, jnp.ones((), update.dtype)), plan.names
        updated = scatter_values(names, plan, options, update_names, method, array, update, *arrays)
        return jnp.where(mask, reshard_by_name(updated, names), reshard_by_name(array, names))

    return run_operation(scatter, [names, _omit_indexed(own, names, plan), *masks], None, array, value, *given)


def _combine_masks(names: Names, masks: tuple[Names, ...], sizes: tuple[int, ...], arrays: tuple[Any, ...]) -> Any:
    """Returns where all masks are True, as an array with all axes."""
    full = [_broadcast_by_name(array, own, names, sizes) for own, array in zip(masks, arrays, strict=True)]
    return functools.reduce(jnp.logical_and, full)


def _broadcast_by_name(array: Any, own: Names, names: Names, sizes: tuple[int, ...]) -> Any:
    """Returns an array repeated along the axes that it lacks, sharded by its new names on an Explicit mesh."""
    aligned = align_axes(reshard_by_name(array, own), own, names)
    return jnp.broadcast_to(aligned, sizes, out_sharding=get_out_sharding(names, sizes))


def _get_mode(options: Options) -> GatherScatterMode | None:
    """Returns the mode of an index, None if none is given."""
    mode: Any = dict(options).get("mode")
    return None if mode is None else GatherScatterMode.from_any(mode)


def _count_from_front(start: Any, size: int) -> Any:
    """Returns the start of a window counted from the front of its axis; it is negative if it is before the front."""
    start = jnp.asarray(start)
    start = start.astype(jnp.promote_types(start.dtype, jnp.int32))
    return jnp.where(start < 0, start + size, start)


def _read_window(array: Any, window: IndexEntry, start: Any, options: Options) -> Any:
    """Returns a window of an array; elements over an end are treated as the mode says."""
    at, mode = window.position, _get_mode(options)
    if window.kind == "window" or mode == _PROMISED:
        return jax.lax.dynamic_slice_in_dim(array, start, window.detail, axis=at)
    places = _count_from_front(start, array.shape[at]) + jnp.arange(window.detail)
    return _take_positions(array, at, places, _CLIP if mode is None else mode, dict(options).get("fill_value"))


def _take_positions(array: Any, at: int, positions: Any, mode: GatherScatterMode, fill_value: Any = None) -> Any:
    """Returns the elements at increasing positions along one axis, which is not sharded."""
    sharding = jax.typeof(array).sharding
    return array.at[(*(slice(None),) * at, positions)].get(
        mode=mode,
        fill_value=fill_value,
        indices_are_sorted=True,
        wrap_negative_indices=False,
        out_sharding=sharding if AxisType.Explicit in sharding.mesh.axis_types else None,
    )


def _write_slice(array: Any, part: Any, start: Any, at: int) -> Any:
    """Returns an array with a slice along one axis replaced."""
    sharding = jax.typeof(part).sharding
    if AxisType.Explicit in sharding.mesh.axis_types and jax.typeof(array).sharding.mesh.empty:
        array = jax.reshard(array, sharding)  # it was made before the mesh was set
    return jax.lax.dynamic_update_slice_in_dim(array, part, start, axis=at)


def _gather_windows(
    names: Names, sizes: tuple[int, ...], entries: Entries, arrays: tuple[Any, ...]
) -> tuple[Entries, tuple[Any, ...]]:
    """Returns an index in which windows that may run over an end are arrays of clipped positions."""
    supply, found, held = iter(arrays), [], []
    for entry in entries:
        array = None if entry.kind == "slice" else next(supply)
        if entry.kind == "unchecked window":
            at, size = entry.position, sizes[entry.position]
            array = jnp.clip(_count_from_front(array, size) + jnp.arange(entry.detail), 0, size - 1)
            entry = IndexEntry(at, "array", (names[at],))
        found.append(entry)
        held += [] if array is None else [array]
    return tuple(found), tuple(held)


def _shift_value(value: Any, own: Names, name: str, place: Any, valid: Any, method: str) -> tuple[Any, Names]:
    """Returns the value for each element of a slice, and its names; where it is dropped, it changes nothing."""
    if name in own:
        value = _take_positions(value, own.index(name), place, _CLIP)
    if method not in _SCALING:  # elsewhere what is dropped must not make gradients NaN
        return value, own
    value, own = (value, own) if name in own else (jnp.expand_dims(value, 0), (name, *own))
    valid = jnp.expand_dims(valid, tuple(dim for dim, one in enumerate(own) if one != name))
    return jnp.where(valid, value, jnp.ones((), jnp.result_type(value))), own


def _pop_window(entries: Entries, arrays: tuple[Any, ...]) -> tuple[IndexEntry | None, Any, Entries, tuple[Any, ...]]:
    """Returns the first window and its start, then the other entries and their arrays."""
    held = [entry for entry in entries if entry.kind != "slice"]
    for at, entry in enumerate(held):
        if entry.kind in WINDOWS:
            return entry, arrays[at], tuple(one for one in entries if one is not entry), arrays[:at] + arrays[at + 1 :]
    return None, None, entries, arrays


def _make_positional_index(
    names: Names, sizes: tuple[int, ...], result: Names, entries: Entries, arrays: tuple[Any, ...]
) -> tuple[tuple[Any, ...], Names]:
    """Returns a positional index, and the names of its result in the order of NumPy's rules."""
    index: list[Any] = [slice(None)] * len(names)
    held: dict[int, tuple[Names, Any]] = {}  # positions indexed by arrays, with the names of those arrays
    supply = iter(arrays)
    for entry in entries:
        if entry.kind == "slice":
            index[entry.position] = slice(*entry.detail)
        else:
            held[entry.position] = entry.detail, next(supply)
    held |= {at: ((names[at],), jnp.arange(sizes[at])) for at in _find_shared_axes(names, entries)}
    if not held:
        return tuple(index), names
    kept = [name for at, name in enumerate(names) if at not in held]
    picked = tuple(name for name in result if name not in kept)
    for at, (own, array) in held.items():
        index[at] = align_axes(array, own, picked)
    first, last = min(held), max(held)
    front = first if last - first + 1 == len(held) else 0
    return tuple(index), (*kept[:front], *picked, *kept[front:])


def _find_shared_axes(names: Names, entries: Entries) -> list[int]:
    """Returns the axes that are not indexed by an array but shared with one."""
    arrays = [entry for entry in entries if entry.kind == "array"]
    shared = {name for entry in arrays for name in entry.detail}
    return [at for at, name in enumerate(names) if name in shared and all(at != entry.position for entry in arrays)]


def _select_options(options: Options, names: Names, entries: Entries) -> dict[str, Any]:
    """Returns the options without `indices_are_sorted` where indices of several axes are combined."""
    single = sum(entry.kind != "slice" for entry in entries) + len(_find_shared_axes(names, entries)) <= 1
    return {key: get_static_value(value) for key, value in options if single or key != "indices_are_sorted"}


def has_unique_indices(names: Names, entries: Entries) -> bool:
    """Returns whether no element is indexed twice because index arrays have axes of the indexed array only."""
    index_names = {name for entry in entries if entry.kind == "array" for name in entry.detail}
    return index_names == {names[at] for at in _find_shared_axes(names, entries)}


def _scatter_apply(fn: Callable[[Any], Any], options: dict[str, Any], names: Names, array: Any, index: Any) -> Any:
    arrays = [item for item in index if not isinstance(item, slice)]

    def apply(array: Any, *arrays: Any) -> Any:
        supply = iter(arrays)
        items = tuple(item if isinstance(item, slice) else next(supply) for item in index)
        return array.at[items].apply(fn, **options)

    operands = [names, *[()] * len(arrays)]
    return run_operation(apply, operands, names, array, *arrays, by_compiler=True, sizes=array.shape)


def convert_values(value: Any, dtype: Any) -> Any:
    """Converts a value to an element type; raises a TypeError if it would lose its fractions or imaginary parts."""
    value = jnp.asarray(value)
    for kind in (jnp.inexact, jnp.complexfloating):
        if jnp.issubdtype(value.dtype, kind) and not jnp.issubdtype(dtype, kind):
            raise strip_library_frames(
                TypeError(f"Elements of {dtype} cannot take values of {value.dtype}; convert either with `astype`.")
            )
    return value.astype(dtype)


_CLIP, _PROMISED = GatherScatterMode.CLIP, GatherScatterMode.PROMISE_IN_BOUNDS

_SCALING = "multiply", "divide", "power"
"""The methods that leave an element unchanged if the value is 1."""

_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda _, value: value,
    "add": jnp.add,
    "subtract": jnp.subtract,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "power": jnp.power,
    "min": jnp.minimum,
    "max": jnp.maximum,
}

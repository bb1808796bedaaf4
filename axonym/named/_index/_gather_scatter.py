"""Gather and scatter on plain arrays, for traced functions whose first arguments are static.

Slices and windows are cut, which moves less data than a gather; all other indices are one gather or scatter. A mask
does not change what is gathered or scattered, but selects between those elements and others. A window that may run
over an end is gathered, which takes as long, and written as a slice from which the elements over the end are dropped.
"""

import functools
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode
from jax.sharding import AxisType

from ..._ground.caches import get_static_value
from ..._ground.jax_compat import is_traced
from .._axis import Names
from .._axis_layout import AxisLayout, get_entry_axes
from .._broadcasting import align_axes
from .._operation import name_dims, replicate_axes, run_operation, shard_over_auto
from .._reduced_types import get_reduced_axes, list_sharded_axes, set_reduced_axes
from .._sharding import get_out_sharding, get_sharding, mapping_context, reshard_by_name
from .._wide_sums import differentiate_as, is_narrow_float, widen_float
from ._index_parser import WINDOWS, Entries, IndexEntry, IndexPlan


Options: TypeAlias = tuple[tuple[str, Hashable], ...]
"""Keyword arguments of the methods of `jax.numpy.ndarray.at`."""

_AxisIndex: TypeAlias = tuple[IndexEntry, Any]
"""An entry of an index with its array or integer, which is the start of a window; None for a slice."""

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


def gather_elements(names: Names, plan: IndexPlan, options: Options, array: Any, *arrays: Any) -> Any:
    """Returns the indexed elements."""
    cut_dims = {entry.position for entry in plan.entries if entry.kind != "array"}
    mode = _get_mode(options)
    mode = _CLIP if mode is None else mode

    def gather(array: Any, *arrays: Any) -> Any:
        array = _replicate_dims(array, cut_dims)
        windows, indices = _split_index(plan.entries, arrays)
        for window, start in windows:
            dim, length = window.position, window.detail
            if window.kind == "window" or mode == _PROMISED:
                start = _move_inside(window, start, array.shape[dim])
                array = jax.lax.dynamic_slice_in_dim(array, start, length, axis=dim)
            else:  # elements over an end are treated as the mode says
                positions = count_from_front(start, array.shape[dim]) + jnp.arange(length)
                array = _take_positions(array, dim, positions, mode, dict(options).get("fill_value"))

        index, result_names = _make_positional_index(names, array.shape, plan.names, indices)
        sizes = tuple(plan.sizes[plan.names.index(name)] for name in result_names)
        if get_reduced_axes(array):
            array = set_reduced_axes(array, () if windows else _find_lookup_axes(array, indices))
        elements = array.at[index].get(
            **_select_options(options, names, indices), out_sharding=get_out_sharding(result_names, sizes)
        )
        if result_names == plan.names:
            return elements
        # NumPy's rules put the axes of index arrays first, where in the plan they replace the first indexed axis.
        return jnp.transpose(elements, tuple(map(result_names.index, plan.names)))

    index_names = [entry.detail if entry.kind == "array" else () for entry in plan.array_entries]
    operands = [_omit_indexed(names, names, plan), *index_names]
    # Integers that are known index each element once.
    if not is_narrow_float(array.dtype) or not any(is_traced(index) or np.ndim(index) for index in arrays):
        return run_operation(gather, operands, plan.names, array, *arrays)

    gather_wide = functools.partial(_gather_wide, gather, names, plan, index_names)
    elements = run_operation(gather, operands, plan.names, jax.lax.stop_gradient(array), *arrays)
    return differentiate_as(elements, run_operation(gather_wide, operands, plan.names, array, *arrays))


def _gather_wide(
    gather: Callable[..., Any], names: Names, plan: IndexPlan, index_names: Sequence[Names], array: Any, *arrays: Any
) -> Any:
    """Returns the indexed elements of an array of 16-bit floats, whose gradients add up in float32.

    Each shard of the index arrays gathers from a copy of the array. So devices round their gradients before they add
    them up, and send no more than for sums in 16 bits.
    """
    layout = _find_index_layout(names, plan, array)
    if not layout.entries:
        return gather(widen_float(array), *arrays).astype(array.dtype)
    for name, _ in reversed(layout.entries):
        gather = _split_gather(gather, name, layout.count_shards((name,)), plan.names, index_names)

    def gather_from_copies(copies: Any, *arrays: Any) -> Any:
        with mapping_context(None):  # which has the sizes of whole axes
            return gather(widen_float(copies), *arrays).astype(array.dtype)

    copies = _copy_to_shards(array, names, layout)
    operands = [("",) * copies.ndim, *index_names]
    return run_operation(gather_from_copies, operands, plan.names, copies, *arrays, by_compiler=True, sizes=plan.sizes)


def _find_index_layout(names: Names, plan: IndexPlan, array: Any) -> AxisLayout:
    """Returns how axes of the index arrays are sharded over mesh axes that do not shard the array."""
    try:
        array_sharding, sharding = get_sharding(names, array.shape), get_sharding(plan.names, plan.sizes)
    except ValueError:  # nothing has to be divisible here
        return AxisLayout()
    if array_sharding is None or sharding is None:
        return AxisLayout()
    array_axes = {axis for entry in array_sharding.spec.partitions for axis in get_entry_axes(entry)}
    entries: list[tuple[str, tuple[str, ...]]] = []
    for name, entry in zip(plan.names, sharding.spec.partitions, strict=True):
        mesh_axes = get_entry_axes(entry)
        if mesh_axes and name not in names and array_axes.isdisjoint(mesh_axes):
            entries.append((name, mesh_axes))
    return AxisLayout(sharding.mesh, tuple(entries))


def _copy_to_shards(array: Any, names: Names, layout: AxisLayout) -> Any:
    """Returns an array with a copy for each shard of some axes, along new dimensions in front."""
    shard_names = tuple(layout.mesh_axes)
    counts = tuple(layout.count_shards((name,)) for name in shard_names)
    if get_reduced_axes(array):
        array = set_reduced_axes(array, layout.list_mesh_axes(shard_names))
    shape = (*counts, *array.shape)
    copies = jnp.broadcast_to(array, shape, out_sharding=get_out_sharding((*shard_names, *names), shape))
    return shard_over_auto(copies, (*shard_names, *("" for _ in names)), layout.mesh_axes)


def _split_gather(
    gather: Callable[..., Any], name: str, count: int, result_names: Names, index_names: Sequence[Names]
) -> Callable[..., Any]:
    """Returns a gather that takes a copy of the array for each part of an axis of the index arrays."""
    dims = [axes.index(name) if name in axes else None for axes in index_names]
    result_dim = result_names.index(name)

    def run(copies: Any, *arrays: Any) -> Any:
        parts: list[Any] = []
        for array, dim in zip(arrays, dims, strict=True):
            if dim is not None:
                array = jnp.reshape(array, (*array.shape[:dim], count, -1, *array.shape[dim + 1 :]))
            parts.append(array)
        result = jax.vmap(gather, in_axes=(0, *dims), out_axes=result_dim)(copies, *parts)
        return jnp.reshape(result, (*result.shape[:result_dim], -1, *result.shape[result_dim + 2 :]))

    return run


def _find_lookup_axes(array: Any, indices: Sequence[_AxisIndex]) -> tuple[str, ...]:
    """Returns the mesh axes over which the gradient of an indexed array is added up: those of the index arrays.

    None are returned for a dimension that is sharded, since XLA's gradient would be wrong on some meshes, see
    `docs/known-faults.md`.
    """
    mesh_axes: list[str] = []
    for entry, index_array in indices:
        if entry.kind != "array" or list_sharded_axes(array, [entry.position]):
            return ()
        mesh_axes += list_sharded_axes(index_array, range(index_array.ndim))
    return tuple(mesh_axes)


def gather_with_fill(
    names: Names,
    plan: IndexPlan,
    options: Options,
    mask_names: tuple[Names, ...],
    fill_names: Names,
    array: Any,
    fill: Any,
    *masks_and_arrays: Any,
) -> Any:
    """Returns the indexed elements of an array in which `fill` replaces elements where a mask is False."""
    masks, arrays = masks_and_arrays[: len(mask_names)], masks_and_arrays[len(mask_names) :]

    def gather(array: Any, fill: Any, *masks: Any) -> Any:
        mask = _combine_masks(masks, mask_names, names, array.shape)
        if fill_names:
            fill = _broadcast_by_name(fill, fill_names, names, array.shape)
        array = jnp.where(mask, reshard_by_name(array, names), fill)
        return gather_elements(names, plan, options, array, *arrays)

    return run_operation(gather, [names, fill_names, *mask_names], None, array, fill, *masks)


def scatter_values(
    names: Names,
    plan: IndexPlan,
    options: Options,
    value_names: Names,
    method: str,
    array: Any,
    value: Any,
    *arrays: Any,
) -> Any:
    """Returns the array with the indexed elements updated by a value, or by a function for the method "apply"."""
    mode = _get_mode(options)
    windows, indices = _split_index(plan.entries, arrays, array.shape if mode == _CLIP else None, names)
    window_dims = {window.position for window, _ in windows}
    # While windows are cut, their axes are whole: each part has the sharding of the names that remain.
    part_names = tuple("" if dim in window_dims else name for dim, name in enumerate(names))

    def update(array: Any, value: Any, value_names: Names, windows: Sequence[_AxisIndex]) -> Any:
        """Cuts the first window, updates the part by the other windows, and writes it back."""
        if windows:
            window, start = windows[0]

            def update_part(part: Any, value: Any, value_names: Names) -> Any:
                return update(part, value, value_names, windows[1:])

            if window.kind == "unchecked window" and mode != _PROMISED:
                name = names[window.position]
                return _update_unchecked_window(update_part, array, value, value_names, name, window, start, method)
            start = _move_inside(window, start, array.shape[window.position])
            part = jax.lax.dynamic_slice_in_dim(array, start, window.detail, axis=window.position)
            return _write_slice(array, update_part(part, value, value_names), start, window.position)

        index, result_names = _make_positional_index(names, array.shape, plan.names, indices)
        sharding = get_out_sharding(part_names, array.shape)
        kwargs = _select_options(options, names, indices)
        if has_unique_indices(names, [entry for entry, _ in indices]):
            kwargs["unique_indices"] = True
        if method == "apply":
            return _apply_to_elements(value, kwargs, part_names, array, index)
        values = align_axes(jnp.asarray(value, array.dtype), value_names, result_names)
        if not indices:
            return _UPDATES[method](array, jnp.broadcast_to(values, array.shape, out_sharding=sharding))
        if method == "set" or kwargs.get("unique_indices"):
            return getattr(array.at[index], method)(values, **kwargs, out_sharding=sharding)
        # An element that is indexed many times is rounded once.
        updated = getattr(widen_float(array).at[index], method)(widen_float(values), **kwargs, out_sharding=sharding)
        return updated.astype(array.dtype)

    def scatter(array: Any, value: Any) -> Any:
        if not windows:
            return update(array, value, value_names, windows)
        if value_names:
            value = reshard_by_name(value, tuple(name if name in part_names else "" for name in value_names))
        array = reshard_by_name(_replicate_dims(array, window_dims), part_names)
        return reshard_by_name(update(array, value, value_names, windows), names)

    return run_operation(scatter, [names, _omit_indexed(value_names, names, plan)], None, array, value)


def scatter_where(
    names: Names,
    plan: IndexPlan,
    options: Options,
    value_names: Names,
    method: str,
    mask_names: tuple[Names, ...],
    array: Any,
    value: Any,
    *masks_and_arrays: Any,
) -> Any:
    """Returns the result of `scatter_values` where all masks are True, and the original elements elsewhere."""
    masks, arrays = masks_and_arrays[: len(mask_names)], masks_and_arrays[len(mask_names) :]

    def scatter(array: Any, value: Any, *masks: Any) -> Any:
        mask = _combine_masks(masks, mask_names, names, array.shape)
        update_names = value_names
        if method in _SCALING:
            # Scale masked elements by 1: the last `where` drops their results, but not the NaN in their gradients.
            element_mask = gather_elements(names, plan, options, mask, *arrays)
            value = _broadcast_by_name(jnp.asarray(value, array.dtype), value_names, plan.names, plan.sizes)
            value, update_names = jnp.where(element_mask, value, jnp.ones((), value.dtype)), plan.names
        updated = scatter_values(names, plan, options, update_names, method, array, value, *arrays)
        return jnp.where(mask, reshard_by_name(updated, names), reshard_by_name(array, names))

    operands = [names, _omit_indexed(value_names, names, plan), *mask_names]
    return run_operation(scatter, operands, None, array, value, *masks)


def _apply_to_elements(
    fn: Callable[[Any], Any], options: dict[str, Any], names: Names, array: Any, index: tuple[Any, ...]
) -> Any:
    """Returns the array with a function applied to the elements at a positional index."""
    index_arrays = [item for item in index if not isinstance(item, slice)]

    def apply(array: Any, *index_arrays: Any) -> Any:
        remaining = iter(index_arrays)
        items = tuple(item if isinstance(item, slice) else next(remaining) for item in index)
        return array.at[items].apply(fn, **options)

    # `apply` is the one method of `at` without `out_sharding`, so that the compiler has to shard it.
    operands = [names, *[()] * len(index_arrays)]
    return run_operation(apply, operands, names, array, *index_arrays, by_compiler=True, sizes=array.shape)


def _split_index(
    entries: Entries,
    arrays: tuple[Any, ...],
    clip_sizes: tuple[int, ...] | None = None,
    names: Names = (),
) -> tuple[list[_AxisIndex], list[_AxisIndex]]:
    """Returns the windows of an index with their starts, and its other entries with their arrays.

    With `clip_sizes`, the sizes of the array, windows that may run over an end become arrays of clipped positions.
    """
    windows: list[_AxisIndex] = []
    indices: list[_AxisIndex] = []
    remaining = iter(arrays)
    for entry in entries:
        if entry.kind == "slice":
            indices.append((entry, None))
        elif entry.kind not in WINDOWS:
            indices.append((entry, next(remaining)))
        elif entry.kind == "unchecked window" and clip_sizes is not None:
            size = clip_sizes[entry.position]
            positions = count_from_front(next(remaining), size) + jnp.arange(entry.detail)
            array_entry = IndexEntry(entry.position, "array", (names[entry.position],))
            indices.append((array_entry, jnp.clip(positions, 0, size - 1)))
        else:
            windows.append((entry, next(remaining)))
    return windows, indices


def _update_unchecked_window(
    update: Callable[..., Any],
    array: Any,
    value: Any,
    value_names: Names,
    name: str,
    window: IndexEntry,
    start: Any,
    method: str,
) -> Any:
    """Returns an array with a window updated, except for the elements of the window that are over an end.

    The slice that is written is the window moved back inside of the array, and the value is moved with it.
    """
    dim, length, size = window.position, window.detail, array.shape[window.position]
    start = count_from_front(start, size)
    inner_start = jnp.clip(start, 0, size - length)
    # The position in the value of each element of the slice; elements to which none belongs stay as they are.
    positions = jnp.arange(length) + (inner_start - start)
    valid = (positions >= 0) & (positions < length)
    if name in value_names:
        value = _take_positions(value, value_names.index(name), positions, _CLIP)
    if method in _SCALING:
        # Scale the elements that stay by 1: `where` below drops their results, but not the NaN in their gradients.
        if name not in value_names:
            value, value_names = jnp.expand_dims(value, 0), (name, *value_names)
        value_valid = _expand_vector(valid, value_names.index(name), len(value_names))
        value = jnp.where(value_valid, value, jnp.ones((), jnp.result_type(value)))
    part = jax.lax.dynamic_slice_in_dim(array, inner_start, length, axis=dim)
    updated = jnp.where(_expand_vector(valid, dim, array.ndim), update(part, value, value_names), part)
    return _write_slice(array, updated, inner_start, dim)


def count_from_front(start: Any, size: int) -> Any:
    """Returns the start of a window counted from the front of its axis; it is negative if it is before the front."""
    start = jnp.asarray(start)
    # Unsigned integers could not hold a position before the front.
    start = start.astype(jnp.promote_types(start.dtype, jnp.int32))
    return jnp.where(start < 0, start + size, start)


def _move_inside(window: IndexEntry, start: Any, size: int) -> Any:
    """Returns the start of a window that does not run over an end.

    `dynamic_slice` and its update move it too, but XLA may do that for each shard on its own (seen in jax 0.12.0).
    """
    if window.kind == "window":
        return start
    return jnp.clip(count_from_front(start, size), 0, size - window.detail)


def _take_positions(array: Any, dim: int, positions: Any, mode: GatherScatterMode, fill_value: Any = None) -> Any:
    """Returns the elements at increasing positions along one axis, which is not sharded."""
    sharding = jax.typeof(array).sharding
    return array.at[(*(slice(None),) * dim, positions)].get(
        mode=mode,
        fill_value=fill_value,
        indices_are_sorted=True,
        wrap_negative_indices=False,
        out_sharding=sharding if AxisType.Explicit in sharding.mesh.axis_types else None,
    )


def _write_slice(array: Any, part: Any, start: Any, dim: int) -> Any:
    """Returns an array with a slice along one axis replaced."""
    sharding = jax.typeof(part).sharding
    if AxisType.Explicit in sharding.mesh.axis_types and jax.typeof(array).sharding.mesh.empty:
        array = jax.reshard(array, sharding)  # the array was made before the mesh was set
    return jax.lax.dynamic_update_slice_in_dim(array, part, start, axis=dim)


def _expand_vector(vector: Any, dim: int, ndim: int) -> Any:
    """Returns a vector as an array that has it along one of its dimensions, and size 1 along the others."""
    return jnp.expand_dims(vector, tuple(i for i in range(ndim) if i != dim))


def _make_positional_index(
    names: Names, sizes: tuple[int, ...], plan_names: Names, indices: Sequence[_AxisIndex]
) -> tuple[tuple[Any, ...], Names]:
    """Returns a positional index without windows, and the names of its result in the order of NumPy's rules."""
    index: list[Any] = [slice(None)] * len(names)
    index_arrays: dict[int, tuple[Names, Any]] = {}  # by dimension, with the names of their axes
    for entry, array in indices:
        if entry.kind == "slice":
            index[entry.position] = slice(*entry.detail)
        else:
            index_arrays[entry.position] = entry.detail, array
    # An axis that index arrays share is indexed by its own positions, so that they are aligned with it.
    for dim in _find_shared_dims(names, [entry for entry, _ in indices]):
        index_arrays[dim] = (names[dim],), jnp.arange(sizes[dim])
    if not index_arrays:
        return tuple(index), names

    remaining_names = [name for dim, name in enumerate(names) if dim not in index_arrays]
    index_names = tuple(name for name in plan_names if name not in remaining_names)
    for dim, (array_names, array) in index_arrays.items():
        index[dim] = align_axes(array, array_names, index_names)
    # NumPy puts the axes of index arrays where these are, if they are next to each other, else first.
    first, last = min(index_arrays), max(index_arrays)
    front = first if last - first + 1 == len(index_arrays) else 0
    return tuple(index), (*remaining_names[:front], *index_names, *remaining_names[front:])


def _find_shared_dims(names: Names, entries: Sequence[IndexEntry]) -> list[int]:
    """Returns the dimensions that are not indexed by an array but have the name of an axis of one."""
    array_entries = [entry for entry in entries if entry.kind == "array"]
    index_names = {name for entry in array_entries for name in entry.detail}
    array_dims = {entry.position for entry in array_entries}
    return [dim for dim, name in enumerate(names) if name in index_names and dim not in array_dims]


def has_unique_indices(names: Names, entries: Sequence[IndexEntry]) -> bool:
    """Returns whether no element is indexed twice because index arrays have axes of the indexed array only."""
    index_names = {name for entry in entries if entry.kind == "array" for name in entry.detail}
    return index_names == {names[dim] for dim in _find_shared_dims(names, entries)}


def _select_options(options: Options, names: Names, indices: Sequence[_AxisIndex]) -> dict[str, Any]:
    """Returns the options, without `indices_are_sorted` if several axes are indexed together.

    The caller promises that each array is sorted, which does not say that the pairs of their elements are.
    """
    entries = [entry for entry, _ in indices]
    indexed_count = sum(entry.kind != "slice" for entry in entries) + len(_find_shared_dims(names, entries))
    return {key: get_static_value(value) for key, value in options if indexed_count <= 1 or key != "indices_are_sorted"}


def _get_mode(options: Options) -> GatherScatterMode | None:
    """Returns the mode of an index out of range, None if the caller gave none."""
    mode: Any = dict(options).get("mode")
    return None if mode is None else GatherScatterMode.from_any(mode)


def _combine_masks(masks: tuple[Any, ...], mask_names: tuple[Names, ...], names: Names, sizes: tuple[int, ...]) -> Any:
    """Returns where all masks are True, as an array with all axes."""
    full_masks = [_broadcast_by_name(mask, axes, names, sizes) for mask, axes in zip(masks, mask_names, strict=True)]
    return functools.reduce(jnp.logical_and, full_masks)


def _broadcast_by_name(array: Any, array_names: Names, names: Names, sizes: tuple[int, ...]) -> Any:
    """Returns an array repeated along the axes that it lacks, sharded by its new names on an Explicit mesh."""
    aligned = align_axes(reshard_by_name(array, array_names), array_names, names)
    return jnp.broadcast_to(aligned, sizes, out_sharding=get_out_sharding(names, sizes))


def _replicate_dims(array: Any, dims: Collection[int]) -> Any:
    """Returns an array that is not sharded over Explicit mesh axes along these dimensions.

    They are chosen by position because index arrays may have axes of the same names, which may stay sharded.
    """
    dim_names = name_dims(array)
    return replicate_axes(array, dim_names, {dim_names[dim] for dim in dims})


def _omit_indexed(operand_names: Names, names: Names, plan: IndexPlan) -> Names:
    """Returns names of axes with "" in place of those that are indexed, whose shardings the result does not have."""
    indexed_names = {names[entry.position] for entry in plan.entries}
    return tuple("" if name in indexed_names else name for name in operand_names)

"""What reading and replacing elements compute: functions of plain arrays whose first arguments are static.

Slices and windows are cut, which moves less than a gather; the rest is one gather or scatter. A mask picks nothing:
it says where what was read or replaced counts.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from .._ambient import get_out_sharding, replicate_dims, reshard_by_name
from .._axis import Names
from .._broadcasting import align_axes
from ._index_plan import Entries, IndexEntry, IndexPlan


Options: TypeAlias = tuple[tuple[str, Hashable], ...]
"""Keyword arguments of the methods of `jax.numpy.ndarray.at`."""


def get(names: Names, plan: IndexPlan, options: Options, array: Any, *arrays: Any) -> Any:
    """Returns the elements that an index picks."""
    array = replicate_dims(array, {entry.position for entry in plan.entries if entry.kind != "array"})
    window, start, entries, arrays = _first_window(plan.entries, arrays)
    while window is not None:  # a slice moves less than a gather
        array = jax.lax.dynamic_slice_in_dim(array, start, window.detail, axis=window.position)
        window, start, entries, arrays = _first_window(entries, arrays)
    where, natural = _gather(names, array.shape, plan.names, entries, arrays)
    sizes = tuple(plan.sizes[plan.names.index(name)] for name in natural)
    sharding = get_out_sharding(natural, sizes)
    picked = array.at[where].get(**_kept(options, names, entries), out_sharding=sharding)
    if natural != plan.names:
        picked = jnp.transpose(picked, tuple(map(natural.index, plan.names)))
    return reshard_by_name(picked, plan.names)


def get_filled(
    names: Names,
    plan: IndexPlan,
    options: Options,
    masks: tuple[Names, ...],
    own: Names,
    array: Any,
    fill: Any,
    *rest: Any,
) -> Any:
    """Returns the elements that an index picks of an array in which another value stands where a mask is False."""
    mask = _whole_mask(names, masks, array.shape, rest[: len(masks)])
    fill = _whole(fill, own, names, array.shape) if own else fill
    return get(names, plan, options, jnp.where(mask, reshard_by_name(array, names), fill), *rest[len(masks) :])


def put(
    names: Names, plan: IndexPlan, options: Options, own: Names, method: str, array: Any, value: Any, *arrays: Any
) -> Any:
    """Returns an array with the elements that an index picks replaced by means of a value, or a function to apply."""
    cut = {entry.position for entry in plan.entries if entry.kind == "window"}
    left = tuple("" if at in cut else name for at, name in enumerate(names))
    if cut and own:
        value = reshard_by_name(value, tuple(name if name in left else "" for name in own))

    def replaced(array: Any, entries: Entries, arrays: tuple[Any, ...]) -> Any:
        window, start, entries, arrays = _first_window(entries, arrays)
        if window is not None:  # a slice moves less than a scatter
            part = jax.lax.dynamic_slice_in_dim(array, start, window.detail, axis=window.position)
            part = replaced(part, entries, arrays)
            return jax.lax.dynamic_update_slice_in_dim(array, part, start, axis=window.position)
        where, natural = _gather(names, array.shape, plan.names, entries, arrays)
        sharding = get_out_sharding(left, array.shape)
        kept = _kept(options, names, entries) | ({"unique_indices": True} if is_unique(names, entries) else {})
        if method == "apply":
            return _applied(value, kept, sharding, array, where)
        values = align_axes(convert_values(value, array.dtype), own, natural)
        if not entries:
            return _WHOLE[method](array, jnp.broadcast_to(values, array.shape, out_sharding=sharding))
        return getattr(array.at[where], method)(values, **kept, out_sharding=sharding)

    if not cut:
        return replaced(array, plan.entries, arrays)
    return reshard_by_name(replaced(reshard_by_name(replicate_dims(array, cut), left), plan.entries, arrays), names)


def put_masked(
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
    """Returns what `put` does where all masks are True, and the array as it was elsewhere."""
    mask, arrays = _whole_mask(names, masks, array.shape, rest[: len(masks)]), rest[len(masks) :]
    if method in ("multiply", "divide", "power"):  # what is not replaced must not make gradients NaN
        picked = get(names, plan, options, mask, *arrays)
        value = _whole(convert_values(value, array.dtype), own, plan.names, plan.sizes)
        value, own = jnp.where(picked, value, jnp.ones((), value.dtype)), plan.names
    updated = put(names, plan, options, own, method, array, value, *arrays)
    return jnp.where(mask, reshard_by_name(updated, names), reshard_by_name(array, names))


def _whole_mask(names: Names, masks: tuple[Names, ...], sizes: tuple[int, ...], arrays: tuple[Any, ...]) -> Any:
    """Returns where all masks are True, as an array of all axes."""
    whole = [_whole(array, own, names, sizes) for own, array in zip(masks, arrays, strict=True)]
    return functools.reduce(jnp.logical_and, whole)


def _whole(array: Any, own: Names, names: Names, sizes: tuple[int, ...]) -> Any:
    """Returns an array repeated along the axes that it lacks, sharded as its new names say on an Explicit mesh."""
    lined = align_axes(reshard_by_name(array, own), own, names)
    return jnp.broadcast_to(lined, sizes, out_sharding=get_out_sharding(names, sizes))


def _first_window(entries: Entries, arrays: tuple[Any, ...]) -> tuple[IndexEntry | None, Any, Entries, tuple[Any, ...]]:
    """Returns the first window and its start, then the other entries and their arrays."""
    held = [entry for entry in entries if entry.kind != "slice"]
    for at, entry in enumerate(held):
        if entry.kind == "window":
            return entry, arrays[at], tuple(one for one in entries if one is not entry), arrays[:at] + arrays[at + 1 :]
    return None, None, entries, arrays


def _gather(
    names: Names, sizes: tuple[int, ...], result: Names, entries: Entries, arrays: tuple[Any, ...]
) -> tuple[tuple[Any, ...], Names]:
    """Returns a positional index, and the names of what it picks in the order that NumPy's rules give them."""
    index: list[Any] = [slice(None)] * len(names)
    held: dict[int, tuple[Names, Any]] = {}  # positions indexed by arrays, with the names of those arrays
    supply = iter(arrays)
    for entry in entries:
        if entry.kind == "slice":
            index[entry.position] = slice(*entry.detail)
        else:
            held[entry.position] = entry.detail, next(supply)
    held |= {at: ((names[at],), jnp.arange(sizes[at])) for at in _shared(names, entries)}
    if not held:
        return tuple(index), names
    kept = [name for at, name in enumerate(names) if at not in held]
    picked = tuple(name for name in result if name not in kept)
    for at, (own, array) in held.items():
        index[at] = align_axes(array, own, picked)
    first, last = min(held), max(held)
    front = first if last - first + 1 == len(held) else 0
    return tuple(index), (*kept[:front], *picked, *kept[front:])


def _shared(names: Names, entries: Entries) -> list[int]:
    """Returns the axes that are not indexed themselves but occur in the names of an index array."""
    arrays = [entry for entry in entries if entry.kind == "array"]
    brought = {name for entry in arrays for name in entry.detail}
    return [at for at, name in enumerate(names) if name in brought and all(at != entry.position for entry in arrays)]


def _kept(options: Options, names: Names, entries: Entries) -> dict[str, Any]:
    """Returns the options without the promise of order where indices of several axes are put together."""
    alone = sum(entry.kind != "slice" for entry in entries) + len(_shared(names, entries)) <= 1
    return {key: value for key, value in options if alone or key != "indices_are_sorted"}


def is_unique(names: Names, entries: Entries) -> bool:
    """Tells whether an index names no element twice because its arrays have axes of the indexed array only."""
    brought = {name for entry in entries if entry.kind == "array" for name in entry.detail}
    return brought == {names[at] for at in _shared(names, entries)}


def _applied(fn: Callable[[Any], Any], options: dict[str, Any], sharding: Any, array: Any, where: Any) -> Any:
    def applied(array: Any, *where: Any) -> Any:
        return array.at[where].apply(fn, **options)

    if sharding is None:
        return applied(array, *where)
    slices = [at for at, one in enumerate(where) if isinstance(one, slice)]
    arrays = [one for one in where if not isinstance(one, slice)]

    def scattered(array: Any, *arrays: Any) -> Any:
        supply = iter(arrays)
        return applied(array, *(one if at in slices else next(supply) for at, one in enumerate(where)))

    return jax.sharding.auto_axes(scattered, out_sharding=sharding)(array, *arrays)


def convert_values(value: Any, dtype: Any) -> Any:
    """Returns a value as an array of an element type, which must not lose its fractions or imaginary parts."""
    value = jnp.asarray(value)
    for kind in (jnp.inexact, jnp.complexfloating):
        if jnp.issubdtype(value.dtype, kind) and not jnp.issubdtype(dtype, kind):
            raise TypeError(f"Elements of {dtype} cannot take values of {value.dtype}; convert either with `astype`.")
    return value.astype(dtype)


def _replaced(_: Any, value: Any) -> Any:
    return value


_WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "set": _replaced,
    "add": jnp.add,
    "subtract": jnp.subtract,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "power": jnp.power,
    "min": jnp.minimum,
    "max": jnp.maximum,
}

"""Between the arrays of one process and those of all: `host_local_to_global` and `global_to_host_local`.

Each process reads its own part of a batch. Which axes are parts, and of how many, follows from the mapping and the
mesh: those whose mesh axes cross processes.
"""

import functools
import hashlib
import itertools
import json
import math
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.tree_util import keystr

from ..named._ambient import get_entry_axes
from ..named._axis import Names, format_axes
from ..partitioning.mapping._axis_mapping import AxisMapping, ResourceMapping, as_mapping
from ..partitioning.specs._active_mesh import MeshLike, is_tracing, resolve_mesh
from ..partitioning.specs._divisibility import format_mesh_axes
from ..partitioning.specs._leaves import Leaf, describe_leaves
from ..partitioning.specs._resolve_spec import resolve_spec
from ._barrier import checked_seconds
from ._rendezvous import coordination, listed_processes


T = TypeVar("T")
_REMEDIES = {
    "names": "all hand in arrays with the same names",
    "dtype": "all hand in arrays of the same dtype",
    "sizes": "all hand in arrays of the same sizes, and a short last part has to be filled up",
}


class _Whole(NamedTuple):
    """What the array of all processes is: its sizes, its sharding, and which part of each axis this process has."""

    sizes: tuple[int, ...]
    sharding: NamedSharding
    parts: tuple[tuple[int, ...], ...]


def host_local_to_global(
    tree: T,
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    *,
    check: bool = False,
    timeout: float = 200,
) -> T:
    """Puts the parts that the processes have together to arrays of all processes, sharded by name.

    An axis whose mesh axes cross processes is a part in each of them, and is as many times as long in the result as
    there are processes with different parts. Every other axis is whole, and so is each process' data along it:
    processes that share a part must hand in the same. All processes call this, with arrays of the same sizes. With one
    process, every part is the whole. A mesh on which the devices of a process are no block of an array is refused, so
    `global_to_host_local` always gives the parts back.

    Args:
        tree: Any tree of named arrays, with NumPy or JAX arrays of this process in them, and of module fields declared
            with `field(axis_names=...)`. Scalars, random keys without axes among them, are the same in all processes.
            What is no array stays as it is; a `jax.ShapeDtypeStruct` becomes that of the whole.
        mapping: From names to mesh axes; the mapping in force if None.
        mesh: The mesh, with devices; the one in force if None.
        check: Whether the processes compare names, sizes and dtypes, and data where they share a part. It costs a
            digest of the data. All of them come to the check and all raise, also if only one cannot hand in its part.
        timeout: How long the check waits for the other processes, in seconds.

    Returns:
        The tree with arrays of all processes.

    Raises:
        ValueError: If there is no mapping or no mesh, this process has no device of the mesh, or an array has no names,
            is one of all processes already, or does not fit the mesh. With `check`, also if arrays differ between
            processes, or another process has an error. The message names the leaf.
        TimeoutError: If a process does not come to the check in time.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> import numpy as np
        >>> rows = nym.NamedArray(np.arange(16).reshape(8, 2), ("batch", "pos"))  # what this process has read
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     batch = nym.host_local_to_global(rows, {"batch": "data"})
        >>> batch.shape, batch.sharding.spec
        ((batch: 8, pos: 2), P('data', None))
    """
    seconds = checked_seconds(timeout)
    try:
        leaves, treedef = jax.tree.flatten(tree)
        found, target = _needed(mapping, mesh)
        described = describe_leaves(tree)
        wholes = [_whole(leaf, about, found, target) for leaf, about in zip(leaves, described, strict=True)]
        mine = [*filter(None, map(_summary, leaves, described, wholes))] if check else []
    except Exception as problem:
        if check:
            _tell_others(problem, seconds)
        raise
    if check:
        _check_same(mine, seconds)
    return jax.tree.unflatten(treedef, [*map(_joined, leaves, wholes)])


def global_to_host_local(tree: T) -> T:
    """Returns this process' own part of each array, in NumPy: the inverse of `host_local_to_global`.

    Args:
        tree: Any tree of arrays, sharded over all processes or not.

    Returns:
        The tree with NumPy arrays, under the same names; random keys stay JAX arrays. Along each axis they have what
            this process' devices hold, in order and once.

    Raises:
        ValueError: If the devices of this process hold parts that do not make up an array, or if this is called within
            a traced function.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     x = nym.shard(nym.arange(nym.Axis("batch", 8)), {"batch": "data"})
        >>> nym.global_to_host_local(x).array
        array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)
    """
    if is_tracing():
        raise ValueError("`global_to_host_local` has no parts to return within a traced function; call it outside")
    leaves, treedef = jax.tree.flatten(tree)
    described = describe_leaves(tree)
    return jax.tree.unflatten(treedef, [*map(_part, leaves, described)])


def _needed(mapping: ResourceMapping | None, mesh: MeshLike | None) -> tuple[AxisMapping, Mesh]:
    """Returns the mapping and the mesh to go by, given or in force."""
    found = as_mapping(mapping)
    if found is None:
        raise ValueError("`host_local_to_global` needs a mapping; pass one or use `with axis_mapping(...)`")
    target = resolve_mesh(mesh, "`host_local_to_global`")
    if not isinstance(target, Mesh):
        where = " within a traced function; call it outside" if is_tracing() else ", not an abstract one"
        raise ValueError(f"`host_local_to_global` needs a mesh with devices{where}")
    if jax.process_index() not in _processes(target):
        raise ValueError(
            f"process {jax.process_index()} has no device of the mesh "
            f"{format_axes(target.axis_names, tuple(target.shape.values()))}, so it has no part of any array on it"
        )
    return found, target


@functools.lru_cache(maxsize=64)
def _processes(mesh: Mesh) -> frozenset[int]:
    return frozenset(device.process_index for device in mesh.devices.flat)


def _whole(leaf: Any, about: Leaf, mapping: AxisMapping, mesh: Mesh) -> _Whole | None:
    """Returns what a leaf is a part of, None if it is no array."""
    sizes = getattr(leaf, "shape", None)
    of_all = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
    if sizes is None or (of_all and not sizes):
        return None
    try:
        names = () if not sizes else about.names_of(sizes)
        if names is None:
            raise ValueError(
                f"an array of shape {tuple(sizes)} has no names, so nothing says which of its axes are parts; name "
                "them: `NamedArray(array, names)`"
            )
        if of_all:
            raise ValueError(
                f"{format_axes(names, tuple(sizes))} is an array of all processes already, as is whatever JAX makes while a "
                "mesh of several processes is set; hand in NumPy arrays"
            )
        return _planned(names, tuple(sizes), mapping if about.mapping is None else about.mapping, mesh)
    except ValueError as error:
        raise ValueError(f"{_led(keystr(about.path))}{error}") from None


def _led(where: str) -> str:
    """Returns how a message begins that is about one leaf."""
    return f"{where}: " if where else ""


@functools.lru_cache(maxsize=4096)
def _planned(names: Names, sizes: tuple[int, ...], mapping: AxisMapping, mesh: Mesh) -> _Whole:
    """Returns what an array with these names and sizes in this process is a part of."""
    entries = [get_entry_axes(entry) for entry in resolve_spec(names, (None,) * len(names), mapping, mesh)]
    counts = [_parts(axes, mesh, name) for name, axes in zip(names, entries, strict=True)]
    for name, size, axes, (own, groups) in zip(names, sizes, entries, counts, strict=True):
        if groups > 1 and size % len(own):
            product = format_mesh_axes(axes, mesh)
            raise ValueError(
                f"axis {name!r} has size {size} in this process and {size * groups} in all, which mesh axis {product} "
                f"does not divide; the next size in a process that fits is {math.ceil(size / len(own)) * len(own)}"
            )
    total = tuple(size * groups for size, (_, groups) in zip(sizes, counts, strict=True))
    spec = resolve_spec(names, total, mapping, mesh)
    _check_blocks(names, tuple(map(get_entry_axes, spec)), mesh)
    return _Whole(total, NamedSharding(mesh, spec), tuple(own if groups > 1 else () for own, groups in counts))


@functools.lru_cache(maxsize=4096)
def _parts(axes: tuple[str, ...], mesh: Mesh, name: str) -> tuple[tuple[int, ...], int]:
    """Returns which parts of an axis divided over mesh axes this process has, and in how many groups processes fall."""
    held = {process: {part for (part,) in blocks} for process, blocks in _held((axes,), mesh).items()}
    groups = {frozenset(parts) for parts in held.values()}
    if sum(map(len, groups)) != len(frozenset().union(*groups)) or len({*map(len, groups)}) > 1:
        shown = "; ".join(f"process {process}: {sorted(parts)}" for process, parts in sorted(held.items())[:4])
        raise ValueError(
            f"axis {name!r} is divided over {format_axes(axes)} so that processes share some of their parts and not others "
            f"({shown}); make a mesh on which each process has whole rows, or make the array with "
            "`jax.make_array_from_callback`"
        )
    return tuple(sorted(held[jax.process_index()])), len(groups)


@functools.lru_cache(maxsize=4096)
def _check_blocks(names: Names, entries: tuple[tuple[str, ...], ...], mesh: Mesh) -> None:
    """Raises unless what the devices of each process hold makes up an array, which only it could give back."""
    for process, blocks in sorted(_held(entries, mesh).items()):
        if len(blocks) != math.prod(len(set(parts)) for parts in zip(*blocks, strict=True)):
            shown = ", ".join(map(str, sorted(blocks)[:4])) + ", ..." * (len(blocks) > 4)
            raise ValueError(
                f"({', '.join(names)}) is divided so that the parts in process {process} make up no array: {shown}; "
                "make a mesh on which the devices of each process are a block, as `create_mesh` does, or make the "
                "array with `jax.make_array_from_callback`"
            )


def _held(entries: tuple[tuple[str, ...], ...], mesh: Mesh) -> dict[int, set[tuple[int, ...]]]:
    """Returns which parts of an array each process' devices hold, each as an index along every axis of the array."""
    where = [[mesh.axis_names.index(axis) for axis in axes] for axes in entries]
    held: dict[int, set[tuple[int, ...]]] = {}
    for place, device in np.ndenumerate(mesh.devices):
        parts = (functools.reduce(lambda part, at: part * mesh.devices.shape[at] + place[at], one, 0) for one in where)
        held.setdefault(device.process_index, set()).add(tuple(parts))
    return held


def _joined(leaf: Any, whole: _Whole | None) -> Any:
    """Returns the array of all processes that a leaf is a part of."""
    if whole is None:
        return leaf
    sizes, sharding, _ = whole
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(sizes, leaf.dtype, sharding=sharding)
    if not _is_key(leaf):
        return jax.make_array_from_process_local_data(sharding, np.asarray(leaf), sizes)
    data = _key_data(leaf)
    behind = data.shape[len(sizes) :]
    placed = NamedSharding(sharding.mesh, P(*sharding.spec, *(None,) * len(behind)))
    joined = jax.make_array_from_process_local_data(placed, data, (*sizes, *behind))
    return jax.random.wrap_key_data(joined, impl=jax.random.key_impl(leaf))


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_data(keys: jax.Array) -> np.ndarray:
    """Returns random keys of this process as numbers, with no other process taking part."""
    with jax.set_mesh(None):
        return np.asarray(jax.random.key_data(keys))


def _part(leaf: Any, about: Leaf) -> Any:
    """Returns this process' own part of a leaf."""
    if not isinstance(leaf, jax.Array):
        return leaf
    if _is_key(leaf):
        data = _part(jax.random.key_data(leaf), about)
        with jax.set_mesh(None):  # an array of this process alone
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    if leaf.is_fully_addressable:
        return np.asarray(leaf)
    if not leaf.addressable_shards:
        raise ValueError(
            f"{_led(keystr(about.path))}process {jax.process_index()} has no part of an array of shape {leaf.shape}: "
            "it has none of the devices that the array is on"
        )
    shards = {_intervals(shard.index, leaf.shape): shard.data for shard in leaf.addressable_shards}
    starts = [_offsets({place[dim] for place in shards}) for dim in range(leaf.ndim)]
    sizes = tuple(sum(stop - start for start, stop in offsets) for offsets in starts)
    if len(shards) != math.prod(map(len, starts)):
        raise ValueError(
            f"{_led(keystr(about.path))}process {jax.process_index()} holds parts of an array of shape "
            f"{leaf.shape} that do not make up an array: its devices are no block of the mesh"
        )
    result = np.empty(sizes, leaf.dtype)
    for place, data in shards.items():
        here = tuple(
            slice(offsets[one], offsets[one] + one[1] - one[0]) for one, offsets in zip(place, starts, strict=True)
        )
        result[here] = np.asarray(data)
    return result


def _intervals(index: tuple[slice, ...], sizes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(part.indices(size)[:2] for part, size in zip(index, sizes, strict=True))


def _offsets(intervals: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Returns where each part of an axis begins in this process' array."""
    offsets, end = {}, 0
    for start, stop in sorted(intervals):
        offsets[start, stop], end = end, end + stop - start
    return offsets


def _exchanged(mine: Any, seconds: float) -> list[Any] | None:
    """Returns what each process brings to the check, in order; None if this process is the only one."""
    service = coordination()
    if service is None:
        return None
    meeting = service.meet("parts", "check", seconds, "the check of `host_local_to_global`", value=json.dumps(mine))
    try:
        return [json.loads(value) for value in meeting.values()]
    finally:
        meeting.leave()


def _tell_others(problem: Exception, seconds: float) -> None:
    """Comes to the check with what this process is about to raise, so that no other waits for it in vain."""
    try:
        _exchanged(f"{type(problem).__name__}: {problem}", seconds)
    except (RuntimeError, TimeoutError) as error:
        problem.add_note(str(error))


def _check_same(mine: list[dict[str, Any]], seconds: float) -> None:
    """Raises in every process unless all have a part, arrays agree, and data where processes share a part."""
    theirs = _exchanged(mine, seconds) or []
    for process, other in enumerate(theirs):
        if isinstance(other, str):
            raise ValueError(f"process {process} cannot hand in its part, so no array is made; it raises {other}")
    for process, other in enumerate(theirs):
        _compare(mine, process, other)
    for at, one in enumerate(mine if theirs else []):
        first: dict[str, int] = {}
        for process, other in enumerate(theirs):
            shared = first.setdefault(json.dumps(other[at]["part"]), process)
            if theirs[shared][at]["data"] != other[at]["data"]:
                raise ValueError(
                    f"{_led(one['where'])}processes {shared} and {process} have the same part of {_shown(one)}, and "
                    "not the same data in it"
                )


def _compare(mine: list[dict[str, Any]], process: int, its: list[dict[str, Any]]) -> None:
    """Raises unless another process has arrays of the same names, sizes and dtypes as this one, at the same places."""
    here, there = f"this process, {jax.process_index()},", listed_processes([process])
    for at, (own, other) in enumerate(itertools.zip_longest(mine, its), 1):
        places = ["missing" if one is None else one["where"] or "alone" for one in (own, other)]
        if places[0] != places[1]:
            raise ValueError(
                f"array {at} of the tree is {places[0]} in {here} and {places[1]} in {there}; all hand in trees of the "
                "same structure"
            )
        for kind in _REMEDIES:
            if own[kind] != other[kind]:
                raise ValueError(
                    f"{_led(own['where'])}{here} hands in {_shown(own)} and {there} {_shown(other)}; {_REMEDIES[kind]}"
                )


def _shown(one: dict[str, Any]) -> str:
    return f"{one['dtype']} {format_axes(one['names'], one['sizes'])}"


def _summary(leaf: Any, about: Leaf, whole: _Whole | None) -> dict[str, Any] | None:
    """Returns what the others see of a leaf, in the types that JSON has; None if it is no array."""
    if whole is None:
        return None
    data = _key_data(leaf) if _is_key(leaf) else leaf
    content = b"" if isinstance(leaf, jax.ShapeDtypeStruct) else np.ascontiguousarray(np.asarray(data)).tobytes()
    return {
        "where": keystr(about.path),
        "names": list(about.names_of(leaf.shape) or ()),
        "dtype": str(leaf.dtype),
        "sizes": list(leaf.shape),
        "part": whole.parts,
        "data": hashlib.sha256(content).hexdigest(),
    }

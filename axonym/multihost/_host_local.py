"""`host_local_to_global` and `global_to_host_local`: between arrays of one process and arrays of all processes.

Each process reads its own part of a batch. Which axes are split between processes, and into how many parts, follows
from the mapping and the mesh: axes whose mesh axes cross processes.
"""

import functools
import hashlib
import itertools
import json
import math
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.tree_util import keystr

from .._ground.arguments import check_flag
from .._ground.caches import cached_plan
from .._ground.formats import format_axes
from .._ground.jax_compat import is_tracing
from ..named._axis import Names
from ..named._axis_layout import format_mesh_axes, get_entry_axes
from ..named._numpy_input import find_array_problem
from ..named._transforms import is_random_key
from ..partitioning._active_mesh import MeshLike, format_mesh, resolve_mesh
from ..partitioning._leaves import LeafInfo, describe_leaves, format_prefix
from ..partitioning._mapping import AxisMapping, ResourceMapping, as_mapping
from ..partitioning._resolve_spec import resolve_spec
from ._rendezvous import Rendezvous, as_seconds, get_coordination_store


T = TypeVar("T")
_REMEDIES = {
    "names": "pass arrays with the same names in all processes",
    "dtype": "pass arrays of the same dtype in all processes",
    "sizes": "pass arrays of the same sizes in all processes, and pad a short last part",
    "result": "use the same mapping and mesh in all processes",
}


class AxisParts(NamedTuple):
    """The parts of an axis that this process has, and its place among the groups of processes with different parts."""

    local: tuple[int, ...]
    group: int
    groups: int


def resolve_mapping_and_mesh(
    mapping: ResourceMapping | None, mesh: MeshLike | None, purpose: str
) -> tuple[AxisMapping, Mesh]:
    """Returns the given mapping and mesh, or the active ones; raises a ValueError if this process cannot use them."""
    axis_mapping = as_mapping(mapping)
    if axis_mapping is None:
        raise ValueError(f"{purpose} needs a mapping; pass one or use `with axis_mapping(...)`")
    target = resolve_mesh(mesh, purpose)
    if not isinstance(target, Mesh):
        where = "; call it outside of traced functions" if is_tracing() else ", not an abstract one"
        raise ValueError(f"{purpose} needs a mesh with devices{where}")
    if jax.process_index() not in locate_parts((), target):
        raise ValueError(
            f"process {jax.process_index()} has no device of the mesh {format_mesh(target)}, so it has no part of any "
            "array on it"
        )
    return axis_mapping, target


def find_axis_parts(axes: tuple[str, ...], mesh: Mesh, name: str) -> AxisParts:
    """Returns the parts of an axis that this process has; raises a ValueError if processes share some but not all."""
    parts_by_process = {process: {part for (part,) in parts} for process, parts in locate_parts((axes,), mesh).items()}
    groups = {frozenset(parts) for parts in parts_by_process.values()}
    # Different groups share no part, and have equally many, so that all processes read arrays of one size.
    if sum(map(len, groups)) != len(frozenset().union(*groups)) or len({*map(len, groups)}) > 1:
        shown_parts = "; ".join(
            f"process {process}: {sorted(parts)}" for process, parts in sorted(parts_by_process.items())[:4]
        )
        raise ValueError(
            f"axis {name!r} is sharded over {format_axes(axes)} so that processes share some of their parts but not "
            f"others ({shown_parts}); make a mesh on which each process has complete rows, or make the array with "
            "`jax.make_array_from_callback`"
        )
    local_parts = parts_by_process[jax.process_index()]
    return AxisParts(tuple(sorted(local_parts)), sorted(map(sorted, groups)).index(sorted(local_parts)), len(groups))


@cached_plan
def locate_parts(entries: tuple[tuple[str, ...], ...], mesh: Mesh) -> dict[int, set[tuple[int, ...]]]:
    """Returns the parts of an array that each process holds, each as an index along every axis of the array."""
    # Of several mesh axes that shard one axis, the first one is the most significant.
    dims = [[mesh.axis_names.index(axis) for axis in axes] for axes in entries]
    parts_by_process: dict[int, set[tuple[int, ...]]] = {}
    for place, device in np.ndenumerate(mesh.devices):
        part = [functools.reduce(lambda i, dim: i * mesh.devices.shape[dim] + place[dim], axes, 0) for axes in dims]
        parts_by_process.setdefault(device.process_index, set()).add(tuple(part))
    return parts_by_process


class _GlobalArray(NamedTuple):
    """The sizes and the sharding of an array of all processes, and the parts of each axis that this process has."""

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
    """Assembles the parts of all processes into arrays of all processes, sharded by name.

    An axis whose mesh axes cross processes is split between them: its size in the result is multiplied by the number of
    different parts. Any other axis has its full size in each process. Processes that share a part must pass the same
    data. All processes call this, with arrays of the same sizes. With one process, each part is the entire array. On
    the mesh, the devices of each process must hold a block of each array, so that `global_to_host_local` can return it.

    Without `jax_enable_x64`, JAX has 32 bits for the 64 of NumPy: floats are rounded, and numbers that do not fit are
    an error.

    Args:
        tree: Any tree of named arrays, with NumPy or JAX arrays of this process in them, and of module fields declared
            with `field(axis_names=...)`. Scalars, including random keys without axes, are the same in all processes.
            Leaves that are not arrays stay as they are; a `jax.ShapeDtypeStruct` gets the global shape.
        mapping: From names to mesh axes; the active mapping if None.
        mesh: The mesh, with devices; the active mesh if None.
        check: Whether the processes compare names, sizes, dtypes, mappings and meshes, and data if they share a part.
            It costs a digest of the data. All processes take part and all raise, even if only one cannot provide its
            part.
        timeout: How long the check waits for the other processes, in seconds.

    Returns:
        The tree with arrays of all processes.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If there is no mapping or no mesh, this process has no device of the mesh, or an array has no names,
            is an array of all processes already, does not fit the mesh, has numbers that do not fit JAX's, or is a
            masked array. With `check`, also if arrays differ between processes, or another process has an error. The
            message names the leaf.
        TimeoutError: If a process does not arrive at the check in time.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> import numpy as np
        >>> rows = nym.NamedArray(np.arange(16).reshape(8, 2), ("batch", "pos"))  # read by this process
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     batch = nym.host_local_to_global(rows, {"batch": "data"})
        >>> batch.shape, batch.sharding.spec
        ((batch: 8, pos: 2), P('data', None))
    """
    seconds = as_seconds(timeout)
    check_flag("`check`", check)
    try:
        leaves, treedef = jax.tree.flatten(tree)
        active_mapping, devices_mesh = resolve_mapping_and_mesh(mapping, mesh, "`host_local_to_global`")
        described = describe_leaves(tree)
        planned = [
            _plan_leaf(leaf, leaf_info, active_mapping, devices_mesh)
            for leaf, leaf_info in zip(leaves, described, strict=True)
        ]
        summaries = [*filter(None, map(_summarize_leaf, leaves, described, planned))] if check else []
    except Exception as error:
        if check:
            _report_error(error, seconds)
        raise
    if check:
        _check_same_parts(summaries, seconds)
    return jax.tree.unflatten(treedef, [*map(_assemble_leaf, leaves, planned)])


def global_to_host_local(tree: T) -> T:
    """Returns the part of each array that this process has, in NumPy: the inverse of `host_local_to_global`.

    Args:
        tree: Any tree of arrays, sharded over all processes or not.

    Returns:
        The tree with NumPy arrays, under the same names; random keys stay JAX arrays. Along each axis they contain what
            the devices of this process hold, in order and without repetition.

    Raises:
        ValueError: If the parts that the devices of this process hold do not form an array, or if this is called inside
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
        raise ValueError("`global_to_host_local` has no parts to return inside a traced function; call it outside")
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, [*map(_extract_part, leaves, describe_leaves(tree))])


def _plan_leaf(leaf: Any, leaf_info: LeafInfo, mapping: AxisMapping, mesh: Mesh) -> _GlobalArray | None:
    """Returns the array of all processes that a leaf is a part of, or None if it is not an array."""
    sizes = getattr(leaf, "shape", None)
    is_global = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
    if sizes is None or (is_global and not sizes):  # a scalar of all processes stays as it is
        return None
    try:
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            problem = find_array_problem(np.asanyarray(leaf))
            if problem is not None:
                raise ValueError(f"an array of shape {tuple(sizes)} {problem}")
        names = () if not sizes else leaf_info.names_of(sizes)
        if names is None:
            raise ValueError(
                f"an array of shape {tuple(sizes)} has no names, so it is unknown which of its axes are split; name "
                "them: `NamedArray(array, names)`"
            )
        if is_global:
            raise ValueError(
                f"{format_axes(names, tuple(sizes))} is an array of all processes already, like every array that JAX "
                "makes while a mesh of several processes is active; pass NumPy arrays"
            )
        leaf_mapping = mapping if leaf_info.mapping is None else leaf_info.mapping
        return _plan_global_array(names, tuple(sizes), leaf_mapping, mesh)
    except ValueError as error:
        raise ValueError(f"{format_prefix(keystr(leaf_info.path))}{error}") from None


@cached_plan
def _plan_global_array(names: Names, sizes: tuple[int, ...], mapping: AxisMapping, mesh: Mesh) -> _GlobalArray:
    """Returns the array of all processes of which an array with these names and sizes is a part."""
    # The total sizes depend on the mesh axes, which are resolved without sizes first, and with them below.
    entries = [get_entry_axes(entry) for entry in resolve_spec(names, (None,) * len(names), mapping, mesh)]
    parts = [find_axis_parts(axes, mesh, name) for name, axes in zip(names, entries, strict=True)]
    for name, size, axes, part in zip(names, sizes, entries, parts, strict=True):
        count = len(part.local)
        if part.groups > 1 and size % count:
            raise ValueError(
                f"axis {name!r} has size {size} in this process and {size * part.groups} in total, which is not "
                f"divisible by mesh axis {format_mesh_axes(axes, mesh)}; the next size in a process that fits is "
                f"{math.ceil(size / count) * count}"
            )
    total = tuple(size * part.groups for size, part in zip(sizes, parts, strict=True))
    spec = resolve_spec(names, total, mapping, mesh)
    _check_blocks(names, tuple(map(get_entry_axes, spec)), mesh)
    return _GlobalArray(
        total, NamedSharding(mesh, spec), tuple(part.local if part.groups > 1 else () for part in parts)
    )


def _check_blocks(names: Names, entries: tuple[tuple[str, ...], ...], mesh: Mesh) -> None:
    """Raises unless the parts in each process form an array, because no other parts can be returned."""
    for process, parts in sorted(locate_parts(entries, mesh).items()):
        if not _is_block(parts):
            shown_parts = ", ".join(map(str, sorted(parts)[:4])) + ", ..." * (len(parts) > 4)
            raise ValueError(
                f"({', '.join(names)}) is sharded so that the parts in process {process} do not form an array: "
                f"{shown_parts}; make a mesh on which the devices of each process are a block, as `create_mesh` does, "
                "or make the array with `jax.make_array_from_callback`"
            )


def _is_block(places: Any) -> bool:
    """Returns whether places with several coordinates each are all combinations of their coordinates."""
    return len(places) == math.prod(len(set(coordinates)) for coordinates in zip(*places, strict=True))


def _assemble_leaf(leaf: Any, planned: _GlobalArray | None) -> Any:
    """Returns the array of all processes that a leaf is a part of."""
    if planned is None:
        return leaf
    sizes, sharding, _ = planned
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(sizes, leaf.dtype, sharding=sharding)
    if not is_random_key(leaf):
        return jax.make_array_from_process_local_data(sharding, np.asarray(leaf), sizes)
    # JAX assembles numbers only. Those of a key are along further axes, which are not sharded.
    data = _read_key_data(leaf)
    trailing = data.shape[len(sizes) :]
    data_sharding = NamedSharding(sharding.mesh, P(*sharding.spec, *(None,) * len(trailing)))
    assembled = jax.make_array_from_process_local_data(data_sharding, data, (*sizes, *trailing))
    return jax.random.wrap_key_data(assembled, impl=jax.random.key_impl(leaf))


def _read_key_data(keys: jax.Array) -> np.ndarray:
    """Returns random keys of this process as numbers, without other processes taking part."""
    with jax.set_mesh(None):
        return np.asarray(jax.random.key_data(keys))


def _extract_part(leaf: Any, leaf_info: LeafInfo) -> Any:
    """Returns the part of a leaf that this process has."""
    if not isinstance(leaf, jax.Array):
        return leaf
    if is_random_key(leaf):
        data = _extract_part(jax.random.key_data(leaf), leaf_info)
        with jax.set_mesh(None):  # an array of this process alone
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    if leaf.is_fully_addressable:
        return np.asarray(leaf)
    where = f"{format_prefix(keystr(leaf_info.path))}process {jax.process_index()}"
    if not leaf.addressable_shards:
        raise ValueError(
            f"{where} has no part of an array of shape {leaf.shape}: it has none of the devices that hold the array"
        )
    shards = {tuple(part.start or 0 for part in shard.index): shard.data for shard in leaf.addressable_shards}
    if not _is_block(shards):
        raise ValueError(
            f"{where} holds parts of an array of shape {leaf.shape} that do not form an array: its devices are not a "
            "block of the mesh"
        )
    starts = [sorted(set(column)) for column in zip(*shards, strict=True)]
    sizes = leaf.sharding.shard_shape(leaf.shape)
    result = np.empty([len(column) * size for column, size in zip(starts, sizes, strict=True)], leaf.dtype)
    for place, data in shards.items():
        corner = [column.index(start) * size for column, start, size in zip(starts, place, sizes, strict=True)]
        result[tuple(slice(start, start + size) for start, size in zip(corner, sizes, strict=True))] = data
    return result


def _exchange_summaries(local_summaries: Any, seconds: float) -> list[Any]:
    """Returns what each process passes to the check, in order; nothing if this process is the only one."""
    store = get_coordination_store()
    if store is None:
        return []
    rendezvous = Rendezvous(store, "parts", "check", seconds, "the check of `host_local_to_global`")
    return [json.loads(value) for value in rendezvous.exchange_values(json.dumps(local_summaries))]


def _report_error(error: Exception, seconds: float) -> None:
    """Tells the others at the check what this process raises, so that they do not wait in vain."""
    try:
        _exchange_summaries(f"{type(error).__name__}: {error}", seconds)
    except (RuntimeError, TimeoutError) as exchange_error:
        error.add_note(str(exchange_error))


def _check_same_parts(local_summaries: list[dict[str, Any]], seconds: float) -> None:
    """Raises in every process unless all have parts of the same arrays, and the same data in shared parts."""
    summaries = _exchange_summaries(local_summaries, seconds)
    for process, summary in enumerate(summaries):
        if isinstance(summary, str):
            raise ValueError(f"process {process} cannot provide its part, so no array is made; it raises {summary}")
    for process, summary in enumerate(summaries):
        _compare_summaries(local_summaries, process, summary)
    for number, local_summary in enumerate(local_summaries if summaries else []):
        first_processes: dict[str, int] = {}  # the first process with each part
        for process, summary in enumerate(summaries):
            sharer = first_processes.setdefault(json.dumps(summary[number]["part"]), process)
            if summaries[sharer][number]["data"] != summary[number]["data"]:
                raise ValueError(
                    f"{format_prefix(local_summary['path'])}processes {sharer} and {process} have different data in "
                    f"the same part of {_format_summary(local_summary)}"
                )


def _compare_summaries(
    local_summaries: list[dict[str, Any]], process: int, remote_summaries: list[dict[str, Any]]
) -> None:
    """Raises unless another process has arrays of the same names, sizes, dtypes and results at the same paths."""
    this_process, that_process = f"this process, {jax.process_index()},", f"process {process}"
    pairs = itertools.zip_longest(local_summaries, remote_summaries)
    for number, (local_summary, remote_summary) in enumerate(pairs, 1):
        local_path, remote_path = _format_path(local_summary), _format_path(remote_summary)
        if local_path != remote_path:
            raise ValueError(
                f"array {number} of the tree is {local_path} in {this_process} and {remote_path} in {that_process}; "
                "pass trees of the same structure in all processes"
            )
        for kind, remedy in _REMEDIES.items():
            if local_summary[kind] == remote_summary[kind]:
                continue
            prefix = format_prefix(local_summary["path"])
            if kind == "result":
                difference = f"makes {local_summary[kind]} and {that_process} {remote_summary[kind]}"
            else:
                difference = (
                    f"has {_format_summary(local_summary)} and {that_process} {_format_summary(remote_summary)}"
                )
            raise ValueError(f"{prefix}{this_process} {difference}; {remedy}")


def _format_path(summary: dict[str, Any] | None) -> str:
    return "missing" if summary is None else summary["path"] or "alone"


def _format_summary(summary: dict[str, Any]) -> str:
    return f"{summary['dtype']} {format_axes(summary['names'], summary['sizes'])}"


def _summarize_leaf(leaf: Any, leaf_info: LeafInfo, planned: _GlobalArray | None) -> dict[str, Any] | None:
    """Returns what the others need to know of a leaf, as JSON; None if it is not an array."""
    if planned is None:
        return None
    content = b""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        data = _read_key_data(leaf) if is_random_key(leaf) else np.asarray(leaf)
        content = data.tobytes()
    names, sharding = leaf_info.names_of(leaf.shape) or (), planned.sharding
    return {
        "path": keystr(leaf_info.path),
        "names": list(names),
        "dtype": str(leaf.dtype),
        "sizes": list(leaf.shape),
        "result": f"{format_axes(names, planned.sizes)} with {sharding.spec} on mesh {format_mesh(sharding.mesh)}",
        "part": planned.parts,
        "data": hashlib.sha256(content).hexdigest(),
    }

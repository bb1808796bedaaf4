"""The explanation of one array, for `explain` and for reports: its spec, the reason for each axis, and its bytes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

from ..partitioning.mapping._mapping import AxisMapping
from ..partitioning.sharding._partition_specs import (
    get_own_sharding,
    get_sharded_axes,
    get_sharding_over,
    is_same_mesh,
    pad_spec,
)
from ..partitioning.sharding._placement import resolve_unconstrained
from ..partitioning.sharding._shard import infer_leaf_sharding
from ..partitioning.specs._active_mesh import MeshLike, format_mesh
from ..partitioning.specs._bytes_per_device import (
    Load,
    count_array_bytes,
    count_devices,
    get_fullest_device_bytes,
    sum_device_bytes,
)
from ..partitioning.specs._leaves import Leaf, describe_leaves, get_array_shape
from ._explain_axes import (
    LeafMapping,
    explain_axes,
    explain_invalid_axes,
    explain_named_axis,
    explain_refused_axes,
)
from ._explanation import AxisExplanation, Decision, LeafExplanation


class ExplainedLeaf(NamedTuple):
    """The explanation of an array, and for totals and reports its bytes, place in the tree, mesh and invalid spec."""

    leaf: LeafExplanation
    load: Load
    array: Any
    about: Leaf
    mesh: MeshLike | None
    invalid_spec: P | None = None


def list_arrays(tree: Any) -> list[tuple[Any, Leaf]]:
    """Returns the arrays among the leaves of a tree, each with a description of its place in the tree."""
    pairs = zip(jax.tree.leaves(tree), describe_leaves(tree), strict=True)
    return [(leaf, about) for leaf, about in pairs if get_array_shape(leaf) is not None]


def explain_by_mapping(
    array: Any, about: Leaf, mapping: AxisMapping, names: frozenset[str], mesh: MeshLike
) -> ExplainedLeaf:
    """Explains how a mapping shards an array; the spec is found as `shard` finds it."""
    of = LeafMapping(mapping if about.mapping is None else about.mapping, about.mapping is not None, names)
    shape, own_names, rule = array.shape, about.names_of(array.shape), of.mapping.fallback
    try:
        sharding = infer_leaf_sharding(array, about, of.mapping, mesh, warn=False)
        sharding = None if sharding is None else resolve_unconstrained(sharding, getattr(array, "sharding", None))
    except Exception as refused:  # whatever `shard` raises, errors of a rule among them
        error = str(refused)
        if own_names is None:
            axes = explain_refused_axes(shape, None, [error])
        else:
            axes = explain_invalid_axes(own_names, shape, of, mesh, error)
        return _make_leaf(array, about, axes, None, mesh, error=error)
    kept = get_sharding_over(array, mesh) if sharding is None else None
    placed = sharding or kept or NamedSharding(mesh, P())
    if own_names is not None:
        entries = pad_spec(placed.spec, len(own_names))
        axes = [explain_named_axis(*each, of, mesh) for each in zip(own_names, shape, entries, strict=True)]
    elif sharding is not None and rule is not None:
        source = about.decision.by.replace("`: ", "`, ", 1) or f"the rule `{type(rule).__name__}`"
        axes = explain_axes(shape, None, placed.spec, mesh, "rule", source, requested=about.decision.spec)
    elif kept:
        axes = explain_axes(shape, own_names, kept.spec, mesh, "sharding", "its own sharding")
    else:
        no_rule = "no fallback rule" if rule is None else f"the rule `{type(rule).__name__}` gives no spec"
        axes = explain_axes(shape, own_names, P(), None, "no rule", "", unsharded=f"no axis names, {no_rule}")
    return _make_leaf(array, about, axes, placed.spec, mesh, now=_describe_current_place(array, placed))


def explain_by_spec(
    array: Any, about: Leaf, spec: P | None, problems: Sequence[str], source: str, mesh: MeshLike
) -> ExplainedLeaf:
    """Explains how a given spec shards an array, or the problems of that spec."""
    shape = tuple(array.shape)
    names = about.names_of(shape)
    if problems:
        axes = explain_refused_axes(shape, names, problems)
        return _make_leaf(array, about, axes, None, mesh, error="; ".join(problems))._replace(invalid_spec=spec)
    spec = P() if spec is None else spec  # an empty spec is false, even one that is `unreduced`
    axes = explain_axes(shape, names, spec, mesh, "spec", source or "the spec")
    now = _describe_current_place(array, NamedSharding(mesh, spec))
    return _make_leaf(array, about, axes, spec, mesh, now=now)


def explain_own_sharding(array: Any, about: Leaf, mesh: MeshLike | None) -> ExplainedLeaf:
    """Explains the current sharding of an array; without one, it counts as replicated over the mesh."""
    own, shape = get_own_sharding(array), tuple(array.shape)
    is_on_mesh = isinstance(own, NamedSharding)
    spec, own_mesh = (own.spec, own.mesh) if is_on_mesh else (P(), mesh)
    decision: Decision = "sharding" if is_on_mesh else "no mapping"
    unsharded = None if is_on_mesh else f"on {describe_place(array)}"
    names = about.names_of(shape)
    axes = explain_axes(shape, names, spec, own_mesh, decision, "its own sharding", unsharded=unsharded)
    found = _make_leaf(array, about, axes, spec, own_mesh)
    if own is None or (isinstance(own_mesh, AbstractMesh) and is_on_mesh):
        return found
    part = found.load.per_device if is_on_mesh else count_array_bytes(array.dtype, own.shard_shape(shape))
    load = Load(found.load.bytes, part, len(own.device_set), frozenset(own.device_set))
    return _make_leaf(array, about, axes, spec, own_mesh, load=load)


def _make_leaf(
    array: Any,
    about: Leaf,
    axes: Sequence[AxisExplanation],
    spec: P | None,
    mesh: MeshLike | None,
    *,
    load: Load | None = None,
    now: str | None = None,
    error: str | None = None,
) -> ExplainedLeaf:
    """Returns the explanation of an array; without a load, each device of the mesh has as many bytes."""
    shape = tuple(array.shape)
    if load is None:
        part = shape if spec is None else [axis.size // axis.parts for axis in axes]
        devices = 1 if mesh is None else count_devices(mesh)
        load = Load(count_array_bytes(array.dtype, shape), count_array_bytes(array.dtype, part), devices)
    if spec is not None:
        spec = P(*pad_spec(spec, len(shape)), unreduced=spec.unreduced, reduced=spec.reduced)
    leaf = LeafExplanation(
        path=jax.tree_util.keystr(about.path),
        dtype=str(array.dtype),
        shape=shape,
        kind="field" if about.declared else "plain" if about.names_of(shape) is None else "named",
        axes=tuple(axes),
        spec=spec,
        bytes=load.bytes,
        bytes_per_device=load.per_device,
        replicated_bytes=load.replicated,
        now=now,
        error=error,
    )
    return ExplainedLeaf(leaf, load, array, about, mesh)


def sum_leaves(found: Sequence[ExplainedLeaf], mesh: MeshLike | None) -> dict[str, Any]:
    """Returns the fields that `Explanation` and `ShardingReport` share, except for the leaves."""
    everywhere, held = sum_device_bytes(one.load for one in found)
    return {
        "mesh": {} if mesh is None else dict(mesh.shape),
        "devices": max(len(held), 1) if mesh is None else count_devices(mesh),
        "bytes": sum(one.load.bytes for one in found),
        "bytes_per_device": get_fullest_device_bytes(everywhere, held),
        "replicated_bytes": sum(one.load.replicated for one in found),
    }


def find_common_mesh(arrays: Sequence[tuple[Any, Leaf]]) -> MeshLike | None:
    """Returns the mesh that the arrays are on, None if there is none or more than one."""
    owns = [get_own_sharding(leaf) for leaf, _ in arrays]
    meshes = {own.mesh for own in owns if isinstance(own, NamedSharding)}
    return meshes.pop() if len(meshes) == 1 else None


def describe_place(array: Any) -> str:
    """Returns where an array is, as `LeafReport.place` has it: a mesh, one device, the host."""
    own = get_own_sharding(array)
    if isinstance(own, NamedSharding):
        return f"mesh {format_mesh(own.mesh)}"
    if own is not None:
        return _format_sharding(own).removeprefix("on ")
    if isinstance(array, jax.Array):
        return "unknown devices"
    return "the host" if isinstance(array, np.ndarray | np.generic) else "no device"


def _describe_current_place(array: Any, wanted: NamedSharding) -> str | None:
    """Returns where an array is in words, None if that is unknown or where it is wanted."""
    own = get_own_sharding(array)
    if own is None:
        return "on the host" if isinstance(array, np.ndarray | np.generic) else None
    mesh = getattr(own, "mesh", None)
    is_same = mesh is not None and is_same_mesh(mesh, wanted.mesh)
    is_abstract = isinstance(wanted.mesh, AbstractMesh)
    if is_abstract or isinstance(mesh, AbstractMesh):
        is_there = is_same and pad_spec(own.spec, array.ndim) == pad_spec(wanted.spec, array.ndim)
    else:
        is_there = own.is_equivalent_to(wanted, array.ndim)
    if is_there:
        return None
    memory = "" if is_abstract or own.memory_kind in (None, wanted.memory_kind) else f", in {own.memory_kind} memory"
    other = f" on another mesh {format_mesh(own.mesh)}" if isinstance(own, NamedSharding) and not is_same else ""
    return f"{_format_sharding(own)}{other}{memory}"


def _format_sharding(own: Any) -> str:
    """Returns a sharding in words, without its mesh."""
    if isinstance(own, SingleDeviceSharding):
        return "on one device"
    if not isinstance(own, NamedSharding):
        return type(own).__name__
    return str(own.spec) if any(map(get_sharded_axes, own.spec.partitions)) else "replicated"

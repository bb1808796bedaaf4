"""`explain`: why each axis of an array or a tree is sharded as it is."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P, SingleDeviceSharding

from .._ground.similar_names import is_typo
from ..named._axis import Axis, Names
from ..named._axis_layout import MeshLike, count_parts, format_mesh_axes, round_up
from ..named._stages import PipelineSchedule, has_enough_microbatches
from ..partitioning._active_mapping import check_policy
from ..partitioning._active_mesh import check_mesh, format_mesh, get_active_mesh, is_manual_axis, resolve_mesh
from ..partitioning._leaves import (
    LeafInfo,
    Load,
    count_array_bytes,
    count_devices,
    describe_leaves,
    get_array_shape,
    get_fullest_device_bytes,
    sum_device_bytes,
)
from ..partitioning._mapping import AxisMapping, ResourceMapping, as_mapping, current_policy, warn_unknown_mesh_axes
from ..partitioning._placement import choose_target
from ..partitioning._resolve_spec import describe_dimension, resolve_spec
from ..partitioning._shard import (
    apply_fallback_rules,
    get_own_sharding,
    get_sharded_axes,
    get_sharding_over,
    infer_leaf_sharding,
    is_same_mesh,
    pad_spec,
)
from ..training._gather import describe_gradient, find_batch_axes
from ..training._policy import Policy
from ._explanation import AxisExplanation, Decision, Explanation, LeafExplanation, format_entry


class UnusedAxis(NamedTuple):
    """A mesh axis that an array is not sharded over: its name, whether it could shard the array, and the reason."""

    axis: str
    is_free: bool
    why: str


def get_spec_axes(spec: P | None) -> tuple[str, ...]:
    """Returns the mesh axes that a spec shards an array over, in order."""
    return () if spec is None else tuple(axis for entry in spec.partitions for axis in get_sharded_axes(entry))


def get_shard_shape(shape: tuple[int, ...], spec: P | None, mesh: MeshLike) -> tuple[int, ...]:
    """Returns the shape of the part of an array on each device."""
    entries = map(get_sharded_axes, pad_spec(spec, len(shape)))
    parts = (math.prod(mesh.shape[axis] for axis in axes) for axes in entries)
    return tuple(size // number for size, number in zip(shape, parts, strict=True))


def find_unused_axes(shape: tuple[int, ...], names: Names | None, spec: P | None, mesh: MeshLike) -> list[UnusedAxis]:
    """Returns the mesh axes that do not shard an array; if its spec is invalid, all mesh axes."""
    if spec is None:
        return [
            UnusedAxis(axis, False, _explain_useless_axis(axis, mesh) or "its spec is invalid")
            for axis in mesh.axis_names
        ]
    used_axes = get_spec_axes(spec)
    unused = [axis for axis in mesh.axis_names if axis not in used_axes or mesh.shape[axis] == 1]
    return [_explain_unused_axis(axis, shape, names, spec, mesh) for axis in unused]


def find_free_axes(shape: tuple[int, ...], spec: P, mesh: MeshLike) -> list[str]:
    """Returns the mesh axes over which an array may be sharded further, if its sizes are divisible by theirs."""
    used_axes = get_spec_axes(spec)
    usable_axes = [axis for axis in mesh.axis_names if _explain_useless_axis(axis, mesh) is None]
    return [axis for axis in usable_axes if axis not in used_axes and _explain_blocked_axis(axis, shape, spec) is None]


def _explain_unused_axis(axis: str, shape: tuple[int, ...], names: Names | None, spec: P, mesh: MeshLike) -> UnusedAxis:
    why = _explain_useless_axis(axis, mesh) or _explain_blocked_axis(axis, shape, spec)
    if why is not None:
        return UnusedAxis(axis, False, why)
    shard, size = get_shard_shape(shape, spec, mesh), mesh.shape[axis]
    fitting_dims = [dim for dim, part in enumerate(shard) if part % size == 0]
    if fitting_dims:
        best = max(fitting_dims, key=lambda dim: shard[dim])
        dim_axes = get_sharded_axes(pad_spec(spec, len(shard))[best])
        suffix = f" along with {', '.join(map(repr, dim_axes))}" if dim_axes else ""
        return UnusedAxis(axis, True, f"unused; it could shard {describe_dimension(best, names)}{suffix}")
    array = f"the array {shape}" if shard == shape else f"the shard {shard} on each device"
    if max(shard) < size:
        return UnusedAxis(axis, False, f"its size {size} is larger than any dimension of {array}")
    return UnusedAxis(axis, False, f"no dimension of {array} is divisible by its size {size}")


def _explain_useless_axis(axis: str, mesh: MeshLike) -> str | None:
    """Returns why no array can be sharded over a mesh axis, None if arrays can."""
    if is_manual_axis(mesh, axis):
        return "it is Manual here"
    return "it has size 1" if mesh.shape[axis] == 1 else None


def _explain_blocked_axis(axis: str, shape: tuple[int, ...], spec: P) -> str | None:
    """Returns why an array cannot be sharded over a mesh axis whatever its sizes; None if it depends on them."""
    for kind in ("unreduced", "reduced"):
        if axis in getattr(spec, kind, ()):
            return f"the array is {kind} over it"
    if not shape:
        return "the array has no dimensions"
    if 0 in shape:
        return "the array is empty"
    return "left to the compiler" if P.UNCONSTRAINED in spec.partitions else None


def summarize_unused_axis(axis: str, mesh: MeshLike, leaves: Sequence[Sequence[UnusedAxis]]) -> str:
    """Returns why no array is sharded over a mesh axis, from the reasons of each array."""
    why = _explain_useless_axis(axis, mesh)
    if why is not None:
        return why
    if not leaves:
        return "there are no arrays"
    unused = [unused_axis for leaf in leaves for unused_axis in leaf if unused_axis.axis == axis]
    free_count = sum(unused_axis.is_free for unused_axis in unused)
    if free_count:
        return f"unused; it could shard {free_count} of {len(leaves)} arrays"
    reasons = {unused_axis.why for unused_axis in unused}
    return reasons.pop() if len(reasons) == 1 else f"no free dimension of any array is divisible by {mesh.shape[axis]}"


class LeafMapping(NamedTuple):
    """The mapping of an array, whether it is that of a part of the tree only, and the axis names of all arrays."""

    mapping: AxisMapping
    is_of_part: bool
    names: frozenset[str]

    def format_entry(self, name: str) -> str:
        """Returns the entry for a name as it is written, and whether it is in the mapping of a part."""
        axes = self.mapping.mesh_axes(name)
        entry = format_entry(name, axes) if axes else f"{name!r}: None"
        return f"{entry} in the mapping of this part" if self.is_of_part else entry


def explain_named_axis(name: str, size: int, entry: Any, leaf_mapping: LeafMapping, mesh: MeshLike) -> AxisExplanation:
    """Explains an axis by its entry in the mapping and in the spec that follows from it."""
    if requested := leaf_mapping.mapping.mesh_axes(name):
        why, sharded_axes = leaf_mapping.format_entry(name), get_sharded_axes(entry)
        return _explain_requested_axis(name, size, requested, sharded_axes, "mapping", why, mesh)
    if leaf_mapping.mapping.knows(name):
        return AxisExplanation(name, size, (), 1, "None", leaf_mapping.format_entry(name))
    # A name of three letters that arrays have beside this one is not a correction of it.
    lengths = ((candidate, 4 if candidate in leaf_mapping.names else 3) for candidate in leaf_mapping.mapping)
    near_miss = next((candidate for candidate, length in lengths if is_typo(name, candidate, length)), None)
    why = "not in the mapping of this part" if leaf_mapping.is_of_part else "not in the mapping"
    why += "" if near_miss is None else f"; did you mean {near_miss!r}?"
    return AxisExplanation(name, size, (), 1, "not in the mapping", why, near_miss)


def explain_invalid_axes(
    names: Names, sizes: tuple[int, ...], leaf_mapping: LeafMapping, mesh: MeshLike, error: str
) -> list[AxisExplanation]:
    """Explains each axis of an array that `shard` refuses: by its error, or as usual if it does not cause one."""
    all_mesh_axes = [axis for name in names for axis in leaf_mapping.mapping.mesh_axes(name)]
    axes: list[AxisExplanation] = []
    for name, size in zip(names, sizes, strict=True):
        try:
            (entry,) = resolve_spec((name,), (size,), leaf_mapping.mapping, mesh, warn=False)
        except ValueError as axis_error:
            axes.append(AxisExplanation(name, size, (), 1, "refused", str(axis_error) or error))
            continue
        axis = explain_named_axis(name, size, entry, leaf_mapping, mesh)
        # Alone each axis may be valid: two of them ask for the same mesh axis.
        if error and any(all_mesh_axes.count(mesh_axis) > 1 for mesh_axis in axis.mesh_axes):
            axis = AxisExplanation(name, size, (), 1, "refused", error)
        axes.append(axis)
    return axes


def explain_axes(
    shape: tuple[int, ...],
    names: Names | None,
    spec: P,
    mesh: MeshLike | None,
    decision: Decision,
    source: str,
    *,
    requested: P | None = None,
    unsharded: str | None = None,
) -> list[AxisExplanation]:
    """Explains each dimension of an array: over which mesh axes a spec shards it, or which others could.

    Args:
        shape: The sizes of the array.
        names: The names of its axes, if it has some.
        spec: Its valid spec.
        mesh: The mesh of the spec; None if the array is not sharded.
        decision: The origin of the spec.
        source: The origin of the spec in words.
        requested: The requested spec, if some of its mesh axes may have been left out.
        unsharded: The reason why a dimension is not sharded; by default, the source.
    """
    free_axes = [] if mesh is None else find_free_axes(shape, spec, mesh)
    entries = pad_spec(spec, len(shape))
    requested_entries = entries if requested is None else pad_spec(requested, len(shape))
    axes: list[AxisExplanation] = []
    for dim, size in enumerate(shape):
        name = None if names is None else names[dim]
        mesh_axes, entry = get_sharded_axes(entries[dim]), requested_entries[dim]
        if entry is P.UNCONSTRAINED:
            parts = 1 if mesh is None else math.prod(mesh.shape[axis] for axis in mesh_axes)
            axes.append(AxisExplanation(name, size, mesh_axes, parts, decision, f"{source}: left to the compiler"))
        elif mesh is not None and get_sharded_axes(entry):
            why = f"{source}: {' x '.join(map(repr, get_sharded_axes(entry)))}"
            axes.append(_explain_requested_axis(name, size, get_sharded_axes(entry), mesh_axes, decision, why, mesh))
        else:
            why = "; ".join([unsharded or f"{source}: replicated", *_advise_axis(size, free_axes, mesh)])
            axes.append(AxisExplanation(name, size, (), 1, decision, why))
    return axes


def explain_refused_axes(shape: tuple[int, ...], names: Names | None, problems: Sequence[str]) -> list[AxisExplanation]:
    """Explains each dimension of an array with an invalid spec: by the problems that name it, by all if none does."""
    axes: list[AxisExplanation] = []
    for dim, size in enumerate(shape):
        dim_problems = [problem for problem in problems if describe_dimension(dim, names) in problem]
        why = "; ".join(dim_problems or problems)
        axes.append(AxisExplanation(None if names is None else names[dim], size, (), 1, "refused", why))
    return axes


def _explain_requested_axis(
    name: str | None,
    size: int,
    requested: tuple[str, ...],
    sharded_axes: tuple[str, ...],
    decision: Decision,
    why: str,
    mesh: MeshLike,
) -> AxisExplanation:
    """Explains whether an axis is sharded over the requested mesh axes, or why not."""
    usable = [axis for axis in requested if not is_manual_axis(mesh, axis)]
    parts = math.prod(mesh.shape[axis] for axis in sharded_axes)
    if not usable:
        decision, why = "manual", f"{why}, which is Manual here"
    elif not sharded_axes and size == 1:
        decision, why = "size 1", f"{why}, but an axis of size 1 is replicated"
    elif not sharded_axes:
        next_size = round_up(size, math.prod(mesh.shape[axis] for axis in usable))
        usable_text = format_mesh_axes(usable, mesh)
        decision = "uneven"
        why = f"{why}, but {size} is not divisible by {usable_text}; the next size that fits is {next_size}"
    elif parts == 1:
        decision, why = "size 1", f"{why}, which has size 1"
    return AxisExplanation(name, size, sharded_axes, parts, decision, why)


def _advise_axis(size: int, free_axes: list[str], mesh: MeshLike | None) -> Iterator[str]:
    """Yields how the free mesh axes could shard a dimension, if they can."""
    if mesh is None or not free_axes:
        return
    fitting_axes = [axis for axis in free_axes if size and size % mesh.shape[axis] == 0]
    if fitting_axes:
        yield f"{' or '.join(map(repr, fitting_axes))} could shard it"
        return
    axis = min(free_axes, key=lambda free_axis: mesh.shape[free_axis])
    if size > mesh.shape[axis]:
        next_size = round_up(size, mesh.shape[axis])
        yield f"not divisible by {format_mesh_axes([axis], mesh)}, the next size that fits is {next_size}"


class MatchedSpec(NamedTuple):
    """An array, its place in the tree, its spec (None if none is clear), the problems of the spec, and its origin."""

    array: Any
    info: LeafInfo
    spec: P | None
    problems: tuple[str, ...] = ()
    source: str = ""


class ExplainedLeaf(NamedTuple):
    """The explanation of an array, and what totals and reports need: its bytes, place in the tree, mesh and spec."""

    leaf: LeafExplanation
    load: Load
    array: Any
    info: LeafInfo
    mesh: MeshLike | None


def list_arrays(tree: Any) -> list[tuple[Any, LeafInfo]]:
    """Returns the arrays among the leaves of a tree, each with a description of its place in the tree."""
    pairs = zip(jax.tree.leaves(tree), describe_leaves(tree), strict=True)
    return [(leaf, info) for leaf, info in pairs if get_array_shape(leaf) is not None]


def explain_by_mapping(
    array: Any, info: LeafInfo, mapping: AxisMapping, names: frozenset[str], mesh: MeshLike
) -> ExplainedLeaf:
    """Explains how a mapping shards an array; the spec is found as `shard` finds it."""
    leaf_mapping = LeafMapping(mapping if info.mapping is None else info.mapping, info.mapping is not None, names)
    shape, axis_names = array.shape, info.names_of(array.shape)
    rule = leaf_mapping.mapping.fallback
    try:
        sharding = infer_leaf_sharding(array, info, leaf_mapping.mapping, mesh, warn=False)
        sharding = None if sharding is None else choose_target(sharding, getattr(array, "sharding", None))
    except Exception as error:  # a rule may raise any error
        if axis_names is None:
            axes = explain_refused_axes(shape, None, [str(error)])
        else:
            axes = explain_invalid_axes(axis_names, shape, leaf_mapping, mesh, str(error))
        return _make_leaf(array, info, axes, None, mesh, error=str(error))
    # Where `shard` leaves an array alone, it stays sharded as it is, or is replicated.
    own_sharding = get_sharding_over(array, mesh) if sharding is None else None
    placed = sharding or own_sharding or NamedSharding(mesh, P())
    if axis_names is not None:
        entries = pad_spec(placed.spec, len(axis_names))
        axes = [
            explain_named_axis(name, size, entry, leaf_mapping, mesh)
            for name, size, entry in zip(axis_names, shape, entries, strict=True)
        ]
    elif sharding is not None and rule is not None:
        source = info.decision.by.replace("`: ", "`, ", 1) or f"the rule `{type(rule).__name__}`"
        axes = explain_axes(shape, None, placed.spec, mesh, "rule", source, requested=info.decision.spec)
    elif own_sharding:
        axes = explain_axes(shape, None, own_sharding.spec, mesh, "sharding", "its own sharding")
    else:
        no_rule = "no fallback rule" if rule is None else f"the rule `{type(rule).__name__}` gives no spec"
        axes = explain_axes(shape, None, P(), None, "no rule", "", unsharded=f"no axis names, {no_rule}")
    place = _describe_current_place(array, NamedSharding(placed.mesh, placed.spec))  # which names another memory
    return _make_leaf(array, info, axes, placed.spec, mesh, place=place)


def explain_by_spec(
    array: Any, info: LeafInfo, spec: P | None, problems: Sequence[str], source: str, mesh: MeshLike
) -> ExplainedLeaf:
    """Explains how a given spec shards an array, or the problems of that spec."""
    shape = tuple(array.shape)
    names = info.names_of(shape)
    if problems:
        axes = explain_refused_axes(shape, names, problems)
        return _make_leaf(array, info, axes, None, mesh, error="; ".join(problems))
    spec = P() if spec is None else spec  # an empty spec is false, even one that is `unreduced`
    axes = explain_axes(shape, names, spec, mesh, "spec", source or "the spec")
    place = _describe_current_place(array, NamedSharding(mesh, spec))
    return _make_leaf(array, info, axes, spec, mesh, place=place)


def explain_own_sharding(array: Any, info: LeafInfo, mesh: MeshLike | None) -> ExplainedLeaf:
    """Explains the current sharding of an array; without one, it counts as replicated over the mesh."""
    sharding, shape = get_own_sharding(array), tuple(array.shape)
    is_on_mesh = isinstance(sharding, NamedSharding)
    spec, own_mesh = (sharding.spec, sharding.mesh) if is_on_mesh else (P(), mesh)
    decision: Decision = "sharding" if is_on_mesh else "no mapping"
    unsharded = None if is_on_mesh else f"on {describe_place(array)}"
    source = "its own sharding"
    axes = explain_axes(shape, info.names_of(shape), spec, own_mesh, decision, source, unsharded=unsharded)
    load = None
    if sharding is not None and not (is_on_mesh and isinstance(own_mesh, AbstractMesh)):
        part = [axis.size // axis.parts for axis in axes] if is_on_mesh else sharding.shard_shape(shape)
        sizes = count_array_bytes(array.dtype, shape), count_array_bytes(array.dtype, part)
        load = Load(*sizes, len(sharding.device_set), frozenset(sharding.device_set))
    return _make_leaf(array, info, axes, spec, own_mesh, load=load)


def _make_leaf(
    array: Any,
    info: LeafInfo,
    axes: Sequence[AxisExplanation],
    spec: P | None,
    mesh: MeshLike | None,
    *,
    load: Load | None = None,
    place: str | None = None,
    error: str | None = None,
) -> ExplainedLeaf:
    """Returns the explanation of an array; without a load, each device of the mesh has as many bytes."""
    shape = tuple(array.shape)
    if info.declared:
        kind = "field"
    else:
        kind = "plain" if info.names_of(shape) is None else "named"
    if load is None:
        part = shape if spec is None else [axis.size // axis.parts for axis in axes]
        devices = 1 if mesh is None else count_devices(mesh)
        load = Load(count_array_bytes(array.dtype, shape), count_array_bytes(array.dtype, part), devices)
    if spec is not None:
        spec = P(*pad_spec(spec, len(shape)), unreduced=spec.unreduced, reduced=spec.reduced)
    leaf = LeafExplanation(
        path=jax.tree_util.keystr(info.path),
        dtype=str(array.dtype),
        shape=shape,
        kind=kind,
        axes=tuple(axes),
        spec=spec,
        bytes=load.bytes,
        bytes_per_device=load.per_device,
        replicated_bytes=load.replicated,
        now=place,
        error=error,
    )
    return ExplainedLeaf(leaf, load, array, info, mesh)


def sum_leaves(leaves: Sequence[ExplainedLeaf], mesh: MeshLike | None) -> dict[str, Any]:
    """Returns the fields that `Explanation` and `ShardingReport` share, except for the leaves."""
    everywhere, bytes_by_device = sum_device_bytes(leaf.load for leaf in leaves)
    return {
        "mesh": {} if mesh is None else dict(mesh.shape),
        "devices": max(len(bytes_by_device), 1) if mesh is None else count_devices(mesh),
        "bytes": sum(leaf.load.bytes for leaf in leaves),
        "bytes_per_device": get_fullest_device_bytes(everywhere, bytes_by_device),
        "replicated_bytes": sum(leaf.load.replicated for leaf in leaves),
    }


def find_common_mesh(arrays: Sequence[tuple[Any, LeafInfo]]) -> MeshLike | None:
    """Returns the mesh that the arrays are on, None if there is none or more than one."""
    shardings = [get_own_sharding(leaf) for leaf, _ in arrays]
    meshes = {sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding)}
    return meshes.pop() if len(meshes) == 1 else None


def describe_place(array: Any) -> str:
    """Returns where an array is, as `LeafReport.place` has it: a mesh, one device, the host."""
    sharding = get_own_sharding(array)
    if isinstance(sharding, NamedSharding):
        return f"mesh {format_mesh(sharding.mesh)}"
    if sharding is not None:
        return _format_sharding(sharding).removeprefix("on ")
    if isinstance(array, jax.Array):
        return "unknown devices"
    return "the host" if isinstance(array, np.ndarray | np.generic) else "no device"


def _describe_current_place(array: Any, target: NamedSharding) -> str | None:
    """Returns where an array is in words, None if that is unknown or its target."""
    sharding = get_own_sharding(array)
    if sharding is None:
        return "on the host" if isinstance(array, np.ndarray | np.generic) else None
    mesh = getattr(sharding, "mesh", None)
    is_same = mesh is not None and is_same_mesh(mesh, target.mesh)
    is_abstract = isinstance(target.mesh, AbstractMesh)
    if is_abstract or isinstance(mesh, AbstractMesh):
        is_there = is_same and pad_spec(sharding.spec, array.ndim) == pad_spec(target.spec, array.ndim)
    else:
        is_there = sharding.is_equivalent_to(target, array.ndim)
    if is_there:
        return None
    place = _format_sharding(sharding)
    if isinstance(sharding, NamedSharding) and not is_same:
        place += f" on another mesh {format_mesh(sharding.mesh)}"
    if not is_abstract and sharding.memory_kind not in (None, target.memory_kind):
        place += f", in {sharding.memory_kind} memory"
    return place


def _format_sharding(sharding: Any) -> str:
    """Returns a sharding in words, without its mesh."""
    if isinstance(sharding, SingleDeviceSharding):
        return "on one device"
    if not isinstance(sharding, NamedSharding):
        return type(sharding).__name__
    return str(sharding.spec) if any(map(get_sharded_axes, sharding.spec.partitions)) else "replicated"


def explain(
    tree: Any,
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    *,
    compute_mapping: ResourceMapping | None = None,
    policy: Policy | None = None,
) -> Explanation:
    """Explains how the arrays of a tree are sharded, axis by axis, and why; nothing is moved.

    The result is what `axonym.shard` does with the same arguments. An array for which `shard` would raise an error is
    listed with the error, and the others are explained. Without a mapping, the arrays' own shardings are explained.

    Bytes per device count one shard of each array. An array that is not sharded counts in full on each device, as a
    compiled function would take it, wherever it is now. Replicated bytes are the bytes on all devices beyond
    one copy: the bytes per device times the devices, less the bytes. Elements of less than a byte count by their bits,
    and random keys by their data. Leaves that are not arrays are left out. Inside `shard_map` sizes refer to one
    shard, and devices that differ in Manual mesh axes alone count once.

    If the policy has `microbatches`, the schedules of layers that are stages of a pipeline are drawn.

    Args:
        tree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays.
        mapping: From names to mesh axes; the active mapping if None.
        mesh: The mesh, with devices or abstract; the active mesh if None.
        compute_mapping: The second mapping of `fsdp`, if `mapping` is its first. Then the explanation of a parameter
            also says where its gradient is added up, if its layer lets JAX do so on shards; see "Where gradients are
            added up" in the documentation. It knows of the mesh axes of the batch over which parameters are gathered,
            not of others that shard the data, such as those of positions.
        policy: The policy of `fsdp`; that of the active mapping if None.

    Returns:
        The explanation: print it, or use its attributes.

    Raises:
        ValueError: If there is a mapping and no mesh, or a `compute_mapping` and no mapping.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> params = {"weight": nym.ones({"embed": 8, "mlp": 6})}
        >>> print(nym.explain(params, {"mlp": "model"}, mesh))
        mesh (data: 4, model: 2), 8 devices; mapping {'mlp': 'model'}
        <BLANKLINE>
        array                                   bytes  per device  copies
          axis   size  mesh axes  why
        -----------------------------------------------------------------
        ['weight']  float32; now on one device  192 B        96 B   576 B
          embed     8  -          not in the mapping
          mlp       6  model (2)  'mlp': 'model'
        -----------------------------------------------------------------
        1 array, 50.0% on each device           192 B        96 B   576 B
        <BLANKLINE>
        Mesh axes that no array is sharded over: 'data'
    """
    active, arrays = as_mapping(mapping), list_arrays(tree)
    check_mesh(mesh)
    check_policy(policy, "explain")
    if active is not None:
        target = resolve_mesh(mesh, "`explain` with a mapping")
        computing = None if compute_mapping is None else as_mapping(compute_mapping)
        if computing is not None:
            warn_unknown_mesh_axes(computing, target)
        explanation = _explain_with_mapping(arrays, active, computing, target)
        pipelines = _find_pipelines(tree, computing or active, policy or current_policy(), target)
        return replace(explanation, pipelines=pipelines)
    if compute_mapping is not None:
        raise ValueError(
            "`explain` takes a `compute_mapping` beside the mapping by which parameters are stored; give both, as to "
            "`fsdp`"
        )
    target = get_active_mesh() if mesh is None else mesh
    target = find_common_mesh(arrays) if target is None else target
    explained = [explain_own_sharding(leaf, info, target) for leaf, info in arrays]
    return _make_explanation(explained, target, mapping=None)


def _explain_with_mapping(
    arrays: list[tuple[Any, LeafInfo]], mapping: AxisMapping, computing: AxisMapping | None, mesh: MeshLike
) -> Explanation:
    leaves = [leaf for leaf, _ in arrays]
    described = apply_fallback_rules(leaves, [info for _, info in arrays], mapping, mesh)
    pairs = [*zip(leaves, described, strict=True)]
    names = frozenset(name for leaf, info in pairs for name in info.names_of(leaf.shape) or ())
    # Mappings cannot be hashed; those of parts of the tree are the same objects in many leaves.
    part_mappings = {id(info.mapping): info.mapping for info in described if info.mapping is not None}
    entries: dict[str, tuple[str, ...]] = {}
    for entry_mapping in (mapping, *part_mappings.values()):
        entries |= {name: entry_mapping.mesh_axes(name) for name in entry_mapping}
    unknown = {name: tuple(axis for axis in axes if axis not in mesh.axis_names) for name, axes in entries.items()}
    options = {} if mapping.fallback is None else {"fallback": repr(mapping.fallback)}
    explained = [explain_by_mapping(leaf, info, mapping, names, mesh) for leaf, info in pairs]
    if computing is not None:
        explained = [_explain_gradient(leaf, mapping, computing, mesh) for leaf in explained]
    return _make_explanation(
        explained,
        mesh,
        mapping={name: mapping.mesh_axes(name) for name in mapping},
        options=options if mapping.uneven == "error" else {**options, "uneven": repr(mapping.uneven)},
        unused_entries={name: axes for name, axes in entries.items() if name not in names},
        unknown_entries={name: axes for name, axes in unknown.items() if axes},
    )


@runtime_checkable
class _LayerStack(Protocol):
    """A module of layers, such as `axonym.nn.Stacked`."""

    Block: Axis

    def fold_via(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that applies the layers in order."""
        ...


def _find_pipelines(
    tree: Any, mapping: AxisMapping, policy: Policy | None, mesh: MeshLike
) -> dict[str, PipelineSchedule]:
    """Returns the schedule of each layer axis that a mapping divides into stages."""
    pipelines: dict[str, PipelineSchedule] = {}
    if policy is None or policy.microbatches is None:
        return pipelines
    _, microbatches = policy.microbatches
    for stack in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, _LayerStack)):
        if not isinstance(stack, _LayerStack):
            continue
        stages = count_parts((axis for axis in mapping.mesh_axes(stack.Block.name) if axis in mesh.shape), mesh)
        stored_stages, repeats = getattr(stack, "interleaving", (1, 1))
        is_stored_so = repeats == 1 or stored_stages == stages
        fits = stack.Block.size % (stages * repeats) == 0 and has_enough_microbatches(stages, microbatches, repeats)
        if stages > 1 and is_stored_so and fits:
            pipelines[stack.Block.name] = PipelineSchedule(stages, microbatches, repeats)
    return pipelines


def _explain_gradient(
    explained: ExplainedLeaf, mapping: AxisMapping, computing: AxisMapping, mesh: MeshLike
) -> ExplainedLeaf:
    """Returns an explanation with the place where the gradient of the parameter is added up."""
    leaf, array = explained.leaf, explained.array
    names = explained.info.names_of(leaf.shape)
    if leaf.spec is None or names is None or not jnp.issubdtype(array.dtype, jnp.inexact):
        return explained
    try:
        target = NamedSharding(mesh, resolve_spec(names, leaf.shape, computing, mesh, warn=False))
    except ValueError as error:
        gradient = f"`compute_mapping` does not fit: {error}"
    else:
        if batch_axes := find_batch_axes(computing, mapping, mesh):
            gradient = describe_gradient(NamedSharding(mesh, leaf.spec), target, batch_axes)
        else:
            gradient = "nothing is known: `compute_mapping` shards no batch over the mesh axes of stored parameters"
    return explained._replace(leaf=replace(leaf, gradient=gradient or None))


def _make_explanation(explained: Sequence[ExplainedLeaf], mesh: MeshLike | None, **fields: Any) -> Explanation:
    used_axes = {axis for leaf in explained for axis in get_spec_axes(leaf.leaf.spec)}
    # Nothing could be sharded over Manual axes here, so they are not called unused.
    kinds = () if mesh is None else zip(mesh.axis_names, mesh.axis_types, strict=True)
    unused = tuple(axis for axis, kind in kinds if kind != AxisType.Manual and axis not in used_axes)
    leaves = tuple(leaf.leaf for leaf in explained)
    return Explanation(leaves=leaves, **sum_leaves(explained, mesh), unused_mesh_axes=unused, **fields)

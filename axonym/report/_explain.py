"""`explain`: where each axis of each array of a tree goes and why, as `shard` decides it, without moving anything."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P, SingleDeviceSharding

from ..named._axis import Names, format_axes
from ..partitioning.mapping._axis_mapping import AxisMapping, ResourceMapping, as_mapping
from ..partitioning.mapping._typos import is_typo
from ..partitioning.sharding._fallback_rule import apply_fallback_rules
from ..partitioning.sharding._partition_specs import (
    get_own_sharding,
    get_sharded_axes,
    get_sharding_over,
    is_same_mesh,
    pad_spec,
)
from ..partitioning.sharding._placement import resolve_unconstrained
from ..partitioning.sharding._shard import infer_leaf_sharding
from ..partitioning.specs._active_mesh import MeshLike, get_active_mesh, is_manual_axis, resolve_mesh
from ..partitioning.specs._bytes_per_device import (
    Load,
    count_array_bytes,
    count_devices,
    get_fullest_device_bytes,
    sum_device_bytes,
)
from ..partitioning.specs._divisibility import format_mesh_axes, round_up
from ..partitioning.specs._leaves import Leaf, describe_leaves, get_array_shape
from ..partitioning.specs._resolve_spec import resolve_spec
from ._explanation import AxisExplanation, Decision, Explanation, LeafExplanation, entry_shown


def explain(tree: Any, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None) -> Explanation:
    """Explains where the arrays of a tree go, axis by axis, and why; nothing is moved.

    What is said is what `axonym.shard` does with the same arguments. An array that `shard` would refuse is listed with
    the error, and the others go on. Without a mapping, what the arrays' own shardings say is explained.

    Bytes per device are those of one part of an array. An array that nothing divides counts whole on each device,
    because that is how a compiled function takes it, wherever it lies now. Replicated bytes are what all devices
    together hold beyond one copy: the bytes per device times the devices, less the bytes. Elements of less than a byte
    count by their bits, and random keys by their data. Leaves that are no arrays are left out. Inside `shard_map`
    sizes are those of one part, and devices that differ in Manual mesh axes alone count once.

    Args:
        tree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays.
        mapping: From names to mesh axes; the mapping in force if None.
        mesh: The mesh, with devices or abstract; the one in force if None.

    Returns:
        The explanation: print it, or look at its attributes.

    Raises:
        ValueError: If there is a mapping and no mesh.

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
        Mesh axes over which no array is divided: 'data'
    """
    found, arrays = as_mapping(mapping), arrays_of(tree)
    if found is not None:
        return _by_mapping(arrays, found, resolve_mesh(mesh, "`explain` with a mapping"))
    target = get_active_mesh() if mesh is None else mesh
    return _by_own_shardings(arrays, common_mesh(arrays) if target is None else target)


def explained_as_they_lie(tree: Any, mesh: MeshLike | None = None) -> tuple[Explanation, MeshLike | None]:
    """Explains what the arrays' own shardings say, whatever mapping is in force, and returns the mesh they lie on."""
    arrays = arrays_of(tree)
    target = common_mesh(arrays) if mesh is None else mesh
    target = get_active_mesh() if target is None else target
    return _by_own_shardings(arrays, target), target


def arrays_of(tree: Any) -> list[tuple[Any, Leaf]]:
    """Returns the arrays among the leaves of a tree, each with what is known of it."""
    pairs = zip(jax.tree.leaves(tree), describe_leaves(tree), strict=True)
    return [(leaf, about) for leaf, about in pairs if get_array_shape(leaf) is not None]


def _with_rules(arrays: list[tuple[Any, Leaf]], mapping: AxisMapping, mesh: MeshLike) -> list[tuple[Any, Leaf]]:
    """Returns arrays and what is known of them, with what fallback rules say."""
    leaves = [leaf for leaf, _ in arrays]
    return [*zip(leaves, apply_fallback_rules(leaves, [about for _, about in arrays], mapping, mesh), strict=True)]


def _by_mapping(arrays: list[tuple[Any, Leaf]], mapping: AxisMapping, mesh: MeshLike) -> Explanation:
    leaves, loads = [], []
    arrays = _with_rules(arrays, mapping, mesh)
    names = frozenset(name for leaf, about in arrays for name in about.names_of(leaf.shape) or ())
    for leaf, about in arrays:
        found, load = _leaf(leaf, _Stated(mapping if about.mapping is None else about.mapping, about, names), mesh)
        leaves.append(found)
        loads.append(load)
    mappings = {id(own): own for _, about in arrays if (own := about.mapping) is not None}
    entries = {name: one.mesh_axes(name) for one in (mapping, *mappings.values()) for name in one}
    options = {"fallback": repr(mapping.fallback), "uneven": repr(mapping.uneven)}
    defaults = {"fallback": "None", "uneven": "'error'"}
    return _summed(
        leaves,
        loads,
        mesh,
        mapping={name: mapping.mesh_axes(name) for name in mapping},
        options={key: value for key, value in options.items() if value != defaults[key]},
        unused_entries={name: axes for name, axes in entries.items() if name not in names},
        unknown_entries={
            name: unknown
            for name, axes in entries.items()
            if (unknown := tuple(axis for axis in axes if axis not in mesh.axis_names))
        },
    )


def _summed(leaves: list[LeafExplanation], loads: list[Load], mesh: MeshLike | None, **about: Any) -> Explanation:
    """Returns the explanation of all leaves: its totals, and the mesh axes that none of them uses."""
    everywhere, held = sum_device_bytes(loads)
    used = {axis for leaf in leaves if leaf.spec is not None for entry in leaf.spec for axis in get_sharded_axes(entry)}
    manual = [] if mesh is None else [kind == AxisType.Manual for kind in mesh.axis_types]
    axes = (
        [] if mesh is None else [axis for axis, not_ours in zip(mesh.axis_names, manual, strict=True) if not not_ours]
    )
    return Explanation(
        leaves=tuple(leaves),
        mesh={} if mesh is None else dict(mesh.shape),
        devices=max(len(held), 1) if mesh is None else count_devices(mesh),
        bytes=sum(load.bytes for load in loads),
        bytes_per_device=get_fullest_device_bytes(everywhere, held),
        replicated_bytes=sum(load.replicated for load in loads),
        unused_mesh_axes=tuple(axis for axis in axes if axis not in used),
        **about,
    )


def _leaf(leaf: Any, stated: "_Stated", mesh: MeshLike) -> tuple[LeafExplanation, Load]:
    """Explains where a mapping puts a leaf; what it says is asked of `leaf_sharding`, as `shard` asks it."""
    mapping, about, _ = stated
    names, sharding, error = about.names_of(leaf.shape), None, None
    try:
        sharding = infer_leaf_sharding(leaf, about, mapping, mesh, warn=False)
        sharding = None if sharding is None else resolve_unconstrained(sharding, getattr(leaf, "sharding", None))
    except Exception as refused:  # whatever `shard` raises, a rule's own errors among them
        error = str(refused)
    kept = get_sharding_over(leaf, mesh) if sharding is None and error is None else None
    lies = sharding or kept or NamedSharding(mesh, P())
    spec = None if error is not None else pad_spec(lies.spec, len(leaf.shape))
    if error is not None:
        axes = _refused_axes(about.names_of(leaf.shape), leaf.shape, stated, mesh, error)
    elif names is not None:
        entries = pad_spec(lies.spec, len(names))
        axes = [_named_axis(*of, stated, mesh) for of in zip(names, leaf.shape, entries, strict=True)]
    elif sharding is not None and mapping.fallback is not None:
        axes = _ruled_axes(leaf, about.decision, sharding, mapping.fallback, mesh)
    else:
        rule = mapping.fallback
        why = "no names and no rule" if rule is None else f"no names, and the rule `{type(rule).__name__}` leaves it"
        why = "its own sharding: nothing says otherwise" if kept else why
        axes = axes_of(leaf, about.names_of(leaf.shape), kept, "sharding" if kept else "no rule", why)
    total = count_array_bytes(leaf.dtype, leaf.shape)
    part = [axis.size // axis.parts for axis in axes] if error is None else leaf.shape
    load = Load(total, count_array_bytes(leaf.dtype, part), count_devices(mesh))
    return _explained(leaf, about, axes, spec, load, None if error else lies_now(leaf, lies), error), load


class _Stated(NamedTuple):
    """The mapping that an array goes by, whose leaf it is, and the names of all axes of the tree."""

    mapping: AxisMapping
    about: Leaf
    names: frozenset[str]

    def entry(self, name: str) -> str:
        """Returns the entry for a name as it is written, and where it is from."""
        axes = self.mapping.mesh_axes(name)
        shown = entry_shown(name, axes) if axes else f"{name!r}: None"
        return shown if self.about.mapping is None else f"{shown} in the mapping of this part"

    def near_miss(self, name: str) -> str | None:
        """Returns a name that was perhaps meant, a short one only if no array has an axis of that name."""
        found = (known for known in self.mapping if is_typo(name, known, 4 if known in self.names else 3))
        return next(found, None)


def _named_axis(name: str, size: int, entry: Any, stated: _Stated, mesh: MeshLike) -> AxisExplanation:
    """Explains an axis from what the mapping asks for and what the spec that was found gives."""
    asked, given = stated.mapping.mesh_axes(name), get_sharded_axes(entry)
    if asked:
        return _asked_axis(name, size, asked, given, "mapping", stated.entry(name), mesh)
    if stated.mapping.knows(name):
        return AxisExplanation(name, size, (), 1, "None", stated.entry(name))
    near = stated.near_miss(name)
    why = "not in the mapping" if stated.about.mapping is None else "not in the mapping of this part"
    return AxisExplanation(
        name, size, (), 1, "not in the mapping", why if near is None else f"{why}; did you mean {near!r}?", near
    )


def _asked_axis(
    name: str | None,
    size: int,
    asked: tuple[str, ...],
    given: tuple[str, ...],
    decision: Decision,
    why: str,
    mesh: MeshLike,
) -> AxisExplanation:
    """Explains an axis for which mesh axes are asked: that it is divided over them, or why not."""
    left = [axis for axis in asked if not is_manual_axis(mesh, axis)]
    parts = math.prod(mesh.shape[axis] for axis in given)
    if not left:
        decision, why = "manual", f"{why}, which is Manual here"
    elif not given:
        whole = math.prod(mesh.shape[axis] for axis in left)
        over = format_mesh_axes(left, mesh)
        decision = "uneven"
        why = f"{why}, but {over} does not divide {size}; the next size that fits is {round_up(size, whole)}"
    elif parts == 1:
        decision, why = "size 1", f"{why}, which has size 1"
    return AxisExplanation(name, size, given, parts, decision, why)


def _ruled_axes(leaf: Any, answer: Any, sharding: NamedSharding, rule: Any, mesh: MeshLike) -> list[AxisExplanation]:
    """Explains the axes of a plain array that the fallback rule shards."""
    asked, why = pad_spec(answer.spec, len(leaf.shape)), answer.by or f"the rule `{type(rule).__name__}`"
    axes = axes_of(leaf, None, sharding, "rule", why)
    return [
        _asked_axis(None, axis.size, get_sharded_axes(entry), axis.mesh_axes, "rule", why, mesh)
        if get_sharded_axes(entry)
        else axis
        for axis, entry in zip(axes, asked, strict=True)
    ]


def _refused_axes(
    names: Names | None, sizes: tuple[int, ...], stated: _Stated, mesh: MeshLike, error: str
) -> list[AxisExplanation]:
    """Explains the axes of an array that is refused, each alone: those that are to blame, and what the others ask."""
    if names is None:
        return [AxisExplanation(None, size, (), 1, "refused", error) for size in sizes]
    claims = [axis for name in names for axis in stated.mapping.mesh_axes(name)]
    axes: list[AxisExplanation] = []
    for name, size in zip(names, sizes, strict=True):
        try:
            (entry,) = resolve_spec((name,), (size,), stated.mapping, mesh, warn=False)
            axis = _named_axis(name, size, entry, stated, mesh)
            blame = error if any(claims.count(one) > 1 for one in axis.mesh_axes) else None
        except ValueError as refused:
            axis, blame = None, str(refused)
        axes.append(axis if axis and not blame else AxisExplanation(name, size, (), 1, "refused", blame or error))
    return axes


def axes_of(
    leaf: Any, names: tuple[str, ...] | None, sharding: NamedSharding | None, decision: Decision, why: str
) -> list[AxisExplanation]:
    """Explains the axes of an array about all of which one and the same decides."""
    axes: list[AxisExplanation] = []
    for at, entry in enumerate(pad_spec(None if sharding is None else sharding.spec, len(leaf.shape))):
        given = get_sharded_axes(entry)
        parts = 1 if sharding is None else math.prod(sharding.mesh.shape[axis] for axis in given)
        axes.append(AxisExplanation(None if names is None else names[at], leaf.shape[at], given, parts, decision, why))
    return axes


def _explained(
    leaf: Any,
    about: Leaf,
    axes: list[AxisExplanation],
    spec: P | None,
    load: Load,
    now: str | None = None,
    error: str | None = None,
) -> LeafExplanation:
    return LeafExplanation(
        path=jax.tree_util.keystr(about.path),
        dtype=str(leaf.dtype),
        shape=tuple(leaf.shape),
        kind="field" if about.declared else "plain" if about.names_of(leaf.shape) is None else "named",
        axes=tuple(axes),
        spec=spec,
        bytes=load.bytes,
        bytes_per_device=load.per_device,
        replicated_bytes=load.replicated,
        now=now,
        error=error,
    )


def lies_now(leaf: Any, wanted: NamedSharding) -> str | None:
    """Returns where an array lies in words, None if that is not known or just where it is wanted."""
    own = get_own_sharding(leaf)
    if own is None:
        return "on the host" if isinstance(leaf, np.ndarray | np.generic) else None
    mesh = getattr(own, "mesh", None)
    alike = mesh is not None and is_same_mesh(mesh, wanted.mesh)
    if isinstance(mesh, AbstractMesh) or isinstance(wanted.mesh, AbstractMesh):
        there = alike and pad_spec(own.spec, leaf.ndim) == pad_spec(wanted.spec, leaf.ndim)
    else:
        there = own.is_equivalent_to(wanted, leaf.ndim)
    if there:
        return None
    same_memory = own.memory_kind in (None, wanted.memory_kind) or isinstance(wanted.mesh, AbstractMesh)
    memory = "" if same_memory else f", in {own.memory_kind} memory"
    return lies(own, "" if alike else "another mesh") + memory


def lies(own: Any, mesh: str) -> str:
    """Returns a sharding in words."""
    if isinstance(own, SingleDeviceSharding):
        return "on one device"
    if not isinstance(own, NamedSharding):
        return type(own).__name__
    divided = any(get_sharded_axes(entry) for entry in own.spec.partitions)
    place = str(own.spec) if divided else "whole on each device"
    return f"{place} of {mesh} {format_axes(own.mesh.axis_names, tuple(own.mesh.shape.values()))}" if mesh else place


def common_mesh(arrays: list[tuple[Any, Leaf]]) -> MeshLike | None:
    """Returns the mesh that the arrays lie on, None if there is none or more than one."""
    owns = [get_own_sharding(leaf) for leaf, _ in arrays]
    meshes = {own.mesh for own in owns if isinstance(own, NamedSharding)}
    return meshes.pop() if len(meshes) == 1 else None


def _by_own_shardings(arrays: list[tuple[Any, Leaf]], mesh: MeshLike | None) -> Explanation:
    """Explains what the arrays' own shardings say, where there is no mapping."""
    leaves, loads = [], []
    somewhere = 1 if mesh is None else count_devices(mesh)
    for leaf, about in arrays:
        own = get_own_sharding(leaf)
        named = own if isinstance(own, NamedSharding) else None
        why = "no mapping" if own is None else f"no mapping; {lies(own, '')}" if named is None else "its own sharding"
        axes = axes_of(leaf, about.names_of(leaf.shape), named, "sharding" if named else "no mapping", why)
        spec = pad_spec(None if named is None else named.spec, len(leaf.shape))
        load = load_of(leaf, own, axes, somewhere)
        leaves.append(_explained(leaf, about, axes, spec, load))
        loads.append(load)
    return _summed(leaves, loads, mesh, mapping=None)


def load_of(leaf: Any, own: Any, axes: list[AxisExplanation], somewhere: int) -> Load:
    """Returns what an array costs where it lies, whole on so many devices if that is not known."""
    total = count_array_bytes(leaf.dtype, leaf.shape)
    if own is None:
        return Load(total, total, somewhere)
    named = isinstance(own, NamedSharding)
    part = count_array_bytes(
        leaf.dtype, [axis.size // axis.parts for axis in axes] if named else own.shard_shape(leaf.shape)
    )
    if named and isinstance(own.mesh, AbstractMesh):
        return Load(total, part, count_devices(own.mesh))
    return Load(total, part, len(own.device_set), frozenset(own.device_set))

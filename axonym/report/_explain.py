"""`explain`: how each axis of each array of a tree is sharded and why, as `shard` decides it."""

from collections.abc import Sequence
from typing import Any

from jax.sharding import AxisType

from ..partitioning.mapping._mapping import AxisMapping, ResourceMapping, as_mapping
from ..partitioning.sharding._fallback_rule import apply_fallback_rules
from ..partitioning.specs._active_mesh import MeshLike, check_mesh, get_active_mesh, resolve_mesh
from ..partitioning.specs._leaves import Leaf
from ._explain_leaf import (
    ExplainedLeaf,
    explain_by_mapping,
    explain_own_sharding,
    find_common_mesh,
    list_arrays,
    sum_leaves,
)
from ._explanation import Explanation
from ._unused_axes import get_spec_axes


def explain(tree: Any, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None) -> Explanation:
    """Explains how the arrays of a tree are sharded, axis by axis, and why; nothing is moved.

    The result is what `axonym.shard` does with the same arguments. An array for which `shard` would raise an error is
    listed with the error, and the others are explained. Without a mapping, the arrays' own shardings are explained.

    Bytes per device count one shard of each array. An array that is not sharded counts in full on each device, as a
    compiled function would take it, wherever it is now. Replicated bytes are the bytes on all devices beyond
    one copy: the bytes per device times the devices, less the bytes. Elements of less than a byte count by their bits,
    and random keys by their data. Leaves that are not arrays are left out. Inside `shard_map` sizes refer to one
    shard, and devices that differ in Manual mesh axes alone count once.

    Args:
        tree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays.
        mapping: From names to mesh axes; the active mapping if None.
        mesh: The mesh, with devices or abstract; the active mesh if None.

    Returns:
        The explanation: print it, or use its attributes.

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
        Mesh axes that no array is sharded over: 'data'
    """
    active, arrays = as_mapping(mapping), list_arrays(tree)
    check_mesh(mesh)
    if active is not None:
        return _explain_with_mapping(arrays, active, resolve_mesh(mesh, "`explain` with a mapping"))
    target = get_active_mesh() if mesh is None else mesh
    target = find_common_mesh(arrays) if target is None else target
    return _make_explanation([explain_own_sharding(*each, target) for each in arrays], target, mapping=None)


def _explain_with_mapping(arrays: list[tuple[Any, Leaf]], mapping: AxisMapping, mesh: MeshLike) -> Explanation:
    leaves = [leaf for leaf, _ in arrays]
    described = apply_fallback_rules(leaves, [about for _, about in arrays], mapping, mesh)
    pairs = [*zip(leaves, described, strict=True)]
    names = frozenset(name for leaf, about in pairs for name in about.names_of(leaf.shape) or ())
    mappings = {id(own): own for own in (mapping, *(about.mapping for about in described)) if own is not None}
    entries = {name: one.mesh_axes(name) for one in mappings.values() for name in one}
    unknown = {name: tuple(axis for axis in axes if axis not in mesh.axis_names) for name, axes in entries.items()}
    options = {} if mapping.fallback is None else {"fallback": repr(mapping.fallback)}
    return _make_explanation(
        [explain_by_mapping(*each, mapping, names, mesh) for each in pairs],
        mesh,
        mapping={name: mapping.mesh_axes(name) for name in mapping},
        options=options if mapping.uneven == "error" else {**options, "uneven": repr(mapping.uneven)},
        unused_entries={name: axes for name, axes in entries.items() if name not in names},
        unknown_entries={name: axes for name, axes in unknown.items() if axes},
    )


def _make_explanation(found: Sequence[ExplainedLeaf], mesh: MeshLike | None, **fields: Any) -> Explanation:
    used = {axis for one in found for axis in get_spec_axes(one.leaf.spec)}
    kinds = () if mesh is None else zip(mesh.axis_names, mesh.axis_types, strict=True)
    unused = tuple(axis for axis, kind in kinds if kind != AxisType.Manual and axis not in used)
    leaves = tuple(one.leaf for one in found)
    return Explanation(leaves=leaves, **sum_leaves(found, mesh), unused_mesh_axes=unused, **fields)

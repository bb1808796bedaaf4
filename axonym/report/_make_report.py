"""How a `ShardingReport` is made: from arrays with their specs, or from the shardings that arrays have."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from ..partitioning.sharding._partition_specs import get_own_sharding, is_same_mesh
from ..partitioning.specs._active_mesh import MeshLike
from ..partitioning.specs._bytes_per_device import Load, get_fullest_device_bytes, sum_device_bytes
from ._explain_leaf import (
    ExplainedLeaf,
    describe_place,
    explain_by_spec,
    explain_own_sharding,
    find_common_mesh,
    list_arrays,
    sum_leaves,
)
from ._leaf_report import LeafReport
from ._match_specs import MatchedSpec
from ._paddings import find_paddings, find_required_paddings
from ._sharding_report import GroupReport, ShardingReport
from ._unused_axes import UnusedAxis, find_unused_axes, get_spec_axes, summarize_unused_axis


_FEWEST_GROUPS, _MOST_GROUPS = 3, 10


def report_specs(
    matched: Sequence[MatchedSpec], problems: Sequence[str], mesh: MeshLike, depth: int | None, rule: str | None
) -> ShardingReport:
    """Returns the report on arrays sharded by their specs, which are from the rule with this name, if from one."""
    found = [explain_by_spec(*one, mesh) for one in matched]
    return _make_report(found, mesh, depth, source="specs", problems=tuple(problems), rule=rule)


def report_own_shardings(tree: Any, mesh: MeshLike | None, depth: int | None = None) -> ShardingReport:
    """Returns the report on the shardings that the arrays of a tree have; without one, they count as replicated."""
    arrays = list_arrays(tree)
    target = find_common_mesh(arrays) if mesh is None else mesh
    is_on_mesh = any(isinstance(get_own_sharding(leaf), NamedSharding) for leaf, _ in arrays)
    found = [explain_own_sharding(*each, target) for each in arrays]
    return _make_report(found, target, depth, source="shardings", several_meshes=target is None and is_on_mesh)


def _make_report(found: list[ExplainedLeaf], mesh: MeshLike | None, depth: int | None, **fields: Any) -> ShardingReport:
    unused = [_find_unused_axes(one, mesh) for one in found]
    everywhere, held = sum_device_bytes(one.load for one in found)
    totals = sum_leaves(found, mesh)
    total, fullest, devices = totals["bytes"], totals["bytes_per_device"], totals["devices"]
    mean = everywhere + sum(held.values()) / max(devices, len(held))
    unsharded = sum(one.load.bytes for one in found if one.load.per_device == one.load.bytes)
    pairs = zip(found, unused, strict=True)
    return ShardingReport(
        leaves=tuple(_make_leaf_report(one, axes, mesh, fields["source"] == "specs") for one, axes in pairs),
        **totals,
        groups=_make_groups(found, depth),
        imbalance=fullest / mean if mean else 1.0,
        share_whole=unsharded / total if total else 0.0,
        unused_mesh_axes={} if mesh is None else _summarize_unused_axes(found, unused, mesh),
        device_ids=tuple(map(int, mesh.device_ids.flat)) if isinstance(mesh, Mesh) else None,
        **fields,
    )


def _find_unused_axes(one: ExplainedLeaf, mesh: MeshLike | None) -> list[UnusedAxis] | None:
    """Returns the axes of the mesh of a report that an array is not sharded over, None if it is on another mesh."""
    if mesh is None or one.mesh is None or not is_same_mesh(one.mesh, mesh):
        return None
    return find_unused_axes(one.leaf.shape, one.about.names_of(one.leaf.shape), one.leaf.spec, mesh)


def _make_leaf_report(
    one: ExplainedLeaf, unused: list[UnusedAxis] | None, mesh: MeshLike | None, is_planned: bool
) -> LeafReport:
    """Returns the report on an array; `is_planned` if its spec is given, wherever the array is."""
    leaf, paddings = one.leaf, ()
    if mesh is not None and unused is not None:
        find = find_required_paddings if leaf.spec is None else find_paddings
        spec = one.invalid_spec if leaf.spec is None else leaf.spec
        paddings = find(leaf.shape, one.array.dtype, P() if spec is None else spec, mesh)
    is_here = unused is not None and isinstance(get_own_sharding(one.array), NamedSharding)
    place = None if is_planned or is_here else describe_place(one.array)
    fields = {each.name: getattr(leaf, each.name) for each in dataclasses.fields(leaf)}
    return LeafReport(**fields, unused={each.axis: each.why for each in unused or ()}, padding=paddings, place=place)


def _make_groups(found: list[ExplainedLeaf], depth: int | None) -> dict[str, GroupReport]:
    """Returns the totals of the parts of a tree, by the first keys of the paths."""
    depth = _choose_depth([one.about.path for one in found]) if depth is None else depth
    parts: dict[str, list[Load]] = {}
    for one in found:
        parts.setdefault(jax.tree_util.keystr(one.about.path[:depth]), []).append(one.load)
    groups: dict[str, GroupReport] = {}
    for key, loads in parts.items():
        fullest = get_fullest_device_bytes(*sum_device_bytes(loads))
        total, copies = sum(load.bytes for load in loads), sum(load.replicated for load in loads)
        groups[key] = GroupReport(len(loads), total, fullest, copies)
    return groups


def _choose_depth(paths: Sequence[tuple[Any, ...]]) -> int:
    """Returns the least depth with 3 to 10 groups; if there is none, the depth with most groups up to 10."""
    best, most = 1, 0
    for depth in range(1, max(map(len, paths), default=0) + 1):
        number = len({path[:depth] for path in paths})
        if number == len(paths) and most > 1:
            return best  # a group for each array would repeat the rows of the table
        if number > _MOST_GROUPS:
            return best if most > 1 else depth
        if number > most:
            best, most = depth, number
        if number >= _FEWEST_GROUPS:
            break
    return best


def _summarize_unused_axes(
    found: list[ExplainedLeaf], unused: list[list[UnusedAxis] | None], mesh: MeshLike
) -> dict[str, str]:
    """Returns the mesh axes that no array is sharded over, each with the reason."""
    reasons = [axes for axes in unused if axes is not None]
    pairs = zip(found, unused, strict=True)
    used = {axis for one, axes in pairs if axes is not None for axis in get_spec_axes(one.leaf.spec)}
    idle = [axis for axis in mesh.axis_names if axis not in used or mesh.shape[axis] == 1]
    return {axis: summarize_unused_axis(axis, mesh, reasons) for axis in idle}

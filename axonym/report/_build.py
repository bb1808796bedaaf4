"""How a report is made: of the arrays of a tree with their specs, or with the shardings that they have."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from ..partitioning.sharding._partition_specs import get_own_sharding, is_same_mesh, pad_spec
from ..partitioning.specs._active_mesh import MeshLike, format_mesh
from ..partitioning.specs._bytes_per_device import (
    Load,
    count_array_bytes,
    count_devices,
    get_fullest_device_bytes,
    sum_device_bytes,
)
from ._advice import (
    Unused,
    asked_paddings,
    axes_explained,
    axes_refused,
    paddings,
    parts_of,
    unused_axes,
    unused_by_all,
    unused_if_refused,
)
from ._explain import arrays_of, common_mesh, lies, lies_now, load_of
from ._explanation import AxisExplanation, Decision
from ._leaf import LeafReport, Padding
from ._problems import Stated, divided
from ._report import GroupReport, ShardingReport, Source


_FEWEST_GROUPS, _MOST_GROUPS = 3, 10


class _Found(NamedTuple):
    """What is found out about one array: its report, what it costs, the keys that lead to it, and why axes are unused.

    The last is None if the array is on another mesh.
    """

    report: LeafReport
    load: Load
    keys: tuple[Any, ...]
    unused: tuple[Unused, ...] | None


def by_specs(
    stated: Sequence[Stated], problems: Sequence[str], mesh: MeshLike, depth: int | None, rule: str | None
) -> ShardingReport:
    """Returns the report of arrays as their specs divide them, which are from the rule of this name, if from one."""
    devices = count_devices(mesh)
    found: list[_Found] = []
    for one in stated:
        shape, dtype = tuple(one.array.shape), one.array.dtype
        part = shape if one.problems else parts_of(shape, one.spec, mesh)
        load = Load(count_array_bytes(dtype, shape), count_array_bytes(dtype, part), devices)
        found.append(_found(one, load, mesh, "spec"))
    return _summed(found, mesh, "specs", problems, depth, rule=rule)


def by_own_shardings(tree: Any, mesh: MeshLike | None, depth: int | None) -> ShardingReport:
    """Returns the report of a tree as its arrays lie; those that are nowhere yet count whole on each device."""
    arrays = arrays_of(tree)
    mesh = common_mesh(arrays) if mesh is None else mesh
    found: list[_Found] = []
    for leaf, about in arrays:
        own = get_own_sharding(leaf)
        on_mesh = own if isinstance(own, NamedSharding) else None
        own_mesh = mesh if on_mesh is None else on_mesh.mesh
        stated = Stated(leaf, about, P() if on_mesh is None else on_mesh.spec)
        axes = _axes(stated, own_mesh, "sharding", None if on_mesh is not None else _place(leaf, own))
        load = load_of(leaf, own, list(axes), 1 if mesh is None else count_devices(mesh))
        here = mesh if mesh is not None and own_mesh is not None and is_same_mesh(own_mesh, mesh) else None
        place = None if here is not None and on_mesh is not None else _elsewhere(leaf, own)
        found.append(_found(stated, load, here, "sharding", axes, place))
    several = mesh is None and any(isinstance(get_own_sharding(leaf), NamedSharding) for leaf, _ in arrays)
    return _summed(found, mesh, "shardings", [], depth, several=several)


def _place(leaf: Any, own: Any) -> str:
    """Returns where an array is that is on no mesh."""
    if own is None:
        return "where it lies is not known" if isinstance(leaf, jax.Array) else "it is not on a device yet"
    return f"it is {lies(own, '')}"


def _elsewhere(leaf: Any, own: Any) -> str:
    """Returns where an array is that is not on the mesh of the report."""
    if own is None:
        kinds = ((jax.Array, "a place that is not known"), (np.ndarray | np.generic, "the host"))
        return next((place for kind, place in kinds if isinstance(leaf, kind)), "no device")
    if isinstance(own, NamedSharding):
        return f"mesh {format_mesh(own.mesh)}"
    return lies(own, "").removeprefix("on ")


def _axes(
    of: Stated, mesh: MeshLike | None, decision: Decision, whole: str | None = None
) -> tuple[AxisExplanation, ...]:
    shape = tuple(of.array.shape)
    names = of.about.names_of(shape)
    if of.problems:
        return axes_refused(shape, names, of.problems)
    if mesh is None:
        named = names or (None,) * len(shape)
        pairs = zip(named, shape, strict=True)
        return tuple(AxisExplanation(*each, (), 1, decision, whole or "there is no mesh") for each in pairs)
    return axes_explained(shape, names, _spec_or_whole(of), mesh, decision, whole, of.by)


def _found(
    of: Stated,
    load: Load,
    mesh: MeshLike | None,
    decision: Decision,
    axes: Sequence[AxisExplanation] | None = None,
    place: str | None = None,
) -> _Found:
    """Returns what is to be said of an array whose spec is known, or of one that counts whole, on this mesh."""
    array, about, _, problems, _ = of
    shape = tuple(array.shape)
    names = about.names_of(shape)
    spec = P() if problems else _spec_or_whole(of)
    unused = None if mesh is None else unused_axes(shape, names, spec, mesh)
    if problems and mesh is not None:
        unused = unused_if_refused(of.spec, mesh)
    given = mesh is not None and not problems and decision == "spec"
    report = LeafReport(
        path=of.path,
        dtype=str(array.dtype),
        shape=shape,
        kind="field" if about.declared else "plain" if names is None else "named",
        axes=tuple(_axes(of, mesh, decision) if axes is None else axes),
        spec=None if problems else P(*pad_spec(spec, len(shape)), unreduced=spec.unreduced, reduced=spec.reduced),
        bytes=load.bytes,
        bytes_per_device=load.per_device,
        replicated_bytes=load.replicated,
        now=lies_now(array, NamedSharding(mesh, spec)) if given and mesh is not None else None,
        error="; ".join(problems) or None,
        unused={one.axis: one.why for one in unused or ()},
        padding=() if mesh is None else _padding(of, mesh),
        place=place,
    )
    return _Found(report, load, about.path, unused)


def _spec_or_whole(of: Stated) -> P:
    return P() if of.spec is None else of.spec  # an empty spec is false, even one that says `unreduced`


def _padding(of: Stated, mesh: MeshLike) -> tuple[Padding, ...]:
    """Returns the padding with which a spec that is refused fits an array, or with which more mesh axes divide it."""
    shape, dtype, spec = tuple(of.array.shape), of.array.dtype, _spec_or_whole(of)
    return asked_paddings(shape, dtype, spec, mesh) if of.problems else paddings(shape, dtype, spec, mesh)


def _summed(
    found: list[_Found],
    mesh: MeshLike | None,
    source: Source,
    problems: Sequence[str],
    depth: int | None,
    *,
    rule: str | None = None,
    several: bool = False,
) -> ShardingReport:
    """Returns the report of all arrays."""
    everywhere, held = sum_device_bytes(one.load for one in found)
    devices = max(len(held), 1) if mesh is None else count_devices(mesh)
    total, fullest = sum(one.load.bytes for one in found), get_fullest_device_bytes(everywhere, held)
    mean = everywhere + sum(held.values()) / max(devices, len(held))
    whole = sum(one.load.bytes for one in found if one.load.per_device == one.load.bytes)
    return ShardingReport(
        leaves=tuple(one.report for one in found),
        mesh={} if mesh is None else dict(mesh.shape),
        devices=devices,
        source=source,
        bytes=total,
        bytes_per_device=fullest,
        replicated_bytes=sum(one.load.replicated for one in found),
        groups=_groups(found, depth),
        imbalance=fullest / mean if mean else 1.0,
        share_whole=whole / total if total else 0.0,
        unused_mesh_axes={} if mesh is None else _unused_mesh_axes(found, mesh),
        problems=tuple(problems),
        device_ids=tuple(map(int, mesh.device_ids.flat)) if isinstance(mesh, Mesh) else None,
        several_meshes=several,
        rule=rule,
    )


def _depth(found: list[_Found]) -> int:
    """Returns the least depth with 3 to 10 groups; if there is none, that with most of them up to 10."""
    deepest = max((len(one.keys) for one in found), default=0)
    best, most = 1, 0
    for depth in range(1, deepest + 1):
        number = len({one.keys[:depth] for one in found})
        if number == len(found) and most > 1:
            return best  # a group for each array says nothing that its row does not
        if number > _MOST_GROUPS:
            return best if most > 1 else depth
        if number > most:
            best, most = depth, number
        if number >= _FEWEST_GROUPS:
            break
    return best


def _groups(found: list[_Found], depth: int | None) -> dict[str, GroupReport]:
    """Returns what the parts of a tree cost, by the first keys of the paths."""
    depth = _depth(found) if depth is None else depth
    parts: dict[str, list[Load]] = {}
    for one in found:
        parts.setdefault(jax.tree_util.keystr(one.keys[:depth]), []).append(one.load)
    groups: dict[str, GroupReport] = {}
    for key, loads in parts.items():
        fullest = get_fullest_device_bytes(*sum_device_bytes(loads))
        total, copies = sum(load.bytes for load in loads), sum(load.replicated for load in loads)
        groups[key] = GroupReport(len(loads), total, fullest, copies)
    return groups


def _unused_mesh_axes(found: list[_Found], mesh: MeshLike) -> dict[str, str]:
    """Returns the mesh axes that divide no array, each with the reason."""
    here = [one for one in found if one.unused is not None]
    used = {axis for one in here if one.report.spec is not None for axis in divided(one.report.spec)}
    reasons = [one.unused for one in here if one.unused is not None]
    return {
        axis: unused_by_all(axis, mesh, reasons)
        for axis in mesh.axis_names
        if axis not in used or mesh.shape[axis] == 1
    }

"""Which parts of an axis each process has: it follows from the mesh axes that shard the axis."""

import functools
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from .._jax_compat import is_tracing
from ..named._cache import cached_plan
from ..named._format import format_axes
from ..partitioning.mapping._mapping import AxisMapping, ResourceMapping, as_mapping
from ..partitioning.specs._active_mesh import MeshLike, format_mesh, resolve_mesh


class AxisParts(NamedTuple):
    """The parts of an axis that this process has, and its place among the groups of processes with different parts."""

    own: tuple[int, ...]
    group: int
    groups: int


def resolve_mapping_and_mesh(
    mapping: ResourceMapping | None, mesh: MeshLike | None, purpose: str
) -> tuple[AxisMapping, Mesh]:
    """Returns the given mapping and mesh, or the active ones; raises a ValueError if this process cannot use them."""
    found = as_mapping(mapping)
    if found is None:
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
    return found, target


def find_axis_parts(axes: tuple[str, ...], mesh: Mesh, name: str) -> AxisParts:
    """Returns the parts of an axis that this process has; raises a ValueError if processes share some but not all."""
    held = {process: {part for (part,) in parts} for process, parts in locate_parts((axes,), mesh).items()}
    groups = {frozenset(parts) for parts in held.values()}
    if sum(map(len, groups)) != len(frozenset().union(*groups)) or len({*map(len, groups)}) > 1:
        shown = "; ".join(f"process {process}: {sorted(parts)}" for process, parts in sorted(held.items())[:4])
        raise ValueError(
            f"axis {name!r} is sharded over {format_axes(axes)} so that processes share some of their parts but not "
            f"others ({shown}); make a mesh on which each process has complete rows, or make the array with "
            "`jax.make_array_from_callback`"
        )
    own = held[jax.process_index()]
    return AxisParts(tuple(sorted(own)), sorted(map(sorted, groups)).index(sorted(own)), len(groups))


@cached_plan
def locate_parts(entries: tuple[tuple[str, ...], ...], mesh: Mesh) -> dict[int, set[tuple[int, ...]]]:
    """Returns the parts of an array that each process holds, each as an index along every axis of the array."""
    dims = [[mesh.axis_names.index(axis) for axis in axes] for axes in entries]
    held: dict[int, set[tuple[int, ...]]] = {}
    for place, device in np.ndenumerate(mesh.devices):
        part = [functools.reduce(lambda i, dim: i * mesh.devices.shape[dim] + place[dim], axes, 0) for axes in dims]
        held.setdefault(device.process_index, set()).add(tuple(part))
    return held

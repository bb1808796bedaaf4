"""Gathers of stored parameters whose gradients are added up on shards: typed `reduced`, on Explicit meshes.

`named/_reduced_types.py` says what the type means. The gradient of a plain gather is an all-reduce over the devices
that share the batch, then a slice for each shard. XLA makes one reduce-scatter of both only if the shards are over the
same mesh axes as the batch. For a typed gather JAX itself makes a reduce-scatter over the mesh axes of the shards, and
an all-reduce of its result over the other mesh axes of the batch, those of replicas.
"""

import functools
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..named._axis_layout import get_entry_axes, make_spec_entry
from ..named._cache import cached_plan
from ..named._reduced_types import set_reduced_axes
from ._active_mesh import MeshLike
from ._mapping import AxisMapping


@cached_plan
def find_batch_axes(computing: AxisMapping, stored: AxisMapping, mesh: MeshLike) -> frozenset[str]:
    """Returns the mesh axes over which the gradients of gathered parameters are added up.

    Parameters are gathered over the mesh axes that `stored` gives to a name and `computing` does not. What `computing`
    shards over one of these is the batch; all mesh axes of the batch are returned, so those of replicas, too. None are
    returned unless all mesh axes are Explicit: other types have no `reduced` (JAX 0.10.2 fails within `shard_map`).
    """
    if any(axis_type != AxisType.Explicit for axis_type in mesh.axis_types):
        return frozenset()
    gathered_axes: set[str] = set()
    for name in stored:
        gathered_axes.update(axis for axis in stored.mesh_axes(name) if axis not in computing.mesh_axes(name))
    batch_axes: set[str] = set()
    for name in computing:
        if gathered_axes.intersection(computing.mesh_axes(name)):
            batch_axes.update(computing.mesh_axes(name))
    return frozenset(batch_axes)


def gather_reduced(array: Any, sharding: NamedSharding, batch_axes: frozenset[str]) -> Any:
    """Returns a stored parameter with a sharding to compute with, `reduced` over the mesh axes of the batch."""
    array = set_reduced_axes(array, batch_axes)
    steps = _plan_steps(jax.typeof(array).sharding, sharding, batch_axes)
    return jax.reshard(array, steps[0]) if len(steps) == 1 else _gather_in_one_step(array, steps)


@cached_plan
def _plan_steps(
    stored: NamedSharding, computing: NamedSharding, batch_axes: frozenset[str]
) -> tuple[NamedSharding, ...]:
    """Returns the shardings after each step of a gather over one mesh axis at a time.

    Of each dimension the last mesh axis is gathered first. A dimension whose mesh axes change in another way, and the
    last mesh axis to gather of each dimension, are left to the last step.
    """
    remaining = [[*get_entry_axes(entry)] for entry in stored.spec.partitions]
    target = [get_entry_axes(entry) for entry in computing.spec.partitions]
    steps: list[NamedSharding] = []
    for axes, target_axes in zip(remaining, target, strict=True):
        while len(axes) > len(target_axes) + 1 and tuple(axes[: len(target_axes)]) == target_axes:
            axes.pop()
            steps.append(_make_reduced_sharding(computing.mesh, [tuple(entry) for entry in remaining], batch_axes))
    return (*steps, _make_reduced_sharding(computing.mesh, target, batch_axes))


def _make_reduced_sharding(mesh: MeshLike, entries: list[tuple[str, ...]], batch_axes: frozenset[str]) -> NamedSharding:
    reduced = batch_axes.difference(*entries)
    return NamedSharding(mesh, PartitionSpec(*map(make_spec_entry, entries), reduced=reduced))


# A gather over two mesh axes at once uses the links of both dimensions of a torus. A reduce-scatter over two mesh axes
# becomes an all-reduce in libtpu 0.0.42, which sends twice as much, so the gradient is scattered over one at a time.
@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _gather_in_one_step(array: Any, steps: tuple[NamedSharding, ...]) -> Any:
    return jax.reshard(array, steps[-1])


@_gather_in_one_step.defjvp
def _gather_tangent_in_steps(
    steps: tuple[NamedSharding, ...], primals: tuple[Any], tangents: tuple[Any]
) -> tuple[Any, Any]:
    [tangent] = tangents
    for step in steps:
        tangent = jax.reshard(tangent, step)
    return _gather_in_one_step(primals[0], steps), tangent

"""Gathers of stored parameters whose gradients are added up on shards: typed `reduced`, on Explicit meshes.

`named/_reduced_types.py` says what the type means. The gradient of a plain gather is an all-reduce over the devices
that share the batch, then a slice for each shard. XLA makes one reduce-scatter of both only if the shards are over the
same mesh axes as the batch. The gradient of a typed gather is a reduce-scatter over the mesh axes of the shards, and an
all-reduce of its result over the other mesh axes of the batch, those of replicas.

JAX's own transpose of a typed gather is one reduce-scatter, which libtpu turns into an all-reduce of twice the
bytes if the devices are a whole slice, or if it has no tiles for the array. So the transpose is written here, in rounds
that libtpu keeps.
"""

import functools
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .._ground.caches import cached_plan
from .._ground.jax_compat import find_platform, make_linear_pair
from ..named._axis_layout import get_entry_axes
from ..named._reduced_types import set_reduced_axes
from ..partitioning._active_mesh import MeshLike
from ..partitioning._mapping import AxisMapping


_LANE = 128
"""The elements of a row of a tile of a TPU, which libtpu divides arrays into."""

_ROW = 8 * _LANE
"""The elements of a tile, into rows of which an array is cut that libtpu would not scatter."""

_SMALLEST_SCATTER = 2**24
"""Elements from which it is faster to go around an all-reduce of libtpu, by its own estimates.

A scatter of the first dimension takes 1.6 times as long as the all-reduce for 14 Mi elements, 0.6 for 28 Mi; of rows of
1,024 elements, 1.2 times for 18.5 Mi, 0.87 for 43 Mi.
"""

_LARGEST_TORUS = {"TPU v5 lite": 256, "TPU v6 lite": 256}
"""Devices of the largest torus of a kind, a pod. Mesh axes of as many take all of a slice, also of several slices."""

_SMALLEST_TORUS = 32
"""Devices of a slice from which two rounds take less time than one all-reduce, by the estimates of `LinkModel`."""


@cached_plan
def find_typed_axes(computing: AxisMapping, stored: AxisMapping, mesh: MeshLike) -> frozenset[str]:
    """Returns the mesh axes over which gathered parameters are `reduced`.

    These are those of the batch. There are none unless all mesh axes are Explicit: other types have no `reduced`.
    """
    if any(axis_type != AxisType.Explicit for axis_type in mesh.axis_types):
        return frozenset()
    return find_batch_axes(computing, stored, mesh)


def find_batch_axes(computing: AxisMapping, stored: AxisMapping, mesh: MeshLike) -> frozenset[str]:
    """Returns the mesh axes over which the gradients of gathered parameters are added up.

    Parameters are gathered over the mesh axes that `stored` gives to a name and `computing` does not. What `computing`
    shards over one of these is the batch; all mesh axes of the batch are returned, so those of replicas, too.
    """
    gathered_axes: set[str] = set()
    for name in stored:
        gathered_axes.update(axis for axis in stored.mesh_axes(name) if axis not in computing.mesh_axes(name))
    batch_axes: set[str] = set()
    for name in computing:
        if gathered_axes.intersection(computing.mesh_axes(name)):
            batch_axes.update(computing.mesh_axes(name))
    return frozenset(batch_axes.intersection(mesh.axis_names))


class _Round(NamedTuple):
    """A reduce-scatter of one dimension of a gradient.

    Attributes:
        dim: The dimension.
        mesh_axes: The mesh axes over which it is scattered.
        groups: The places of the devices of each group along the mesh axis, which is only one then; None if all devices
            along the mesh axes are one group.
    """

    dim: int
    mesh_axes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...] | None = None


class _GatherPlan(NamedTuple):
    """How a parameter is sharded before and after a gather, and in which rounds its gradient is scattered.

    Without rounds JAX transposes the gather.
    """

    stored: NamedSharding
    target: NamedSharding
    rounds: tuple[_Round, ...] = ()
    is_tpu: bool = False

    def add_dim(self, entry: Any) -> "_GatherPlan":
        """Returns the plan for parameters with one more dimension in front, which is sharded by an entry of a spec."""

        def extend(sharding: NamedSharding) -> NamedSharding:
            spec = sharding.spec
            return NamedSharding(sharding.mesh, PartitionSpec(entry, *spec.partitions, reduced=spec.reduced))

        rounds = tuple(_Round(dim + 1, mesh_axes, groups) for dim, mesh_axes, groups in self.rounds)
        return _GatherPlan(extend(self.stored), extend(self.target), rounds, self.is_tpu)


def gather_reduced(array: Any, sharding: NamedSharding, batch_axes: frozenset[str]) -> Any:
    """Returns a stored parameter with a sharding to compute with, `reduced` over the mesh axes of the batch."""
    array = set_reduced_axes(array, batch_axes)
    plan = _plan_gather(jax.typeof(array).sharding, sharding, batch_axes, find_platform() == "tpu")
    return _gather(array, plan) if plan.rounds else jax.reshard(array, plan.target)


@cached_plan
def _plan_gather(
    stored: NamedSharding, computing: NamedSharding, batch_axes: frozenset[str], is_tpu: bool
) -> _GatherPlan:
    mesh, partitions = computing.mesh, computing.spec.partitions
    reduced = batch_axes.difference(*map(get_entry_axes, partitions))
    target = NamedSharding(mesh, PartitionSpec(*partitions, reduced=reduced))
    gathered = find_gathered_axes(stored.spec, computing.spec)
    if gathered is None:
        return _GatherPlan(stored, target)
    # Over other mesh axes than those of the batch, all devices have the same gradient.
    if not reduced.issuperset(axis for axes in gathered.values() for axis in axes):
        return _GatherPlan(stored, target)
    size = prod(mesh.shape[axis] for axes in gathered.values() for axis in axes)
    device_kind = getattr(getattr(mesh, "abstract_device", None), "device_kind", "")
    takes_slice = is_tpu and size in (mesh.size, _LARGEST_TORUS.get(device_kind))
    if takes_slice and size < _SMALLEST_TORUS:
        return _GatherPlan(stored, target)
    rounds: list[_Round] = []
    for dim, axes in gathered.items():
        if takes_slice and len(axes) > 1:
            rounds.extend(_Round(dim, (axis,)) for axis in axes)
        elif takes_slice and len(gathered) == 1 and size % 2 == 0:
            # First between every other device, then between neighbors: the blocks of the gradient stay in the order of
            # the devices, and groups of half of the devices use three of the four links of a chip.
            rounds.append(_Round(dim, axes, (tuple(range(0, size, 2)), tuple(range(1, size, 2)))))
            rounds.append(_Round(dim, axes, tuple((device, device + 1) for device in range(0, size, 2))))
        else:
            rounds.append(_Round(dim, axes))
    return _GatherPlan(stored, target, tuple(rounds), is_tpu)


def find_gathered_axes(stored: PartitionSpec, computing: PartitionSpec) -> dict[int, tuple[str, ...]] | None:
    """Returns the mesh axes over which each dimension is gathered; None if mesh axes are exchanged, too."""
    gathered_axes: dict[int, tuple[str, ...]] = {}
    for dim, (entry, target_entry) in enumerate(zip(stored.partitions, computing.partitions, strict=True)):
        axes, target_axes = get_entry_axes(entry), get_entry_axes(target_entry)
        if axes[: len(target_axes)] != target_axes:
            return None
        if len(axes) > len(target_axes):
            gathered_axes[dim] = axes[len(target_axes) :]
    return gathered_axes


def describe_gradient(stored: NamedSharding, target: NamedSharding, batch_axes: frozenset[str]) -> str:
    """Returns over which mesh axes the gradient of a stored parameter is added up, and how; "" if it is over none.

    Args:
        stored: The sharding of the parameter.
        target: That which it is gathered to, on the same mesh.
        batch_axes: The mesh axes of the batch.
    """
    mesh = target.mesh.abstract_mesh
    gathered_axes = find_gathered_axes(stored.spec, target.spec) or {}
    scattered_axes = [axis for axes in gathered_axes.values() for axis in axes if mesh.shape[axis] > 1]
    target_axes = {axis for entry in target.spec.partitions for axis in get_entry_axes(entry)}
    added_axes = [axis for axis in mesh.axis_names if axis in batch_axes - target_axes and mesh.shape[axis] > 1]
    added, scattered = " x ".join(added_axes), " x ".join(scattered_axes)
    if not added_axes:
        return ""
    if not scattered_axes:
        return f"added up over {added}"
    is_typed = all(axis_type == AxisType.Explicit for axis_type in mesh.axis_types)
    if not is_typed or not set(scattered_axes).issubset(added_axes):
        return f"added up over {added}; each device keeps its part over {scattered}"
    is_tpu = find_platform(mesh) == "tpu"
    rounds = _plan_gather(NamedSharding(mesh, stored.spec), NamedSharding(mesh, target.spec), batch_axes, is_tpu).rounds
    text = f"scattered over {scattered}"
    if len(rounds) > 1:
        text += f" in {len(rounds)} rounds"
    if replica_axes := [axis for axis in added_axes if axis not in scattered_axes]:
        text += f", then added up over {' x '.join(replica_axes)}"
    return text


def _reshard(array: Any, plan: _GatherPlan) -> Any:
    return jax.reshard(array, plan.target)


def _scatter(gradient: Any, plan: _GatherPlan) -> Any:
    """Returns a gradient that is `unreduced` on shards; over the mesh axes of replicas it still is."""
    stored, target = plan.stored.spec, plan.target.spec
    scatter_shards = jax.shard_map(
        functools.partial(_scatter_in_rounds, rounds=plan.rounds, is_tpu=plan.is_tpu),
        in_specs=PartitionSpec(*target.partitions, unreduced=target.reduced),
        out_specs=PartitionSpec(*stored.partitions, unreduced=stored.reduced),
        check_vma=False,  # JAX has no types for groups of a mesh axis
    )
    return scatter_shards(gradient)


def _scatter_in_rounds(gradient: Any, rounds: tuple[_Round, ...], is_tpu: bool) -> Any:
    for dim, mesh_axes, groups in rounds:
        scatter = functools.partial(jax.lax.psum_scatter, axis_name=mesh_axes, axis_index_groups=groups, tiled=True)
        if not is_tpu:
            gradient = scatter(gradient, scatter_dimension=dim)
            continue
        group_size = jax.lax.axis_size(mesh_axes) if groups is None else len(groups[0])
        slices = jnp.moveaxis(gradient, dim, 0)
        is_large = gradient.size >= _SMALLEST_SCATTER
        if is_large and not _has_tiles(slices) and gradient.size % (group_size * _ROW) == 0:
            shard = scatter(slices.reshape(-1, _ROW), scatter_dimension=0).reshape(-1, *slices.shape[1:])
        elif groups is not None or (is_large and _is_scattered_by_lanes(gradient.shape, dim, group_size)):
            shard = scatter(slices, scatter_dimension=0)
        else:
            gradient = scatter(gradient, scatter_dimension=dim)
            continue
        # XLA would scatter along `dim` after all, in the order of the stored parameter.
        gradient = jnp.moveaxis(jax.lax.optimization_barrier(shard), 0, dim)
    return gradient


def _has_tiles(slices: Any) -> bool:
    """Returns whether libtpu scatters an array along its first dimension without an all-reduce.

    It does if slices are 26, 27, 28, 112 or 250 rows of 128 elements, and does not if they are 37, 86, 250.5, 1002 or
    1004: those have no divisor between 8 and 32.
    """
    lanes, remainder = divmod(slices.size // slices.shape[0], _LANE)
    return remainder == 0 and any(lanes % divisor == 0 for divisor in range(8, 33))


def _is_scattered_by_lanes(shape: tuple[int, ...], dim: int, group_size: int) -> bool:
    """Returns whether each device gets 128 elements of the last dimension, for which libtpu uses an all-reduce.

    It does not for 64 or 256.
    """
    return dim == len(shape) - 1 and shape[dim] == group_size * _LANE


_gather = make_linear_pair("gather_reduced", _reshard, _scatter)

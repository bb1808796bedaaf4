"""Plain arrays typed `reduced`: over which Explicit mesh axes JAX adds up their gradients, and when.

An array that is `reduced` over mesh axes has equal values on their devices, as if it were replicated, but its cotangent
is `unreduced`: each device keeps the sum over its own part of the batch until the cotangent is resharded, to the shards
of a stored parameter, for example. Then that is one reduce-scatter. See "Autodiff and sharding" in the documentation of
JAX.

The mesh axes must be just those over which the *other* operands of an operation are sharded. For products JAX raises an
error if they are not; for lookups the gradient would be wrong. So every operation that takes such an array states them.
"""

from collections.abc import Collection, Iterable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from .._ground.jax_compat import find_mapped_mesh_axes, reduce_over_mapped_axes
from ._axis_layout import get_entry_axes


def get_reduced_axes(array: Any) -> frozenset[str]:
    """Returns the mesh axes over which an array is `reduced`."""
    return jax.typeof(array).sharding.spec.reduced


def set_reduced_axes(array: Any, mesh_axes: Collection[str], other: Any = None) -> Any:
    """Returns an array that is `reduced` over just these mesh axes, without those that shard it.

    Nothing is sent. For mesh axes that are left out, gradients are added up on the way back right here.

    Args:
        array: The array.
        mesh_axes: The mesh axes.
        other: The array that it is multiplied with. Mesh axes over which a `vmap` maps this one alone are added.
    """
    sharding = jax.typeof(array).sharding
    if not mesh_axes and not sharding.spec.reduced:
        return array
    partitions = sharding.spec.partitions
    sharded_axes = {axis for entry in partitions for axis in get_entry_axes(entry)}
    reduced_axes = frozenset(mesh_axes) - sharded_axes
    if sharding.spec.reduced - reduced_axes and reduced_axes - sharding.spec.reduced:
        # In one step, XLA would end the process on the way back.
        array = set_reduced_axes(array, ())
    spec = PartitionSpec(*partitions, reduced=reduced_axes)
    if spec != sharding.spec:
        # An array that was made without a mesh, which a function takes from around it, has none in its type.
        mesh = jax.sharding.get_abstract_mesh() if sharding.mesh.empty else sharding.mesh
        array = jax.reshard(array, NamedSharding(mesh, spec))
    if other is not None and spec.reduced and find_mapped_mesh_axes():
        array = reduce_over_mapped_axes(array, other)
    return array


def list_sharded_axes(array: Any, dims: Iterable[int]) -> tuple[str, ...]:
    """Returns the Explicit mesh axes over which some dimensions of an array are sharded."""
    partitions = jax.typeof(array).sharding.spec.partitions
    return tuple(axis for dim in dims for axis in get_entry_axes(partitions[dim]))


def broadcast_reduced(array: Any, dims: tuple[int, ...], like: Any) -> Any:
    """Returns an array broadcast to another one and sharded as that is, so that both can be added or multiplied.

    Its gradient is summed on each device over the dimensions that it lacks.

    Args:
        array: Array that may be `reduced`.
        dims: The dimension of `like` for each dimension of the array.
        like: Array with all of the dimensions.
    """
    missing_dims = [dim for dim in range(like.ndim) if dim not in dims]
    array = set_reduced_axes(array, list_sharded_axes(like, missing_dims))
    # `broadcast_in_dim` takes increasing dimensions.
    array = jax.numpy.transpose(array, sorted(range(len(dims)), key=dims.__getitem__))
    return jax.lax.broadcast_in_dim(array, like.shape, sorted(dims), out_sharding=jax.typeof(like).sharding)

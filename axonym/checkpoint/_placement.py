"""Where restored arrays go: their shardings, the order of their axes, and random keys."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

from ..named._array import NamedArray
from ..named._base import NamedBase, get_plain_array, with_array
from ..named._cache import cached_plan
from ..named._format import format_value
from ..partitioning.mapping._mapping import ResourceMapping
from ..partitioning.sharding._partition_specs import infer_resource_partitions, pad_spec
from ..partitioning.specs._active_mesh import MeshLike, get_active_mesh
from ._leaf import Leaf, get_key_dtype
from ._match_leaves import find_order


def find_shardings(tree: Any, leaves: list[Any], mapping: ResourceMapping | None, mesh: MeshLike | None) -> list[Any]:
    """Returns the sharding of each leaf of a tree, None for those that are not arrays or are on the default device."""
    mesh = get_active_mesh() if mesh is None else mesh
    if mesh is None and mapping is None:
        return [_get_own_sharding(leaf) for leaf in leaves]
    if mesh is None:
        raise ValueError("`mapping` needs a mesh to restore onto; set one with `jax.set_mesh(mesh)` or pass `mesh=`")
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise TypeError(f"`mesh` is a mesh with devices, not {format_value(mesh)}")
    if not isinstance(mesh, Mesh):
        raise ValueError("a checkpoint is restored onto a mesh with devices, outside of `jit`; this mesh has none")
    found = infer_resource_partitions(tree, mapping, preserve_existing_shardings=mapping is None, mesh=mesh)
    return jax.tree.leaves(found, is_leaf=lambda x: x is None)


def _get_own_sharding(leaf: Any) -> Any:
    """Returns the sharding that an array was given; an uncommitted array may be moved by JAX, and so has none."""
    array = get_plain_array(leaf)
    sharding = getattr(array, "sharding", None)
    if isinstance(sharding, NamedSharding) and not isinstance(sharding.mesh, Mesh):
        return None
    return sharding if getattr(array, "committed", True) else None


def make_shape(leaf: Leaf) -> Any:
    """Returns a stand-in for a leaf: a shape without data for an array, with its names."""
    match leaf.kind:
        case "array" | "key":
            dtype = get_key_dtype(leaf.dtype) if leaf.kind == "key" else jnp.dtype(leaf.dtype)
            shape = jax.ShapeDtypeStruct(leaf.shape, dtype)
        case "numpy":
            shape = np.broadcast_to(np.zeros((), jnp.dtype(leaf.dtype)), leaf.shape)
        case "numpy scalar":
            shape = jnp.dtype(leaf.dtype).type(0)
        case _:
            return leaf.decode()
    return shape if leaf.names is None else NamedArray(shape, leaf.names)


def get_stored_sharding(saved: Leaf, wanted: Leaf, sharding: Any) -> Any:
    """Returns the sharding to read an array with, whose axes are in the order in which they are stored."""
    order = find_order(saved.names, wanted.names)
    if isinstance(sharding, NamedSharding):
        entries = pad_spec(sharding.spec, len(saved.shape)).partitions
        if order is not None:
            entries = [entries[order.index(at)] for at in range(len(order))]
        return NamedSharding(sharding.mesh, P(*entries, *(None,) * (len(saved.stored_shape) - len(saved.shape))))
    if order is not None and sharding is not None and not isinstance(sharding, SingleDeviceSharding):
        raise ValueError(f"{saved.path} cannot be transposed onto {sharding}; pass a mesh")
    return sharding


def enter_mesh_of(sharding: Any) -> AbstractContextManager[Any]:
    """Makes the mesh of a sharding the active one, none if it has no mesh, for operations outside of `jit`."""
    return jax.set_mesh(cast(Mesh, sharding.mesh) if isinstance(sharding, NamedSharding) else None)


def place_leaf(array: Any, saved: Leaf, wanted: Leaf, like: Any, sharding: Any) -> Any:
    """Returns a leaf like the one asked for, from the array that was read."""
    if not saved.is_stored:
        array = np.zeros(saved.stored_shape, jnp.dtype(saved.stored_dtype))
    order = find_order(saved.names, wanted.names)
    if wanted.kind in ("numpy", "numpy scalar"):
        array = np.asarray(array) if order is None else np.ascontiguousarray(np.transpose(array, order))
        array = array[()] if wanted.kind == "numpy scalar" else array
    else:
        array = _place_on_devices(array, saved, wanted, order, sharding)
    return with_array(like, array) if isinstance(like, NamedBase) else array


def _place_on_devices(array: Any, saved: Leaf, wanted: Leaf, order: tuple[int, ...] | None, sharding: Any) -> jax.Array:
    """Returns random keys for their data, and an array with its axes in another order."""
    with enter_mesh_of(sharding):
        if not isinstance(array, jax.Array):
            array = array if order is None else np.transpose(array, (*order, *range(len(order), array.ndim)))
            array, order = jax.device_put(array, get_stored_sharding(wanted, wanted, sharding)), None
        if saved.kind == "key":
            array = jax.random.wrap_key_data(array, impl=saved.dtype)
        if order is not None:
            array = _make_transpose(order, sharding)(array)
        return array


@cached_plan
def _make_transpose(order: tuple[int, ...], sharding: Any) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(functools.partial(jnp.transpose, axes=order), out_shardings=sharding)

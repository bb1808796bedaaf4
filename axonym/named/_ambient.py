"""The seam between names and sharding: the one place where arrays ask what the mapping in force says.

The value in force lives in a JAX user context, which is thread-local and part of every jit cache key: under another
mapping a compiled function is traced anew, under the same one it is reused. This part only asks; the answers come from
an object that the partitioning part puts there.
"""

from collections.abc import Collection
from typing import Any, Protocol

import jax
from jax.sharding import NamedSharding, PartitionSpec

from ._axis import Names
from ._base import N, is_traced, with_array


class Ambient(Protocol):
    """What the value in force answers; it is immutable, hashable and compares by what it says."""

    def constrain(self, array: Any, names: Names) -> Any:
        """Returns the array with the sharding that its names have."""
        ...

    def gathered(self, array: Any, names: Names) -> Any:
        """Returns a parameter with the sharding that its names have; its gradient gets that of a stored parameter."""
        ...

    def out_sharding(self, names: Names, sizes: tuple[int, ...]) -> NamedSharding | None:
        """Returns the sharding that an operation must state on an Explicit mesh; None on any other."""
        ...

    def mesh_axes(self, name: str, size: int) -> tuple[str, ...]:
        """Returns the mesh axes over which an axis is sharded, none if it is not."""
        ...


context: Any = jax.make_user_context(None)
"""Holds the `Ambient` in force, or None."""


def constrain_sharding(x: N) -> N:
    """Returns the array with the sharding its names have under the mapping in force; as it is if there is none."""
    ambient = context.value
    return x if ambient is None or not x.names else with_array(x, ambient.constrain(x.array, x.names))


def place_array(x: N) -> N:
    """Puts what a compiled function made where its names belong; within a trace that function has said so already."""
    return x if is_traced(x.array) else constrain_sharding(x)


def get_out_sharding(names: Names, sizes: tuple[int, ...]) -> NamedSharding | None:
    """Returns what an operation must state as its `out_sharding` here: None unless a mesh axis is Explicit."""
    ambient = context.value
    return None if ambient is None else ambient.out_sharding(names, sizes)


def reshard_by_name(array: Any, names: Names) -> Any:
    """Returns a plain array with the sharding of these names on an Explicit mesh, and as it is on any other.

    A name "" stands for an axis that must not be divided.
    """
    sharding = get_out_sharding(names, array.shape)
    if sharding is None or jax.typeof(array).sharding == sharding:  # JAX keeps even a change that changes nothing
        return array
    return jax.reshard(array, sharding)


def reshard_named(x: N) -> N:
    """Returns a named array with the sharding of its names on an Explicit mesh, and as it is on any other."""
    return with_array(x, reshard_by_name(x.array, x.names))


def get_entry_axes(entry: Any) -> tuple[str, ...]:
    """Returns the mesh axes of one entry of a spec as a tuple."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def replicate_dims(array: Any, dims: Collection[int]) -> Any:
    """Returns a plain array that no Explicit mesh axis divides along these dimensions; it stays as it is elsewhere."""
    sharding = jax.typeof(array).sharding
    if not any(entry for dim, entry in enumerate(sharding.spec) if dim in dims):
        return array
    whole = PartitionSpec(*(None if dim in dims else entry for dim, entry in enumerate(sharding.spec)))
    return jax.reshard(array, NamedSharding(sharding.mesh, whole))  # on its own mesh, be it in force or not


def get_mesh_axes(name: str, size: int) -> tuple[str, ...]:
    """Returns the mesh axes over which an axis of this size is sharded here, none if it is not."""
    ambient = context.value
    return () if ambient is None else ambient.mesh_axes(name, size)

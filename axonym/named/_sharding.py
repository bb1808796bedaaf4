"""The seam between names and sharding: how named arrays ask the active mapping.

The active mapping is held by a JAX user context, which is thread-local and part of every jit cache key: a compiled
function is traced anew under another mapping, and reused under the same one. `axonym.partitioning` provides the object
with the methods of `Ambient`.
"""

from typing import Any, Protocol

import jax
from jax.sharding import NamedSharding

from .._ground.jax_compat import is_traced
from ._axis import Names
from ._base import N, with_array
from ._stages import StagePlan


class Ambient(Protocol):
    """The active mapping as named arrays see it: immutable, hashable and compared by value."""

    def constrain(self, array: Any, names: Names) -> Any:
        """Returns the array with the sharding of its names."""
        ...

    def gather(self, array: Any, names: Names, may_be_reduced: bool) -> Any:
        """Returns a parameter with the sharding of its names; its gradient is sharded as the stored parameter."""
        ...

    def get_out_sharding(self, names: Names, sizes: tuple[int | None, ...]) -> NamedSharding | None:
        """Returns the sharding that an operation must pass to JAX on an Explicit mesh; None on any other."""
        ...

    def get_sharding(self, names: Names, sizes: tuple[int, ...]) -> NamedSharding | None:
        """Returns the sharding of an array over mesh axes of any type; None without a mesh."""
        ...

    def get_mesh_axes(self, name: str, size: int) -> tuple[str, ...]:
        """Returns the mesh axes over which an axis is sharded, an empty tuple if it is not."""
        ...

    def find_stages(self, name: str, size: int) -> StagePlan | None:
        """Returns the stages into which a layer axis is divided, None if it is not."""
        ...


mapping_context: Any = jax.make_user_context(None)
"""Holds the active `Ambient`, or None."""


def constrain_sharding(x: N) -> N:
    """Returns the array with the sharding of its names under the active mapping, unchanged if there is none."""
    ambient = mapping_context.value
    return x if ambient is None or not x.names else with_array(x, ambient.constrain(x.array, x.names))


def place_array(x: N) -> N:
    """Shards the result of a compiled function by name; within a trace that function has done so already."""
    return x if is_traced(x.array) else constrain_sharding(x)


def gather_parameter(parameter: N, *, may_be_reduced: bool = True) -> N:
    """Returns a parameter sharded by the active mapping; one stored by another mapping is gathered from its shards.

    The gradient is scattered back to the stored shards.

    Args:
        parameter: The parameter.
        may_be_reduced: Whether it may be typed `reduced` on an Explicit mesh, see `_reduced_types.py`. Only `dot` with
            JAX's own `dot_general`, arithmetic functions, and lookups along an axis that is not sharded take such
            types, so it must be False if anything else uses the parameter.
    """
    ambient = mapping_context.value
    if ambient is None or not parameter.names:
        return parameter
    return with_array(parameter, ambient.gather(parameter.array, parameter.names, may_be_reduced))


def get_out_sharding(names: Names, sizes: tuple[int | None, ...]) -> NamedSharding | None:
    """Returns the `out_sharding` that an operation must pass to JAX: None unless a mesh axis is Explicit."""
    ambient = mapping_context.value
    return None if ambient is None else ambient.get_out_sharding(names, sizes)


def get_sharding(names: Names, sizes: tuple[int, ...]) -> NamedSharding | None:
    """Returns the sharding of an array with these names on any mesh, as `jax.shard_map` needs it; None if unknown."""
    ambient = mapping_context.value
    return None if ambient is None else ambient.get_sharding(names, sizes)


def reshard_by_name(array: Any, names: Names) -> Any:
    """Returns a plain array with the sharding of these names on an Explicit mesh, unchanged on any other.

    The name "" stands for an axis that must not be sharded.
    """
    sharding = get_out_sharding(names, array.shape)
    if sharding is None or jax.typeof(array).sharding == sharding:  # JAX traces even a reshard without effect
        return array
    return jax.reshard(array, sharding)


def reshard_named(x: N) -> N:
    """Returns a named array with the sharding of its names on an Explicit mesh, unchanged on any other."""
    return with_array(x, reshard_by_name(x.array, x.names))


def find_varying_axes(array: Any) -> frozenset[str]:
    """Returns the mesh axes of `shard_map` over which the values of a plain array differ."""
    return jax.typeof(array).manual_axis_type.varying


def vary_like(array: Any, *others: Any) -> Any:
    """Returns an array typed to differ over all mesh axes of `shard_map` over which some other arrays differ."""
    axes = frozenset[str]().union(*map(find_varying_axes, others)) - find_varying_axes(array)
    return jax.lax.pcast(array, tuple(axes), to="varying") if axes else array


def get_mesh_axes(name: str, size: int) -> tuple[str, ...]:
    """Returns the mesh axes over which an axis of this size is sharded, an empty tuple if it is not."""
    ambient = mapping_context.value
    return () if ambient is None else ambient.get_mesh_axes(name, size)


def find_stages(name: str, size: int) -> StagePlan | None:
    """Returns the stages into which a layer axis of this size is divided, None if it is not."""
    ambient = mapping_context.value
    return None if ambient is None else ambient.find_stages(name, size)

"""The seam between names and sharding: the only place where named arrays read the active mapping.

The active mapping is held by a JAX user context, which is thread-local and part of every jit cache key: a compiled
function is traced anew under another mapping, and reused under the same one. `axonym.partitioning` provides the object
with the methods of `Ambient`.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from ._axis import Names
from ._axis_layout import STATE_SHARDING, AxisLayout, get_entry_axes
from ._base import N, is_traced, with_array
from ._format import format_axes
from ._traceback import strip_library_frames


class Ambient(Protocol):
    """The active mapping as named arrays see it: immutable, hashable and compared by value."""

    def constrain(self, array: Any, names: Names) -> Any:
        """Returns the array with the sharding of its names."""
        ...

    def gather(self, array: Any, names: Names) -> Any:
        """Returns a parameter with the sharding of its names; its gradient is sharded as the stored parameter."""
        ...

    def get_out_sharding(self, names: Names, sizes: tuple[int, ...]) -> NamedSharding | None:
        """Returns the sharding that an operation must pass to JAX on an Explicit mesh; None on any other."""
        ...

    def get_sharding(self, names: Names, sizes: tuple[int, ...]) -> NamedSharding | None:
        """Returns the sharding of an array over mesh axes of any type; None without a mesh."""
        ...

    def get_mesh_axes(self, name: str, size: int) -> tuple[str, ...]:
        """Returns the mesh axes over which an axis is sharded, an empty tuple if it is not."""
        ...


context: Any = jax.make_user_context(None)
"""Holds the active `Ambient`, or None."""


class OperandLayout(NamedTuple):
    """An `Ambient` for a single operation without an active mapping: axes are sharded as they are in the operands."""

    layout: AxisLayout
    mapping = None

    def constrain(self, array: Any, names: Names) -> Any:
        return array

    def gather(self, array: Any, names: Names) -> Any:
        return array

    def get_out_sharding(self, names: Names, sizes: tuple[int, ...]) -> NamedSharding:
        assert self.layout.mesh is not None
        return NamedSharding(self.layout.mesh, self.layout.resolve_spec(names, sizes))

    get_sharding = get_out_sharding

    def get_mesh_axes(self, name: str, size: int) -> tuple[str, ...]:
        return ()


def use_operand_shardings(operands: Collection[Names], arrays: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Returns a context for a traced operation on plain arrays with these names, shardings being those of the arrays.

    It changes nothing under an active mapping, or where no array is sharded over Explicit mesh axes. The name "" stands
    for an axis whose sharding is ignored.
    """
    if context.value is not None:
        return contextlib.nullcontext()
    mesh_axes: dict[str, tuple[str, ...]] = {}
    mesh: Any = None
    for names, array in zip(operands, arrays, strict=True):
        if not names:  # a number, or the function of `apply`
            continue
        sharding = jax.typeof(array).sharding
        for name, entry in zip(names, sharding.spec, strict=False):
            if entry is None:
                continue
            mesh, axes = sharding.mesh, get_entry_axes(entry)
            if name and mesh_axes.setdefault(name, axes) != axes:
                raise strip_library_frames(
                    ValueError(
                        f"axis {name!r} is sharded over {format_axes(mesh_axes[name])} in one operand and "
                        f"over {format_axes(axes)} in another; {STATE_SHARDING}"
                    )
                )
    if mesh is None:
        return contextlib.nullcontext()
    return context(OperandLayout(AxisLayout(mesh, tuple(mesh_axes.items()), source="operands")))


def constrain_sharding(x: N) -> N:
    """Returns the array with the sharding of its names under the active mapping, unchanged if there is none."""
    ambient = context.value
    return x if ambient is None or not x.names else with_array(x, ambient.constrain(x.array, x.names))


def place_array(x: N) -> N:
    """Shards the result of a compiled function by name; within a trace that function has done so already."""
    return x if is_traced(x.array) else constrain_sharding(x)


def get_out_sharding(names: Names, sizes: tuple[int, ...]) -> NamedSharding | None:
    """Returns the `out_sharding` that an operation must pass to JAX: None unless a mesh axis is Explicit."""
    ambient = context.value
    return None if ambient is None else ambient.get_out_sharding(names, sizes)


def get_sharding(names: Names, sizes: tuple[int, ...]) -> NamedSharding | None:
    """Returns the sharding of an array with these names on any mesh, as `jax.shard_map` needs it; None if unknown."""
    ambient = context.value
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


def replicate_dims(array: Any, dims: Collection[int]) -> Any:
    """Returns a plain array that is not sharded over Explicit mesh axes along these dimensions."""
    sharding = jax.typeof(array).sharding
    if not any(entry for dim, entry in enumerate(sharding.spec) if dim in dims):
        return array
    spec = PartitionSpec(*(None if dim in dims else entry for dim, entry in enumerate(sharding.spec)))
    return jax.reshard(array, NamedSharding(sharding.mesh, spec))  # on its own mesh, which may not be the active one


def constrain_auto_dim(array: Any, dim: int, axes: Collection[str] = ()) -> Any:
    """Returns a traced array that is sharded over these mesh axes along a dimension, of the Auto axes over no others.

    The compiler chooses the sharding of the other dimensions; the cotangent is sharded in the same way.
    """
    mesh = jax.typeof(array).sharding.mesh
    auto = [axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Auto]
    if not auto or not is_traced(array):
        return array
    entries: list[Any] = [PartitionSpec.UNCONSTRAINED] * array.ndim
    entries[dim] = tuple(axis for axis in axes if axis in auto) or None
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*entries)))


def find_varying_axes(array: Any) -> frozenset[str]:
    """Returns the mesh axes of `shard_map` over which the values of a plain array differ."""
    return jax.typeof(array).manual_axis_type.varying


def find_explicit_mesh(arrays: Iterable[Any]) -> AbstractMesh | None:
    """Returns the mesh with Explicit axes that one of these plain arrays is on, as others may be on none."""
    meshes = (jax.typeof(array).sharding.mesh for array in arrays)
    return next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)


def shard_by_compiler(fn: Callable[..., Any], out_sharding: Any) -> Callable[..., Any]:
    """Returns a function that the compiler shards on an Explicit mesh, because JAX lacks sharding rules for it.

    Mesh axes that are Manual, as in `shard_map` over some of the mesh axes, stay so: JAX cannot make them Auto.
    """
    mesh = jax.tree.leaves(out_sharding)[0].mesh
    axes = tuple(axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit)
    return jax.sharding.auto_axes(fn, axes=axes, out_sharding=out_sharding)


def align_shardings(arrays: list[Any], dims: Sequence[int]) -> list[Any]:
    """Returns plain arrays, each sharded along its dimension over the Explicit mesh axes of the first sharded array."""
    own = [jax.typeof(array).sharding for array in arrays]
    entries = [sharding.spec[dim] for sharding, dim in zip(own, dims, strict=True)]
    if all(entry == entries[0] for entry in entries):
        return arrays
    chosen = next(at for at, entry in enumerate(entries) if entry is not None)
    taken = get_entry_axes(entries[chosen])
    aligned = [*arrays]
    for at, dim in enumerate(dims):
        if entries[at] != entries[chosen]:
            rest = ([axis for axis in get_entry_axes(entry) if axis not in taken] for entry in own[at].spec)
            spec = PartitionSpec(*(taken if i == dim else tuple(axes) or None for i, axes in enumerate(rest)))
            aligned[at] = jax.reshard(arrays[at], NamedSharding(own[chosen].mesh, spec))
    return aligned


def leave_to_compiler(fn: Callable[..., Any], dims: Collection[int], *arrays: Any) -> Any:
    """Calls a function whose gradient lacks sharding rules in JAX, so that the compiler shards it on an Explicit mesh.

    Its result is sharded as the first array, without these dimensions.
    """
    mesh = find_explicit_mesh(arrays)
    if mesh is None:
        return fn(*arrays)
    spec = jax.typeof(arrays[0]).sharding.spec
    kept = PartitionSpec(*(entry for dim, entry in enumerate(spec) if dim not in dims))
    return shard_by_compiler(fn, NamedSharding(mesh, kept))(*arrays)


def get_mesh_axes(name: str, size: int) -> tuple[str, ...]:
    """Returns the mesh axes over which an axis of this size is sharded, an empty tuple if it is not."""
    ambient = context.value
    return () if ambient is None else ambient.get_mesh_axes(name, size)

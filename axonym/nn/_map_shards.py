"""Functions of the shards of each device, for layers that state the communication of devices themselves."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec as P

from .._jax_compat import is_tracing
from ..named._ambient import context, get_entry_axes, get_sharding, reshard_by_name, use_operand_shardings
from ..named._axis import Names


MeshAxes: TypeAlias = Mapping[str, tuple[str, ...]]
"""The mesh axes over which the axis of each name is sharded."""


class Shards(NamedTuple):
    """A mesh and the entry of each name in a spec; static, and without a mesh where nothing is to be mapped."""

    mesh: Mesh | AbstractMesh | None = None
    entries: tuple[tuple[str, Any], ...] = ()

    def make_spec(self, names: Names) -> P:
        """Returns the spec of an array with these names."""
        entries = dict(self.entries)
        return P(*(entries.get(name) for name in names))

    def get_mesh_axes(self, names: Names) -> tuple[str, ...]:
        """Returns all mesh axes over which these names are sharded."""
        return tuple(axis for entry in self.make_spec(names) for axis in get_entry_axes(entry))

    def map(
        self, fn: Callable[..., Any], names: Sequence[Names], outs: Sequence[Names], *, check_vma: bool = True
    ) -> Callable[..., Any]:
        """Returns a function of plain arrays with these names that runs on the shards of each device."""
        if self.mesh is None:
            return fn
        return jax.shard_map(
            fn,
            mesh=self.mesh,
            in_specs=tuple(map(self.make_spec, names)),
            out_specs=tuple(map(self.make_spec, outs)),
            axis_names=list_free_mesh_axes(self.mesh),
            check_vma=check_vma,
        )


def list_free_mesh_axes(mesh: Mesh | AbstractMesh) -> set[str]:
    """Returns the mesh axes over which `jax.shard_map` may divide: those that are not Manual already."""
    return {axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind != AxisType.Manual}


def find_shards(names: Sequence[Names], shapes: Sequence[tuple[int, ...]]) -> Shards:
    """Returns how arrays are sharded by their names; without a mapping only an Explicit mesh counts."""
    found = [get_sharding(own, shape) for own, shape in zip(names, shapes, strict=True)]
    mesh = found[0].mesh if found[0] is not None else jax.sharding.get_abstract_mesh()
    if not list_free_mesh_axes(mesh) or (context.value is None and AxisType.Explicit not in mesh.axis_types):
        return Shards()
    specs = [() if sharding is None else sharding.spec for sharding in found]
    pairs = [pair for own, spec in zip(names, specs, strict=True) for pair in zip(own, spec, strict=False)]
    return Shards(mesh, tuple({name: entry for name, entry in pairs if entry is not None}.items()))


def map_shards(
    fn: Callable[..., tuple[Any, ...]], arrays: Sequence[Any], names: Sequence[Names], outs: Sequence[Names]
) -> tuple[Any, ...]:
    """Calls a function of plain arrays on the shards that each device holds of them.

    Without a mesh, and without a mapping on an Auto mesh, it gets the arrays as they are.

    Args:
        fn: Function of the `MeshAxes` of all names, empty if nothing is sharded, and of the arrays.
        arrays: The plain arrays.
        names: For each array the names by which it is sharded. The name "" stands for an axis that must not be.
        outs: For each result of the function the names by which it is sharded.
    """
    with use_operand_shardings(names, arrays):
        shards = find_shards(names, [array.shape for array in arrays])
        arrays = [reshard_by_name(array, own) for array, own in zip(arrays, names, strict=True)]
    if shards.mesh is None:
        return fn({}, *arrays)
    axes = {name: get_entry_axes(entry) for name, entry in shards.entries}
    call = shards.map(functools.partial(fn, axes), names, outs)
    return (call if is_tracing() else jax.jit(call))(*arrays)


def check_sharded_apart(function: str, mesh_axes: MeshAxes, names: Names) -> None:
    """Raises a ValueError if two of these axes are sharded over one mesh axis."""
    owners: dict[str, str] = {}
    for name in names:
        for axis in mesh_axes.get(name, ()):
            if owners.setdefault(axis, name) != name:
                raise ValueError(
                    f"{function}: axes {owners[axis]!r} and {name!r} are both sharded over mesh axis {axis!r}; map one "
                    "of them to another mesh axis or to None"
                )

"""Functions of the shards of each device, for layers that say themselves what devices exchange."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
from jax.sharding import AxisType, PartitionSpec as P

from .._jax_compat import is_tracing
from ..named._ambient import context, get_entry_axes, reshard_by_name, use_operand_shardings
from ..named._axis import Names


MeshAxes: TypeAlias = Mapping[str, tuple[str, ...]]
"""The mesh axes over which the axis of each name is sharded."""


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
        ambient = context.value
        pairs = list(zip(names, arrays, strict=True))
        found = [] if ambient is None else [ambient.get_sharding(own, array.shape) for own, array in pairs]
        arrays = [reshard_by_name(array, own) for own, array in pairs]
    mesh = found[0].mesh if found and found[0] is not None else jax.sharding.get_abstract_mesh()
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    free = frozenset(axis for axis, kind in types.items() if kind != AxisType.Manual)
    if not free or (ambient is None and AxisType.Explicit not in types.values()):
        return fn({}, *arrays)
    specs = [one.spec for one in found] or [P()] * len(arrays)
    entries = {}
    for own, spec in zip(names, specs, strict=True):
        entries.update(zip(own, spec, strict=False))
    axes = {name: get_entry_axes(entry) for name, entry in entries.items() if entry is not None}
    out_specs = tuple(P(*(entries.get(name) for name in own)) for own in outs)
    call = jax.shard_map(
        lambda *shards: fn(axes, *shards), mesh=mesh, in_specs=tuple(specs), out_specs=out_specs, axis_names=free
    )
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

"""Functions that run on the shards of each device, for layers that write the communication between devices."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec as P

from .._ground.jax_compat import find_mapped_mesh_axes, has_spmd_axes, is_tracing, use_mapped_mesh_axes
from ..named._axis import Axis, Names
from ..named._axis_layout import AxisLayout, MeshAxes, MeshLike, count_parts, get_entry_axes
from ..named._operation import use_operand_layout
from ..named._sharding import get_sharding, mapping_context, reshard_by_name, vary_like


def list_free_mesh_axes(mesh: MeshLike) -> set[str]:
    """Returns the mesh axes over which `jax.shard_map` may divide: those that are not Manual already."""
    return {axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind != AxisType.Manual}


def choose_manual_axes(mesh: MeshLike) -> set[str]:
    """Returns the `axis_names` of `jax.shard_map` over all mesh axes that are free.

    Given none, JAX divides over all mesh axes except those over which `jax.vmap` maps, which are free here.
    """
    free_axes = list_free_mesh_axes(mesh)
    return free_axes if len(free_axes) < len(mesh.axis_names) else set()


def find_layout(names: Sequence[Names], shapes: Sequence[tuple[int, ...]]) -> AxisLayout:
    """Returns how the arrays are sharded by their names.

    The layout has no mesh if there are no shards to map over: within `shard_map` over all mesh axes, and without a
    mapping unless a mesh axis is Explicit.
    """
    shardings = [get_sharding(array_names, shape) for array_names, shape in zip(names, shapes, strict=True)]
    mesh = shardings[0].mesh if shardings[0] is not None else jax.sharding.get_abstract_mesh()
    if not list_free_mesh_axes(mesh) or (mapping_context.value is None and AxisType.Explicit not in mesh.axis_types):
        return AxisLayout()
    mesh_axes: dict[str, tuple[str, ...]] = {}
    for array_names, sharding in zip(names, shardings, strict=True):
        if sharding is None:
            continue
        for name, entry in zip(array_names, sharding.spec, strict=True):
            if entry is not None:
                mesh_axes[name] = get_entry_axes(entry)
    return AxisLayout(mesh, tuple(mesh_axes.items()))


def shard_map_by_name(
    fn: Callable[..., Any],
    layout: AxisLayout,
    names: Sequence[Names],
    out_names: Sequence[Names],
    *,
    check_vma: bool = True,
    divides_mapped: bool = False,
    unreduced: Sequence[frozenset[str]] | None = None,
) -> Callable[..., Any]:
    """Returns a function of plain arrays with these names that runs on the shards of each device.

    Args:
        fn: Function of the shards.
        layout: How the axes are sharded.
        names: The names of each array.
        out_names: The names of each result.
        check_vma: As for `jax.shard_map`.
        divides_mapped: Whether it is called within a `vmap` over an Explicit mesh axis, which it divides, too; see
            `map_shards`.
        unreduced: For each result the mesh axes over which it is still to be added up.
    """
    if layout.mesh is None:
        return fn
    unreduced = unreduced or [frozenset()] * len(out_names)
    out_specs = tuple(
        layout._replace(unreduced=axes).spec(array_names)
        for axes, array_names in zip(unreduced, out_names, strict=True)
    )
    map_fn = _map_within_vmap if divides_mapped else map_over_mesh
    return map_fn(fn, layout.mesh, tuple(map(layout.spec, names)), out_specs, check_vma)


def map_over_mesh(fn: Callable[..., Any], mesh: MeshLike, specs: Any, out_specs: Any, check_vma: bool) -> Any:
    """Returns `jax.shard_map` of a function over all mesh axes that are free."""
    is_nested = AxisType.Manual in mesh.axis_types
    # JAX cannot save what a nested `shard_map` computes if it varies over the mesh axes of the outer one, so the
    # backward pass computes it again from the arguments.
    mapped_fn = jax.shard_map(
        jax.checkpoint(fn) if is_nested else fn,
        mesh=mesh,
        in_specs=specs,
        out_specs=out_specs,
        axis_names=choose_manual_axes(mesh),
        check_vma=check_vma,
    )
    if check_vma or not is_nested:
        return mapped_fn

    def call(*operands: Any) -> Any:
        # Unchecked results are typed as if they were the same on all devices of the outer `shard_map`.
        arrays = jax.tree.leaves(operands)
        return jax.tree.map(lambda result: vary_like(result, *arrays), mapped_fn(*operands))

    return call


def map_shards(
    fn: Callable[..., tuple[Any, ...]],
    arrays: Sequence[Any],
    names: Sequence[Names],
    out_names: Sequence[Names],
    *,
    check_vma: bool = True,
    divides_mapped: bool = False,
) -> tuple[Any, ...]:
    """Calls a function of plain arrays on the shards that each device holds of them.

    Without a mesh, and without a mapping on an Auto mesh, the function gets the arrays as they are.

    Args:
        fn: Function of the `MeshAxes` of all names, empty if nothing is sharded, and of the arrays.
        arrays: The plain arrays.
        names: For each array the names by which it is sharded. The name "" stands for an axis that must not be.
        out_names: For each result of the function the names by which it is sharded.
        check_vma: As for `jax.shard_map`.
        divides_mapped: Whether each device gets its own slices, too, of an axis that a `vmap` maps over a mesh axis.
            That is for operations such as `ragged_dot`, for which JAX has no rules then. There are no gradients within
            the `vmap`, only around it.
    """
    with use_operand_layout(names, arrays):
        layout = find_layout(names, [array.shape for array in arrays])
        arrays = [reshard_by_name(array, array_names) for array, array_names in zip(arrays, names, strict=True)]
    if layout.mesh is None:
        return fn({}, *arrays)
    if divides_mapped:
        # JAX adds Auto mesh axes of a `vmap` to the types of some values and not of others, and compares them.
        check_vma = check_vma and not has_spmd_axes()
        divides_mapped = bool(find_mapped_mesh_axes())
    fn = functools.partial(fn, layout.mesh_axes)
    call = shard_map_by_name(fn, layout, names, out_names, check_vma=check_vma, divides_mapped=divides_mapped)
    return (call if is_tracing() else jax.jit(call))(*arrays)


def _map_within_vmap(
    fn: Callable[..., Any], mesh: MeshLike, specs: Sequence[P], out_specs: Sequence[P], check_vma: bool
) -> Callable[..., Any]:
    """Returns what `map_over_mesh` does, within a `vmap` over an Explicit mesh axis, which it divides, too.

    JAX would leave the mapped axis Explicit within the `shard_map`, where it cannot tell how the results of operations
    such as `ragged_dot` are sharded.
    """

    @jax.custom_batching.custom_vmap
    def call(*arrays: Any) -> Any:
        with use_mapped_mesh_axes():
            return map_over_mesh(fn, mesh, specs, out_specs, check_vma)(*arrays)

    @call.def_vmap
    def call_mapped(size: int, is_mapped: Sequence[bool], *arrays: Any) -> tuple[Any, Any]:
        sharding_entries = [
            jax.typeof(array).sharding.spec.partitions[0] if mapped else None
            for array, mapped in zip(arrays, is_mapped, strict=True)
        ]
        entry = next((entry for entry in sharding_entries if entry is not None), None)
        mapped_specs = tuple(P(entry, *spec) if mapped else spec for spec, mapped in zip(specs, is_mapped, strict=True))
        fn_mapped = jax.vmap(fn, in_axes=tuple(0 if mapped else None for mapped in is_mapped))

        def call_slice(*shards: Any) -> Any:
            slices = [shard[0] if mapped else shard for shard, mapped in zip(shards, is_mapped, strict=True)]
            return tuple(result[None] for result in fn(*slices))

        count = 1 if entry is None else count_parts(get_entry_axes(entry), mesh)
        fn_slices = call_slice if count == size else fn_mapped
        mapped_out_specs = tuple(P(entry, *spec.partitions, unreduced=spec.unreduced) for spec in out_specs)
        results = map_over_mesh(fn_slices, mesh, mapped_specs, mapped_out_specs, check_vma)(*arrays)
        return results, (True,) * len(out_specs)

    return call


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


def count_devices(mesh_axes: tuple[str, ...]) -> int:
    """Returns the number of devices along these mesh axes, and so of the parts of an axis that is sharded over them."""
    return count_parts(mesh_axes, jax.sharding.get_abstract_mesh())


def find_mesh_axes(axis: Axis) -> tuple[str, ...]:
    """Returns the mesh axes over which an axis is sharded."""
    sharding = get_sharding((axis.name,), (axis.size,))
    return () if sharding is None else get_entry_axes(sharding.spec.partitions[0])

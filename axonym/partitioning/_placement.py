"""Placing arrays by their shardings: moved outside of traced functions, and constrained inside.

A traced leaf gets a constraint, a `ShapeDtypeStruct` gets the sharding, and all other arrays that are not yet in place
are moved by one `device_put`. An array in the memory of the host stays there, since mappings say nothing of memory.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from .._ground.caches import cached_plan
from .._ground.errors import make_error
from .._ground.jax_compat import is_tracing
from ..named._array import NamedArray
from ..named._axis_layout import get_axes_of_type, get_entry_axes, make_spec_entry
from ..named._base import with_array
from ..named._numpy_input import find_array_problem
from ..named._transforms import is_random_key
from ._active_mesh import MeshLike, describe_mixed_types
from ._leaves import format_prefix


def place_leaves(
    leaves: list[Any],
    shardings: list[NamedSharding | None],
    mesh: MeshLike,
    find_path: Callable[[int], str] = lambda position: "",
) -> list[Any]:
    """Returns the leaves of a tree, each placed by its sharding if it has one; the list itself if nothing changes.

    Errors start with the path of a leaf, found from its position.
    """
    is_traced = is_tracing()
    if not is_traced and [getattr(leaf, "sharding", None) for leaf in leaves] == shardings:
        return leaves
    changed: dict[int, Any] = {}
    constraints: dict[int, NamedSharding] = {}
    moves: dict[int, NamedSharding] = {}
    for position, sharding in enumerate(shardings):
        if sharding is None:
            continue
        leaf = leaves[position]
        if isinstance(leaf, jax.ShapeDtypeStruct):
            changed[position] = leaf.update(sharding=choose_target(sharding, leaf.sharding))
        elif is_traced:
            constraints[position] = sharding
        else:
            current = getattr(leaf, "sharding", None)
            if current is sharding or current == sharding:  # mostly one object: shardings are cached
                continue
            if isinstance(leaf, np.ndarray) and (problem := find_array_problem(leaf)) is not None:
                prefix = format_prefix(find_path(position))
                raise make_error(ValueError, f"{prefix}an array of shape {leaf.shape} {problem}")
            if current is None or not _is_equivalent(current, sharding, leaf.ndim):
                moves[position] = choose_target(sharding, current)
    if constraints:
        placed = constrain_arrays([leaves[position] for position in constraints], [*constraints.values()])
        changed.update(zip(constraints, placed, strict=True))
    if moves:
        if not isinstance(mesh, Mesh):
            raise ValueError("arrays can only be placed on a mesh with devices; on an abstract one, shard their shapes")
        positions = [*moves]
        placed = move_arrays(
            [leaves[position] for position in moves], [*moves.values()], lambda index: find_path(positions[index])
        )
        changed.update(zip(moves, placed, strict=True))
    return [changed.get(position, leaf) for position, leaf in enumerate(leaves)] if changed else leaves


def move_arrays(
    arrays: Sequence[Any], shardings: Sequence[NamedSharding], find_path: Callable[[int], str] = lambda index: ""
) -> list[Any]:
    """Returns arrays moved to devices, of several processes too; errors start with the path of an array."""
    if all([sharding.is_fully_addressable for sharding in shardings]):  # a generator is a call for each array
        return jax.device_put([*arrays], [*shardings])
    moved = []
    for index, (array, sharding) in enumerate(zip(arrays, shardings, strict=True)):
        moved.append(_move_across_processes(array, sharding, functools.partial(find_path, index)))
    return moved


def _move_across_processes(array: Any, sharding: NamedSharding, find_path: Callable[[], str]) -> jax.Array:
    with jax.set_mesh(None):  # JAX does not move random keys there
        data = jax.random.key_data(array) if is_random_key(array) else array
    if isinstance(data, jax.Array) and not data.is_fully_addressable:
        moved = jax.device_put(data, sharding)
    else:
        # `device_put` would refuse NaN, as different from itself, and what is committed to devices of this process.
        dtype, data = jax.typeof(data).dtype, np.asarray(data)
        if len({device.process_index for device in sharding.device_set}) == jax.process_count():
            _check_is_same_everywhere(data, array.shape, find_path)
        moved = jax.make_array_from_callback(data.shape, sharding, lambda index: data[index], dtype)
    return jax.random.wrap_key_data(moved, impl=jax.random.key_impl(array)) if is_random_key(array) else moved


def _check_is_same_everywhere(data: np.ndarray, shape: tuple[int, ...], find_path: Callable[[], str]) -> None:
    """Checks that all processes have the same bits of an array."""
    try:
        multihost_utils.assert_equal(np.ravel(data).view(np.uint8))
    except AssertionError:
        raise ValueError(
            f"{format_prefix(find_path())}an array of shape {shape} differs between processes; pass the same one in "
            "all of them, or the part of each to `host_local_to_global`"
        ) from None


def rewrap_arrays(nodes: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    """Returns arrays, each as a named array where the node that it comes from is one."""
    return [
        with_array(node, array) if isinstance(node, NamedArray) else array
        for node, array in zip(nodes, arrays, strict=True)
    ]


def choose_target(sharding: NamedSharding, current: Any) -> NamedSharding:
    """Returns the sharding that an array gets without a compiler, in the memory where it is.

    Axes left to the compiler are as in the array's own sharding, or replicated.
    """
    memory_kind = getattr(current, "memory_kind", None)
    if memory_kind not in (None, "device"):
        sharding = sharding.with_memory_kind(memory_kind)
    mesh, spec = sharding.mesh, sharding.spec
    if P.UNCONSTRAINED not in spec:
        return sharding
    has_same_mesh = isinstance(current, NamedSharding) and current.mesh.shape == mesh.shape
    current_entries = current.spec if has_same_mesh else ()
    used_axes = {axis for entry in spec if entry is not P.UNCONSTRAINED for axis in get_entry_axes(entry)}
    entries = [*spec]
    for dim, entry in enumerate(spec):
        if entry is P.UNCONSTRAINED:
            current_entry = current_entries[dim] if dim < len(current_entries) else None
            current_axes = () if current_entry is P.UNCONSTRAINED else get_entry_axes(current_entry)
            entries[dim] = make_spec_entry(tuple(axis for axis in current_axes if axis not in used_axes))
    return NamedSharding(mesh, P(*entries), memory_kind=sharding.memory_kind)


@cached_plan
def _is_equivalent(current: jax.sharding.Sharding, sharding: NamedSharding, ndim: int) -> bool:
    """Returns whether two shardings put the same shards on the same devices and, on Explicit meshes, are one type."""
    mesh = getattr(current, "mesh", None)
    if mesh != sharding.mesh:
        # JAX takes arrays on two Explicit meshes for arrays of two types, even if their shards are the same.
        current_types = () if mesh is None else mesh.axis_types
        if AxisType.Explicit in (*current_types, *sharding.mesh.axis_types):
            return False
    return current.is_equivalent_to(choose_target(sharding, current), ndim)


def constrain_arrays(arrays: Sequence[Any], shardings: Sequence[NamedSharding]) -> list[Any]:
    """Returns arrays with shardings inside a traced function: resharded over Explicit, constrained over Auto axes."""
    placed = [*arrays]
    explicit: dict[int, NamedSharding] = {}
    auto: dict[int, NamedSharding] = {}
    auto_in_jit: dict[int, NamedSharding] = {}
    for position, sharding in enumerate(shardings):
        part = select_axis_type(sharding, AxisType.Explicit)
        if part is not None and jax.typeof(placed[position]).sharding != part:
            explicit[position] = part
    _replace_arrays(placed, explicit, jax.reshard)
    for position, sharding in enumerate(shardings):
        part = select_axis_type(sharding, AxisType.Auto)
        if part is not None:
            current = jax.typeof(placed[position]).sharding
            needs_jit = current.mesh.empty or any(current.spec.partitions)
            (auto_in_jit if needs_jit else auto)[position] = part
    # Only compiled code moves an array made before the mesh was set, which is not on it, and only compiled code keeps
    # Explicit axes that an array is sharded over (docs/known-faults.md). So this is a separate jitted call, because
    # `jax.grad` and `jax.checkpoint` outside jit evaluate the trace without compiling it.
    _replace_arrays(placed, auto, jax.lax.with_sharding_constraint)
    _replace_arrays(placed, auto_in_jit, _constrain_in_jit)
    return placed


def _replace_arrays(arrays: list[Any], shardings: dict[int, NamedSharding], place: Callable[[Any, Any], Any]) -> None:
    """Places the arrays at some positions, all of them at once."""
    if len(shardings) == 1:  # JAX takes its time with the structure of even the smallest tree
        [(position, sharding)] = shardings.items()
        arrays[position] = place(arrays[position], sharding)
    elif shardings:
        placed = place(tuple([arrays[position] for position in shardings]), tuple(shardings.values()))
        for position, array in zip(shardings, placed, strict=True):
            arrays[position] = array


@functools.partial(jax.jit, static_argnums=1)
def _constrain_in_jit(arrays: Any, shardings: Any) -> Any:
    return jax.lax.with_sharding_constraint(arrays, shardings)


@cached_plan
def select_axis_type(sharding: NamedSharding, kind: AxisType) -> NamedSharding | None:
    """Returns the part of a sharding over mesh axes of one kind, None if the mesh has none of that kind.

    Raises:
        ValueError: If a dimension is sharded over mesh axes of both kinds, as only rules for plain arrays choose it.
    """
    mesh = sharding.mesh
    selected_axes = get_axes_of_type(mesh, kind)
    if len(selected_axes) in (0, len(mesh.axis_names)):
        return sharding if selected_axes else None
    for dim, entry in enumerate(sharding.spec):
        mixed = describe_mixed_types(f"dimension {dim}", get_entry_axes(entry), mesh)
        if mixed is not None:
            raise ValueError(mixed)
    axes = [
        tuple(axis for axis in get_entry_axes(entry) if axis in selected_axes) for entry in sharding.spec.partitions
    ]
    return NamedSharding(mesh, P(*map(make_spec_entry, axes)))

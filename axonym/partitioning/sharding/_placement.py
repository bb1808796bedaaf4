"""Placing arrays by their shardings: moved outside of traced functions, and constrained inside.

A traced leaf gets a constraint, a `ShapeDtypeStruct` gets the sharding, and all other arrays that are not yet in place
are moved by one `device_put`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from ..._jax_compat import is_tracing
from ...named._axis_layout import get_entry_axes, make_spec_entry
from ...named._cache import cached_plan
from ..specs._active_mesh import MeshLike, describe_mixed_types


def place_leaves(leaves: list[Any], shardings: list[NamedSharding | None], mesh: MeshLike) -> list[Any]:
    """Returns the leaves of a tree, each placed by its sharding if it has one; the list itself if nothing changes."""
    inside = is_tracing()
    if not inside and [getattr(leaf, "sharding", None) for leaf in leaves] == shardings:
        return leaves
    changed: dict[int, Any] = {}
    constraints: dict[int, NamedSharding] = {}
    moves: dict[int, NamedSharding] = {}
    for at, sharding in enumerate(shardings):
        if sharding is None:
            continue
        leaf = leaves[at]
        if isinstance(leaf, jax.ShapeDtypeStruct):
            changed[at] = leaf.update(sharding=resolve_unconstrained(sharding, leaf.sharding))
        elif inside:
            constraints[at] = sharding
        elif getattr(leaf, "sharding", None) is not sharding and not _is_in_place(leaf, sharding):
            moves[at] = resolve_unconstrained(sharding, getattr(leaf, "sharding", None))
    if constraints:
        constrained = constrain_arrays([leaves[at] for at in constraints], [*constraints.values()])
        changed.update(zip(constraints, constrained, strict=True))
    if moves:
        if not isinstance(mesh, Mesh):
            raise ValueError("arrays can only be placed on a mesh with devices; on an abstract one, shard their shapes")
        moved = jax.device_put([leaves[at] for at in moves], list(moves.values()))
        changed.update(zip(moves, moved, strict=True))
    return [changed.get(at, leaf) for at, leaf in enumerate(leaves)] if changed else leaves


def resolve_unconstrained(sharding: NamedSharding, own: Any) -> NamedSharding:
    """Returns a sharding in which axes left to the compiler are as in the array's own sharding, or replicated."""
    mesh, spec = sharding.mesh, sharding.spec
    if P.UNCONSTRAINED not in spec:
        return sharding
    kept = [*own.spec] if isinstance(own, NamedSharding) and own.mesh.shape == mesh.shape else []
    taken = {axis for entry in spec if entry is not P.UNCONSTRAINED for axis in get_entry_axes(entry)}
    entries = [*spec]
    for at, entry in enumerate(spec):
        if entry is P.UNCONSTRAINED:
            old = kept[at] if at < len(kept) and kept[at] is not P.UNCONSTRAINED else None
            entries[at] = make_spec_entry(tuple(axis for axis in get_entry_axes(old) if axis not in taken))
    return NamedSharding(mesh, P(*entries))


def _is_in_place(leaf: Any, sharding: NamedSharding) -> bool:
    own = getattr(leaf, "sharding", None)
    return own is not None and (own == sharding or _is_equivalent(own, sharding, leaf.ndim))


@cached_plan
def _is_equivalent(own: jax.sharding.Sharding, sharding: NamedSharding, ndim: int) -> bool:
    """Returns whether two shardings put the same shards on the same devices and, on Explicit meshes, are one type."""
    mesh = getattr(own, "mesh", None)
    types = [kind for each in (mesh, sharding.mesh) if each is not None for kind in each.axis_types]
    if mesh != sharding.mesh and AxisType.Explicit in types:
        return False
    return own.is_equivalent_to(resolve_unconstrained(sharding, own), ndim)


def constrain_arrays(arrays: Sequence[Any], shardings: Sequence[NamedSharding]) -> list[Any]:
    """Returns arrays with shardings inside a traced function: resharded over Explicit, constrained over Auto axes."""
    found = [*arrays]
    explicit: dict[int, NamedSharding] = {}
    auto: tuple[dict[int, NamedSharding], ...] = {}, {}
    for at, sharding in enumerate(shardings):
        part = select_axis_type(sharding, AxisType.Explicit)
        if part is not None and jax.typeof(found[at]).sharding != part:
            explicit[at] = part
    _replace_arrays(found, explicit, jax.reshard)
    for at, sharding in enumerate(shardings):
        part = select_axis_type(sharding, AxisType.Auto)
        if part is not None:
            own = jax.typeof(found[at]).sharding
            auto[own.mesh.empty or any(own.spec)][at] = part
    # Only compiled code moves an array made before the mesh was set, which is not on it, and only compiled code keeps
    # Explicit axes that an array is sharded over (docs/known-faults.md). So this is a separate jitted call, because
    # `jax.grad` and `jax.checkpoint` outside jit evaluate the trace without compiling it.
    _replace_arrays(found, auto[False], jax.lax.with_sharding_constraint)
    _replace_arrays(found, auto[True], _constrain_in_jit)
    return found


def _replace_arrays(arrays: list[Any], shardings: dict[int, NamedSharding], place: Callable[[Any, Any], Any]) -> None:
    """Places the arrays at some positions, all of them at once."""
    if len(shardings) == 1:  # JAX takes its time with the structure of even the smallest tree
        [(at, sharding)] = shardings.items()
        arrays[at] = place(arrays[at], sharding)
    elif shardings:
        placed = place(tuple([arrays[at] for at in shardings]), tuple(shardings.values()))
        for at, array in zip(shardings, placed, strict=True):
            arrays[at] = array


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
    own = {name for name, one in zip(mesh.axis_names, mesh.axis_types, strict=True) if one == kind}
    if len(own) in (0, len(mesh.axis_names)):
        return sharding if own else None
    for at, entry in enumerate(sharding.spec):
        mixed = describe_mixed_types(f"dimension {at}", get_entry_axes(entry), mesh)
        if mixed is not None:
            raise ValueError(mixed)
    axes = [tuple(axis for axis in get_entry_axes(entry) if axis in own) for entry in sharding.spec]
    return NamedSharding(mesh, P(*map(make_spec_entry, axes)))

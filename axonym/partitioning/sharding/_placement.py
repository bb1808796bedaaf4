"""Getting arrays where they belong: moved outside of a traced function, and constrained inside.

A leaf that is being traced gets a constraint, a `ShapeDtypeStruct` gets the sharding, and everything else that is not
yet in place is moved by one `device_put`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from ...named._ambient import get_entry_axes
from ..specs._resolve_spec import MeshLike, is_tracing, make_spec_entry


def place_leaves(leaves: list[Any], shardings: list[NamedSharding | None], mesh: MeshLike) -> list[Any]:
    """Returns the leaves of a tree, each where its sharding says if it has one; the list itself if all are there.

    Raises:
        ValueError: If arrays would have to be moved to a mesh without devices.
    """
    inside = is_tracing()
    if not inside and [getattr(leaf, "sharding", None) for leaf in leaves] == shardings:
        return leaves
    changed: dict[int, Any] = {}
    asked: dict[int, NamedSharding] = {}
    moves: dict[int, NamedSharding] = {}
    for at, sharding in enumerate(shardings):
        if sharding is None:
            continue
        leaf = leaves[at]
        if isinstance(leaf, jax.ShapeDtypeStruct):
            changed[at] = leaf.update(sharding=resolve_unconstrained(leaf, sharding))
        elif inside:
            asked[at] = sharding
        elif getattr(leaf, "sharding", None) is not sharding and not _in_place(leaf, sharding):
            moves[at] = resolve_unconstrained(leaf, sharding)
    if asked:
        changed.update(zip(asked, constrain_arrays([leaves[at] for at in asked], [*asked.values()]), strict=True))
    if moves:
        if not isinstance(mesh, Mesh):
            raise ValueError("arrays can only be placed on a mesh with devices; on an abstract one, shard their shapes")
        moved = jax.device_put([leaves[at] for at in moves], list(moves.values()))
        changed.update(zip(moves, moved, strict=True))
    return [changed.get(at, leaf) for at, leaf in enumerate(leaves)] if changed else leaves


def resolve_unconstrained(leaf: Any, sharding: NamedSharding) -> NamedSharding:
    """Returns a sharding as arrays have it: axes that are left to the compiler stay as they are, or else whole."""
    return _settled(sharding, getattr(leaf, "sharding", None))


@functools.lru_cache(maxsize=8192)
def _settled(sharding: NamedSharding, own: Any) -> NamedSharding:
    mesh, spec = sharding.mesh, sharding.spec
    if not any(entry is P.UNCONSTRAINED for entry in spec):
        return sharding
    kept = [*own.spec] if isinstance(own, NamedSharding) and own.mesh.shape == mesh.shape else []
    taken = {axis for entry in spec if entry is not P.UNCONSTRAINED for axis in get_entry_axes(entry)}
    entries = [*spec]
    for at, entry in enumerate(spec):
        if entry is P.UNCONSTRAINED:
            had = kept[at] if at < len(kept) and kept[at] is not P.UNCONSTRAINED else None
            entries[at] = make_spec_entry(tuple(axis for axis in get_entry_axes(had) if axis not in taken))
    return NamedSharding(mesh, P(*entries))


def _in_place(leaf: Any, sharding: NamedSharding) -> bool:
    own = getattr(leaf, "sharding", None)
    return own is not None and (own == sharding or _equivalent(own, sharding, leaf.ndim))


@functools.lru_cache(maxsize=8192)
def _equivalent(one: jax.sharding.Sharding, other: NamedSharding, ndim: int) -> bool:
    """Tells whether two shardings put the same parts on the same devices and, on Explicit meshes, are one type."""
    mesh = getattr(one, "mesh", None)
    typed = [axis for each in (mesh, other.mesh) if each is not None for axis in each.axis_types]
    return (mesh == other.mesh or AxisType.Explicit not in typed) and one.is_equivalent_to(_settled(other, one), ndim)


def constrain_arrays(arrays: Sequence[Any], shardings: Sequence[NamedSharding]) -> list[Any]:
    """Returns arrays with shardings inside a traced function: stated on Explicit mesh axes, constrained on Auto."""
    found = [*arrays]
    stated: dict[int, NamedSharding] = {}
    asked: tuple[dict[int, NamedSharding], ...] = {}, {}
    for at, sharding in enumerate(shardings):
        part = select_axis_type(sharding, AxisType.Explicit)
        if part is not None and jax.typeof(found[at]).sharding != part:
            stated[at] = part
    _replace(found, stated, jax.reshard)
    for at, sharding in enumerate(shardings):
        part = select_axis_type(sharding, AxisType.Auto)
        if part is not None:
            asked[jax.typeof(found[at]).sharding.mesh.empty][at] = part
    # An array from before the mesh was set is on no mesh, and only what is compiled moves it to one: a call of its own
    # in the trace, in case that trace is evaluated and not compiled, as `jax.grad` and `jax.checkpoint` do outside jit.
    _replace(found, asked[False], jax.lax.with_sharding_constraint)
    _replace(found, asked[True], _moved)
    return found


def _replace(found: list[Any], to: dict[int, NamedSharding], how: Callable[[Any, Any], Any]) -> None:
    """Replaces the arrays at some positions by what has the shardings asked for, all of them at once."""
    if len(to) == 1:  # JAX takes its time with the structure of even the smallest tree
        [(at, sharding)] = to.items()
        found[at] = how(found[at], sharding)
    elif to:
        for at, result in zip(to, how(tuple([found[at] for at in to]), tuple(to.values())), strict=True):
            found[at] = result


@functools.partial(jax.jit, static_argnums=1)
def _moved(arrays: Any, shardings: Any) -> Any:
    return jax.lax.with_sharding_constraint(arrays, shardings)


@functools.lru_cache(maxsize=8192)
def select_axis_type(sharding: NamedSharding, kind: AxisType) -> NamedSharding | None:
    """Returns the part of a sharding over mesh axes of one kind, None if the mesh has none of that kind."""
    mesh = sharding.mesh
    own = {name for name, one in zip(mesh.axis_names, mesh.axis_types, strict=True) if one == kind}
    if len(own) in (0, len(mesh.axis_names)):
        return sharding if own else None
    axes = [tuple(axis for axis in get_entry_axes(entry) if axis in own) for entry in sharding.spec]
    return NamedSharding(mesh, P(*map(make_spec_entry, axes)))

"""Putting arrays where their names say: `shard`, one call inside and outside jit, on whole trees.

A leaf that is being traced gets a constraint, a `ShapeDtypeStruct` gets the sharding, and everything else that is not
yet in place is moved by one `device_put`.
"""

import functools
import math
import warnings
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any, TypeVar

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from ..named._ambient import entry_axes
from ..named._axis import Names, listed
from ._fallback import checked_answer, located, ruled
from ._leaves import Leaf, described_leaves
from ._mapping import AxisMapping, ResourceMapping, normalised
from ._rule import Decision
from ._spec import (
    MeshLike,
    ambient_mesh,
    checked_sharding,
    checked_spec,
    mesh_in_force,
    spec_entry,
    tracing,
)


T = TypeVar("T")


def shard(tree: T, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None) -> T:
    """Shards the arrays of a tree by the names of their axes, inside and outside jit alike.

    Named arrays go by the mapping, plain arrays that a module declares with `field(axis_names=...)` by the names
    declared, other arrays by the mapping's fallback rule or not at all. Outside jit only what is not in place yet is
    moved, all of it at once; inside, the result is constrained. A `jax.ShapeDtypeStruct` gets the sharding too. Named
    vectors of one element inside a tree are whole on each device: optimizers put such in place of a parameter. What is
    moved may share memory with the array that it was, so copy an array whose original is to be donated.

    Args:
        tree: Any tree of arrays.
        mapping: From names to mesh axes; the mapping in force if None.
        mesh: The mesh; the one in force if None.

    Returns:
        The tree with the same values, sharded.

    Raises:
        ValueError: If a mesh axis is unknown or used twice by one array, or does not divide a size. The message names
            the leaf.
        TypeError: If tree and mapping are swapped.

    Warns:
        RuntimeWarning: If there is no mapping or no mesh; the tree is returned as it is, but for parts of it that have
            a mapping of their own.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     nym.shard(nym.zeros({"batch": 8, "embed": 4}), {"batch": "data"}).sharding.spec
        P('data', None)
    """
    _check_order(tree, mapping)
    found = normalised(mapping)
    if found is None and not _has_own(described_leaves(tree)):
        warnings.warn("`shard` has no axis mapping, so nothing is sharded; use `axis_mapping`.", RuntimeWarning, 2)
        return tree
    if mesh is None and ambient_mesh() is None:
        warnings.warn("`shard` has no mesh, so nothing is sharded; use `jax.set_mesh`.", RuntimeWarning, 2)
        return tree
    return placed_by(tree, found, mesh)


def _check_order(tree: Any, mapping: Any) -> None:
    """Refuses a mapping in place of the tree.

    Raises:
        TypeError: If the mapping is given first.
    """
    if isinstance(tree, AxisMapping) or (mapping is not None and _is_mapping(tree) and not _is_mapping(mapping)):
        raise TypeError("`shard` takes the tree first and the mapping second; here the mapping is first.")


def _is_mapping(x: Any) -> bool:
    """Tells whether something maps to mesh axes, rather than being a tree of arrays."""
    return isinstance(x, AxisMapping) or (isinstance(x, Mapping) and all(map(_is_entry, x.values())))


def _is_entry(x: Any) -> bool:
    return x is None or isinstance(x, str) or (isinstance(x, tuple | list) and all(isinstance(each, str) for each in x))


def auto_sharded(tree: T, mesh: MeshLike | None = None) -> T:
    """Shards the arrays of a tree by the mapping in force, and does nothing where there is no mapping or no mesh.

    Args:
        tree: Any tree of arrays.
        mesh: The mesh; the one in force if None.

    Returns:
        The tree with the same values; see `shard`.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 8})
        >>> nym.auto_sharded(x) is x
        True
    """
    return placed_by(tree, normalised(None), mesh)


def shard_with_axis_mapping(tree: T, mapping: ResourceMapping, mesh: MeshLike | None = None) -> T:
    """Shards the arrays of a tree by a mapping: `shard` under its older name.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     nym.shard_with_axis_mapping(nym.zeros({"batch": 8}), {"batch": "data"}).sharding.spec
        P('data',)
    """
    return shard(tree, mapping, mesh)


def placed(tree: T, mapping: AxisMapping, mesh: MeshLike | None = None) -> T:
    """Returns the tree with every array where the mapping says, on the mesh given or in force; as it is if none is."""
    return _placed(tree, described_leaves(tree), mapping, mesh)


def _placed(tree: T, described: list[Leaf], mapping: AxisMapping, mesh: MeshLike | None) -> T:
    leaves, treedef = jax.tree.flatten(tree)
    result = placed_leaves(leaves, described, mapping, mesh)
    return tree if result is leaves else jax.tree.unflatten(treedef, result)


def placed_by(tree: T, mapping: AxisMapping | None, mesh: MeshLike | None = None) -> T:
    """Returns a tree sharded by a mapping; if that is None, only the parts of it that have a mapping of their own."""
    if mapping is not None:
        return placed(tree, mapping, mesh)
    if mesh is None and ambient_mesh() is None:
        return tree
    described = described_leaves(tree)
    return _placed(tree, left_without(described), AxisMapping(), mesh) if _has_own(described) else tree


def left_without(described: list[Leaf]) -> list[Leaf]:
    """Returns what is known of leaves, such that those without a mapping of their own stay where they are."""
    return [one if one.mapping is not None else one._replace(names=None, declared=False) for one in described]


def _has_own(described: list[Leaf]) -> bool:
    """Tells whether some of the leaves have a mapping of their own."""
    return any(leaf.mapping is not None for leaf in described)


def placed_array(array: Any, names: Names, mapping: AxisMapping) -> Any:
    """Returns one array where the mapping says, on the mesh in force; as it is if there is none."""
    return placed_leaves([array], [Leaf(names, False, ())], mapping)[0]


def placed_leaves(
    leaves: list[Any], described: list[Leaf], mapping: AxisMapping, mesh: MeshLike | None = None
) -> list[Any]:
    """Returns the leaves of a tree, those that are arrays where the mapping says; the list itself if all are there.

    Raises:
        ValueError: If one of them cannot be sharded so; the message names the leaf.
    """
    target = mesh_in_force() if mesh is None else mesh
    if target is None:
        return leaves
    known = ruled(leaves, described, mapping, target)
    return put(leaves, map(leaf_sharding, leaves, known, repeat(mapping), repeat(target)), target)


def put(leaves: list[Any], shardings: Iterable[NamedSharding | None], mesh: MeshLike) -> list[Any]:
    """Returns the leaves of a tree, each where its sharding says if it has one; the list itself if all are there.

    Raises:
        ValueError: If arrays would have to be moved to a mesh without devices.
    """
    inside = tracing()
    changed: dict[int, Any] = {}
    moves: dict[int, NamedSharding] = {}
    for at, sharding in enumerate(shardings):
        if sharding is None:
            continue
        leaf = leaves[at]
        if isinstance(leaf, jax.ShapeDtypeStruct):
            changed[at] = leaf.update(sharding=settled(leaf, sharding))
        elif inside:
            changed[at] = constrained(leaf, sharding)
        elif getattr(leaf, "sharding", None) is not sharding and not _in_place(leaf, sharding):
            moves[at] = settled(leaf, sharding)
    if moves:
        if not isinstance(mesh, Mesh):
            raise ValueError("arrays can only be placed on a mesh with devices; on an abstract one, shard their shapes")
        moved = jax.device_put([leaves[at] for at in moves], list(moves.values()))
        changed.update(zip(moves, moved, strict=True))
    return [changed.get(at, leaf) for at, leaf in enumerate(leaves)] if changed else leaves


def settled(leaf: Any, sharding: NamedSharding) -> NamedSharding:
    """Returns a sharding as arrays have it: axes that are left to the compiler stay as they are, or else whole."""
    return _settled(sharding, getattr(leaf, "sharding", None))


@functools.lru_cache(maxsize=8192)
def _settled(sharding: NamedSharding, own: Any) -> NamedSharding:
    mesh, spec = sharding.mesh, sharding.spec
    if not any(entry is P.UNCONSTRAINED for entry in spec):
        return sharding
    kept = [*own.spec] if isinstance(own, NamedSharding) and own.mesh.shape == mesh.shape else []
    taken = {axis for entry in spec if entry is not P.UNCONSTRAINED for axis in entry_axes(entry)}
    entries = [*spec]
    for at, entry in enumerate(spec):
        if entry is P.UNCONSTRAINED:
            had = kept[at] if at < len(kept) and kept[at] is not P.UNCONSTRAINED else None
            entries[at] = spec_entry(tuple(axis for axis in entry_axes(had) if axis not in taken))
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


def constrained(array: Any, sharding: NamedSharding) -> Any:
    """Returns an array with a sharding inside a traced function: stated on Explicit mesh axes, constrained on Auto."""
    stated = part_of_kind(sharding, AxisType.Explicit)
    if stated is not None and jax.typeof(array).sharding != stated:
        array = jax.reshard(array, stated)
    asked = part_of_kind(sharding, AxisType.Auto)
    if asked is None:
        return array
    # An array from before the mesh was set is on no mesh, and only what is compiled moves it to one: a call of its own
    # in the trace, in case that trace is evaluated and not compiled, as `jax.grad` and `jax.checkpoint` do outside jit.
    move = _moved if jax.typeof(array).sharding.mesh.empty else jax.lax.with_sharding_constraint
    return move(array, asked)


@functools.partial(jax.jit, static_argnums=1)
def _moved(array: Any, sharding: NamedSharding) -> Any:
    return jax.lax.with_sharding_constraint(array, sharding)


@functools.lru_cache(maxsize=8192)
def part_of_kind(sharding: NamedSharding, kind: AxisType) -> NamedSharding | None:
    """Returns the part of a sharding over mesh axes of one kind, None if the mesh has none of that kind."""
    mesh = sharding.mesh
    own = {name for name, one in zip(mesh.axis_names, mesh.axis_types, strict=True) if one == kind}
    if len(own) in (0, len(mesh.axis_names)):
        return sharding if own else None
    axes = [tuple(axis for axis in entry_axes(entry) if axis in own) for entry in sharding.spec]
    return NamedSharding(mesh, P(*map(spec_entry, axes)))


def leaf_sharding(leaf: Any, about: Leaf, mapping: AxisMapping, mesh: MeshLike) -> NamedSharding | None:
    """Returns where a leaf belongs, None if it is no array or nothing says so."""
    sizes = getattr(leaf, "shape", None)
    if sizes is None:
        return None
    names, mapping = about.names, mapping if about.mapping is None else about.mapping
    try:
        if names is not None and len(names) != len(sizes):
            names = about.names_of(sizes)
        if names is not None and sizes == (1,) and about.path:  # optimizers put such in place of a parameter
            spec = checked_spec(names, (None,), mapping, mesh)
            whole = math.prod(mesh.shape[axis] for axis in entry_axes(spec[0])) > 1
            return NamedSharding(mesh, P(None) if whole else spec)
        if names is not None:
            return checked_sharding(names, sizes, mapping, mesh)
        if about.declared and len(sizes) > len(about.names or ()):
            raise ValueError(f"an array of shape {sizes} has {len(sizes)} axes, {_declared(about)} are declared")
        if mapping.fallback is not None:
            return _by_rule(about.ruled, sizes, mapping, mesh)
        scalar = isinstance(leaf, jax.ShapeDtypeStruct) and not sizes
        return NamedSharding(mesh, P()) if scalar else None  # a count that is read to a mesh can only be everywhere
    except ValueError as error:
        raise located(error, about, mapping) from error.__cause__


def _declared(about: Leaf) -> str:
    in_front = f", beside {listed(about.in_front)} in front," if about.in_front else ""
    return f"{listed(about.names or ())}{in_front}"


def _by_rule(answer: Any, sizes: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike) -> NamedSharding | None:
    """Returns where the fallback rule puts a plain array, from what it answers; see `checked_answer`."""
    if answer is None or (answer.spec is None and answer.error is None):
        return None
    if isinstance(answer.spec, P):
        return _rule_sharding(answer, sizes, mapping, mesh)
    return NamedSharding(mesh, checked_answer(answer, sizes, mapping, mesh))


@functools.lru_cache(maxsize=8192)
def _rule_sharding(answer: Decision, sizes: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike) -> NamedSharding:
    return NamedSharding(mesh, checked_answer(answer, sizes, mapping, mesh))

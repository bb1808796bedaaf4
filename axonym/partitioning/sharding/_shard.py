"""Putting arrays where their names say: `shard`, one call inside and outside jit, on whole trees.

Where an array belongs is found here, for nearly all trees from the names that each array bears, in one short walk.
Getting it there is next door, in `_put.py`.
"""

import functools
import math
import warnings
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any, TypeVar, cast

import jax
from jax.sharding import NamedSharding, PartitionSpec as P

from ...named._ambient import get_entry_axes
from ...named._array import NamedArray
from ...named._axis import Names, format_axes
from ...named._base import is_traced, with_array
from ...named._field import get_declared_axes
from ..mapping._axis_mapping import AxisMapping, ResourceMapping, as_mapping
from ..rules._sharding_rule import Decision
from ..specs._leaves import Leaf, ShardedBy, describe_leaves
from ..specs._resolve_spec import MeshLike, get_abstract_mesh, get_active_mesh, resolve_sharding, resolve_spec
from ._fallback_rule import apply_fallback_rules, check_answer, locate_error
from ._placement import constrain_arrays, place_leaves


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
    found = as_mapping(mapping)
    if found is None and not _has_own(describe_leaves(tree)):
        warnings.warn("`shard` has no axis mapping, so nothing is sharded; use `axis_mapping`.", RuntimeWarning, 2)
        return tree
    if mesh is None and get_abstract_mesh() is None:
        warnings.warn("`shard` has no mesh, so nothing is sharded; use `jax.set_mesh`.", RuntimeWarning, 2)
        return tree
    return shard_by_mapping(tree, found, mesh)


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
    return shard_by_mapping(tree, as_mapping(None), mesh)


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


def shard_tree(tree: T, mapping: AxisMapping, mesh: MeshLike | None = None) -> T:
    """Returns the tree with every array where the mapping says, on the mesh given or in force; as it is if none is."""
    one: Any = tree
    if type(one) is NamedArray and (is_traced(one.array) or isinstance(one.array, jax.Array)):
        array = shard_array(one.array, one.names, mapping, mesh)
        return tree if array is one.array else cast(T, with_array(one, array))
    target = get_active_mesh() if mesh is None else mesh
    if target is None:
        return tree
    nodes, treedef = jax.tree.flatten(tree, is_leaf=_is_node)
    arrays = [node.array if type(node) is NamedArray else node for node in nodes]
    try:
        shardings = _by_names_alone(nodes, arrays, mapping, target)
    except (_MoreNeeded, ValueError):  # which is raised again, with the path of the array
        return _placed(tree, describe_leaves(tree), mapping, target)
    result = place_leaves(arrays, shardings, target)
    return tree if result is arrays else jax.tree.unflatten(treedef, map(_with_array, nodes, result))


def _is_node(x: Any) -> bool:
    return type(x) is NamedArray or _says_more(type(x))


@functools.lru_cache(maxsize=4096)
def _says_more(cls: type) -> bool:
    """Tells whether a node says something about the leaves in it: their names, or a mapping."""
    return cls is ShardedBy or bool(get_declared_axes(cls))


def _with_array(node: Any, array: Any) -> Any:
    return with_array(node, array) if type(node) is NamedArray else array


class _MoreNeeded(Exception):
    """Where an array belongs depends on more than its names."""


def _by_names_alone(
    nodes: list[Any], arrays: list[Any], mapping: AxisMapping, mesh: MeshLike
) -> list[NamedSharding | None]:
    """Returns where the arrays of nearly all trees belong, by the names that each bears: a short way, walked once.

    Raises:
        _MoreNeeded: If more has to be known of an array: where in a module it is, or what the fallback rule says of it.
        ValueError: If one cannot be sharded so.
    """
    if not jax.tree_util.all_leaves(arrays):  # JAX puts trees, or nothing, in the place of arrays
        raise _MoreNeeded
    sharding_of = _sharding_by_names(mapping, mesh, True)
    sizes = [getattr(array, "shape", None) for array in arrays]
    if nodes and all([type(node) is NamedArray for node in nodes]):
        return [sharding_of(node.names, size) for node, size in zip(nodes, sizes, strict=True)]
    found: list[NamedSharding | None] = []
    for node, array, size in zip(nodes, arrays, sizes, strict=True):
        if node is not array:
            found.append(sharding_of(node.names, size))
        elif _says_more(type(node)) or (size is not None and mapping.fallback is not None):
            raise _MoreNeeded
        else:
            found.append(infer_leaf_sharding(array, _NAMELESS, mapping, mesh))
    return found


_NAMELESS = Leaf(None, False, ())


@functools.lru_cache(maxsize=256)
def _sharding_by_names(mapping: AxisMapping, mesh: MeshLike, inside: bool) -> Callable[..., NamedSharding]:
    """Returns the function from names and sizes to shardings, which does not hash mapping and mesh for each array."""

    def sharding_of(names: Names, sizes: tuple[int, ...] | None) -> NamedSharding:
        if sizes is None or len(sizes) != len(names) or (inside and sizes == (1,)):
            raise _MoreNeeded
        return resolve_sharding(names, sizes, mapping, mesh)

    return functools.lru_cache(maxsize=8192)(sharding_of)


def _placed(tree: T, described: list[Leaf], mapping: AxisMapping, mesh: MeshLike | None) -> T:
    leaves, treedef = jax.tree.flatten(tree)
    result = shard_leaves(leaves, described, mapping, mesh)
    return tree if result is leaves else jax.tree.unflatten(treedef, result)


def shard_by_mapping(tree: T, mapping: AxisMapping | None, mesh: MeshLike | None = None) -> T:
    """Returns a tree sharded by a mapping; if that is None, only the parts of it that have a mapping of their own."""
    if mapping is not None:
        return shard_tree(tree, mapping, mesh)
    if mesh is None and get_abstract_mesh() is None:
        return tree
    described = describe_leaves(tree)
    return _placed(tree, left_without(described), AxisMapping(), mesh) if _has_own(described) else tree


def left_without(described: list[Leaf]) -> list[Leaf]:
    """Returns what is known of leaves, such that those without a mapping of their own stay where they are."""
    return [one if one.mapping is not None else one._replace(names=None, declared=False) for one in described]


def _has_own(described: list[Leaf]) -> bool:
    """Tells whether some of the leaves have a mapping of their own."""
    return any(leaf.mapping is not None for leaf in described)


def shard_array(array: Any, names: Names, mapping: AxisMapping, mesh: MeshLike | None = None) -> Any:
    """Returns one array where the mapping says, on the mesh given or in force; as it is if there is none."""
    traced = is_traced(array)  # a quicker answer than where JAX is asked whether it traces
    target = mesh if mesh is not None else get_abstract_mesh() if traced else get_active_mesh()
    if target is None:
        return array
    try:
        sharding = _sharding_by_names(mapping, target, False)(names, array.shape)
    except _MoreNeeded:
        return shard_leaves([array], [Leaf(names, False, ())], mapping, target)[0]
    return (constrain_arrays([array], [sharding]) if traced else place_leaves([array], [sharding], target))[0]


def shard_leaves(
    leaves: list[Any], described: list[Leaf], mapping: AxisMapping, mesh: MeshLike | None = None
) -> list[Any]:
    """Returns the leaves of a tree, those that are arrays where the mapping says; the list itself if all are there.

    Raises:
        ValueError: If one of them cannot be sharded so; the message names the leaf.
    """
    target = get_active_mesh() if mesh is None else mesh
    if target is None:
        return leaves
    known = apply_fallback_rules(leaves, described, mapping, target)
    return place_leaves(leaves, list(map(infer_leaf_sharding, leaves, known, repeat(mapping), repeat(target))), target)


def infer_leaf_sharding(leaf: Any, about: Leaf, mapping: AxisMapping, mesh: MeshLike) -> NamedSharding | None:
    """Returns where a leaf belongs, None if it is no array or nothing says so."""
    sizes = getattr(leaf, "shape", None)
    if sizes is None:
        return None
    names, mapping = about.names, mapping if about.mapping is None else about.mapping
    try:
        if names is not None and len(names) != len(sizes):
            names = about.names_of(sizes)
        if names is not None and sizes == (1,) and about.path:  # optimizers put such in place of a parameter
            spec = resolve_spec(names, (None,), mapping, mesh)
            whole = math.prod(mesh.shape[axis] for axis in get_entry_axes(spec[0])) > 1
            return NamedSharding(mesh, P(None) if whole else spec)
        if names is not None:
            return resolve_sharding(names, sizes, mapping, mesh)
        if about.declared and len(sizes) > len(about.names or ()):
            raise ValueError(f"an array of shape {sizes} has {len(sizes)} axes, {_declared(about)} are declared")
        if mapping.fallback is not None:
            return _by_rule(about.ruled, sizes, mapping, mesh)
        scalar = isinstance(leaf, jax.ShapeDtypeStruct) and not sizes
        return NamedSharding(mesh, P()) if scalar else None  # a count that is read to a mesh can only be everywhere
    except ValueError as error:
        raise locate_error(error, about, mapping) from error.__cause__


def _declared(about: Leaf) -> str:
    in_front = f", beside {format_axes(about.in_front)} in front," if about.in_front else ""
    return f"{format_axes(about.names or ())}{in_front}"


def _by_rule(answer: Any, sizes: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike) -> NamedSharding | None:
    """Returns where the fallback rule puts a plain array, from what it answers; see `checked_answer`."""
    if answer is None or (answer.spec is None and answer.error is None):
        return None
    if isinstance(answer.spec, P):
        return _rule_sharding(answer, sizes, mapping, mesh)
    return NamedSharding(mesh, check_answer(answer, sizes, mapping, mesh))


@functools.lru_cache(maxsize=8192)
def _rule_sharding(answer: Decision, sizes: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike) -> NamedSharding:
    return NamedSharding(mesh, check_answer(answer, sizes, mapping, mesh))

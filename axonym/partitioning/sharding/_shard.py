"""`shard`: places arrays by the names of their axes, in one call inside and outside jit, on entire trees.

Nearly all trees are placed by the names of their named arrays, in one walk; others are described leaf by leaf.
"""

import warnings
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from ..._jax_compat import is_tracing
from ...named._array import NamedArray
from ...named._axis import Names
from ...named._base import is_traced, with_array
from ...named._format import format_axes
from ...named._traceback import find_stacklevel, strip_library_frames
from ..mapping._mapping import AxisMapping, ResourceMapping, as_mapping
from ..rules._rule_options import check_mesh
from ..specs._active_mesh import MeshLike, format_mesh, get_abstract_mesh, get_active_mesh
from ..specs._leaves import Leaf, describe_leaves, names_or_maps_leaves
from ..specs._resolve_spec import resolve_sharding
from ._fallback_rule import apply_fallback_rules, locate_error, resolve_decision
from ._placement import constrain_arrays, place_leaves


T = TypeVar("T")


def shard(tree: T, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None) -> T:
    """Shards the arrays of a tree by the names of their axes, inside and outside jit alike.

    Named arrays are sharded by the mapping, plain arrays that a module declares with `field(axis_names=...)` by the
    declared names, other arrays by the mapping's fallback rule or not at all. Outside jit only arrays that are not in
    place yet are moved, all of them at once; inside, the result is constrained. A `jax.ShapeDtypeStruct` gets the
    sharding too. An axis of size 1 is replicated. A moved array may share memory with its original, so copy an array
    whose original is to be donated.

    Args:
        tree: Any tree of arrays.
        mapping: From names to mesh axes; the active mapping if None.
        mesh: The mesh; the active mesh if None.

    Returns:
        The tree with the same values, sharded.

    Raises:
        ValueError: If a mesh axis is unknown or used twice by one array, or a size is not divisible. The message names
            the leaf.
        TypeError: If tree and mapping are swapped.

    Warns:
        RuntimeWarning: If there is no mapping or no mesh; the tree is returned unchanged, except for parts that have a
            mapping of their own.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     nym.shard(nym.zeros({"batch": 8, "embed": 4}), {"batch": "data"}).sharding.spec
        P('data', None)
    """
    _check_argument_order(tree, mapping)
    found = as_mapping(mapping)
    if mesh is not None:
        _check_given_mesh(mesh)
    if found is None and not _have_mappings(describe_leaves(tree)):
        text = "`shard` has no axis mapping, so nothing is sharded; use `axis_mapping`."
        warnings.warn(text, RuntimeWarning, find_stacklevel())
        return tree
    if mesh is None and get_abstract_mesh() is None:
        text = "`shard` has no mesh, so nothing is sharded; use `jax.set_mesh`."
        warnings.warn(text, RuntimeWarning, find_stacklevel())
        return tree
    return shard_by_mapping(tree, found, mesh)


def _check_argument_order(tree: Any, mapping: Any) -> None:
    """Raises a TypeError if the mapping is given first."""
    if isinstance(tree, AxisMapping) or (mapping is not None and _is_mapping(tree) and not _is_mapping(mapping)):
        raise strip_library_frames(
            TypeError("`shard` takes the tree first and the mapping second; here the mapping is first.")
        )


def _check_given_mesh(mesh: Any) -> None:
    """Raises an error if a mesh is not one, or if JAX cannot shard over it within the function being traced."""
    check_mesh(mesh)
    active = get_abstract_mesh() if is_tracing() else None
    if active is None:
        return
    is_auto, may_be_auto = (AxisType.Auto in one.axis_types for one in (mesh, active))
    if mesh.size != active.size or (is_auto and not may_be_auto):
        kinds = (", ".join(dict.fromkeys(kind.name for kind in one.axis_types)) for one in (active, mesh))
        shown, given = (f"{format_mesh(one)} of {kind} axes" for one, kind in zip((active, mesh), kinds, strict=True))
        raise strip_library_frames(
            ValueError(
                f"`shard` inside a compiled function takes the active mesh {shown}, not {given}; leave out `mesh=`, or "
                "shard over the other mesh outside"
            )
        )


def _is_mapping(x: Any) -> bool:
    """Returns whether something is a mapping to mesh axes, and not a tree of arrays."""
    return isinstance(x, AxisMapping) or (isinstance(x, Mapping) and all(map(_is_mapping_entry, x.values())))


def _is_mapping_entry(x: Any) -> bool:
    return x is None or isinstance(x, str) or (isinstance(x, tuple | list) and all(isinstance(each, str) for each in x))


def auto_sharded(tree: T, mesh: MeshLike | None = None) -> T:
    """Shards the arrays of a tree by the active mapping, and does nothing where there is no mapping or no mesh.

    Args:
        tree: Any tree of arrays.
        mesh: The mesh; the active mesh if None.

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
    """Returns a tree sharded by a mapping on the given or active mesh, unchanged if there is none."""
    one: Any = tree
    if isinstance(one, NamedArray) and (is_traced(one.array) or isinstance(one.array, jax.Array)):
        array = shard_array(one.array, one.names, mapping, mesh)
        return tree if array is one.array else cast(T, with_array(one, array))
    target = get_active_mesh() if mesh is None else mesh
    if target is None:
        return tree
    nodes, treedef = jax.tree.flatten(tree, is_leaf=_is_described)
    arrays = [node.array if isinstance(node, NamedArray) else node for node in nodes]
    try:
        shardings = _infer_by_names(nodes, arrays, mapping, target)
    except ValueError:  # it is raised again, with the path of the array
        shardings = None
    if shardings is None:
        return _shard_described(tree, describe_leaves(tree), mapping, target)
    result = place_leaves(arrays, shardings, target)
    return tree if result is arrays else jax.tree.unflatten(treedef, map(_replace_array, nodes, result))


def _is_described(x: Any) -> bool:
    return isinstance(x, NamedArray) or names_or_maps_leaves(type(x))


def _replace_array(node: Any, array: Any) -> Any:
    return with_array(node, array) if isinstance(node, NamedArray) else array


def _infer_by_names(
    nodes: list[Any], arrays: list[Any], mapping: AxisMapping, mesh: MeshLike
) -> list[NamedSharding | None] | None:
    """Returns the shardings of arrays by their own names, None if the names of one array are not enough.

    Then its place in a module or a fallback rule decides, or JAX has put something else in the place of an array.
    """
    if not jax.tree_util.all_leaves(arrays):
        return None
    found: list[NamedSharding | None] = []
    known: dict[Any, NamedSharding] = {}
    for node, array in zip(nodes, arrays, strict=True):
        sizes = getattr(array, "shape", None)
        if node is array:
            is_scalar = sizes == () and isinstance(array, jax.ShapeDtypeStruct)
            if names_or_maps_leaves(type(node)) or is_scalar or (sizes is not None and mapping.fallback is not None):
                return None
            found.append(None)
            continue
        key = node.names, sizes
        if key not in known:
            if sizes is None or len(sizes) != len(node.names):
                return None
            known[key] = resolve_sharding(node.names, sizes, mapping, mesh)
        found.append(known[key])
    return found


def _shard_described(tree: T, described: list[Leaf], mapping: AxisMapping, mesh: MeshLike | None) -> T:
    leaves, treedef = jax.tree.flatten(tree)
    result = shard_leaves(leaves, described, mapping, mesh)
    return tree if result is leaves else jax.tree.unflatten(treedef, result)


def shard_by_mapping(tree: T, mapping: AxisMapping | None, mesh: MeshLike | None = None) -> T:
    """Returns a tree sharded by a mapping; if it is None, only the parts that have a mapping of their own."""
    if mapping is not None:
        return shard_tree(tree, mapping, mesh)
    if mesh is None and get_abstract_mesh() is None:
        return tree
    described = describe_leaves(tree)
    if not _have_mappings(described):
        return tree
    return _shard_described(tree, skip_unmapped_leaves(described), AxisMapping(), mesh)


def skip_unmapped_leaves(described: list[Leaf]) -> list[Leaf]:
    """Returns descriptions of leaves, without names where they have no mapping of their own."""
    return [one if one.mapping is not None else one._replace(names=None, declared=False) for one in described]


def _have_mappings(described: list[Leaf]) -> bool:
    return any(leaf.mapping is not None for leaf in described)


def shard_array(array: Any, names: Names, mapping: AxisMapping, mesh: MeshLike | None = None) -> Any:
    """Returns an array sharded by a mapping on the given or active mesh, unchanged if there is none."""
    traced = is_traced(array)  # faster than asking JAX whether it traces
    target = mesh if mesh is not None else get_abstract_mesh() if traced else get_active_mesh()
    if target is None:
        return array
    if len(names) != len(array.shape):
        return shard_leaves([array], [Leaf(names, False, ())], mapping, target)[0]
    sharding = resolve_sharding(names, array.shape, mapping, target)
    return (constrain_arrays([array], [sharding]) if traced else place_leaves([array], [sharding], target))[0]


def shard_leaves(
    leaves: list[Any], described: list[Leaf], mapping: AxisMapping, mesh: MeshLike | None = None
) -> list[Any]:
    """Returns the leaves of a tree with the arrays sharded by a mapping; the list itself if all are in place."""
    target = get_active_mesh() if mesh is None else mesh
    if target is None:
        return leaves
    known = apply_fallback_rules(leaves, described, mapping, target)
    shardings = [infer_leaf_sharding(*pair, mapping, target) for pair in zip(leaves, known, strict=True)]
    return place_leaves(leaves, shardings, target)


def infer_leaf_sharding(
    leaf: Any, about: Leaf, mapping: AxisMapping, mesh: MeshLike, warn: bool = True
) -> NamedSharding | None:
    """Returns the sharding of a leaf, None if it is not an array or stays where it is.

    The mapping is for leaves without their own. With `warn`, there are warnings of names that look mistyped.
    """
    sizes = getattr(leaf, "shape", None)
    if sizes is None:
        return None
    mapping = mapping if about.mapping is None else about.mapping
    try:
        names = find_leaf_names(about, sizes)
        if names is not None:
            return resolve_sharding(names, sizes, mapping, mesh, warn)
        if mapping.fallback is not None:
            return resolve_decision(about.decision, sizes, mapping, mesh)
        is_scalar = isinstance(leaf, jax.ShapeDtypeStruct) and not sizes
        return NamedSharding(mesh, P()) if is_scalar else None  # so that a step count can be restored to a mesh
    except ValueError as error:
        raise locate_error(error, about, mapping) from error.__cause__


def find_leaf_names(about: Leaf, sizes: tuple[int, ...]) -> Names | None:
    """Returns the names of an array, None if it has none; raises a ValueError if it has more axes than declared."""
    names = about.names_of(sizes)
    if names is None and about.declared and len(sizes) > len(about.names or ()):
        declared = about.names or ()
        leading = f" or {format_axes((*about.leading_axes, *declared))}" if about.leading_axes else ""
        raise strip_library_frames(
            ValueError(
                f"an array of shape {sizes} has {len(sizes)} axes, {format_axes(declared)}{leading} are declared"
            )
        )
    return names

"""`shard` places the arrays of a tree by the names of their axes; `pspec_for` and the like return where it would.

A tree is placed by the names of its named arrays, in one walk, if they are all that counts. If fields of modules or a
fallback rule count, too, its leaves are described first. Those of the arguments of `named_jit` always are, because one
description serves all calls with the same structure.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from jax.tree_util import keystr

from .._ground.errors import find_stacklevel, make_error
from .._ground.formats import format_axes
from .._ground.jax_compat import is_traced, is_tracing
from ..named._array import NamedArray
from ..named._axis import Names
from ..named._axis_layout import count_parts, get_entry_axes
from ..named._base import with_array
from ._active_mesh import MeshLike, check_mesh, format_mesh_types, get_abstract_mesh, get_active_mesh, resolve_mesh
from ._fallback import apply_fallback_rules, asks_for_trees, check_decision, resolve_decision
from ._leaves import LeafInfo, describe_leaves, format_prefix, have_mappings, names_or_maps_leaves
from ._mapping import AxisMapping, ResourceMapping, as_mapping
from ._placement import choose_target, constrain_arrays, place_leaves, rewrap_arrays
from ._resolve_spec import find_mapping, resolve_sharding, resolve_spec


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
        ValueError: If a mesh axis is unknown or used twice by one array, a size is not divisible, or an array differs
            between processes; the message names the leaf. Also if numbers of a NumPy array do not fit the 32 bits that
            JAX has for them.
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
    if isinstance(tree, AxisMapping) or (mapping is not None and _is_mapping(tree) and not _is_mapping(mapping)):
        raise make_error(TypeError, "`shard` takes the tree first and the mapping second; here the mapping is first.")
    axis_mapping = as_mapping(mapping)
    if mesh is not None:
        _check_usable_mesh(mesh)
    if axis_mapping is None and not have_mappings(describe_leaves(tree)):
        text = "`shard` has no axis mapping, so nothing is sharded; use `axis_mapping`."
    elif mesh is None and get_abstract_mesh() is None:
        text = "`shard` has no mesh, so nothing is sharded; use `jax.set_mesh`."
    else:
        return shard_by_mapping(tree, axis_mapping, mesh)
    warnings.warn(text, RuntimeWarning, find_stacklevel())
    return tree


def _check_usable_mesh(mesh: Any) -> None:
    """Raises an error if a mesh is not one, or if JAX cannot shard over it within the function being traced."""
    check_mesh(mesh)
    active = get_abstract_mesh() if is_tracing() else None
    if active is None:
        return
    # JAX cannot leave Auto axes to the compiler in a function that it traces for Explicit axes alone.
    adds_auto_axes = AxisType.Auto in mesh.axis_types and AxisType.Auto not in active.axis_types
    if mesh.size != active.size or adds_auto_axes:
        raise make_error(
            ValueError,
            f"`shard` inside a compiled function takes the active mesh {format_mesh_types(active)}, not "
            f"{format_mesh_types(mesh)}; leave out `mesh=`, or shard over the other mesh outside",
        )


def _is_mapping(x: Any) -> bool:
    """Returns whether something is a mapping to mesh axes, and not a tree of arrays."""
    if not isinstance(x, Mapping):
        return False
    entries = [entry if isinstance(entry, tuple | list) else [entry] for entry in x.values() if entry is not None]
    return all(isinstance(mesh_axis, str) for entry in entries for mesh_axis in entry)


def auto_sharded(tree: T, mesh: MeshLike | None = None) -> T:
    """Shards the arrays of a tree by the active mapping, and does nothing where there is no mapping or no mesh.

    Args:
        tree: Any tree of arrays.
        mesh: The mesh; the active mesh if None.

    Returns:
        The tree with the same values; see `shard`.

    Raises:
        TypeError: If a mapping is given in place of a mesh.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 8})
        >>> nym.auto_sharded(x) is x
        True
    """
    if isinstance(mesh, Mapping):
        raise make_error(
            TypeError,
            "`auto_sharded` shards by the active mapping and takes no other; use `shard(tree, mapping)`, or "
            "`axis_mapping` around the call.",
        )
    return shard_by_mapping(tree, as_mapping(None), check_mesh(mesh))


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
    # A single array, the most frequent tree, needs no walk.
    node: Any = tree
    if isinstance(node, NamedArray) and (is_traced(node.array) or isinstance(node.array, jax.Array)):
        array = shard_array(node.array, node.names, mapping, mesh)
        return tree if array is node.array else cast(T, with_array(node, array))
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
    result = place_leaves(arrays, shardings, target, lambda position: keystr(describe_leaves(tree)[position].path))
    if result is arrays:
        return tree
    return jax.tree.unflatten(treedef, rewrap_arrays(nodes, result))


def _is_described(x: Any) -> bool:
    return isinstance(x, NamedArray) or names_or_maps_leaves(type(x))


def _infer_by_names(
    nodes: list[Any], arrays: list[Any], mapping: AxisMapping, mesh: MeshLike
) -> list[NamedSharding | None] | None:
    """Returns the shardings of arrays by their own names, None if the names of one array are not enough.

    Then its place in a module or a fallback rule decides, or JAX has put something else in the place of an array.
    """
    if not jax.tree_util.all_leaves(arrays):
        return None
    shardings: list[NamedSharding | None] = []
    known_shardings: dict[Any, NamedSharding] = {}
    for node, array in zip(nodes, arrays, strict=True):
        sizes = getattr(array, "shape", None)
        if node is array:
            is_scalar = sizes == () and isinstance(array, jax.ShapeDtypeStruct)
            if names_or_maps_leaves(type(node)) or is_scalar or (sizes is not None and mapping.fallback is not None):
                return None
            shardings.append(None)
            continue
        key = node.names, sizes
        if key not in known_shardings:
            if sizes is None or len(sizes) != len(node.names):
                return None
            known_shardings[key] = resolve_sharding(node.names, sizes, mapping, mesh)
        shardings.append(known_shardings[key])
    return shardings


def _shard_described(tree: T, described: list[LeafInfo], mapping: AxisMapping, mesh: MeshLike | None) -> T:
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
    if not have_mappings(described):
        return tree
    return _shard_described(tree, drop_unmapped_names(described), AxisMapping(), mesh)


def drop_unmapped_names(described: list[LeafInfo]) -> list[LeafInfo]:
    """Returns descriptions of leaves, without names where they have no mapping of their own."""
    return [leaf._replace(names=None, declared=False) if leaf.mapping is None else leaf for leaf in described]


def shard_array(array: Any, names: Names, mapping: AxisMapping, mesh: MeshLike | None = None) -> Any:
    """Returns an array sharded by a mapping on the given or active mesh, unchanged if there is none."""
    traced = is_traced(array)  # faster than asking JAX whether it traces
    target = mesh
    if target is None:
        target = get_abstract_mesh() if traced else get_active_mesh()
    if target is None:
        return array
    if len(names) != len(array.shape):
        return shard_leaves([array], [LeafInfo(names, False, ())], mapping, target)[0]
    sharding = resolve_sharding(names, array.shape, mapping, target)
    if traced:
        return constrain_arrays([array], [sharding])[0]
    return place_leaves([array], [sharding], target)[0]


def shard_leaves(
    leaves: list[Any], described: list[LeafInfo], mapping: AxisMapping, mesh: MeshLike | None = None
) -> list[Any]:
    """Returns the leaves of a tree with the arrays sharded by a mapping; the list itself if all are in place."""
    target = get_active_mesh() if mesh is None else mesh
    if target is None:
        return leaves
    decided = apply_fallback_rules(leaves, described, mapping, target)
    shardings = [infer_leaf_sharding(*pair, mapping, target) for pair in zip(leaves, decided, strict=True)]
    return place_leaves(leaves, shardings, target, lambda position: keystr(described[position].path))


def infer_leaf_sharding(
    leaf: Any, leaf_info: LeafInfo, mapping: AxisMapping, mesh: MeshLike, warn: bool = True
) -> NamedSharding | None:
    """Returns the sharding of a leaf, None if it is not an array or stays where it is.

    The mapping is for leaves without their own. With `warn`, there are warnings of names that look mistyped.
    """
    sizes = getattr(leaf, "shape", None)
    if sizes is None:
        return None
    mapping = mapping if leaf_info.mapping is None else leaf_info.mapping
    try:
        names = _find_leaf_names(leaf_info, sizes)
        if names is not None:
            return resolve_sharding(names, sizes, mapping, mesh, warn)
        if mapping.fallback is not None:
            return resolve_decision(leaf_info.decision, sizes, mapping, mesh)
        is_scalar = isinstance(leaf, jax.ShapeDtypeStruct) and not sizes
        return NamedSharding(mesh, P()) if is_scalar else None  # so that a step count can be restored to a mesh
    except ValueError as error:
        raise _locate_error(error, leaf_info, mapping) from error.__cause__


def _find_leaf_names(leaf_info: LeafInfo, sizes: tuple[int, ...]) -> Names | None:
    """Returns the names of an array, None if it has none; raises a ValueError if it has more axes than declared."""
    names = leaf_info.names_of(sizes)
    if names is None and leaf_info.declared and len(sizes) > len(leaf_info.names or ()):
        declared = leaf_info.names or ()
        leading = f" or {format_axes((*leaf_info.leading_axes, *declared))}" if leaf_info.leading_axes else ""
        raise make_error(
            ValueError,
            f"an array of shape {sizes} has {len(sizes)} axes, {format_axes(declared)}{leading} are declared",
        )
    return names


def pspec_for(tree: Any, mapping: ResourceMapping | None = None, preserve_existing_shardings: bool = True) -> Any:
    """Returns the `PartitionSpec` of each array of a tree, as `shard` would place it.

    Args:
        tree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays.
        mapping: From names to mesh axes; the active mapping if None. Without either, names shard nothing.
        preserve_existing_shardings: Whether an array that is sharded over the active mesh, or over any mesh if none is
            active, keeps its spec. An unsharded array, on one device or replicated, follows the mapping.

    Returns:
        The tree with a spec for each array, one entry for each axis. A named array becomes one spec in its place, so
        that the result is a prefix of the tree. Plain arrays without a decision and Python numbers are replicated;
        every other leaf becomes None.

    Raises:
        ValueError: If a mesh axis is unknown or used twice by one array, or a size is not
            divisible. The message names the leaf.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> tree = {"weight": nym.ones({"embed": 8, "mlp": 4}), "bias": jax.numpy.ones(4)}
        >>> nym.pspec_for(tree, {"embed": "data"})
        {'bias': P(None,), 'weight': P('data', None)}
    """
    axis_mapping, mesh = find_mapping(mapping), get_active_mesh()

    def find_spec(leaf: Any, leaf_info: LeafInfo) -> P | None:
        if not isinstance(getattr(leaf, "shape", None), tuple):
            return P() if isinstance(leaf, int | float | complex) else None
        current = get_sharding_over(leaf, mesh) if preserve_existing_shardings else None
        spec = _infer_spec(leaf, leaf_info, axis_mapping, mesh) if current is None else current.spec
        return pad_spec(spec, len(leaf.shape))

    return _map_leaves(find_spec, tree, axis_mapping, mesh)


def infer_resource_partitions(
    tree: Any,
    mapping: ResourceMapping | None = None,
    preserve_existing_shardings: bool = True,
    mesh: MeshLike | None = None,
) -> Any:
    """Returns the sharding of each array of a tree, as `shard` would place it: for `jax.jit` and `jax.device_put`.

    Args:
        tree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays.
        mapping: From names to mesh axes; the active mapping if None. Without either, names shard nothing.
        preserve_existing_shardings: Whether an array that is sharded over the mesh keeps its sharding. An unsharded
            array, on one device or replicated, follows the mapping.
        mesh: The mesh, abstract or with devices; the active mesh if None.

    Returns:
        The tree with a `NamedSharding` over the mesh for each array. A named array becomes one sharding in its place:
        the result is a prefix of the tree, as `in_shardings` and `out_shardings` of `jax.jit` and `jax.device_put`
        accept it. Plain arrays without a decision and Python numbers are replicated; every other leaf becomes None.

    Raises:
        ValueError: If there is no mesh, a mesh axis is unknown or used twice by one array, or a size is
            not divisible. The message names the leaf.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> params = {"weight": nym.ones({"embed": 8, "mlp": 4})}
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     shardings = nym.infer_resource_partitions(params, {"embed": "data"})
        ...     jax.jit(lambda params: params, out_shardings=shardings)(params)["weight"].sharding.spec
        P('data', None)
    """
    axis_mapping, target = find_mapping(mapping), resolve_mesh(mesh, "`infer_resource_partitions`")

    def find_sharding(leaf: Any, leaf_info: LeafInfo) -> NamedSharding | None:
        if not isinstance(getattr(leaf, "shape", None), tuple):
            return NamedSharding(target, P()) if isinstance(leaf, int | float | complex) else None
        current = get_sharding_over(leaf, target) if preserve_existing_shardings else None
        if current is not None and current.mesh == target:
            return current
        spec = _infer_spec(leaf, leaf_info, axis_mapping, target) if current is None else current.spec
        sharding = NamedSharding(target, pad_spec(spec, len(leaf.shape)))
        return sharding if is_tracing() else choose_target(sharding, getattr(leaf, "sharding", None))

    return _map_leaves(find_sharding, tree, axis_mapping, target)


def get_own_sharding(leaf: Any) -> Any:
    """Returns the current sharding of an array; for a traced one the sharding in its type, None if it has none."""
    if not is_traced(leaf):
        return getattr(leaf, "sharding", None)
    sharding = jax.typeof(leaf).sharding
    return sharding if any(sharding.spec.partitions) else None


def get_sharding_over(leaf: Any, mesh: MeshLike | None) -> NamedSharding | None:
    """Returns the sharding of an array if it is sharded over this mesh, or over any if None; otherwise None."""
    sharding = get_own_sharding(leaf)
    if not isinstance(sharding, NamedSharding) or not (mesh is None or is_same_mesh(sharding.mesh, mesh)):
        return None
    axes = [axis for entry in sharding.spec.partitions for axis in get_sharded_axes(entry)]
    return sharding if count_parts(axes, sharding.mesh) > 1 else None


def is_same_mesh(mesh: MeshLike, candidate: MeshLike) -> bool:
    """Returns whether two meshes are the same, as far as an abstract one shows it."""
    if isinstance(mesh, Mesh) and isinstance(candidate, Mesh):
        return mesh == candidate
    return tuple(mesh.shape.items()) == tuple(candidate.shape.items()) and mesh.axis_types == candidate.axis_types


def get_sharded_axes(entry: Any) -> tuple[str, ...]:
    """Returns the mesh axes of one entry of a spec, none if they are left to the compiler."""
    return () if entry is P.UNCONSTRAINED else get_entry_axes(entry)


def pad_spec(spec: P | None, ndim: int) -> P:
    """Returns a spec with one entry for each axis."""
    entries = () if spec is None else spec.partitions
    return P(*entries, *(None,) * (ndim - len(entries)))


def _infer_spec(leaf: Any, leaf_info: LeafInfo, mapping: AxisMapping, mesh: MeshLike | None) -> P | None:
    """Returns the spec of a leaf; without a mesh, sizes and mesh axes are not checked."""
    if mesh is not None:
        sharding = infer_leaf_sharding(leaf, leaf_info, mapping, mesh)
        return None if sharding is None else sharding.spec
    leaf_mapping = mapping if leaf_info.mapping is None else leaf_info.mapping
    decision = leaf_info.decision
    try:
        names = _find_leaf_names(leaf_info, leaf.shape)
        if names is not None:
            return resolve_spec(names, tuple(leaf.shape), leaf_mapping, None)
        if decision is None or decision.spec is None:
            return None
        return check_decision(decision, tuple(leaf.shape), leaf_mapping, None)
    except ValueError as error:
        raise _locate_error(error, leaf_info, leaf_mapping) from error.__cause__


def _map_leaves(find: Callable[[Any, LeafInfo], Any], tree: Any, mapping: AxisMapping, mesh: MeshLike | None) -> Any:
    """Returns the tree with the result of a function in place of each leaf, and of each named array."""
    leaves = jax.tree.leaves(tree)
    described = apply_fallback_rules(leaves, describe_leaves(tree), mapping, mesh)
    treedef = jax.tree.structure(tree, is_leaf=_holds_one_array)
    return jax.tree.unflatten(treedef, [find(*pair) for pair in zip(leaves, described, strict=True)])


def _holds_one_array(x: Any) -> bool:
    """Returns whether a node is a named array with one array in it, and no other pytree that JAX put there."""
    if type(x) is not NamedArray:
        return False
    structure = jax.tree.structure(x.array)
    return structure.num_nodes == structure.num_leaves == 1


def _locate_error(error: ValueError, leaf_info: LeafInfo, mapping: AxisMapping) -> ValueError:
    """Returns an error about a leaf with its path; an error that a rule raises about a tree is not changed."""
    decision = leaf_info.decision
    if decision is not None and error is decision.error and asks_for_trees(mapping.fallback):
        return error
    return ValueError(f"{format_prefix(keystr(leaf_info.path))}{error}")

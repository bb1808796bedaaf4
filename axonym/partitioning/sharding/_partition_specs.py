"""The specs and shardings of the arrays of a tree, for JAX's own functions.

They are found in the same way as `shard` finds them, with the same errors.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from ..._jax_compat import is_tracing
from ...named._array import NamedArray
from ...named._axis_layout import get_entry_axes
from ...named._base import is_traced
from ..mapping._mapping import AxisMapping, ResourceMapping
from ..specs._active_mesh import MeshLike, get_active_mesh, resolve_mesh
from ..specs._leaves import Leaf, describe_leaves
from ..specs._resolve_spec import find_mapping, resolve_spec
from ._fallback_rule import apply_fallback_rules, check_decision, locate_error
from ._placement import resolve_unconstrained
from ._shard import find_leaf_names, infer_leaf_sharding


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
    found, mesh = find_mapping(mapping), get_active_mesh()

    def find_spec(leaf: Any, about: Leaf) -> P | None:
        if not isinstance(getattr(leaf, "shape", None), tuple):
            return P() if isinstance(leaf, int | float | complex) else None
        kept = get_sharding_over(leaf, mesh) if preserve_existing_shardings else None
        return pad_spec(_infer_spec(leaf, about, found, mesh) if kept is None else kept.spec, len(leaf.shape))

    return _map_leaves(find_spec, tree, found, mesh)


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
    found, target = find_mapping(mapping), resolve_mesh(mesh, "`infer_resource_partitions`")

    def find_sharding(leaf: Any, about: Leaf) -> NamedSharding | None:
        if not isinstance(getattr(leaf, "shape", None), tuple):
            return NamedSharding(target, P()) if isinstance(leaf, int | float | complex) else None
        kept = get_sharding_over(leaf, target) if preserve_existing_shardings else None
        if kept is not None and kept.mesh == target:
            return kept
        spec = _infer_spec(leaf, about, found, target) if kept is None else kept.spec
        sharding = NamedSharding(target, pad_spec(spec, len(leaf.shape)))
        return sharding if is_tracing() else resolve_unconstrained(sharding, getattr(leaf, "sharding", None))

    return _map_leaves(find_sharding, tree, found, target)


def get_own_sharding(leaf: Any) -> Any:
    """Returns the current sharding of an array; for a traced one the sharding in its type, None if it has none."""
    if not is_traced(leaf):
        return getattr(leaf, "sharding", None)
    own = jax.typeof(leaf).sharding
    return own if any(own.spec.partitions) else None


def get_sharding_over(leaf: Any, mesh: MeshLike | None) -> NamedSharding | None:
    """Returns the sharding of an array if it is sharded over this mesh, or over any if None; otherwise None."""
    own = get_own_sharding(leaf)
    if not isinstance(own, NamedSharding) or not (mesh is None or is_same_mesh(own.mesh, mesh)):
        return None
    sizes = own.mesh.shape
    return own if any(sizes[axis] > 1 for entry in own.spec.partitions for axis in get_sharded_axes(entry)) else None


def is_same_mesh(one: MeshLike, other: MeshLike) -> bool:
    """Returns whether two meshes are the same, as far as an abstract one shows it."""
    if isinstance(one, Mesh) and isinstance(other, Mesh):
        return one == other
    return tuple(one.shape.items()) == tuple(other.shape.items()) and one.axis_types == other.axis_types


def get_sharded_axes(entry: Any) -> tuple[str, ...]:
    """Returns the mesh axes of one entry of a spec, none if they are left to the compiler."""
    return () if entry is P.UNCONSTRAINED else get_entry_axes(entry)


def pad_spec(spec: P | None, ndim: int) -> P:
    """Returns a spec with one entry for each axis."""
    entries = () if spec is None else spec.partitions
    return P(*entries, *(None,) * (ndim - len(entries)))


def _infer_spec(leaf: Any, about: Leaf, mapping: AxisMapping, mesh: MeshLike | None) -> P | None:
    """Returns the spec of a leaf; without a mesh, sizes and mesh axes are not checked."""
    if mesh is not None:
        sharding = infer_leaf_sharding(leaf, about, mapping, mesh)
        return None if sharding is None else sharding.spec
    chosen, decision = mapping if about.mapping is None else about.mapping, about.decision
    try:
        names = find_leaf_names(about, leaf.shape)
        if names is not None:
            return resolve_spec(names, tuple(leaf.shape), chosen, None)
        if decision is None or decision.spec is None:
            return None
        return check_decision(decision, tuple(leaf.shape), chosen, None)
    except ValueError as error:
        raise locate_error(error, about, chosen) from error.__cause__


def _map_leaves(find: Callable[[Any, Leaf], Any], tree: Any, mapping: AxisMapping, mesh: MeshLike | None) -> Any:
    """Returns the tree with the result of a function in place of each leaf, and of each named array."""
    leaves = jax.tree.leaves(tree)
    described = apply_fallback_rules(leaves, describe_leaves(tree), mapping, mesh)
    treedef = jax.tree.structure(tree, is_leaf=_holds_one_array)
    return jax.tree.unflatten(treedef, [find(*pair) for pair in zip(leaves, described, strict=True)])


def _holds_one_array(x: Any) -> bool:
    """Returns whether a node is a named array with one array in it, and no other pytree that JAX put there."""
    if type(x) is not NamedArray:
        return False
    inside = jax.tree.structure(x.array)
    return inside.num_nodes == inside.num_leaves == 1

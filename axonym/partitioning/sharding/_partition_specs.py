"""Where the arrays of a tree belong, as a tree of specs or shardings for JAX's own functions.

Each leaf is asked about where `shard` asks, so that both go to the same places and raise the same errors.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P

from ...named._ambient import get_entry_axes
from ...named._array import NamedArray
from ...named._axis import Names
from ...named._base import is_traced
from ..mapping._axis_mapping import AxisMapping, ResourceMapping
from ..specs._leaves import Leaf, describe_leaves
from ..specs._resolve_spec import MeshLike, get_active_mesh, is_tracing, require_mapping, resolve_mesh, resolve_spec
from ._fallback_rule import apply_fallback_rules, check_answer, locate_error
from ._placement import resolve_unconstrained
from ._shard import infer_leaf_sharding


def pspec_for(tree: Any, mapping: ResourceMapping | None = None, preserve_existing_shardings: bool = True) -> Any:
    """Returns the `PartitionSpec` of each array of a tree, as `shard` would place it.

    Args:
        tree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays.
        mapping: From names to mesh axes; the one in force if None.
        preserve_existing_shardings: Whether an array that is divided over the mesh in force, or over any mesh if none
            is, keeps its spec. An array that lies whole, on one device or on each, goes by the mapping.

    Returns:
        The tree with a spec for each array, one entry for each axis. A named array becomes one spec in its place, so
        that the result is a prefix of the tree. Plain arrays that nothing decides and Python numbers are undivided;
        every other leaf becomes None.

    Raises:
        ValueError: If there is no mapping, a mesh axis is unknown or used twice by one array, or does not divide a
            size. The message names the leaf.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> tree = {"weight": nym.ones({"embed": 8, "mlp": 4}), "bias": jax.numpy.ones(4)}
        >>> nym.pspec_for(tree, {"embed": "data"})
        {'bias': P(None,), 'weight': P('data', None)}
    """
    found, mesh = require_mapping(mapping), get_active_mesh()

    def decided(leaf: Any, about: Leaf) -> P | None:
        if _undescribed(leaf):
            return P() if isinstance(leaf, int | float | complex) else None
        kept = divided_over(leaf, mesh) if preserve_existing_shardings else None
        return pad_spec(_spec(leaf, about, found, mesh) if kept is None else kept.spec, len(leaf.shape))

    return _each(tree, decided, found, mesh)


def infer_resource_partitions(
    tree: Any,
    mapping: ResourceMapping | None = None,
    preserve_existing_shardings: bool = True,
    mesh: MeshLike | None = None,
) -> Any:
    """Returns the sharding of each array of a tree, as `shard` would place it: for `jax.jit` and `jax.device_put`.

    Args:
        tree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays.
        mapping: From names to mesh axes; the one in force if None.
        preserve_existing_shardings: Whether an array that is divided over the mesh keeps its sharding. An array that
            lies whole, on one device or on each, goes by the mapping.
        mesh: The mesh, abstract or with devices; the one in force if None.

    Returns:
        The tree with a `NamedSharding` over the mesh for each array. A named array becomes one sharding in its place:
        the result is a prefix of the tree, as `in_shardings` and `out_shardings` of `jax.jit` and `jax.device_put`
        take it. Plain arrays that nothing decides and Python numbers are undivided; every other leaf becomes None.

    Raises:
        ValueError: If there is no mapping or no mesh, a mesh axis is unknown or used twice by one array, or does not
            divide a size. The message names the leaf.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> params = {"weight": nym.ones({"embed": 8, "mlp": 4})}
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     shardings = nym.infer_resource_partitions(params, {"embed": "data"})
        ...     jax.jit(lambda params: params, out_shardings=shardings)(params)["weight"].sharding.spec
        P('data', None)
    """
    found, target = require_mapping(mapping), resolve_mesh(mesh, "`infer_resource_partitions`")

    def decided(leaf: Any, about: Leaf) -> NamedSharding | None:
        if _undescribed(leaf):
            return NamedSharding(target, P()) if isinstance(leaf, int | float | complex) else None
        kept = divided_over(leaf, target) if preserve_existing_shardings else None
        if kept is not None and kept.mesh == target:
            return kept
        spec = _spec(leaf, about, found, target) if kept is None else kept.spec
        sharding = NamedSharding(target, pad_spec(spec, len(leaf.shape)))
        return sharding if is_tracing() else resolve_unconstrained(leaf, sharding)

    return _each(tree, decided, found, target)


def get_own_sharding(leaf: Any) -> Any:
    """Returns the sharding that an array has already, None if it has none; a traced one has it in its type."""
    if not is_traced(leaf):
        return getattr(leaf, "sharding", None)
    own = jax.typeof(leaf).sharding
    return own if any(own.spec.partitions) else None


def divided_over(leaf: Any, mesh: MeshLike | None) -> NamedSharding | None:
    """Returns the sharding that an array has if that divides it over this mesh, or over any if None."""
    own = get_own_sharding(leaf)
    if not isinstance(own, NamedSharding) or not (mesh is None or is_same_mesh(own.mesh, mesh)):
        return None
    sizes = own.mesh.shape
    return own if any(sizes[axis] > 1 for entry in own.spec.partitions for axis in get_sharded_axes(entry)) else None


def is_same_mesh(one: MeshLike, other: MeshLike) -> bool:
    """Tells whether two meshes are one, as far as an abstract one can tell."""
    if isinstance(one, Mesh) and isinstance(other, Mesh):
        return one == other
    return tuple(one.shape.items()) == tuple(other.shape.items()) and one.axis_types == other.axis_types


def get_sharded_axes(entry: Any) -> tuple[str, ...]:
    """Returns the mesh axes of one entry of a spec, none if the compiler is left to choose them."""
    return () if entry is P.UNCONSTRAINED else get_entry_axes(entry)


def pad_spec(spec: P | None, ndim: int) -> P:
    """Returns a spec with one entry for each axis."""
    entries = () if spec is None else spec.partitions
    return P(*entries, *(None,) * (ndim - len(entries)))


def _undescribed(leaf: Any) -> bool:
    return not isinstance(getattr(leaf, "shape", None), tuple)


def _spec(leaf: Any, about: Leaf, mapping: AxisMapping, mesh: MeshLike | None) -> P | None:
    if mesh is None:
        return _spec_on_any_mesh(leaf, about, mapping)
    sharding = infer_leaf_sharding(leaf, about, mapping, mesh)
    return None if sharding is None else sharding.spec


def _spec_on_any_mesh(leaf: Any, about: Leaf, mapping: AxisMapping) -> P | None:
    """Returns the spec of a leaf where no mesh is known: checked on one that has all mesh axes, each of size 1."""
    chosen = mapping if about.mapping is None else about.mapping
    axes = dict.fromkeys(axis for name in chosen for axis in chosen.mesh_axes(name))
    names = names_gone_by(leaf, about, chosen, AbstractMesh((1,) * len(axes), tuple(axes)))
    if names is not None:
        return resolve_spec(names, tuple(leaf.shape), chosen, None)
    if about.ruled is None or about.ruled.spec is None:
        return None
    try:
        return check_answer(about.ruled, tuple(leaf.shape), chosen, None)
    except ValueError as error:
        raise locate_error(error, about, chosen) from error.__cause__


def names_gone_by(leaf: Any, about: Leaf, mapping: AxisMapping, mesh: MeshLike) -> Names | None:
    """Returns the names of an array by which `shard` places it, None if it goes by none.

    Raises:
        ValueError: If `shard` refuses it.
    """
    by_names_alone = Silent(mapping, None)
    sharding = infer_leaf_sharding(leaf, about._replace(mapping=by_names_alone), by_names_alone, mesh)
    return None if sharding is None else about.names_of(leaf.shape)


class Silent(AxisMapping):
    """A mapping that is asked without warnings of near misses, which are not to count as given for `shard` either."""

    __slots__ = ()

    def __init__(self, mapping: AxisMapping, fallback: Any) -> None:
        for slot in AxisMapping.__slots__:
            object.__setattr__(self, slot, getattr(mapping, slot))
        object.__setattr__(self, "fallback", fallback)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Silent) and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((Silent, super().__hash__()))


def _each(tree: Any, decided: Callable[[Any, Leaf], Any], mapping: AxisMapping, mesh: MeshLike | None) -> Any:
    """Returns the tree with what is decided for each leaf, in the place of a named array for its array."""
    leaves = jax.tree.leaves(tree)
    described = apply_fallback_rules(leaves, describe_leaves(tree), mapping, mesh)
    treedef = jax.tree.structure(tree, is_leaf=_holds_one_array)
    return jax.tree.unflatten(treedef, [decided(*pair) for pair in zip(leaves, described, strict=True)])


def _holds_one_array(x: Any) -> bool:
    """Tells whether a node is a named array as users make them; JAX puts other things in the place of its array."""
    if type(x) is not NamedArray:
        return False
    inside = jax.tree.structure(x.array)
    return inside.num_nodes == inside.num_leaves == 1

"""`MeshPartitionHelper`: which mesh axes divide which shapes, specs from that, and whole trees put in place by them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec as P

from ..named._ambient import get_entry_axes
from ..named._array import NamedArray
from ..named._axis import format_value
from .rules._assignment import MeshAxes, best_spec
from .rules._rule_options import OnAMesh, checked_mesh, checked_names, whole_number
from .rules._sharding_rule import check_mesh_axes, flatten_for_rule, get_array_shape, get_usable_axes, parse_axis_names
from .sharding._placement import place_leaves
from .specs._leaves import ARRAYS
from .specs._resolve_spec import MeshLike, make_spec_entry, resolve_mesh
from .specs._spec_problems import check_rule_spec


T = TypeVar("T")

Methods: TypeAlias = Sequence[Sequence[str] | str]
"""Mesh axes that divide an array, those that go together on one dimension as a tuple; earlier ones are preferred."""


@dataclasses.dataclass(frozen=True, repr=False)
class MeshPartitionHelper(OnAMesh):
    """Finds out how arrays can be divided over a mesh from their shapes, and puts whole trees in place.

    Arrays are divided as by `axonym.AutoShardingRule`, but with the first mesh axis on the first dimension: into as
    many equal parts as the mesh can, with several mesh axes on one dimension where that divides more. Any names of mesh
    axes will do; what an axis is called does not matter. Mesh axes that are for the batch alone are named as such.

    Args:
        mesh: The mesh, with devices or abstract, on which all but placing data works; the one in force if None.
        batch_axes: Mesh axes that divide batches, and never one of these arrays.

    Attributes:
        mesh: The mesh.
        batch_axes: The mesh axes for batches, as a tuple.
        axis_sizes: From the names of all mesh axes to their sizes.

    Raises:
        TypeError: If the mesh is none, or `batch_axes` is no list of names.
        ValueError: If the mesh lacks one of the batch axes, one is there twice, or there is no mesh.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> mesh = nym.create_mesh((2, 2, 1, 2, 1), ("dp", "fsdp", "ep", "tp", "sp"))
        >>> params = {"weight": jnp.ones((1024, 4096)), "bias": jnp.ones(4)}
        >>> nym.MeshPartitionHelper(mesh).auto_shard_pytree(params)["weight"].sharding.spec
        P(('dp', 'fsdp'), 'tp')
        >>> nym.MeshPartitionHelper(mesh, batch_axes=["dp"]).auto_shard_pytree(params)["weight"].sharding.spec
        P('fsdp', 'tp')
    """

    mesh: MeshLike = None  # pyright: ignore[reportAssignmentType]  # resolved as it is made
    batch_axes: Sequence[str] = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        """Checks the options; see the class."""
        mesh = resolve_mesh(checked_mesh(self.mesh), "`MeshPartitionHelper`")
        self._keep(mesh=mesh, batch_axes=checked_names(self.batch_axes, mesh, "batch_axes"))

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Returns the sizes of all mesh axes by their names."""
        return dict(self.mesh.shape)

    def analyze_pytree(self, pytree: Any) -> dict[tuple[int, ...], list[tuple[str, ...]]]:
        """Finds for each shape in a tree the mesh axes that divide it.

        Args:
            pytree: Any tree of arrays, `jax.ShapeDtypeStruct`s, named arrays or traced arrays.

        Returns:
            From each shape, in the order in which they are met, to tuples of mesh axes: those of a tuple go together on
            one dimension, and the tuples are in the order of the dimensions. No tuple: the mesh cannot divide it.

        Example:
            >>> import axonym as nym
            >>> import jax.numpy as jnp
            >>> helper = nym.MeshPartitionHelper(nym.create_mesh((4, 2), ("data", "model")))
            >>> helper.analyze_pytree([jnp.ones((8, 16)), jnp.ones((3, 8)), jnp.ones(3)])
            {(8, 16): [('data',), ('model',)], (3, 8): [('data', 'model')], (3,): []}
        """
        shapes = [get_array_shape(leaf) for _, leaf in flatten_for_rule(pytree)[0]]
        return {shape: self._suggest_methods(shape) for shape in dict.fromkeys(shapes) if shape is not None}

    def _suggest_methods(self, shape: tuple[int, ...]) -> list[tuple[str, ...]]:
        """Returns the mesh axes that divide one shape; see `analyze_pytree`."""
        return [get_entry_axes(entry) for entry in best_spec(shape, self._axes()) if get_entry_axes(entry)]

    def create_partition_spec(self, array_shape: tuple[int, ...], methods: Methods, min_shard_size: int = 1024) -> P:
        """Returns the spec of a shape, divided over the mesh axes of some methods as far as it can be.

        Each mesh axis is used once at most. The axes of one method go together on one dimension if the array is not
        divided less for it; otherwise each goes where it can. Mesh axes of size 1 divide nothing.

        Args:
            array_shape: The sizes of the array.
            methods: Mesh axes as `analyze_pytree` gives them, those that go together as a tuple; a name alone is a
                tuple of one. Of two ways that divide the array alike, the one is taken that uses earlier ones, on
                earlier dimensions. An axis that is there again, in a later method, says nothing more.
            min_shard_size: The fewest elements that each part may have: there are at most as many parts as the elements
                allow. With 1, or 0, and the methods that `analyze_pytree` gives for the shape, the spec is that of
                `partition_specs`.

        Returns:
            A spec with one entry for each dimension, an empty one if the array stays whole.

        Raises:
            TypeError: If the shape is no tuple of sizes, or the methods are no list of tuples of names.
            ValueError: If the mesh lacks one of the axes, one is for the batch, a method has one twice, or
                `min_shard_size` is negative.

        Example:
            >>> import axonym as nym
            >>> helper = nym.MeshPartitionHelper(nym.create_mesh((4, 2), ("data", "model")))
            >>> helper.create_partition_spec((1024, 4096), [("data",), ("model",)])
            P('data', 'model')
            >>> helper.create_partition_spec((1024, 4096), [("model", "data")])
            P(None, ('model', 'data'))
            >>> helper.create_partition_spec((64, 64), [("data",), ("model",)])  # 4 parts of 1024 elements
            P('data', None)
        """
        shape, groups = _sizes(array_shape), self._groups(methods)
        elements, least = math.prod(shape), max(whole_number(min_shard_size, "min_shard_size"), 1)
        return _grouped_spec(shape, groups, dict(self._axes()), elements // least)

    def partition_specs(self, pytree: Any, min_shard_size: int = 1) -> Any:
        """Chooses the spec of each array of a tree; nothing is moved.

        Of all specs, those leave the fewest bytes on each device. `auto_shard_pytree` leaves small arrays whole unless
        told otherwise: `partition_specs(pytree, min_shard_size=1024)` is what it does.

        Args:
            pytree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays; named arrays count as one leaf each.
            min_shard_size: Arrays with fewer elements stay whole; others are divided as far as the mesh can.

        Returns:
            The tree with a `PartitionSpec` in place of each leaf: with one entry for each axis where an array is
            divided, empty for other leaves.

        Raises:
            TypeError: If `min_shard_size` is no number.
            ValueError: If it is negative.

        Example:
            >>> import axonym as nym
            >>> import jax.numpy as jnp
            >>> helper = nym.MeshPartitionHelper(nym.create_mesh((4, 2), ("data", "model")))
            >>> helper.partition_specs({"weight": jnp.ones((50257, 768)), "bias": jnp.ones(768)})
            {'bias': P(('data', 'model'),), 'weight': P(None, ('data', 'model'))}
            >>> helper.partition_specs(jnp.ones(768), min_shard_size=1024)
            P()
        """
        leaves, treedef = flatten_for_rule(pytree)
        return jax.tree.unflatten(treedef, self._specs([leaf for _, leaf in leaves], min_shard_size))

    def shard_array(self, array: T, partition_spec: P) -> T:
        """Returns an array divided as a spec says: moved there, or constrained inside a traced function.

        Args:
            array: An array of any kind; a named one stays one, and a `jax.ShapeDtypeStruct` gets the sharding.
            partition_spec: How to divide it, as `create_partition_spec` gives it.

        Raises:
            TypeError: If one is no array, or the other no spec.
            ValueError: If the mesh lacks one of the mesh axes, one is there twice, or does not divide a size; or if the
                mesh is abstract and there is data to move.

        Example:
            >>> import axonym as nym
            >>> import jax.numpy as jnp
            >>> from jax.sharding import PartitionSpec as P
            >>> helper = nym.MeshPartitionHelper(nym.create_mesh((4, 2), ("data", "model")))
            >>> helper.shard_array(jnp.ones((8, 16)), P("data")).sharding.shard_shape((8, 16))
            (2, 16)
        """
        shape, mesh = get_array_shape(array), self._mesh_here()
        if shape is None:
            raise TypeError(
                f"`shard_array` shards an array, not {format_value(array)}; `auto_shard_pytree` shards trees."
            )
        if not isinstance(partition_spec, P):
            raise TypeError(f"`partition_spec` is a `PartitionSpec`, not {format_value(partition_spec)}.")
        return _placed([array], [_fitting(partition_spec, shape, mesh)], mesh)[0]

    def auto_shard_pytree(self, pytree: T, min_shard_size: int = 1024) -> T:
        """Shards all arrays of a tree: moves them at once, or constrains them inside a traced function.

        Args:
            pytree: Any tree of arrays. Named arrays stay such, `jax.ShapeDtypeStruct`s get the sharding, arrays on
                other devices are moved, and NumPy arrays too; other leaves are returned as they are.
            min_shard_size: Arrays with fewer elements are whole on each device; others are divided as far as the mesh
                can.

        Returns:
            The tree with the same values, each array sharded as `partition_specs` says with the same `min_shard_size`.
            What is moved may share memory with the array that it was.

        Raises:
            TypeError: If `min_shard_size` is no number.
            ValueError: If it is negative, or the mesh is abstract and there is data to move.

        Example:
            >>> import axonym as nym
            >>> import jax.numpy as jnp
            >>> helper = nym.MeshPartitionHelper(nym.create_mesh((4, 2), ("data", "model")))
            >>> params = helper.auto_shard_pytree({"weight": jnp.ones((64, 32)), "bias": jnp.ones(32), "name": "mlp"})
            >>> params["weight"].sharding.spec, params["bias"].sharding.spec, params["name"]
            (P('data', 'model'), P(), 'mlp')
        """
        leaves, treedef = flatten_for_rule(pytree)
        found = [leaf for _, leaf in leaves]
        return jax.tree.unflatten(treedef, _placed(found, self._specs(found, min_shard_size), self._mesh_here()))

    def _axes(self) -> MeshAxes:
        """Returns the mesh axes that may divide an array."""
        return tuple(one for one in get_usable_axes(self._mesh_here()) if one[0] not in self.batch_axes)

    def _specs(self, leaves: list[Any], min_shard_size: int) -> list[P]:
        """Returns the spec of each leaf, an empty one for small arrays and for what is none."""
        axes, least = self._axes(), whole_number(min_shard_size, "min_shard_size")
        shapes = map(get_array_shape, leaves)
        return [P() if shape is None or math.prod(shape) < least else best_spec(shape, axes) for shape in shapes]

    def _groups(self, methods: Any) -> list[tuple[str, ...]]:
        """Returns the mesh axes of methods, each once and checked, those that go together as a tuple."""
        if isinstance(methods, str) or not isinstance(methods, list | tuple):
            raise TypeError(
                f"`methods` is a list of tuples of mesh axes, as [('data',)] is, not {format_value(methods)}."
            )
        seen: set[str] = set()
        groups: list[tuple[str, ...]] = []
        for method in methods:
            names = parse_axis_names(method, "methods")
            check_mesh_axes(self.mesh, names)
            for name in names:
                if name in self.batch_axes:
                    raise ValueError(
                        f"mesh axis {name!r} is one of the `batch_axes` {self.batch_axes}, which divide no arrays; "
                        "take it out of `methods`, or out of `batch_axes`"
                    )
            groups.append(tuple(name for name in names if name not in seen))
            seen.update(names)
        return groups


def _sizes(shape: Any) -> tuple[int, ...]:
    """Returns the sizes of an array.

    Raises:
        TypeError: If they are no tuple or list.
    """
    if not isinstance(shape, tuple | list):
        raise TypeError(f"`array_shape` is a tuple of sizes, as (1024, 4096) is, not {format_value(shape)}.")
    return tuple(whole_number(size, "array_shape") for size in shape)


def _grouped_spec(shape: tuple[int, ...], groups: list[tuple[str, ...]], sizes: dict[str, int], most: int) -> P:
    """Returns the best spec over some mesh axes that leaves groups of them together which can be without a loss."""
    units: list[tuple[str, ...]] = [(name,) for group in groups for name in group if name in sizes]
    best, parts = _spec_of_units(shape, units, sizes, most)
    for group in groups:
        together = tuple(name for name in group if name in sizes)
        if len(together) > 1:
            at = units.index((together[0],))
            trial = [unit for unit in units if unit[0] not in together]
            trial.insert(at, together)
            spec, reached = _spec_of_units(shape, trial, sizes, most)
            if reached == parts:
                best, units = spec, trial
    return best


def _spec_of_units(
    shape: tuple[int, ...], units: list[tuple[str, ...]], sizes: dict[str, int], most: int
) -> tuple[P, int]:
    """Returns the best spec where the mesh axes of a unit go together, and into how many parts it divides."""
    counts = [math.prod(sizes[name] for name in unit) for unit in units]
    found = best_spec(shape, tuple((str(number), count) for number, count in enumerate(counts)), most=most)
    entries = [[int(number) for number in get_entry_axes(entry)] for entry in found]
    spec = P(*(make_spec_entry(tuple(name for number in entry for name in units[number])) for entry in entries))
    return spec, math.prod(counts[number] for entry in entries for number in entry)


def _fitting(spec: P, shape: tuple[int, ...], mesh: MeshLike) -> P:
    """Returns a spec without the mesh axes that are Manual, if it fits an array.

    Raises:
        ValueError: If it does not.
    """
    try:
        return check_rule_spec(spec, shape, "error", mesh, remedy="`partition_specs` finds specs that fit")
    except ValueError as error:
        raise ValueError(f"{spec} does not fit an array of shape {shape}: {error}") from None


def _placed(leaves: list[Any], specs: list[P], mesh: MeshLike) -> list[Any]:
    """Returns leaves with the arrays among them where their specs say."""
    arrays = [leaf.array if type(leaf) is NamedArray else leaf for leaf in leaves]
    known = [isinstance(x, ARRAYS) and get_array_shape(x) is not None for x in arrays]
    shardings = [NamedSharding(mesh, spec) if one else None for one, spec in zip(known, specs, strict=True)]
    moved = place_leaves(arrays, shardings, mesh)
    return [
        jax.tree.unflatten(jax.tree.structure(leaf), [new])
        if type(leaf) is NamedArray and new is not leaf.array
        else new
        for leaf, new in zip(leaves, moved, strict=True)
    ]

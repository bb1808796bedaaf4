"""`MeshPartitionHelper`: which mesh axes can shard which shapes, and specs and placement of trees from that."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

from jax.sharding import NamedSharding, PartitionSpec as P

from .._ground.formats import format_value
from ..named._array import NamedArray
from ..named._axis_layout import get_entry_axes, make_spec_entry
from ..partitioning._active_mesh import MeshLike, check_mesh_axes, resolve_mesh
from ..partitioning._leaves import ARRAY_TYPES, get_array_shape
from ..partitioning._placement import place_leaves, rewrap_arrays
from ..partitioning._resolve_spec import check_rule_spec
from ._best_spec import MeshAxes, find_best_spec, get_usable_axes
from ._sharding_rule import HasMesh, RuleTree, check_axis_names, check_integer, parse_axis_names


T = TypeVar("T")

Methods: TypeAlias = Sequence[Sequence[str] | str]
"""Mesh axes that shard an array, those for the same dimension as a tuple; earlier ones are preferred."""


@dataclasses.dataclass(frozen=True, repr=False)
class MeshPartitionHelper(HasMesh):
    """Finds how arrays can be sharded over a mesh from their shapes, and shards entire trees.

    Each array is sharded into as many equal parts as the mesh allows, with several mesh axes on one dimension where
    that makes more parts. This is what `axonym.AutoShardingRule` does, except that the first mesh axis goes on the
    first dimension. The mesh axes may have any names.

    Args:
        mesh: The mesh; the active mesh if None. An abstract mesh will do for everything except placing data.
        batch_axes: Mesh axes that are reserved for batches, so that they never shard an array here.

    Raises:
        TypeError: If the mesh is not a mesh, or `batch_axes` is not a list of names.
        ValueError: If the mesh lacks one of the batch axes, one is given twice, or there is no mesh.

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

    mesh: MeshLike = None  # pyright: ignore[reportAssignmentType]  # `__post_init__` replaces None
    batch_axes: Sequence[str] = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        mesh = resolve_mesh(self.mesh, "`MeshPartitionHelper`")
        self._set_options(mesh=mesh, batch_axes=check_axis_names(self.batch_axes, mesh, "batch_axes"))

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Returns the sizes of all mesh axes by their names."""
        return dict(self.mesh.shape)

    def analyze_pytree(self, pytree: Any) -> dict[tuple[int, ...], list[tuple[str, ...]]]:
        """Finds for each shape in a tree the mesh axes that can shard it.

        Args:
            pytree: Any tree of arrays, `jax.ShapeDtypeStruct`s, named arrays or traced arrays.

        Returns:
            From each shape, in the order of the leaves, to a list of tuples of mesh axes, one for each sharded
            dimension in order. The list is empty if the mesh cannot shard the shape.

        Example:
            >>> import axonym as nym
            >>> import jax.numpy as jnp
            >>> helper = nym.MeshPartitionHelper(nym.create_mesh((4, 2), ("data", "model")))
            >>> helper.analyze_pytree([jnp.ones((8, 16)), jnp.ones((3, 8)), jnp.ones(3)])
            {(8, 16): [('data',), ('model',)], (3, 8): [('data', 'model')], (3,): []}
        """
        shapes = [leaf.shape for leaf in RuleTree.from_tree(pytree).leaves]
        return {shape: self._suggest_methods(shape) for shape in dict.fromkeys(shapes) if shape is not None}

    # Not inlined: code written for other versions of this helper calls it by this name.
    def _suggest_methods(self, shape: tuple[int, ...]) -> list[tuple[str, ...]]:
        return [axes for axes in map(get_entry_axes, find_best_spec(shape, self._get_axes())) if axes]

    def create_partition_spec(self, array_shape: tuple[int, ...], methods: Methods, min_shard_size: int = 1024) -> P:
        """Returns the spec of a shape, sharded over the mesh axes of some methods as far as possible.

        Each mesh axis is used at most once. The axes of one method shard the same dimension if that does not reduce the
        number of parts; otherwise each goes where it can. Mesh axes of size 1 are not used.

        Args:
            array_shape: The sizes of the array.
            methods: Mesh axes as `analyze_pytree` returns them, those for the same dimension as a tuple; a name alone
                is a tuple of one. Of two specs with equally many parts, the one with earlier axes on earlier dimensions
                is preferred. An axis that occurs again in a later method is ignored there.
            min_shard_size: The fewest elements that a part may have. With 0 or 1, and the methods that
                `analyze_pytree` returns for the shape, the result is that of `partition_specs`.

        Returns:
            A spec with one entry for each dimension, an empty one if the array is replicated.

        Raises:
            TypeError: If the shape is not a tuple of sizes, or the methods are not a list of tuples of names.
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
        if not isinstance(array_shape, tuple | list):
            raise TypeError(
                f"`array_shape` is a tuple of sizes, such as (1024, 4096), not {format_value(array_shape)}."
            )
        shape = tuple(check_integer(size, "array_shape") for size in array_shape)
        groups = self._parse_methods(methods)
        min_elements = max(check_integer(min_shard_size, "min_shard_size"), 1)
        return _find_grouped_spec(shape, groups, dict(self._get_axes()), math.prod(shape) // min_elements)

    def partition_specs(self, pytree: Any, min_shard_size: int = 1) -> Any:
        """Chooses the spec of each array of a tree; nothing is moved.

        No other specs leave fewer bytes on each device. `auto_shard_pytree` replicates small arrays by default, as
        `partition_specs(pytree, min_shard_size=1024)` does.

        Args:
            pytree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays; named arrays count as one leaf each.
            min_shard_size: Arrays with fewer elements are replicated; others are sharded as far as the mesh allows.

        Returns:
            The tree with a `PartitionSpec` in place of each leaf: with one entry for each axis of a sharded array,
            empty for other leaves.

        Raises:
            TypeError: If `min_shard_size` is not a number.
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
        tree = RuleTree.from_tree(pytree)
        return tree.fill(self._find_specs(tree, min_shard_size))

    def shard_array(self, array: T, partition_spec: P) -> T:
        """Returns an array sharded by a spec: moved, or constrained inside a traced function.

        Args:
            array: An array of any kind; a named one stays one, and a `jax.ShapeDtypeStruct` gets the sharding.
            partition_spec: The spec, such as `create_partition_spec` returns.

        Raises:
            TypeError: If `array` is not an array, or `partition_spec` is not a `PartitionSpec`.
            ValueError: If the mesh lacks one of the mesh axes, one is given twice, or a size is not divisible; or if
                the mesh is abstract and there is data to move.

        Example:
            >>> import axonym as nym
            >>> import jax.numpy as jnp
            >>> from jax.sharding import PartitionSpec as P
            >>> helper = nym.MeshPartitionHelper(nym.create_mesh((4, 2), ("data", "model")))
            >>> helper.shard_array(jnp.ones((8, 16)), P("data")).sharding.shard_shape((8, 16))
            (2, 16)
        """
        shape, mesh = get_array_shape(array), self._resolve_mesh()
        if shape is None:
            raise TypeError(
                f"`shard_array` shards an array, not {format_value(array)}; `auto_shard_pytree` shards trees."
            )
        if not isinstance(partition_spec, P):
            raise TypeError(f"`partition_spec` is a `PartitionSpec`, not {format_value(partition_spec)}.")
        try:
            spec = check_rule_spec(partition_spec, shape, "error", mesh, "`partition_specs` finds specs that fit")
        except ValueError as error:
            raise ValueError(f"{partition_spec} does not fit an array of shape {shape}: {error}") from None
        return _place_arrays([array], [spec], mesh)[0]

    def auto_shard_pytree(self, pytree: T, min_shard_size: int = 1024) -> T:
        """Shards all arrays of a tree: moves them at once, or constrains them inside a traced function.

        Args:
            pytree: Any tree of arrays. Named arrays stay named, `jax.ShapeDtypeStruct`s get the sharding, arrays on
                other devices are moved, and NumPy arrays too; other leaves are returned unchanged.
            min_shard_size: Arrays with fewer elements are replicated; others are sharded as far as the mesh allows.

        Returns:
            The tree with the same values, each array sharded by `partition_specs` with the same `min_shard_size`. A
            moved array may share memory with its original.

        Raises:
            TypeError: If `min_shard_size` is not a number.
            ValueError: If it is negative, or the mesh is abstract and there is data to move.

        Example:
            >>> import axonym as nym
            >>> import jax.numpy as jnp
            >>> helper = nym.MeshPartitionHelper(nym.create_mesh((4, 2), ("data", "model")))
            >>> params = helper.auto_shard_pytree({"weight": jnp.ones((64, 32)), "bias": jnp.ones(32), "name": "mlp"})
            >>> params["weight"].sharding.spec, params["bias"].sharding.spec, params["name"]
            (P('data', 'model'), P(), 'mlp')
        """
        tree = RuleTree.from_tree(pytree)
        specs = self._find_specs(tree, min_shard_size)
        return tree.fill(_place_arrays([leaf.array for leaf in tree.leaves], specs, self._resolve_mesh()))

    def _get_axes(self) -> MeshAxes:
        """Returns the mesh axes that may shard an array."""
        return tuple(axis for axis in get_usable_axes(self._resolve_mesh()) if axis[0] not in self.batch_axes)

    def _find_specs(self, tree: RuleTree, min_shard_size: int) -> list[P]:
        """Returns the spec of each leaf, an empty one for small arrays and other leaves."""
        axes, min_elements = self._get_axes(), check_integer(min_shard_size, "min_shard_size")
        specs: list[P] = []
        for leaf in tree.leaves:
            spec = P()
            if leaf.shape is not None and math.prod(leaf.shape) >= min_elements:
                spec = find_best_spec(leaf.shape, axes)
            specs.append(spec)
        return specs

    def _parse_methods(self, methods: Any) -> list[tuple[str, ...]]:
        """Returns the mesh axes of methods, each once and checked, those for the same dimension as a tuple."""
        if isinstance(methods, str) or not isinstance(methods, list | tuple):
            raise TypeError(
                f"`methods` is a list of tuples of mesh axes, such as [('data',)], not {format_value(methods)}."
            )
        used_names: set[str] = set()
        groups: list[tuple[str, ...]] = []
        for method in methods:
            names = parse_axis_names(method, "methods")
            check_mesh_axes(self.mesh, names)
            for name in names:
                if name in self.batch_axes:
                    raise ValueError(
                        f"mesh axis {name!r} is one of the `batch_axes` {self.batch_axes}, which shard no arrays; "
                        "take it out of `methods`, or out of `batch_axes`"
                    )
            groups.append(tuple(name for name in names if name not in used_names))
            used_names.update(names)
        return groups


def _find_grouped_spec(
    shape: tuple[int, ...], groups: list[tuple[str, ...]], sizes: dict[str, int], max_parts: int
) -> P:
    """Returns the best spec, with the mesh axes of a group on the same dimension where that costs no parts."""
    groups = [tuple(name for name in group if name in sizes) for group in groups]
    units: list[tuple[str, ...]] = [(name,) for group in groups for name in group]
    best_spec, best_parts = _find_spec_of_units(shape, units, sizes, max_parts)
    for group in groups:
        if len(group) > 1:
            trial_units = [unit for unit in units if unit[0] not in group]
            trial_units.insert(units.index((group[0],)), group)
            spec, parts = _find_spec_of_units(shape, trial_units, sizes, max_parts)
            if parts == best_parts:
                best_spec, units = spec, trial_units
    return best_spec


def _find_spec_of_units(
    shape: tuple[int, ...], units: list[tuple[str, ...]], sizes: dict[str, int], max_parts: int
) -> tuple[P, int]:
    """Returns the best spec that has the mesh axes of each unit on the same dimension, and its number of parts."""
    # To the search, each unit is a single mesh axis, whose name is its index.
    units_by_index = {str(index): unit for index, unit in enumerate(units)}
    unit_axes = tuple((index, math.prod(sizes[name] for name in unit)) for index, unit in units_by_index.items())
    unit_spec = find_best_spec(shape, unit_axes, max_parts=max_parts)
    entries = [tuple(name for index in get_entry_axes(entry) for name in units_by_index[index]) for entry in unit_spec]
    return P(*map(make_spec_entry, entries)), math.prod(sizes[name] for entry in entries for name in entry)


def _place_arrays(leaves: list[Any], specs: list[P], mesh: MeshLike) -> list[Any]:
    """Returns leaves with the arrays among them placed by their specs."""
    arrays = [leaf.array if isinstance(leaf, NamedArray) else leaf for leaf in leaves]
    shardings: list[NamedSharding | None] = []
    for array, spec in zip(arrays, specs, strict=True):
        is_array = isinstance(array, ARRAY_TYPES) and get_array_shape(array) is not None
        shardings.append(NamedSharding(mesh, spec) if is_array else None)
    placed = place_leaves(arrays, shardings, mesh)
    return rewrap_arrays(leaves, placed)

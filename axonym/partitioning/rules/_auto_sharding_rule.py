"""`AutoShardingRule`: each array divided as far as the mesh can, from its shape alone."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from ..specs._resolve_spec import MeshLike
from ._assignment import best_spec
from ._rule_options import OnAMesh, checked_mesh, checked_names, whole_number
from ._sharding_rule import ShardingRule, flatten_for_rule, get_array_shape, get_usable_axes


@dataclasses.dataclass(frozen=True, repr=False)
class AutoShardingRule(OnAMesh, ShardingRule):
    """Divides each array into as many equal parts as the mesh can, judged by its shape alone.

    All ways to divide the dimensions over the mesh axes are compared, several mesh axes on one dimension among them, so
    no other spec leaves fewer bytes on each device. Of the ways that are equal in this, those are taken, one after the
    other, that leave a first dimension whole that looks like a stack of layers (the smallest, before at least two
    others), divide more dimensions, divide larger dimensions, and put the first mesh axis on the largest one. Mesh axes
    of size 1, and those that are Manual inside `shard_map`, divide nothing. The specs depend on nothing but shapes and
    mesh, so all processes find the same.

    Shapes do not tell which arrays a computation joins: rules that go by names or roles divide weights in a way that
    needs less communication.

    Args:
        mesh: The mesh, with devices or abstract; the one in force when the rule is applied if None.
        axis_names: The mesh axes that may be used, all if None; their order does not matter.
        min_shard_size: Arrays with fewer elements stay whole; the number of devices if None.
        reverse: Takes smaller dimensions first in place of larger ones.

    Attributes:
        mesh: The mesh to shard across, None for the one in force.
        axis_names: The names of the mesh axes to consider, as a tuple, None for all.
        min_shard_size: The fewest elements that an array is divided with, None for the number of devices.
        reverse: Whether smaller dimensions are taken first.

    Raises:
        TypeError: If an argument is of the wrong kind, as a name in place of a list of names.
        ValueError: If the mesh lacks one of the names, a name is there twice, or `min_shard_size` is negative.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> rule = nym.AutoShardingRule(nym.create_mesh((4, 2), ("data", "model")))
        >>> rule.apply({"weight": jnp.ones((16, 64)), "bias": jnp.ones(64), "step": jnp.ones(())})
        {'bias': P(('data', 'model'),), 'step': P(), 'weight': P('model', 'data')}
    """

    mesh: MeshLike | None = None
    axis_names: Sequence[str] | None = None
    min_shard_size: int | None = None
    reverse: bool = False
    _sees_shapes_alone = True

    def __post_init__(self) -> None:
        """Checks the options; see the class."""
        mesh, names, least = checked_mesh(self.mesh), self.axis_names, self.min_shard_size
        self._keep(
            axis_names=None if names is None else checked_names(names, mesh, "axis_names"),
            min_shard_size=None if least is None else whole_number(least, "min_shard_size"),
            reverse=bool(self.reverse),
        )

    def apply(self, pytree: Any) -> Any:
        """Chooses a spec for each array of a tree.

        Args:
            pytree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays; named arrays count as one leaf each.

        Returns:
            The tree with a `PartitionSpec` in place of each leaf: with one entry for each axis where an array is
            divided, empty for other leaves.

        Raises:
            ValueError: If there is no mesh, or the one in force lacks one of the axes.
        """
        mesh = self._mesh_here()
        axes = get_usable_axes(mesh, self.axis_names)
        least = math.prod(mesh.shape.values()) if self.min_shard_size is None else self.min_shard_size
        leaves, treedef = flatten_for_rule(pytree)
        shapes = [get_array_shape(leaf) for _, leaf in leaves]
        specs = [P() if shape is None or math.prod(shape) < least else self._spec(shape, axes) for shape in shapes]
        return jax.tree.unflatten(treedef, specs)

    def _spec(self, shape: tuple[int, ...], axes: tuple[tuple[str, int], ...]) -> P:
        """Returns the spec of an array of this shape."""
        sign = 1 if self.reverse else -1
        order = tuple(sorted(range(len(shape)), key=lambda at: (sign * shape[at], at)))
        return best_spec(shape, axes, order=order)

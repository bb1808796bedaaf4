"""`AutoShardingRule`: each array sharded into as many parts as the mesh allows, by its shape alone."""

import dataclasses
import math
from collections.abc import Sequence

from jax.sharding import PartitionSpec as P

from ..specs._active_mesh import MeshLike
from ._best_spec import find_best_spec, get_usable_axes
from ._rule_options import HasMesh, check_axis_names, check_integer, check_mesh
from ._rule_tree import RuleTree
from ._sharding_rule import BuiltInRule, Decision, is_empty_spec


@dataclasses.dataclass(frozen=True, repr=False)
class AutoShardingRule(HasMesh, BuiltInRule):
    """Shards each array into as many equal parts as the mesh allows, by its shape alone.

    All ways to shard the dimensions over the mesh axes are compared, including several mesh axes on one dimension, so
    no other spec leaves fewer bytes on each device. Among specs that are equal in this, it prefers, in this order,
    a replicated first dimension if it looks like a stack of layers (the smallest, before at least two others), more
    sharded dimensions, larger sharded dimensions, and the first mesh axis on the largest one. Mesh axes of size 1, and
    Manual ones inside `shard_map`, are not used. The specs depend on nothing but shapes and mesh, so all
    processes find the same.

    Shapes do not reveal which arrays a computation combines: rules that use names or roles shard weights in a way that
    needs less communication.

    Args:
        mesh: The mesh, with devices or abstract; the active mesh when the rule is applied if None.
        axis_names: The mesh axes that may be used, all if None; their order does not matter.
        min_shard_size: Arrays with fewer elements are replicated; the number of devices if None.
        reverse: Prefers smaller dimensions to larger ones.

    Raises:
        TypeError: If an argument is of the wrong kind, such as a name in place of a list of names.
        ValueError: If the mesh lacks one of the names, a name is given twice, or `min_shard_size` is negative.

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

    def __post_init__(self) -> None:
        mesh, names, least = check_mesh(self.mesh), self.axis_names, self.min_shard_size
        self._set_options(
            axis_names=None if names is None else check_axis_names(names, mesh, "axis_names"),
            min_shard_size=None if least is None else check_integer(least, "min_shard_size"),
            reverse=bool(self.reverse),
        )

    def _decide_leaves(self, tree: RuleTree, mesh: MeshLike | None) -> list[Decision]:
        mesh = self._resolve_mesh(mesh)
        axes = get_usable_axes(mesh, self.axis_names)
        least = mesh.size if self.min_shard_size is None else self.min_shard_size
        shapes = [leaf.shape for leaf in tree.leaves]
        specs: list[P] = []
        for shape in shapes:
            if shape is None or math.prod(shape) < least:
                specs.append(P())
                continue
            order = sorted(range(len(shape)), key=shape.__getitem__, reverse=not self.reverse)
            specs.append(find_best_spec(shape, axes, order=tuple(order)))
        return [Decision(spec, mesh=mesh, is_final=not is_empty_spec(spec)) for spec in specs]

"""Rules that shard arrays by their sizes alone: `AutoShardingRule` and `MemoryConstrainedShardingRule`."""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from jax.sharding import PartitionSpec as P
from jax.tree_util import keystr

from .._ground.errors import find_stacklevel, make_error
from ..named._array import NamedArray
from ..named._axis_layout import get_entry_axes
from ..partitioning._active_mesh import MeshLike, check_mesh
from ..partitioning._leaves import count_array_bytes
from ._best_spec import MeshAxes, find_best_spec, get_usable_axes
from ._sharding_rule import (
    BuiltInRule,
    Decision,
    HasMesh,
    RuleTree,
    check_axis_names,
    check_integer,
    is_empty_spec,
)


_MAX_SHARDS = 5  # shown


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
        min_elements = mesh.size if self.min_shard_size is None else self.min_shard_size
        decisions: list[Decision] = []
        for leaf in tree.leaves:
            shape, spec = leaf.shape, P()
            if shape is not None and math.prod(shape) >= min_elements:
                order = sorted(range(len(shape)), key=shape.__getitem__, reverse=not self.reverse)
                spec = find_best_spec(shape, axes, order=tuple(order))
            decisions.append(Decision(spec, mesh=mesh, is_final=not is_empty_spec(spec)))
        return decisions


@dataclasses.dataclass(frozen=True, repr=False)
class MemoryConstrainedShardingRule(HasMesh, BuiltInRule):
    """Shards the arrays of a tree until the bytes of all of them on each device fit a limit.

    The limit is for the entire tree. If it holds with every array replicated, nothing is sharded. Otherwise arrays are
    sharded as far as the mesh allows, those first that save most, until the limit holds; the last one is sharded into
    the fewest parts that suffice. Each is sharded as by `AutoShardingRule`, but with the first mesh axis on the first
    dimension.

    The bytes of one shard of each array count: elements smaller than a byte count by their bits, random keys
    by their data, named arrays like others. Each leaf counts separately, also where one array occurs twice, because a
    compiled function returns two for it. Leaves that are not arrays count nothing.

    **The limit does not include** anything outside the tree: gradients, the optimizer's state, activations and the
    compiler's temporary memory. Apply the rule to the parameters and the optimizer's state as one tree to have a limit
    for both. As the `fallback` of a mapping, the rule gets the plain arrays that the mapping leaves to it, and not
    those with names.

    In a `CompositeShardingRule` the limit is for the entire tree too: arrays about which earlier rules have decided
    count with their bytes on each device, and only the others are sharded. Later rules shard what it leaves replicated.

    Args:
        max_memory_per_device: The most bytes of the tree that each device may hold; `8e9` is accepted too.
        mesh: The mesh, with devices or abstract; the active mesh when the rule is applied if None.
        axis_names: The mesh axes that may be used, all if None; their order does not matter.
        on_excess: What happens where even the best sharding exceeds the limit: `"error"`, or `"warn"` for a warning and
            the best sharding.

    Raises:
        TypeError: If an argument is of the wrong kind, such as a name in place of a list of names.
        ValueError: If the limit is not positive and finite, the mesh lacks one of the names, a name is given twice, or
            `on_excess` is something else.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> params = {"weight": jnp.ones((16, 64)), "bias": jnp.ones(64)}  # 4352 bytes
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> nym.MemoryConstrainedShardingRule(4352, mesh).apply(params)
        {'bias': P(), 'weight': P()}
        >>> nym.MemoryConstrainedShardingRule(1500, mesh).apply(params)
        {'bias': P(), 'weight': P(None, 'data')}
        >>> nym.MemoryConstrainedShardingRule(544, mesh).apply(params)
        {'bias': P(('data', 'model'),), 'weight': P('data', 'model')}
    """

    max_memory_per_device: int
    mesh: MeshLike | None = None
    axis_names: Sequence[str] | None = None
    on_excess: Literal["error", "warn"] = dataclasses.field(default="error", kw_only=True)

    def __post_init__(self) -> None:
        mesh, names = check_mesh(self.mesh), self.axis_names
        if self.on_excess not in ("error", "warn"):
            raise make_error(ValueError, f"`on_excess` is 'error' or 'warn', not {self.on_excess!r}")
        self._set_options(
            max_memory_per_device=check_integer(self.max_memory_per_device, "max_memory_per_device", 1),
            axis_names=None if names is None else check_axis_names(names, mesh, "axis_names"),
        )

    def _decide_leaves(self, tree: RuleTree, mesh: MeshLike | None) -> list[Decision]:
        mesh = self._resolve_mesh(mesh)
        axes, sizes = get_usable_axes(mesh, self.axis_names), dict(get_usable_axes(mesh))
        arrays: dict[int, _ShardedArray] = {}
        fixed: dict[int, _ShardedArray] = {}
        for position, leaf in enumerate(tree.leaves):
            if leaf.shape is None:
                continue
            if leaf.spec is None:
                arrays[position] = _ShardedArray.make(leaf.array, find_best_spec(leaf.shape, axes), sizes)
            else:
                fixed[position] = _ShardedArray.make(leaf.array, leaf.spec, sizes)
        fixed_bytes = sum(array.shard_bytes for array in fixed.values())
        specs, device_bytes = self._choose_specs(arrays, axes, fixed_bytes)
        if device_bytes > self.max_memory_per_device:
            by_path = {keystr(tree.leaves[position].path): array for position, array in {**arrays, **fixed}.items()}
            text = self._describe_excess(device_bytes, by_path, fixed_bytes)
            if self.on_excess == "error":
                raise make_error(ValueError, text)
            warnings.warn(text, RuntimeWarning, stacklevel=find_stacklevel())
        return [
            Decision(specs.get(position, P()), mesh=mesh, is_final=position in specs)
            for position in range(len(tree.leaves))
        ]

    def _choose_specs(
        self, arrays: dict[int, "_ShardedArray"], axes: MeshAxes, fixed_bytes: int
    ) -> tuple[dict[int, P], int]:
        """Returns specs for the arrays that have to be sharded, and the bytes that each device then holds."""
        device_bytes = fixed_bytes + sum(array.bytes for array in arrays.values())
        specs: dict[int, P] = {}
        for position in sorted(arrays, key=lambda position: (-arrays[position].saved, position)):
            array, excess = arrays[position], device_bytes - self.max_memory_per_device
            if excess <= 0 or not array.saved:
                break
            if array.saved > excess:
                # Each shard may have what the others leave of the limit; this many parts, rounded up, are as small.
                target_parts = -(-array.bytes // (array.bytes - excess))
                spec = find_best_spec(array.shape, axes, target_parts=target_parts)
                array = _ShardedArray.make(array.array, spec, dict(axes))
            specs[position] = array.spec
            device_bytes -= array.saved
        return specs, device_bytes

    def _describe_excess(self, device_bytes: int, arrays: dict[str, "_ShardedArray"], fixed_bytes: int) -> str:
        limit = self.max_memory_per_device
        fixed_text = f", {fixed_bytes:,} of them of arrays whose specs other rules decide" if fixed_bytes else ""
        largest = sorted(arrays, key=lambda path: -arrays[path].shard_bytes)[:_MAX_SHARDS]
        largest_text = ", ".join(
            f"{path or 'the array'} of shape {arrays[path].shape} with {arrays[path].shard_bytes:,} bytes"
            for path in largest
        )
        return (
            f"sharded as far as the mesh allows, the arrays need {device_bytes:,} bytes on each device{fixed_text}, "
            f"{device_bytes - limit:,} more than the {limit:,} of `max_memory_per_device`; the largest shards are "
            f"{largest_text}; use more devices or mesh axes, give arrays sizes that are divisible by the mesh axes, "
            "raise the limit, or accept this with `on_excess='warn'`"
        )


class _ShardedArray(NamedTuple):
    """An array with a spec, and its bytes in all and in each shard."""

    array: Any
    spec: P
    bytes: int
    shard_bytes: int

    @classmethod
    def make(cls, array: Any, spec: P, sizes: dict[str, int]) -> "_ShardedArray":
        """Returns an array with a spec, of which entries that do not fit the sizes are ignored."""
        array = array.array if isinstance(array, NamedArray) else array
        shard = list(array.shape)
        for dim, entry in enumerate(spec[: len(shard)]):
            axes = () if entry is P.UNCONSTRAINED else get_entry_axes(entry)
            parts = math.prod(sizes.get(axis, 1) for axis in axes)
            shard[dim] = shard[dim] // parts if shard[dim] % parts == 0 else shard[dim]
        return cls(array, spec, count_array_bytes(array.dtype, array.shape), count_array_bytes(array.dtype, shard))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def saved(self) -> int:
        """Returns the bytes that sharding saves on each device."""
        return self.bytes - self.shard_bytes

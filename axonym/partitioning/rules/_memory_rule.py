"""`MemoryConstrainedShardingRule`: the arrays of a tree divided until what each device holds of them fits a limit."""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
from jax.sharding import PartitionSpec as P
from jax.tree_util import keystr

from ...named._ambient import get_entry_axes
from ...named._array import NamedArray
from ..specs._bytes_per_device import count_array_bytes
from ..specs._resolve_spec import MeshLike, user_stacklevel
from ._assignment import MeshAxes, best_spec
from ._rule_options import OnAMesh, checked_mesh, checked_names, whole_number
from ._sharding_rule import Pairs, ShardingRule, flatten_for_rule, get_array_shape, get_usable_axes


_SHOWN = 5


@dataclasses.dataclass(frozen=True, repr=False)
class MemoryConstrainedShardingRule(OnAMesh, ShardingRule):
    """Divides the arrays of a tree until all that each device holds of them fits into a number of bytes.

    The limit is for the whole tree. If it holds with every array whole on each device, nothing is divided. Otherwise
    arrays are divided as far as the mesh can, those first with which most is saved, until the limit holds; the last one
    is divided into the fewest parts with which it does. Each is divided as by `AutoShardingRule`, but with the first
    mesh axis on the first dimension.

    What counts is the bytes of one part of each array: elements of less than a byte by their bits, random keys by their
    data, named arrays like others. Each leaf counts for itself, also where one array is at two places, because what a
    compiled function returns for them are two. Leaves that are no arrays count nothing.

    **The limit does not include** what is not in the tree: gradients, the optimizer's state, activations and the
    compiler's temporary memory. Apply the rule to the parameters and the optimizer's state as one tree to have a limit
    for both. As the `fallback` of a mapping, the rule sees the plain arrays that go by it, and not those with names.

    In a `CompositeShardingRule` the limit is for the whole tree too: arrays about which rules before this one have
    decided count with what each device holds of them, and only the others are divided. Rules after it divide what it
    leaves whole.

    Args:
        max_memory_per_device: The most bytes that each device may hold of the tree; `8e9` is accepted too.
        mesh: The mesh, with devices or abstract; the one in force when the rule is applied if None.
        axis_names: The mesh axes that may be used, all if None; their order does not matter.
        on_excess: What happens where even the best division is over the limit: `"error"`, or `"warn"` to get a warning
            and the best division.

    Attributes:
        max_memory_per_device: The most bytes for each device.
        mesh: The mesh to shard across, None for the one in force.
        axis_names: The names of the mesh axes to consider, as a tuple, None for all.
        on_excess: `"error"` or `"warn"`.

    Raises:
        TypeError: If an argument is of the wrong kind, as a name in place of a list of names.
        ValueError: If the limit is not positive and finite, the mesh lacks one of the names, a name is there twice, or
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
    _sees_shapes_alone = True

    def __post_init__(self) -> None:
        """Checks the options; see the class."""
        mesh, names = checked_mesh(self.mesh), self.axis_names
        if self.on_excess not in ("error", "warn"):
            raise ValueError(f"`on_excess` is 'error' or 'warn', not {self.on_excess!r}")
        self._keep(
            max_memory_per_device=whole_number(self.max_memory_per_device, "max_memory_per_device", 1),
            axis_names=None if names is None else checked_names(names, mesh, "axis_names"),
        )

    def apply(self, pytree: Any) -> Any:
        """Chooses specs for the arrays of a tree such that each device holds no more of all than the limit.

        Args:
            pytree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays; named arrays count as one leaf each.

        Returns:
            The tree with a `PartitionSpec` in place of each leaf: with one entry for each axis where an array is
            divided, empty for other leaves.

        Raises:
            ValueError: If there is no mesh, the one in force lacks one of the axes, or the tree does not fit however it
                is divided; the message has the largest arrays.

        Warns:
            RuntimeWarning: If the tree does not fit and `on_excess` is `"warn"`.
        """
        pairs, treedef = flatten_for_rule(pytree)
        specs = self._specs(pairs, [None] * len(pairs))
        return jax.tree.unflatten(treedef, [specs.get(at, P()) for at in range(len(pairs))])

    def _decide_beside(self, pytree: Any, decided: list[P | None]) -> Any:
        """Returns specs for the arrays that have to be divided, where those decided hold what their specs say."""
        mine = MemoryConstrainedShardingRule
        if (type(self).apply, type(self).decide) != (mine.apply, mine.decide):
            return self.decide(pytree)
        pairs, treedef = flatten_for_rule(pytree)
        specs = self._specs(pairs, decided)
        return jax.tree.unflatten(treedef, [specs.get(at) for at in range(len(pairs))])

    def _specs(self, pairs: Pairs, decided: list[P | None]) -> dict[int, P]:
        """Returns specs for the arrays that have to be divided, by their number among the leaves.

        Raises:
            ValueError: If even the best division is over the limit.
        """
        mesh = self._mesh_here()
        axes, all_axes = get_usable_axes(mesh, self.axis_names), get_usable_axes(mesh)
        arrays, beside = dict[int, _Array](), dict[int, _Array]()
        for at, ((_, leaf), spec) in enumerate(zip(pairs, decided, strict=True)):
            if get_array_shape(leaf) is None:
                continue
            if spec is None:
                arrays[at] = _Array.of(leaf, axes)
            else:
                beside[at] = _Array.decided(leaf, spec, all_axes)
        taken = sum(array.least for array in beside.values())
        specs, held = self._divided(arrays, axes, taken)
        if held > self.max_memory_per_device:
            text = self._excess(held, {keystr(pairs[at][0]): one for at, one in {**arrays, **beside}.items()}, beside)
            if self.on_excess == "error":
                raise ValueError(text)
            warnings.warn(text, RuntimeWarning, stacklevel=user_stacklevel())
        return specs

    def _divided(self, arrays: dict[int, "_Array"], axes: MeshAxes, taken: int) -> tuple[dict[int, P], int]:
        """Returns specs for the arrays that have to be divided, and the bytes that each device then holds of all."""
        held, specs = taken + sum(array.bytes for array in arrays.values()), {}
        for at in sorted(arrays, key=lambda at: (-arrays[at].saved, at)):
            array, excess = arrays[at], held - self.max_memory_per_device
            if excess <= 0 or not array.saved:
                break
            if array.saved > excess:
                enough = -(-array.bytes // (array.bytes - excess))
                array = _Array.divided(array, best_spec(array.shape, axes, enough=enough), axes)
            specs[at] = array.spec
            held -= array.saved
        return specs, held

    def _excess(self, held: int, arrays: dict[str, "_Array"], beside: dict[int, "_Array"]) -> str:
        """Returns the message for a tree that does not fit, in which other rules may have decided about some arrays."""
        limit, taken = self.max_memory_per_device, sum(array.least for array in beside.values())
        others = f", {taken:,} of them of arrays whose specs other rules decide" if beside else ""
        largest = sorted(arrays, key=lambda path: -arrays[path].least)[:_SHOWN]
        shown = ", ".join(
            f"{path or 'the array'} of shape {arrays[path].shape} with {arrays[path].least:,} bytes" for path in largest
        )
        return (
            f"divided as far as the mesh can, the arrays need {held:,} bytes on each device{others}, {held - limit:,} "
            f"more than the {limit:,} of `max_memory_per_device`; the largest parts are {shown}; use more devices or "
            "mesh axes, give arrays sizes that the mesh divides, raise the limit, or accept this with "
            "`on_excess='warn'`"
        )


class _Array(NamedTuple):
    """An array: its bytes, and those of one part by a spec, the best one at first."""

    shape: tuple[int, ...]
    bytes: int
    dtype: Any
    spec: P
    least: int

    @classmethod
    def of(cls, leaf: Any, axes: MeshAxes) -> "_Array":
        """Returns what is known of a leaf, divided as far as the mesh can."""
        leaf = leaf.array if type(leaf) is NamedArray else leaf
        shape = tuple(leaf.shape)
        whole = count_array_bytes(leaf.dtype, shape)
        return cls(shape, whole, leaf.dtype, P(), whole).divided(best_spec(shape, axes), axes)

    @classmethod
    def decided(cls, leaf: Any, spec: P, axes: MeshAxes) -> "_Array":
        """Returns the same divided by the spec of another rule, as far as the mesh can: its checks come later."""
        leaf, sizes = leaf.array if type(leaf) is NamedArray else leaf, dict(axes)
        shape, part = tuple(leaf.shape), list(leaf.shape)
        for at, entry in enumerate(spec[: len(shape)]):
            parts = math.prod(
                sizes.get(axis, 1) for axis in get_entry_axes(None if entry is P.UNCONSTRAINED else entry)
            )
            part[at] = shape[at] // parts if shape[at] % parts == 0 else shape[at]
        return cls(shape, count_array_bytes(leaf.dtype, shape), leaf.dtype, spec, count_array_bytes(leaf.dtype, part))

    def divided(self, spec: P, axes: MeshAxes) -> "_Array":
        """Returns the same array with another spec."""
        sizes = dict(axes)
        parts = [math.prod(sizes[axis] for axis in get_entry_axes(entry)) for entry in spec] or [1] * len(self.shape)
        part = [size // count for size, count in zip(self.shape, parts, strict=True)]
        return self._replace(spec=spec, least=count_array_bytes(self.dtype, part))

    @property
    def saved(self) -> int:
        """Returns the bytes that each device is saved."""
        return self.bytes - self.least

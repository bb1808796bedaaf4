"""The leaves of a tree: the shape and the bytes of each and, from the tree's structure, its names, path and mapping.

Descriptions depend on the structure alone, so a compiled function makes them once for all calls with one structure.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.tree_util import DictKey, SequenceKey

from .._ground.caches import cached_plan
from ..named._array import NamedArray
from ..named._axis import Names
from ..named._field import HasLeadingAxes, get_declared_axes
from ..named._numpy_input import is_jax_dtype
from ._active_mesh import MeshLike
from ._mapping import AxisMapping, ResourceMapping


T = TypeVar("T")

ARRAY_TYPES = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)
"""The types of arrays, and of what stands for an array."""


@functools.partial(jax.tree_util.register_dataclass, data_fields=["tree"], meta_fields=["mapping"])
@dataclasses.dataclass(frozen=True, init=False)
class ShardedBy(Generic[T]):
    """A part of a tree with a mapping of its own, which replaces the mapping of the rest.

    It is a pytree with one child, the part; the mapping belongs to the tree's structure. `shard`, and `named_jit` for
    arguments and results, shard the part by it instead of the given or active mapping. Where two are nested, the inner
    one applies.

    Args:
        tree: The part, any tree of arrays.
        mapping: From names to mesh axes. It is complete: nothing of the active mapping is added.

    Raises:
        TypeError: If the mapping is not a mapping.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> x = nym.ones({"batch": 8, "embed": 4})
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     one, other = nym.shard((x, nym.ShardedBy(x, {"embed": "model"})), {"batch": "data"})
        >>> one.sharding.spec, other.tree.sharding.spec
        (P('data', None), P(None, 'model'))
    """

    tree: T
    mapping: AxisMapping

    def __init__(self, tree: T, mapping: ResourceMapping) -> None:
        object.__setattr__(self, "tree", tree)
        object.__setattr__(self, "mapping", require_complete_mapping(mapping))


def require_complete_mapping(mapping: Any) -> AxisMapping:
    """Returns the given mapping; raises a TypeError if it is None, or not a mapping."""
    if mapping is None:  # for which `as_mapping` would return the active mapping
        raise TypeError("A mapping from names to mesh axes is needed, such as {'mlp': 'model'}, not None.")
    return mapping if isinstance(mapping, AxisMapping) else AxisMapping(mapping)


def get_array_shape(leaf: Any) -> tuple[int, ...] | None:
    """Returns the shape of an array of any kind, named arrays and shapes without data included; None for other leaves.

    NumPy arrays of dtypes that JAX does not support, such as text, do not count as arrays.
    """
    leaf = leaf.array if isinstance(leaf, NamedArray) else leaf
    if isinstance(leaf, np.ndarray | np.generic) and not is_jax_dtype(leaf.dtype):
        return None
    shape = getattr(leaf, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) and hasattr(leaf, "dtype") else None


class LeafInfo(NamedTuple):
    """A leaf of a tree, as the structure of the tree describes it.

    Args:
        names: The names of its axes, None if it has none.
        declared: Whether a field declares the names.
        path: Its key path.
        mapping: The mapping of the part of the tree that it belongs to, None for the mapping of the call.
        leading_axes: The axes along which the enclosing layers are stacked, in addition to the declared ones.
        decision: What a fallback rule decides for it, which does not follow from the structure.
    """

    names: Names | None
    declared: bool
    path: tuple[Any, ...]
    mapping: AxisMapping | None = None
    leading_axes: Names = ()
    decision: Any = None

    def names_of(self, sizes: tuple[int, ...]) -> Names | None:
        """Returns the names of an array of these sizes in this place, None if it has none or they do not fit."""
        if self.names is None or len(self.names) == len(sizes):
            return self.names
        stacked = (*self.leading_axes, *self.names)
        return stacked if self.leading_axes and len(stacked) == len(sizes) else None


def format_prefix(path: str) -> str:
    """Returns the start of an error about the leaf at a path, such as `['weight']: `; nothing for the entire tree."""
    return f"{path}: " if path else ""


def describe_leaves(
    tree: Any, path: tuple[Any, ...] = (), mapping: AxisMapping | None = None, leading_axes: Names = ()
) -> list[LeafInfo]:
    """Returns a description of each leaf of a tree, in order; it is the same for all trees of one structure.

    If the tree is part of another one, it has a path there, perhaps a mapping, and the leading axes of stacked layers.
    """
    declared = get_declared_axes(type(tree))
    mapping = tree.mapping if type(tree) is ShardedBy else mapping
    leading_axes = (*leading_axes, *tree._leading_axes()) if isinstance(tree, HasLeadingAxes) else leading_axes
    pairs, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: isinstance(x, NamedArray) or (x is not tree and _describes_leaves(x))
    )
    descriptions: list[LeafInfo] = []
    for keys, node in pairs:
        leaf_path = (*path, *keys)
        if isinstance(node, NamedArray):
            # JAX may have put a tree, or nothing, in the place of the array.
            descriptions += [LeafInfo(node.names, False, leaf_path, mapping)] * len(jax.tree.leaves(node.array))
        elif node is not tree and _describes_leaves(node):
            descriptions += describe_leaves(node, leaf_path, mapping, leading_axes)
        else:
            # A field declares the names of the array that it holds, directly or in lists, tuples and dicts.
            is_in_field = bool(keys) and all(isinstance(key, SequenceKey | DictKey) for key in keys[1:])
            names = declared.get(getattr(keys[0], "name", "")) if is_in_field else None
            descriptions.append(LeafInfo(names, names is not None, leaf_path, mapping, leading_axes))
    return descriptions


def _describes_leaves(node: Any) -> bool:
    return names_or_maps_leaves(type(node)) or isinstance(node, HasLeadingAxes)


def have_mappings(described: Sequence[LeafInfo]) -> bool:
    """Returns whether some leaf is in a `ShardedBy`, which has a mapping of its own."""
    return any(leaf.mapping is not None for leaf in described)


@cached_plan
def names_or_maps_leaves(cls: type) -> bool:
    """Returns whether nodes of a class declare names or a mapping for the leaves inside them."""
    return cls is ShardedBy or bool(get_declared_axes(cls))


class Load(NamedTuple):
    """The bytes of an array, in all and on each device that holds it, and which devices hold it if that is known."""

    bytes: int
    per_device: int
    devices: int
    held_by: frozenset[Any] | None = None

    @property
    def replicated(self) -> int:
        """Returns the bytes held beyond one copy."""
        return max(self.per_device * self.devices - self.bytes, 0)


def count_array_bytes(dtype: Any, shape: Sequence[int]) -> int:
    """Returns the bytes of an array, with elements smaller than a byte counted by bits, and random keys by data."""
    has_bits = not (jnp.issubdtype(dtype, jax.dtypes.extended) or dtype.kind in "USOMm" or dtype == jax.dtypes.float0)
    bits = jax.dtypes.itemsize_bits(dtype) if has_bits else dtype.itemsize * 8
    return -(-math.prod(shape) * bits // 8)


def count_devices(mesh: MeshLike) -> int:
    """Returns the number of devices of a mesh, not counting its Manual axes."""
    types = zip(mesh.axis_types, mesh.shape.values(), strict=True)
    return math.prod(size for kind, size in types if kind != AxisType.Manual)


def sum_device_bytes(loads: Iterable[Load]) -> tuple[int, dict[Any, int]]:
    """Returns the bytes that every device holds, and the additional bytes of each known device."""
    everywhere = 0
    # First by groups of devices, of which there are few: a tree may have thousands of arrays on thousands of devices.
    groups: Counter[frozenset[Any]] = Counter()
    for load in loads:
        if load.held_by is None:
            everywhere += load.per_device
        else:
            groups[load.held_by] += load.per_device
    per_device: Counter[Any] = Counter()
    for devices, share in groups.items():
        per_device.update(dict.fromkeys(devices, share))
    return everywhere, per_device


def get_fullest_device_bytes(everywhere: int, per_device: dict[Any, int]) -> int:
    """Returns the bytes on the fullest device, from the results of `sum_device_bytes`."""
    return everywhere + max(per_device.values(), default=0)

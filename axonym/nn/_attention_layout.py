"""The axes of attention in the order of kernels: batch, heads of keys, queries of a head, positions, vectors."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from ..named._ambient import constrain_sharding, get_sharding
from ..named._array import NamedArray
from ..named._axis import Axis, Names
from ..named._axis_layout import get_entry_axes
from ..named._broadcasting import align_axes
from ..named._dot import get_natural_order
from ..named._shape._rearrange import rearrange
from ._attention_inputs import AttentionInputs
from ._attention_mask import as_attention_mask


@dataclasses.dataclass(frozen=True)
class AttentionLayout:
    """The axes of queries, keys and values by what kernels do with them; each may be none, one or several.

    Attributes:
        batch: Axes that all three have, except `heads`.
        heads: The last axis that all three have, in the order of the query, if the mask does not depend on it.
        groups: Axes of the query that the key lacks, other than that of positions.
        queries: The axis of query positions.
        keys: The axis of key positions.
        contracted: The axes to contract.
        vectors: The other axes of the value.
    """

    batch: tuple[Axis, ...]
    heads: tuple[Axis, ...]
    groups: tuple[Axis, ...]
    queries: tuple[Axis, ...]
    keys: tuple[Axis, ...]
    contracted: tuple[Axis, ...]
    vectors: tuple[Axis, ...]


def find_layout_obstacle(inputs: AttentionInputs) -> str | None:
    """Returns why the axes have no order in which a kernel takes them, None if they have one."""
    query, value = inputs.query.names, inputs.value.names
    for name in inputs.key.names:
        if name != inputs.KPos and name not in query:
            return f"the key has axis {name!r}, which the query lacks"
        if name != inputs.KPos and name not in inputs.Key and name not in value:
            return f"the key has axis {name!r}, which the value lacks"
    for name in value:
        if name in inputs.Key and inputs.value.axis_size(name) != inputs.key.axis_size(name):
            return f"axis {name!r} has another size in the value than in the key"
        if name in query and name not in inputs.key.names:
            return f"the value has axis {name!r} of the query, which the key lacks"
    return None


def find_layout(inputs: AttentionInputs) -> AttentionLayout:
    """Returns the axes by what kernels do with them."""
    query, key, value = inputs.query, inputs.key, inputs.value
    shared = tuple(axis for axis in query.axes if axis.name in key.names and axis.name not in inputs.Key)
    masks = () if inputs.mask is None else as_attention_mask(inputs.mask).arrays
    heads = min(len(shared), 1)
    if shared and any(shared[-1].name in x.names for x in masks):
        heads = 0
    own = tuple(axis for axis in query.axes if axis.name not in key.names)
    return AttentionLayout(
        batch=shared[: len(shared) - heads],
        heads=shared[len(shared) - heads :],
        groups=tuple(axis for axis in own if axis.name != inputs.QPos),
        queries=tuple(axis for axis in own if axis.name == inputs.QPos),
        keys=(key.resolve_axis(inputs.KPos),),
        contracted=tuple(query.resolve_axis(name) for name in inputs.Key),
        vectors=tuple(axis for axis in value.axes if axis.name in inputs.Key or axis.name not in key.names),
    )


def order_result(x: NamedArray, inputs: AttentionInputs) -> NamedArray:
    """Returns the result of a kernel with its axes in the order of the products of named arrays."""
    scores = get_natural_order((inputs.query.names, inputs.key.names), inputs.Key)
    return constrain_sharding(rearrange(x, get_natural_order((scores, inputs.value.names), (inputs.KPos,))))


def get_sizes(*operands: tuple[Names, tuple[int, ...]]) -> dict[str, int]:
    """Returns the size of each axis of some arrays, given their names and shapes."""
    return {name: size for names, sizes in operands for name, size in zip(names, sizes, strict=True)}


def find_mesh_axes(axis: Axis) -> tuple[str, ...]:
    """Returns the mesh axes over which an axis is sharded."""
    sharding = get_sharding((axis.name,), (axis.size,))
    return () if sharding is None else get_entry_axes(sharding.spec[0])


def get_names(*parts: tuple[Axis, ...]) -> Names:
    """Returns the names of the axes of some parts of a layout, in order."""
    return tuple(axis.name for part in parts for axis in part)


def merge_parts(array: Any, names: Names, sizes: Mapping[str, int], *parts: tuple[Axis, ...]) -> Any:
    """Returns a plain array with one axis for each part of a layout.

    Args:
        array: The array, or a shard of it.
        names: The names of its axes.
        sizes: The size of each axis, in the shard if it is one. An axis that the array lacks is broadcast, except if it
            lacks all axes of a part, which then has size 1.
        *parts: Axes to merge.
    """
    shape = [[sizes[one.name] if _has_any(part, names) else 1 for one in part] for part in parts]
    array = jnp.broadcast_to(align_axes(array, names, get_names(*parts)), [size for part in shape for size in part])
    return array.reshape([math.prod(part) for part in shape])


def _has_any(part: tuple[Axis, ...], names: Names) -> bool:
    return any(axis.name in names for axis in part)

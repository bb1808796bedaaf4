"""The axes of attention as kernels take them, and `jax.nn.dot_product_attention`, which has the kernel of cuDNN.

Kernels take plain arrays with one axis each for the batch, heads, positions and vectors: `KernelAxes` says which named
axes these are.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..._ground.jax_compat import find_platform
from ...named._array import NamedArray
from ...named._axis import Axis, Names, get_names_and_sizes
from ...named._base import with_array
from ...named._broadcasting import align_axes
from ...named._dot import get_natural_order
from ...named._operation import run_operation
from ...named._shape._rearrange import rearrange
from ...named._sharding import constrain_sharding
from .._map_shards import find_mesh_axes
from ._inputs import AttentionInputs
from ._mask import (
    combine_masks,
    get_causal_offset,
    get_window_size,
    split_conjunction,
)


@dataclasses.dataclass(frozen=True)
class KernelAxes:
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


def find_axes_obstacle(inputs: AttentionInputs) -> str | None:
    """Returns why no kernel takes the axes, None if kernels do."""
    query_names, value_names = inputs.query.names, inputs.value.names
    for name in inputs.key.names:
        if name != inputs.key_axis and name not in query_names:
            return f"the key has axis {name!r}, which the query lacks"
        if name != inputs.key_axis and name not in inputs.contracted and name not in value_names:
            return f"the key has axis {name!r}, which the value lacks"
    for name in value_names:
        if name in inputs.contracted and inputs.value.axis_size(name) != inputs.key.axis_size(name):
            return f"axis {name!r} has another size in the value than in the key"
        if name in query_names and name not in inputs.key.names:
            return f"the value has axis {name!r} of the query, which the key lacks"
    return inputs.find_foreign_axis()


def find_kernel_axes(inputs: AttentionInputs) -> KernelAxes:
    """Returns the axes by what kernels do with them."""
    query, key, value = inputs.query, inputs.key, inputs.value
    shared = tuple(axis for axis in query.axes if axis.name in key.names and axis.name not in inputs.contracted)
    query_only = tuple(axis for axis in query.axes if axis.name not in key.names)
    mask_arrays = () if inputs.mask is None else inputs.mask.arrays
    heads = shared[-1:]
    if heads and any(heads[0].name in x.names for x in mask_arrays):
        heads = ()
    return KernelAxes(
        batch=shared[: len(shared) - len(heads)],
        heads=heads,
        groups=tuple(axis for axis in query_only if axis.name != inputs.query_axis),
        queries=tuple(axis for axis in query_only if axis.name == inputs.query_axis),
        keys=(key.resolve_axis(inputs.key_axis),),
        contracted=tuple(query.resolve_axis(name) for name in inputs.contracted),
        vectors=tuple(axis for axis in value.axes if axis.name in inputs.contracted or axis.name not in key.names),
    )


def get_names(*parts: tuple[Axis, ...]) -> Names:
    """Returns the names of the axes of some parts of `KernelAxes`, in order."""
    return tuple(axis.name for part in parts for axis in part)


def merge_parts(x: NamedArray, sizes: Mapping[str, int], *parts: tuple[Axis, ...]) -> Any:
    """Returns a plain array with one axis for each part of `KernelAxes`.

    Args:
        x: The array, or a shard of it.
        sizes: The size of each axis, in the shard if it is one. An axis that the array lacks is broadcast, except if it
            lacks all axes of a part, which then has size 1.
        *parts: Axes to merge.
    """
    shape = [[sizes[axis.name] if any(axis.name in x.names for axis in part) else 1 for axis in part] for part in parts]
    array = align_axes(x.array, x.names, get_names(*parts))
    array = jnp.broadcast_to(array, [size for part_sizes in shape for size in part_sizes])
    return array.reshape([math.prod(part_sizes) for part_sizes in shape])


def get_sizes(*operands: NamedArray) -> dict[str, int]:
    """Returns the size of each axis of some arrays."""
    return {name: size for x in operands for name, size in zip(x.names, x.array.shape, strict=True)}


def order_result(x: NamedArray, inputs: AttentionInputs) -> NamedArray:
    """Returns the result of a kernel with its axes in the order of the products of named arrays."""
    score_names = get_natural_order((inputs.query.names, inputs.key.names), inputs.contracted)
    result = rearrange(x, get_natural_order((score_names, inputs.value.names), (inputs.key_axis,)))
    return constrain_sharding(inputs.zero_hidden_queries(result))


def find_jax_obstacle(inputs: AttentionInputs) -> str | None:
    """Returns why `jax.nn.dot_product_attention` cannot compute this, None if it can."""
    for name, option in (("soft_cap", inputs.soft_cap), ("sinks", inputs.sinks), ("dropout", inputs.dropout or None)):
        if option is not None:
            return f"it has no `{name}`"
    if obstacle := find_axes_obstacle(inputs) or find_dtype_obstacle(inputs):
        return obstacle
    axes = find_kernel_axes(inputs)
    key_size, value_size = (math.prod(axis.size for axis in part) for part in (axes.contracted, axes.vectors))
    if key_size != value_size:
        return f"it needs keys and values of the same size, here {key_size} and {value_size}"
    return None


def find_dtype_obstacle(inputs: AttentionInputs) -> str | None:
    """Returns why a kernel that computes the softmax in float32 cannot compute this, None if it can."""
    if inputs.precision is not None:
        return "it takes no `precision`"
    dtypes = [x.dtype for x in (inputs.query, inputs.key, inputs.value)]
    if len(set(dtypes)) > 1:
        return f"it needs query, key and value of one dtype, here {', '.join(map(str, dtypes))}"
    if jnp.dtype(inputs.dtype) not in (dtypes[0], jnp.dtype(jnp.float32)):
        return f"it computes the scores in float32, not in the `attention_dtype` {jnp.dtype(inputs.dtype)}"
    return None


def find_cudnn_obstacle(inputs: AttentionInputs) -> str | None:
    """Returns why the kernel of cuDNN cannot compute this, None if it can."""
    if find_platform() != "gpu":
        return "there is no NVIDIA GPU"
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    if not re.fullmatch(r"\d+\.\d+", capability):  # those of AMD have names such as gfx90a
        return "there is no NVIDIA GPU"
    if float(capability) < 8:
        return f"the compute capability of the GPU is {capability}, less than 8.0"
    if inputs.query.dtype not in (jnp.float16, jnp.bfloat16):
        return f"cuDNN takes float16 and bfloat16, not {inputs.query.dtype}"
    axes = find_kernel_axes(inputs)
    size = math.prod(axis.size for axis in axes.contracted)
    if size > 128 or size % 8:
        return f"cuDNN takes heads of up to 128 elements and a multiple of 8, not {size}"
    for axis in (*axes.queries, *axes.keys, *axes.groups, *axes.contracted, *axes.vectors):
        if find_mesh_axes(axis):
            return f"cuDNN shards batch and heads alone, and axis {axis.name!r} is sharded"
    odd = [axis for axis in (*axes.queries, *axes.keys) if axis.size % 2]
    if odd and (inputs.mask is not None or inputs.bias is not None):
        return f"cuDNN takes masks of an even number of positions, and axis {odd[0].name!r} has {odd[0].size}"
    return None


def attend_by_jax(inputs: AttentionInputs) -> NamedArray:
    """Computes attention by `jax.nn.dot_product_attention`."""
    axes, uses_cudnn = find_kernel_axes(inputs), find_cudnn_obstacle(inputs) is None
    # The function adds numbers to a bias that mask keys, and has NaN for a query whose scores are all minus infinity.
    masked_inputs = inputs.hide_by_mask()
    flags, mask = _split_flags(masked_inputs, uses_cudnn)
    query, scale = inputs.query, inputs.scale
    if scale is None:
        scale = 1 / math.sqrt(math.prod(axis.size for axis in axes.contracted))
    elif not isinstance(scale, int | float):  # the function takes a Python number; others become part of the query
        query, scale = inputs.scale_query().astype(query.dtype), 1.0
    operands = [query, inputs.key, inputs.value, *(x for x in (masked_inputs.bias, mask) if x is not None)]
    query_heads = (*axes.heads, *axes.groups)
    names, shape = get_names_and_sizes((*axes.batch, *axes.queries, *query_heads, *axes.vectors))

    def compute(*arrays: Any) -> Any:
        query, key, value, *scores = [with_array(x, array) for x, array in zip(operands, arrays, strict=True)]
        sizes = get_sizes(query, key, value, *scores)
        query = merge_parts(query, sizes, axes.batch, axes.queries, query_heads, axes.contracted)
        key = merge_parts(key, sizes, axes.batch, axes.keys, axes.heads, axes.contracted)
        value = merge_parts(value, sizes, axes.batch, axes.keys, axes.heads, axes.vectors)
        scores = [merge_parts(x, sizes, axes.batch, query_heads, axes.queries, axes.keys) for x in scores]
        scores = [jnp.broadcast_to(x, (*x.shape[:2], query.shape[1], key.shape[1])) for x in scores]
        with jax.numpy_rank_promotion("allow"):
            result = jax.nn.dot_product_attention(
                query,
                key,
                value,
                bias=None if inputs.bias is None else scores[0],
                mask=None if mask is None else scores[-1],
                scale=scale,
                implementation="cudnn" if uses_cudnn else "xla",
                **flags,
            )
        return result.reshape(shape)

    # A bias or a mask does not say how the result is sharded.
    operand_names = [x.names if index < 3 else () for index, x in enumerate(operands)]
    arrays = [x.array for x in operands]
    result = run_operation(compute, operand_names, names, *arrays, by_compiler=True, sizes=shape)
    return order_result(NamedArray(result, names), inputs)


def _split_flags(inputs: AttentionInputs, uses_cudnn: bool) -> tuple[dict[str, Any], NamedArray | None]:
    """Returns the part of a mask that the function takes as flags, and the remaining part as an array."""
    if inputs.mask is None or inputs.query_axis is None:
        return {}, inputs.materialize_mask()
    flags: dict[str, Any] = {}
    masks = split_conjunction(inputs.mask)
    causal = next((mask for mask in masks if get_causal_offset(mask) == 0), None)
    window = next((mask for mask in masks if get_window_size(mask) is not None), None)
    if causal is not None:
        flags["is_causal"] = True
    if window is not None and causal is None and uses_cudnn:
        window = None  # cuDNN has windows for causal masks alone
    if window is not None:
        size = get_window_size(window) or 1
        flags["local_window_size"] = (size - 1, 0 if causal is not None else size - 1)
    masks = [mask for mask in masks if mask is not causal and mask is not window]
    if not masks:
        return flags, None
    return flags, dataclasses.replace(inputs, mask=combine_masks(masks)).materialize_mask()

"""Attention by `jax.nn.dot_product_attention`, which has the kernel of cuDNN."""

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp

from .._jax_compat import find_platform
from ..named._array import NamedArray
from ..named._axis import get_names_and_sizes
from ..named._operation import run_operation
from ._attention_inputs import AttentionInputs
from ._attention_layout import (
    AttentionLayout,
    find_layout,
    find_layout_obstacle,
    find_mesh_axes,
    get_sizes,
    merge_parts,
    order_result,
)
from ._attention_mask import (
    AttentionMask,
    combine_masks,
    get_causal_offset,
    get_window_size,
    split_conjunction,
)


def find_jax_obstacle(inputs: AttentionInputs) -> str | None:
    """Returns why `jax.nn.dot_product_attention` cannot compute this, None if it can."""
    for name, given in (("soft_cap", inputs.soft_cap), ("sinks", inputs.sinks), ("dropout", inputs.dropout or None)):
        if given is not None:
            return f"it has no `{name}`"
    if obstacle := find_layout_obstacle(inputs) or find_dtype_obstacle(inputs):
        return obstacle
    layout = find_layout(inputs)
    sizes = [math.prod(axis.size for axis in part) for part in (layout.contracted, layout.vectors)]
    if sizes[0] != sizes[1]:
        return f"it needs keys and values of the same size, here {sizes[0]} and {sizes[1]}"
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
    if not re.fullmatch(r"\d+\.\d+", capability):  # AMD's have other names
        return "there is no NVIDIA GPU"
    if float(capability) < 8:
        return f"the compute capability of the GPU is {capability}, less than 8.0"
    if inputs.query.dtype not in (jnp.float16, jnp.bfloat16):
        return f"cuDNN takes float16 and bfloat16, not {inputs.query.dtype}"
    layout = find_layout(inputs)
    size = math.prod(axis.size for axis in layout.contracted)
    if size > 128 or size % 8:
        return f"cuDNN takes heads of up to 128 elements and a multiple of 8, not {size}"
    for axis in (*layout.queries, *layout.keys, *layout.groups, *layout.contracted, *layout.vectors):
        if find_mesh_axes(axis):
            return f"cuDNN shards batch and heads alone, and axis {axis.name!r} is sharded"
    odd = [axis for axis in (*layout.queries, *layout.keys) if axis.size % 2]
    if odd and (inputs.mask is not None or inputs.bias is not None):
        return f"cuDNN takes masks of an even number of positions, and axis {odd[0].name!r} has {odd[0].size}"
    return None


def attend_by_jax(inputs: AttentionInputs) -> NamedArray:
    """Returns the average of values; see `dot_product_attention`."""
    layout, by_cudnn = find_layout(inputs), find_cudnn_obstacle(inputs) is None
    flags, rest = _split_flags(inputs, by_cudnn)
    query, scale = inputs.query, inputs.scale
    if scale is None:
        scale = 1 / math.sqrt(math.prod(axis.size for axis in layout.contracted))
    elif not isinstance(scale, int | float):
        query, scale = inputs.scale_query().astype(query.dtype), 1.0
    named = [query, inputs.key, inputs.value, *(x for x in (inputs.bias, rest) if x is not None)]
    names, arrays = [x.names for x in named], [x.array for x in named]
    result, sizes = get_names_and_sizes(
        (*layout.batch, *layout.queries, *layout.heads, *layout.groups, *layout.vectors)
    )
    options = {**flags, "scale": scale, "implementation": "cudnn" if by_cudnn else "xla"}
    compute = functools.partial(_compute_attention, layout, names, inputs.bias is not None, options, sizes)
    operands = [*names[:3], *[()] * len(arrays[3:])]  # a mask or a bias does not say how the result is sharded
    attended = run_operation(compute, operands, result, *arrays, by_compiler=True, sizes=sizes)
    return order_result(NamedArray(attended, result), inputs)


def _compute_attention(
    layout: AttentionLayout, names: list[Any], has_bias: bool, options: Any, sizes: tuple[int, ...], *arrays: Any
) -> Any:
    batch, heads, groups = layout.batch, layout.heads, layout.groups
    orders = [
        (batch, layout.queries, (*heads, *groups), layout.contracted),
        (batch, layout.keys, heads, layout.contracted),
        (batch, layout.keys, heads, layout.vectors),
    ]
    scores = (batch, (*heads, *groups), layout.queries, layout.keys)
    known = get_sizes(*((own, array.shape) for own, array in zip(names, arrays, strict=True)))
    query, key, value = map(lambda array, own, order: merge_parts(array, own, known, *order), arrays, names, orders)
    rest = [merge_parts(array, own, known, *scores) for array, own in zip(arrays[3:], names[3:], strict=True)]
    rest = [jnp.broadcast_to(x, (*x.shape[:2], query.shape[1], key.shape[1])) for x in rest]
    bias, mask = rest[0] if has_bias else None, rest[-1] if len(rest) > has_bias else None
    with jax.numpy_rank_promotion("allow"):
        found = jax.nn.dot_product_attention(query, key, value, bias, mask, **options)
    return found.reshape(sizes)


def _split_flags(inputs: AttentionInputs, by_cudnn: bool) -> tuple[dict[str, Any], NamedArray | None]:
    """Returns the part of a mask that the function takes as flags, and the rest as an array."""
    if not isinstance(inputs.mask, AttentionMask) or inputs.QPos is None:
        return {}, inputs.materialize_mask()
    flags: dict[str, Any] = {}
    rest = split_conjunction(inputs.mask)
    causal = next((mask for mask in rest if get_causal_offset(mask) == 0), None)
    window = next((mask for mask in rest if get_window_size(mask) is not None), None)
    if causal is not None:
        flags["is_causal"] = True
    if window is not None and (causal is not None or not by_cudnn):  # cuDNN has windows for causal masks alone
        size = get_window_size(window) or 1
        flags["local_window_size"] = (size - 1, 0 if causal is not None else size - 1)
    taken = [causal, window if "local_window_size" in flags else None]
    rest = [mask for mask in rest if not any(mask is one for one in taken)]
    array = None if not rest else dataclasses.replace(inputs, mask=combine_masks(rest)).materialize_mask()
    return flags, array

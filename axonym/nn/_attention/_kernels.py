"""Attention by kernels of JAX: `jax.nn.dot_product_attention`, which has that of cuDNN, and splash attention on TPUs.

Kernels take plain arrays with one axis each for the batch, heads, positions and vectors: `KernelAxes` says which named
axes these are.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from ..._jax_compat import find_platform
from ...named._array import NamedArray, is_named_array
from ...named._axis import Axis, Names, get_names_and_sizes
from ...named._axis_layout import get_axes_of_type, get_entry_axes
from ...named._base import with_array
from ...named._broadcasting import align_axes
from ...named._dot import get_natural_order
from ...named._operation import run_operation, use_operand_layout
from ...named._shape._rearrange import rearrange
from ...named._sharding import constrain_sharding
from .._map_shards import choose_manual_axes, find_mesh_axes, list_free_mesh_axes
from ._inputs import AttentionInputs
from ._mask import (
    AttentionMask,
    combine_masks,
    get_causal_offset,
    get_segment_ids,
    get_window_size,
    is_static_mask,
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
    return constrain_sharding(rearrange(x, get_natural_order((score_names, inputs.value.names), (inputs.key_axis,))))


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
    flags, mask = _split_flags(inputs, uses_cudnn)
    query, scale = inputs.query, inputs.scale
    if scale is None:
        scale = 1 / math.sqrt(math.prod(axis.size for axis in axes.contracted))
    elif not isinstance(scale, int | float):  # the function takes a Python number; others become part of the query
        query, scale = inputs.scale_query().astype(query.dtype), 1.0
    operands = [query, inputs.key, inputs.value, *(x for x in (inputs.bias, mask) if x is not None)]
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


# The kernel takes positions in multiples of the 128 lanes of a TPU. The largest block that divides them is used.
_LANES = 128
_BLOCK_SIZES = (512, 256, _LANES)


def find_splash_obstacle(inputs: AttentionInputs) -> str | None:
    """Returns why splash attention cannot compute this, None if it can."""
    if (platform := find_platform()) not in ("tpu", "cpu"):
        return f"it runs on TPUs, and in interpret mode on CPUs, not on {platform}"
    for name, option in (("bias", inputs.bias), ("dropout", inputs.dropout or None)):
        if option is not None:
            return f"it has no `{name}`"
    if obstacle := find_axes_obstacle(inputs) or find_dtype_obstacle(inputs):
        return obstacle
    axes = find_kernel_axes(inputs)
    if not axes.queries:
        return "the query has no axis of positions"
    for axis in (*axes.queries, *axes.keys):
        shards = _count_mesh_shards(find_mesh_axes(axis)) if axis in axes.queries else 1
        if axis.size % (_LANES * shards):
            per_shard = f" on each of {shards} shards" if shards > 1 else ""
            return f"it needs a multiple of {_LANES} positions{per_shard}, and axis {axis.name!r} has size {axis.size}"
    has_x64 = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
    if has_x64 and math.prod(axis.size for axis in axes.groups) > 1:
        return "JAX's kernel fails for heads that share keys while `jax_enable_x64` is on"
    if inputs.sinks is not None and not {*inputs.sinks.names} <= {*get_names(axes.heads, axes.groups)}:
        return "its sinks have axes of heads alone"
    return _find_mask_obstacle(inputs, axes)


def _find_mask_obstacle(inputs: AttentionInputs, axes: KernelAxes) -> str | None:
    if inputs.mask is None:
        return None
    static_masks, segments = _split_segments(inputs.mask)
    if not all(map(is_static_mask, static_masks)):
        return "it takes masks of Python numbers and segment ids combined by `&`, not arrays of positions or booleans"
    if len(segments) > 1:
        return "it takes the segment ids of one mask"
    for ids in segments[0] if segments else ():
        allowed = get_names(axes.batch, axes.queries, axes.keys)
        if extra := [name for name in ids.names if name not in allowed]:
            return f"it takes segment ids for each element of the batch, and they have axis {extra[0]!r}"
    (queries,), (keys,) = axes.queries, axes.keys
    rows = np.arange(queries.size)
    for mask in static_masks:
        if not np.all(mask.bound_block((rows, rows), (0, keys.size - 1))[0]):
            return "each query must attend to a key, and the mask hides all keys from some"
    return None


def _split_segments(
    mask: AttentionMask,
) -> tuple[list[AttentionMask], list[tuple[NamedArray, NamedArray]]]:
    """Returns the masks that are combined by `&`, and the segment ids among them."""
    pairs = [(part, get_segment_ids(part)) for part in split_conjunction(mask)]
    return [part for part, ids in pairs if ids is None], [ids for _, ids in pairs if ids is not None]


class _SplashOperands(NamedTuple):
    """The arrays that the kernel takes."""

    query: NamedArray
    key: NamedArray
    value: NamedArray
    query_ids: NamedArray | None
    key_ids: NamedArray | None
    sinks: NamedArray | None


def attend_by_splash(inputs: AttentionInputs) -> NamedArray:
    """Computes attention by the Pallas kernel for TPUs that JAX ships, in a `shard_map` over the mapped axes.

    It skips blocks of queries and keys that the mask hides, and takes masks as functions of the positions.
    """
    query = inputs.scale_query().astype(inputs.query.dtype)
    static_masks, segments = ([], []) if inputs.mask is None else _split_segments(inputs.mask)
    query_ids, key_ids = segments[0] if segments else (None, None)
    operands = _SplashOperands(query, inputs.key, inputs.value, query_ids, key_ids, inputs.sinks)
    sharded = operands[:3]
    with use_operand_layout([x.names for x in sharded], [x.array for x in sharded]):
        return order_result(_attend_shards(inputs, operands, combine_masks(static_masks)), inputs)


def _attend_shards(inputs: AttentionInputs, operands: _SplashOperands, mask: AttentionMask | None) -> NamedArray:
    """Calls the kernel on the shards of each device."""
    axes = find_kernel_axes(inputs)
    (queries,) = axes.queries
    mesh_axes = {axis.name: find_mesh_axes(axis) for axis in (*axes.batch, *axes.heads, *axes.groups, *axes.queries)}
    result_names = get_names(axes.batch, axes.heads, axes.groups, axes.queries, axes.vectors)

    def make_spec(names: Names) -> P:
        return P(*(mesh_axes.get(name) or None for name in names))

    def compute(kernel: Any, operands: _SplashOperands) -> Any:
        return _call_kernel(kernel, axes, operands)

    kernel = _make_kernel(axes, mask, inputs.soft_cap, mesh_axes)
    mesh = jax.sharding.get_abstract_mesh()
    if not list_free_mesh_axes(mesh):
        return NamedArray(compute(kernel, operands), result_names)
    mask_spec = P(None, mesh_axes[queries.name] or None) if mask else P(None, None)
    kernel_spec = kernel.manual_sharding_spec(NamedSharding(mesh, mask_spec))
    operand_specs = jax.tree.map(lambda x: make_spec(x.names), operands, is_leaf=is_named_array)
    kernel = jax.tree.map(_reshard_explicit, kernel, kernel_spec)
    operands = jax.tree.map(
        lambda x: with_array(x, _reshard_explicit(x.array, make_spec(x.names))), operands, is_leaf=is_named_array
    )
    call = jax.shard_map(
        compute,
        in_specs=(kernel_spec, operand_specs),
        out_specs=make_spec(result_names),
        axis_names=choose_manual_axes(mesh),
        check_vma=False,  # the kernel does not say over which axes its results vary
    )
    return NamedArray(call(kernel, operands), result_names)


def _call_kernel(kernel: Any, axes: KernelAxes, operands: _SplashOperands) -> Any:
    """Returns the averages for the shards of one device, with the axes of the result in order.

    Args:
        kernel: The kernel of JAX, for arrays without a batch.
        axes: The axes of the whole arrays.
        operands: The shards.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention

    sizes = get_sizes(*(x for x in operands if x is not None))
    query_heads = (*axes.heads, *axes.groups)
    query = merge_parts(operands.query, sizes, axes.batch, query_heads, axes.queries, axes.contracted)
    key = merge_parts(operands.key, sizes, axes.batch, axes.heads, axes.keys, axes.contracted)
    value = merge_parts(operands.value, sizes, axes.batch, axes.heads, axes.keys, axes.vectors)
    segment_ids: list[Any] = []
    if operands.query_ids is not None and operands.key_ids is not None:
        segment_ids = [
            merge_parts(operands.query_ids, sizes, axes.batch, axes.queries),
            merge_parts(operands.key_ids, sizes, axes.batch, axes.keys),
        ]
    sinks = None if operands.sinks is None else merge_parts(operands.sinks, sizes, query_heads)
    batch_size = query.shape[0]
    segment_ids = [jnp.broadcast_to(ids, (batch_size, ids.shape[1])).astype(jnp.int32) for ids in segment_ids]
    sinks = None if sinks is None else sinks.astype(jnp.float32)

    def call(query: Any, key: Any, value: Any, *segment_ids: Any) -> Any:
        ids = splash_attention.SegmentIds(*segment_ids) if segment_ids else None
        return kernel(query, key, value, ids, sinks)

    result = jax.vmap(call)(query, key, value, *segment_ids)
    return result.reshape([sizes[name] for name in get_names(axes.batch, query_heads, axes.queries, axes.vectors)])


def _make_kernel(
    axes: KernelAxes, mask: AttentionMask | None, soft_cap: float | None, mesh_axes: dict[str, tuple[str, ...]]
) -> Any:
    """Returns the kernel of JAX for the heads of one shard, and for its queries if there is no mask.

    A mask is divided over the shards of queries by the kernel. JAX fails to divide one that hides nothing.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention

    (queries,), (keys,) = axes.queries, axes.keys
    query_heads = (*axes.heads, *axes.groups)
    heads = math.prod(axis.size // _count_mesh_shards(mesh_axes[axis.name]) for axis in query_heads)
    query_shards = _count_mesh_shards(mesh_axes[queries.name])
    shard_size = queries.size // query_shards
    query_block = next(size for size in _BLOCK_SIZES if shard_size % size == 0)
    key_block = next(size for size in _BLOCK_SIZES if keys.size % size == 0)
    kernel_mask = _make_kernel_mask(mask, (queries.size if mask else shard_size, keys.size))
    return splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([kernel_mask] * heads),
        block_sizes=splash_attention.BlockSizes(
            block_q=query_block,
            block_q_dkv=query_block,
            block_q_dq=query_block,
            block_kv=key_block,
            block_kv_dkv=key_block,
            block_kv_dq=key_block,
        ),
        attn_logits_soft_cap=soft_cap,
        head_shards=1,
        q_seq_shards=query_shards if mask else 1,
        interpret=find_platform() != "tpu",
    )


def _make_kernel_mask(mask: AttentionMask | None, shape: tuple[int, int]) -> Any:
    """Returns the mask as the kernel takes it: as a function if there is one, else by NumPy, a block at a time."""
    from jax.experimental.pallas.ops.tpu import splash_attention

    if mask is None:
        return splash_attention.FullMask(shape)
    masks = split_conjunction(mask)
    offsets, sizes = list(map(get_causal_offset, masks)), list(map(get_window_size, masks))
    if len(masks) == 1 and offsets[0] is not None:
        return splash_attention.CausalMask(shape, offsets[0])
    if len(masks) == 2 and 0 in offsets and (size := max(size or 0 for size in sizes)):
        return splash_attention.LocalMask(shape, (size - 1, 0), 0)

    class StaticMask(splash_attention.Mask):
        """The part of a mask for some rows and columns, which the kernel reads where it hides part of a block."""

        @property
        def shape(self) -> tuple[int, ...]:
            return shape

        def __getitem__(self, index: Any) -> np.ndarray:
            rows, columns = (np.arange(size)[part] for size, part in zip(shape, index, strict=True))
            rows, columns = rows[:, None], columns[None]
            return mask.bound_block((rows, rows), (columns, columns))[0]

    return StaticMask()


def _count_mesh_shards(mesh_axes: tuple[str, ...]) -> int:
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape[axis] for axis in mesh_axes)


def _reshard_explicit(array: Any, spec: P) -> Any:
    """Returns an array with a spec over Explicit mesh axes; `shard_map` itself reshards over Auto ones."""
    mesh = jax.sharding.get_abstract_mesh()
    explicit = get_axes_of_type(mesh, AxisType.Explicit)
    if not explicit:
        return array
    entries = [tuple(axis for axis in get_entry_axes(entry) if axis in explicit) or None for entry in spec]
    return jax.reshard(array, NamedSharding(mesh, P(*entries)))

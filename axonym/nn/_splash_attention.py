"""Attention by the Pallas kernel for TPUs that JAX ships, splash attention, in a `shard_map` over the mapped axes.

It skips blocks of queries and keys that the mask hides, and takes masks as functions of the positions.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from .._jax_compat import find_platform
from ..named._array import NamedArray
from ..named._axis import Names
from ..named._axis_layout import get_entry_axes
from ..named._operation import use_operand_layout
from ._attention_inputs import AttentionInputs
from ._attention_layout import (
    AttentionLayout,
    find_layout,
    find_layout_obstacle,
    find_mesh_axes,
    get_names,
    get_sizes,
    merge_parts,
    order_result,
)
from ._attention_mask import (
    AttentionMask,
    as_attention_mask,
    combine_masks,
    get_causal_offset,
    get_segment_ids,
    get_window_size,
    is_static_mask,
    split_conjunction,
)
from ._jax_attention import find_dtype_obstacle
from ._map_shards import list_free_mesh_axes


_LANES = 128
_BLOCK_SIZES = (512, 256, _LANES)


def find_splash_obstacle(inputs: AttentionInputs) -> str | None:
    """Returns why splash attention cannot compute this, None if it can."""
    if (platform := find_platform()) not in ("tpu", "cpu"):
        return f"it runs on TPUs, and in interpret mode on CPUs, not on {platform}"
    for name, given in (("bias", inputs.bias), ("dropout", inputs.dropout or None)):
        if given is not None:
            return f"it has no `{name}`"
    if obstacle := find_layout_obstacle(inputs) or find_dtype_obstacle(inputs):
        return obstacle
    layout = find_layout(inputs)
    if not layout.queries:
        return "the query has no axis of positions"
    for axis in (*layout.queries, *layout.keys):
        shards = _count_mesh_shards(find_mesh_axes(axis)) if axis in layout.queries else 1
        if axis.size % (_LANES * shards):
            of = f" on each of {shards} shards" if shards > 1 else ""
            return f"it needs a multiple of {_LANES} positions{of}, and axis {axis.name!r} has size {axis.size}"
    has_x64 = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
    if has_x64 and math.prod(axis.size for axis in layout.groups) > 1:
        return "JAX's kernel fails for heads that share keys while `jax_enable_x64` is on"
    if inputs.sinks is not None and not {*inputs.sinks.names} <= {*get_names(layout.heads, layout.groups)}:
        return "its sinks have axes of heads alone"
    return _find_mask_obstacle(inputs, layout)


def _find_mask_obstacle(inputs: AttentionInputs, layout: AttentionLayout) -> str | None:
    if inputs.mask is None:
        return None
    static, segments = _split_segments(inputs.mask)
    if not all(map(is_static_mask, static)):
        return "it takes masks of Python numbers and segment ids combined by `&`, not arrays of positions or booleans"
    if len(segments) > 1:
        return "it takes the segment ids of one mask"
    for ids in segments[0] if segments else ():
        allowed = get_names(layout.batch, layout.queries, layout.keys)
        if extra := [name for name in ids.names if name not in allowed]:
            return f"it takes segment ids for each element of the batch, and they have axis {extra[0]!r}"
    (queries,), (keys,) = layout.queries, layout.keys
    rows = np.arange(queries.size)
    for mask in static:
        if not np.all(mask.bound_block((rows, rows), (0, keys.size - 1))[0]):
            return "each query must attend to a key, and the mask hides all keys from some"
    return None


def _split_segments(
    mask: AttentionMask | NamedArray,
) -> tuple[list[AttentionMask], list[tuple[NamedArray, NamedArray]]]:
    """Returns the masks that are combined by `&`, and the segment ids among them."""
    pairs = [(one, get_segment_ids(one)) for one in split_conjunction(as_attention_mask(mask))]
    return [one for one, ids in pairs if ids is None], [ids for _, ids in pairs if ids is not None]


def attend_by_splash(inputs: AttentionInputs) -> NamedArray:
    """Returns the average of values; see `dot_product_attention`."""
    query = inputs.scale_query().astype(inputs.query.dtype)
    named = [query, inputs.key, inputs.value]
    with use_operand_layout([x.names for x in named], [x.array for x in named]):
        return order_result(_attend_shards(inputs, query, find_layout(inputs)), inputs)


def _attend_shards(inputs: AttentionInputs, query: NamedArray, layout: AttentionLayout) -> NamedArray:
    """Calls the kernel on the shards of each device."""
    static, segments = ([], []) if inputs.mask is None else _split_segments(inputs.mask)
    sinks = () if inputs.sinks is None else (inputs.sinks,)
    named = [query, inputs.key, inputs.value, *(segments[0] if segments else ()), *sinks]
    names, arrays = [x.names for x in named], [x.array for x in named]
    sharded = (*layout.batch, *layout.heads, *layout.groups, *layout.queries)
    shards = {axis.name: find_mesh_axes(axis) for axis in sharded}
    result = get_names(layout.batch, layout.heads, layout.groups, layout.queries, layout.vectors)

    def compute(kernel: Any, *arrays: Any) -> Any:
        return _call_kernel(kernel, layout, bool(segments), *zip(arrays, names, strict=True))

    mask = combine_masks(static)
    kernel = _make_kernel(layout, mask, inputs.soft_cap, shards)
    mesh = jax.sharding.get_abstract_mesh()
    if not (manual := list_free_mesh_axes(mesh)):
        return NamedArray(compute(kernel, *arrays), result)
    by_position = P(None, shards[layout.queries[0].name] or None) if mask else P(None, None)
    specs = [
        kernel.manual_sharding_spec(NamedSharding(mesh, by_position)),
        *(_make_operand_spec(own, shards) for own in names),
    ]
    options: Any = {"out_specs": _make_operand_spec(result, shards), "axis_names": manual, "check_vma": False}
    operands = jax.tree.map(_reshard_explicit, (kernel, *arrays), tuple(specs))
    return NamedArray(jax.shard_map(compute, in_specs=tuple(specs), **options)(*operands), result)


def _call_kernel(kernel: Any, layout: AttentionLayout, has_segments: bool, *operands: tuple[Any, Names]) -> Any:
    """Returns the averages for the shards of one device, with the axes of the layout in order.

    Args:
        kernel: The kernel of JAX, for arrays without a batch.
        layout: The axes of the whole arrays.
        has_segments: Whether there are segment ids.
        *operands: Plain arrays and their names: the query, key and value, segment ids of queries and keys, and sinks.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention

    sizes = get_sizes(*((names, array.shape) for array, names in operands))
    batch, heads = layout.batch, (*layout.heads, *layout.groups)
    orders = [
        (batch, heads, layout.queries, layout.contracted),
        (batch, layout.heads, layout.keys, layout.contracted),
        (batch, layout.heads, layout.keys, layout.vectors),
        *(((batch, layout.queries), (batch, layout.keys)) if has_segments else ()),
        *(((heads,),) if len(operands) in (4, 6) else ()),
    ]
    merged = [merge_parts(*one, sizes, *order) for one, order in zip(operands, orders, strict=True)]
    count = merged[0].shape[0]
    segments = [jnp.broadcast_to(x, (count, x.shape[1])).astype(jnp.int32) for x in merged[3 : 3 + 2 * has_segments]]
    sinks = merged[-1].astype(jnp.float32) if len(operands) in (4, 6) else None

    def call(query: Any, key: Any, value: Any, *segments: Any) -> Any:
        ids = splash_attention.SegmentIds(*segments) if segments else None
        return kernel(query, key, value, ids, sinks)

    found = jax.vmap(call)(*merged[:3], *segments)
    return found.reshape([sizes[name] for name in get_names(batch, heads, layout.queries, layout.vectors)])


def _make_kernel(
    layout: AttentionLayout, mask: AttentionMask | None, soft_cap: float | None, shards: dict[str, tuple[str, ...]]
) -> Any:
    """Returns the kernel of JAX for the heads of one shard, and for its queries if there is no mask.

    A mask is divided over the shards of queries by the kernel. JAX fails to divide one that hides nothing.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention

    (queries,), (keys,) = layout.queries, layout.keys
    heads = math.prod(axis.size // _count_mesh_shards(shards[axis.name]) for axis in (*layout.heads, *layout.groups))
    parts = _count_mesh_shards(shards[queries.name])
    size = queries.size // parts
    q_block = next(block for block in _BLOCK_SIZES if size % block == 0)
    k_block = next(size for size in _BLOCK_SIZES if keys.size % size == 0)
    return splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([_make_kernel_mask(mask, (queries.size if mask else size, keys.size))] * heads),
        block_sizes=splash_attention.BlockSizes(
            **dict.fromkeys(("block_q", "block_q_dkv", "block_q_dq"), q_block),
            **dict.fromkeys(("block_kv", "block_kv_dkv", "block_kv_dq"), k_block),
        ),
        attn_logits_soft_cap=soft_cap,
        head_shards=1,
        q_seq_shards=parts if mask else 1,
        interpret=find_platform() != "tpu",
    )


def _make_kernel_mask(mask: AttentionMask | None, shape: tuple[int, int]) -> Any:
    """Returns the mask as the kernel takes it: as a function if there is one, else by NumPy, a block at a time."""
    from jax.experimental.pallas.ops.tpu import splash_attention

    if mask is None:
        return splash_attention.FullMask(shape)
    masks = split_conjunction(mask)
    offsets, sizes = [get_causal_offset(one) for one in masks], [get_window_size(one) for one in masks]
    if len(masks) == 1 and offsets[0] is not None:
        return splash_attention.CausalMask(shape, offsets[0])
    if len(masks) == 2 and 0 in offsets and (size := max(one or 0 for one in sizes)):
        return splash_attention.LocalMask(shape, (size - 1, 0), 0)

    class StaticMask(splash_attention.Mask):
        """The part of a mask for some rows and columns, which the kernel reads where it hides part of a block."""

        @property
        def shape(self) -> tuple[int, ...]:
            return shape

        def __getitem__(self, at: Any) -> np.ndarray:
            rows, columns = (np.arange(size)[part] for size, part in zip(shape, at, strict=True))
            rows, columns = rows[:, None], columns[None]
            return mask.bound_block((rows, rows), (columns, columns))[0]

    return StaticMask()


def _make_operand_spec(names: Names, shards: dict[str, tuple[str, ...]]) -> P:
    return P(*(shards.get(name) or None for name in names))


def _count_mesh_shards(mesh_axes: tuple[str, ...]) -> int:
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape[axis] for axis in mesh_axes)


def _reshard_explicit(array: Any, spec: P) -> Any:
    """Returns an array with a spec over Explicit mesh axes; `shard_map` itself reshards over Auto ones."""
    mesh = jax.sharding.get_abstract_mesh()
    explicit = {axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit}
    if not explicit:
        return array
    entries = [tuple(axis for axis in get_entry_axes(entry) if axis in explicit) or None for entry in spec]
    return jax.reshard(array, NamedSharding(mesh, P(*entries)))

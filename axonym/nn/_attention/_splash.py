"""Splash attention, the Pallas kernel for TPUs that JAX ships: of whole sequences, and of the shards of a ring."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from ..._ground.jax_compat import differentiate_splash_attention, find_platform
from ...named._array import NamedArray, is_named_array
from ...named._axis import Names
from ...named._axis_layout import get_axes_of_type, get_entry_axes
from ...named._base import with_array
from ...named._operation import use_operand_layout
from .._map_shards import count_devices, find_mesh_axes, list_free_mesh_axes, map_over_mesh
from ._inputs import AttentionInputs
from ._kernels import (
    KernelAxes,
    find_axes_obstacle,
    find_dtype_obstacle,
    find_kernel_axes,
    get_names,
    get_sizes,
    merge_parts,
    order_result,
)
from ._mask import (
    AttentionMask,
    PlacedMask,
    combine_masks,
    get_causal_offset,
    get_segment_ids,
    get_window_size,
    is_static_mask,
    split_conjunction,
)


# The kernel takes positions in multiples of the 128 lanes of a TPU. The largest block that divides them is used.
_LANES = 128
_BLOCK_SIZES = (512, 256, _LANES)


def find_splash_obstacle(inputs: AttentionInputs) -> str | None:
    """Returns why splash attention cannot compute this, None if it can."""
    query_shards = 1
    if inputs.query_axis is not None:
        query_shards = count_devices(find_mesh_axes(inputs.query.resolve_axis(inputs.query_axis)))
    if obstacle := _find_operands_obstacle(inputs, query_shards, 1):
        return obstacle
    axes = find_kernel_axes(inputs)
    if inputs.sinks is not None and not {*inputs.sinks.names} <= {*get_names(axes.heads, axes.groups)}:
        return "its sinks have axes of heads alone"
    if obstacle := _find_mask_obstacle(inputs, axes):
        return obstacle
    queries, keys = _get_positions(inputs)
    for mask in _split_masks(inputs)[0]:
        if not np.all(mask.bound_block((queries, queries), (keys.min(), keys.max()))[0]):
            return "each query must attend to a key, and the mask hides all keys from some"
    return None


def find_splash_ring_obstacle(inputs: AttentionInputs, devices: int) -> str | None:
    """Returns why splash attention cannot compute the shards of a ring, None if it can.

    Args:
        inputs: The inputs.
        devices: The number of devices in the ring.
    """
    if obstacle := _find_operands_obstacle(inputs, devices, devices):
        return obstacle
    return _find_mask_obstacle(inputs, find_kernel_axes(inputs))


def find_splash_objection(inputs: AttentionInputs) -> str | None:
    """Returns why splash attention is not chosen where it could compute this, None if nothing speaks against it."""
    platform = find_platform()
    return None if platform == "tpu" else f"on {platform} it runs in interpret mode, which is slow"


def _find_operands_obstacle(inputs: AttentionInputs, query_shards: int, key_shards: int) -> str | None:
    """Returns why the kernel cannot compute something else than the mask, None if it can."""
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
    for axis, shards in ((*axes.queries, query_shards), (*axes.keys, key_shards)):
        if axis.size % (_LANES * shards):
            per_shard = f" on each of {shards} shards" if shards > 1 else ""
            return f"it needs a multiple of {_LANES} positions{per_shard}, and axis {axis.name!r} has size {axis.size}"
    has_x64 = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
    if has_x64 and math.prod(axis.size for axis in axes.groups) > 1:
        return "JAX's kernel fails for heads that share keys while `jax_enable_x64` is on"
    return None


def _find_mask_obstacle(inputs: AttentionInputs, axes: KernelAxes) -> str | None:
    static_masks, segment_masks = _split_masks(inputs)
    if not all(map(is_static_mask, static_masks)):
        return "it takes masks of Python numbers and segment ids combined by `&`, not arrays of positions or booleans"
    if len(segment_masks) > 1:
        return "it takes the segment ids of one mask"
    for ids in (ids for mask in segment_masks for ids in mask.arrays):
        allowed = get_names(axes.batch, axes.queries, axes.keys)
        if extra := [name for name in ids.names if name not in allowed]:
            return f"it takes segment ids for each element of the batch, and they have axis {extra[0]!r}"
    if isinstance(inputs.mask, PlacedMask) and not inputs.mask.is_known:
        return (
            "it takes `positions` that are known when the program is traced, such as those that `zigzag_positions` "
            "returns there"
        )
    return None


def _split_masks(inputs: AttentionInputs) -> tuple[list[AttentionMask], list[AttentionMask]]:
    """Returns the masks that are combined by `&`: those of positions, and those of segment ids."""
    mask = inputs.mask.mask if isinstance(inputs.mask, PlacedMask) else inputs.mask
    masks = [] if mask is None else split_conjunction(mask)
    segment_masks = [mask for mask in masks if get_segment_ids(mask) is not None]
    return [mask for mask in masks if get_segment_ids(mask) is None], segment_masks


def _get_positions(inputs: AttentionInputs) -> tuple[np.ndarray, np.ndarray]:
    """Returns the position of each query and of each key."""
    if isinstance(inputs.mask, PlacedMask):
        return np.asarray(inputs.mask.q_positions.array), np.asarray(inputs.mask.k_positions.array)
    assert inputs.query_axis is not None
    return np.arange(inputs.query.axis_size(inputs.query_axis)), np.arange(inputs.key.axis_size(inputs.key_axis))


class _SplashOperands(NamedTuple):
    """The arrays that the kernel takes."""

    query: NamedArray
    key: NamedArray
    value: NamedArray
    query_ids: NamedArray | None
    key_ids: NamedArray | None
    sinks: NamedArray | None


def _take_operands(inputs: AttentionInputs) -> _SplashOperands:
    """Returns the arrays of inputs whose queries are scaled."""
    _, segment_masks = _split_masks(inputs)
    query_ids, key_ids = get_segment_ids(segment_masks[0]) or (None, None) if segment_masks else (None, None)
    return _SplashOperands(inputs.query, inputs.key, inputs.value, query_ids, key_ids, inputs.sinks)


def attend_by_splash(inputs: AttentionInputs) -> NamedArray:
    """Computes attention by the Pallas kernel for TPUs that JAX ships, in a `shard_map` over the mapped axes.

    It skips blocks of queries and keys that the mask hides, and takes masks as functions of the positions.
    """
    operands = _take_operands(dataclasses.replace(inputs, query=inputs.scale_query().astype(inputs.query.dtype)))
    sharded = operands[:3]
    with use_operand_layout([x.names for x in sharded], [x.array for x in sharded]):
        return order_result(_attend_shards(inputs, operands), inputs)


def _attend_shards(inputs: AttentionInputs, operands: _SplashOperands) -> NamedArray:
    """Calls the kernel on the shards of each device."""
    axes = find_kernel_axes(inputs)
    (queries,) = axes.queries
    mesh_axes = {axis.name: find_mesh_axes(axis) for axis in (*axes.batch, *axes.heads, *axes.groups, *axes.queries)}
    result_names = get_names(axes.batch, axes.heads, axes.groups, axes.queries, axes.vectors)

    def make_spec(names: Names) -> P:
        return P(*(mesh_axes.get(name) or None for name in names))

    def compute(kernel: Any, operands: _SplashOperands) -> Any:
        arrays = _merge_operands(axes, operands)
        result = jax.vmap(kernel, (0, 0, 0, 0, None))(*arrays)
        sizes = get_sizes(operands.query, operands.value)
        return result.reshape([sizes[name] for name in result_names])

    mask = combine_masks(_split_masks(inputs)[0])
    # A mask is divided over the shards of queries by the kernel. JAX fails to divide one that hides nothing.
    query_heads = (*axes.heads, *axes.groups)
    heads = math.prod(axis.size // count_devices(mesh_axes[axis.name]) for axis in query_heads)
    query_shards = count_devices(mesh_axes[queries.name])
    query_positions, key_positions = _get_positions(inputs)
    if mask is None:
        query_positions, query_shards = query_positions[: queries.size // query_shards], 1
    kernel_mask = _make_kernel_mask(mask, query_positions, key_positions)
    kernel = _make_kernel(kernel_mask, heads, inputs.soft_cap, query_shards=query_shards)
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
    # The kernel does not say over which axes its results vary.
    specs = kernel_spec, operand_specs
    call = map_over_mesh(compute, mesh, specs, make_spec(result_names), check_vma=False)
    return NamedArray(call(kernel, operands), result_names)


class _KernelArrays(NamedTuple):
    """The arrays of `_SplashOperands` with one axis each for the batch, heads, positions and vectors."""

    query: Any
    key: Any
    value: Any
    segment_ids: Any
    sinks: Any


def _merge_operands(axes: KernelAxes, operands: _SplashOperands) -> _KernelArrays:
    """Returns the plain arrays of the shards of one device.

    Args:
        axes: The axes by what the kernel does with them.
        operands: The shards.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention

    sizes = get_sizes(*(x for x in operands if x is not None))
    query_heads = (*axes.heads, *axes.groups)
    query = merge_parts(operands.query, sizes, axes.batch, query_heads, axes.queries, axes.contracted)
    key = merge_parts(operands.key, sizes, axes.batch, axes.heads, axes.keys, axes.contracted)
    value = merge_parts(operands.value, sizes, axes.batch, axes.heads, axes.keys, axes.vectors)
    segment_ids = sinks = None
    if operands.query_ids is not None and operands.key_ids is not None:
        ids = [
            merge_parts(operands.query_ids, sizes, axes.batch, axes.queries),
            merge_parts(operands.key_ids, sizes, axes.batch, axes.keys),
        ]
        ids = [jnp.broadcast_to(array, (query.shape[0], array.shape[1])).astype(jnp.int32) for array in ids]
        segment_ids = splash_attention.SegmentIds(*ids)
    if operands.sinks is not None:
        sinks = merge_parts(operands.sinks, sizes, query_heads).astype(jnp.float32)
    return _KernelArrays(query, key, value, segment_ids, sinks)


def _make_kernel(
    kernel_mask: Any, heads: int, soft_cap: float | None, *, query_shards: int = 1, returns_sums: bool = False
) -> Any:
    """Returns the kernel of JAX.

    Args:
        kernel_mask: The mask as the kernel takes it.
        heads: The number of heads of the query.
        soft_cap: The soft cap of the scores.
        query_shards: Among how many devices the queries of the mask are divided.
        returns_sums: Whether the kernel returns log-sum-exps of scores as well; JAX does not differentiate it then.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention

    query_block, key_block = _choose_blocks(kernel_mask.shape[0] // query_shards, kernel_mask.shape[1])
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
        q_seq_shards=query_shards,
        save_residuals=returns_sums,
        interpret=find_platform() != "tpu",
    )


def _choose_blocks(queries: int, keys: int) -> tuple[int, int]:
    """Returns the numbers of queries and of keys in a block."""
    query_block, key_block = (next(block for block in _BLOCK_SIZES if size % block == 0) for size in (queries, keys))
    return query_block, key_block


def _make_kernel_mask(mask: AttentionMask | None, queries: np.ndarray, keys: np.ndarray) -> Any:
    """Returns the mask as the kernel takes it: as a function if there is one, else by NumPy, a block at a time.

    Args:
        mask: The mask, of Python numbers.
        queries: The position of each query.
        keys: The position of each key.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention

    shape = queries.size, keys.size
    if mask is None:
        return splash_attention.FullMask(shape)
    if all(np.all(np.diff(positions) == 1) for positions in (queries, keys)):
        masks, start = split_conjunction(mask), int(queries[0] - keys[0])
        offsets, sizes = list(map(get_causal_offset, masks)), list(map(get_window_size, masks))
        if len(masks) == 1 and offsets[0] is not None:
            return splash_attention.CausalMask(shape, offsets[0] + start)
        if len(masks) == 2 and 0 in offsets and (size := max(size or 0 for size in sizes)):
            return splash_attention.LocalMask(shape, (size - 1, 0), start)

    class PositionMask(splash_attention.Mask):
        """The part of a mask for some rows and columns, which the kernel reads where it hides part of a block."""

        @property
        def shape(self) -> tuple[int, ...]:
            return shape

        def __getitem__(self, index: Any) -> np.ndarray:
            rows, columns = queries[index[0]], keys[index[1]]
            allows_any, allows_all = mask.bound_block((rows.min(), rows.max()), (columns.min(), columns.max()))
            if allows_all or not allows_any:
                return np.full((rows.size, columns.size), bool(allows_all))
            return _compare_positions(mask, rows, columns)

    return PositionMask()


def _compare_positions(mask: AttentionMask, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Returns a mask of Python numbers as an array."""
    rows, columns = queries[:, None], keys[None]
    return mask.bound_block((rows, rows), (columns, columns))[0]


def _reshard_explicit(array: Any, spec: P) -> Any:
    """Returns an array with a spec over Explicit mesh axes; `shard_map` itself reshards over Auto ones."""
    mesh = jax.sharding.get_abstract_mesh()
    explicit = get_axes_of_type(mesh, AxisType.Explicit)
    if not explicit:
        return array
    entries = [tuple(axis for axis in get_entry_axes(entry) if axis in explicit) or None for entry in spec]
    return jax.reshard(array, NamedSharding(mesh, P(*entries)))


class SplashShards:
    """Attention of shards of queries and keys by splash attention, as the devices of a ring compute it.

    What a query attends to depends on the devices that the shards are from. There is a kernel for each of the masks
    that differ, of which there are few, and the device chooses it when it runs.
    """

    def __init__(self, inputs: AttentionInputs, devices: int) -> None:
        """Plans the kernels.

        Args:
            inputs: The inputs of all devices.
            devices: The number of devices in the ring.
        """
        self._has_sinks = inputs.sinks is not None
        self._mask = combine_masks(_split_masks(inputs)[0])
        self._queries, self._keys = (positions.reshape(devices, -1) for positions in _get_positions(inputs))
        # By how many devices the keys have gone on, and by the device of the queries.
        self._choices = np.zeros((devices, devices), np.int32)
        # A pair of devices for each of the masks that differ; None for that with which no query attends to a key.
        self._pairs: list[tuple[int, int] | None] = []
        numbers: dict[bytes, int] = {}
        for step, query_device in np.ndindex(devices, devices):
            key_device = (query_device - step) % devices
            description = self._describe_mask(query_device, key_device)
            number = numbers.setdefault(description, len(numbers))
            self._choices[step, query_device] = number
            if number == len(self._pairs):
                self._pairs.append((query_device, key_device) if description else None)

    def _describe_mask(self, query_device: int, key_device: int) -> bytes:
        """Returns bytes that are equal for equal masks; empty if no query attends to a key."""
        queries, keys = self._queries[query_device], self._keys[key_device]
        if self._mask is None:
            return b"all"
        query_block, key_block = _choose_blocks(queries.size, keys.size)
        query_blocks, key_blocks = queries.reshape(-1, query_block), keys.reshape(-1, key_block)
        query_bounds = query_blocks.min(1)[:, None], query_blocks.max(1)[:, None]
        allows_any, allows_all = self._mask.bound_block(query_bounds, (key_blocks.min(1), key_blocks.max(1)))
        parts = [allows_all.tobytes()]
        is_hidden = not np.any(allows_all)
        for row, column in np.argwhere(allows_any & ~allows_all):
            block = _compare_positions(self._mask, query_blocks[row], key_blocks[column])
            is_hidden = is_hidden and not np.any(block)
            parts += [bytes(f"{row} {column} ", "ascii"), np.packbits(block).tobytes()]
        return b"" if is_hidden else b"".join(parts)

    def prepare(self, inputs: AttentionInputs) -> AttentionInputs:
        """Returns inputs as the kernel takes them, with segment ids alone as their mask.

        Args:
            inputs: The inputs, with queries that are scaled.
        """
        query, segments = inputs.query.astype(inputs.key.dtype), combine_masks(_split_masks(inputs)[1])
        return dataclasses.replace(inputs, query=query, mask=segments)

    def average(self, inputs: AttentionInputs, device: Any, step: Any) -> tuple[NamedArray, NamedArray]:
        """Returns the averages of values, and the log-sum-exps of scores, in float32.

        Args:
            inputs: The shards of a device.
            device: Its number.
            step: By how many devices the keys have gone on; 0 for its own keys.
        """
        axes, operands = find_kernel_axes(inputs), _take_operands(inputs)
        query, key, value, segment_ids, _ = _merge_operands(axes, operands)

        def compute(kernel: Any) -> tuple[Any, Any]:
            if kernel is None:
                log_sums = jnp.full(query.shape[:3], -jnp.inf, jnp.float32)
                return jnp.zeros((*query.shape[:3], value.shape[3]), query.dtype), log_sums
            averages, (log_sums,) = jax.vmap(kernel)(query, key, value, segment_ids)
            return averages, log_sums

        averages, log_sums = self._run(compute, query, inputs.soft_cap, device, step)
        # A query without a key has the log-sum-exp of masked scores, -0.7 times the largest number, or that of none.
        has_keys = log_sums > 0.5 * jnp.finfo(jnp.float32).min
        log_sums = jnp.where(has_keys, log_sums, jnp.finfo(jnp.float32).min)
        averages = jnp.where(has_keys[..., None], averages.astype(jnp.float32), 0)
        names = get_names(axes.batch, axes.heads, axes.groups, axes.queries, axes.vectors)
        sizes = get_sizes(operands.query, operands.value)
        shape = [sizes[name] for name in names]
        count = len(names) - len(axes.vectors)
        return (
            NamedArray(averages.reshape(shape), names),
            NamedArray(log_sums.reshape(shape[:count]), names[:count]),
        )

    def differentiate(
        self,
        inputs: AttentionInputs,
        device: Any,
        step: Any,
        results: tuple[NamedArray, NamedArray],
        gradients: tuple[NamedArray, NamedArray],
    ) -> AttentionInputs:
        """Returns the part of the gradients that comes from some keys, in float32.

        Args:
            inputs: As for `average`.
            device: As for `average`.
            step: As for `average`.
            results: The averages and log-sum-exps for the keys of all devices.
            gradients: Their gradients.
        """
        axes, operands = find_kernel_axes(inputs), _take_operands(inputs)
        query_heads = (*axes.heads, *axes.groups)
        sizes = get_sizes(operands.query, operands.value)
        segment_ids = _merge_operands(axes, operands).segment_ids

        def merge(query: Any, key: Any, value: Any) -> tuple[Any, ...]:
            shards = operands._replace(
                query=with_array(operands.query, query),
                key=with_array(operands.key, key),
                value=with_array(operands.value, value),
            )
            return _merge_operands(axes, shards)[:3]

        (query, key, value), split = jax.vjp(merge, *(x.array for x in operands[:3]))
        averages, d_averages = (
            merge_parts(x, sizes, axes.batch, query_heads, axes.queries, axes.vectors)
            for x in (results[0], gradients[0])
        )
        log_sums, d_log_sums = (
            merge_parts(x, sizes, axes.batch, query_heads, axes.queries) for x in (results[1], gradients[1])
        )
        log_sums = jnp.where(log_sums > 0.5 * jnp.finfo(jnp.float32).min, log_sums, jnp.inf)
        if self._has_sinks:
            # The kernel subtracts the products of averages and their gradients from the gradients of weights. Those of
            # the log-sum-exps, which sinks depend on, have to be added to these: they are taken from the products.
            averages, wide_gradients = averages.astype(jnp.float32), d_averages.astype(jnp.float32)
            norms = jnp.maximum(jnp.sum(wide_gradients**2, -1), jnp.finfo(jnp.float32).tiny)
            averages -= (d_log_sums / norms)[..., None] * wide_gradients

        def compute(kernel: Any) -> tuple[Any, ...]:
            if kernel is None:
                return jnp.zeros_like(query), jnp.zeros_like(key), jnp.zeros_like(value)
            differentiate = jax.vmap(functools.partial(differentiate_splash_attention, kernel))
            return differentiate(query, key, value, segment_ids, averages, log_sums, d_averages)

        d_operands = split(self._run(compute, query, inputs.soft_cap, device, step))
        d_query, d_key, d_value = (
            with_array(x, array.astype(jnp.float32)) for x, array in zip(operands[:3], d_operands, strict=True)
        )
        return dataclasses.replace(inputs, query=d_query, key=d_key, value=d_value, mask=None, starts=None)

    def _run(self, compute: Callable[[Any], Any], query: Any, soft_cap: float | None, device: Any, step: Any) -> Any:
        """Returns what a function does with the kernel of the shards, or with None if no query attends to a key."""
        is_known = isinstance(step, int)  # as that of the first and the last step; a loop has those between
        choices = self._choices[[step]] if is_known else self._choices[1:-1]
        numbers, indices = np.unique(choices, return_inverse=True)

        def run_kernel(pair: tuple[int, int] | None) -> Any:
            return compute(self._make_kernel(pair, query.shape[1], soft_cap))

        branches = [functools.partial(run_kernel, self._pairs[int(number)]) for number in numbers]
        if len(branches) == 1:
            return branches[0]()
        index = jnp.asarray(indices.reshape(choices.shape))[0 if is_known else step - 1, device]
        # Together with the query, or JAX would run the branch without a kernel before a loop over layers around this,
        # and keep its zeros of all steps.
        _, index = jax.lax.optimization_barrier((query, index))
        return jax.lax.switch(index, branches)

    def _make_kernel(self, pair: tuple[int, int] | None, heads: int, soft_cap: float | None) -> Any:
        """Returns the kernel for the shards of a pair of devices, None if no query attends to a key."""
        if pair is None:
            return None
        query_device, key_device = pair
        kernel_mask = _make_kernel_mask(self._mask, self._queries[query_device], self._keys[key_device])
        return _make_kernel(kernel_mask, heads, soft_cap, returns_sums=True)

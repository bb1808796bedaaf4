"""Attention in blocks of queries and keys, whose memory grows linearly (Rabe & Staats, 2021; Dao et al., 2022).

The softmax is computed online: each block updates the highest score, the sum of the weights and the weighted sum of the
values. The backward pass computes the weights again from the sums, block by block (Dao et al., 2022, algorithm 4).

All blocks have the same size, so the last one overlaps with the one before if the number of positions is not a multiple
of it. In the last block, positions that the one before has too get a score of minus infinity, and so no weight.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._ground.caches import cached_jit
from ...named._array import NamedArray
from ...named._axis import Axis, Names
from ...named._base import with_array
from ...named._creation import arange, full_like, zeros_like
from ...named._dot import dot
from ...named._elementwise._arithmetic import maximum, where
from ...named._elementwise._functions import exp, log
from ...named._shape._rearrange import rearrange
from ...named._sharding import Ambient, constrain_sharding, mapping_context
from .._layer import cast_array, widen_dtype
from .._map_shards import find_mesh_axes
from ._inputs import AttentionInputs
from ._mask import MaskBlock
from ._scores import HIDDEN_BIAS, apply_sinks, cap_scores, draw_dropout_mask, get_masked_score, mask_scores


@dataclasses.dataclass(frozen=True)
class BlockAxes:
    """The axes of query and key positions with the size of a block, if the last block overlaps, and the mapping."""

    QPos: Axis | None
    KPos: Axis
    is_overlapping: bool
    ambient: Ambient | None


class BlockStarts(NamedTuple):
    """The first positions of a block, and its first ones that are not in the block before; or arrays, of all blocks."""

    query: Any
    key: Any
    new_query: Any
    new_key: Any


def attend_in_blocks(inputs: AttentionInputs) -> NamedArray:
    """Computes attention block by block."""
    axes, starts = plan_blocks(inputs)
    # The scale is part of the query now, and sinks follow below.
    value = cast_array(inputs.value, inputs.query.dtype)
    operands = dataclasses.replace(inputs, query=inputs.scale_query(), value=value, scale=None, sinks=None)
    operands = prepare_operands(operands, axes)
    averages, log_sums = cached_jit(_attend_blocks, axes)(operands, starts)
    return finish_averages(averages, log_sums, inputs)


def finish_averages(averages: NamedArray, log_sums: NamedArray, inputs: AttentionInputs) -> NamedArray:
    """Returns the result of attention from the averages of values and the log-sum-exp of the scores of each query."""
    if inputs.may_hide_all_keys:
        averages = where(log_sums <= HIDDEN_BIAS, 0, averages)
    if inputs.sinks is not None:
        averages = apply_sinks(averages, log_sums, inputs.sinks)
    return constrain_sharding(averages)


def prepare_operands(inputs: AttentionInputs, axes: BlockAxes) -> AttentionInputs:
    """Returns inputs with the axis of key positions named as that of a block.

    No mapping has that name, so that arrays are replicated along it.
    """
    return dataclasses.replace(inputs, key=cast_array(inputs.key, inputs.dtype)).rename_keys(axes.KPos.name)


def plan_blocks(inputs: AttentionInputs) -> tuple[BlockAxes, BlockStarts]:
    """Returns the axes of a block, and the starts of all blocks in which a query may attend to a key."""
    KPos = inputs.key.resolve_axis(inputs.key_axis)
    QPos = None if inputs.query_axis is None else inputs.query.resolve_axis(inputs.query_axis)
    key_block = Axis(f"{KPos.name} (block)", min(inputs.block_size, KPos.size))
    query_block = QPos
    if QPos is not None:
        # A query that is sharded by the mapping, or in its type, would have to be gathered for blocks.
        spec = jax.typeof(inputs.query.array).sharding.spec
        if not find_mesh_axes(QPos) and not spec[inputs.query.names.index(QPos.name)]:
            query_block = QPos.resize(min(inputs.block_size, QPos.size))
    query_size = 1 if QPos is None else QPos.size
    query_block_size = 1 if query_block is None else query_block.size
    new_query, new_key = np.meshgrid(
        np.arange(0, query_size, query_block_size), np.arange(0, KPos.size, key_block.size), indexing="ij"
    )
    query, key = np.minimum(new_query, query_size - query_block_size), np.minimum(new_key, KPos.size - key_block.size)
    is_needed = np.ones(query.shape, bool)
    if inputs.mask is not None:
        query_bounds, key_bounds = (query, query + query_block_size - 1), (key, key + key_block.size - 1)
        is_needed &= inputs.mask.bound_block(query_bounds, key_bounds)[0]
    is_overlapping = bool(query_size % query_block_size or KPos.size % key_block.size)
    starts = [array[is_needed].astype(np.int32) for array in (query, key, new_query, new_key)]
    return BlockAxes(query_block, key_block, is_overlapping, mapping_context.value), BlockStarts(*starts)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_blocks(axes: BlockAxes, operands: AttentionInputs, starts: BlockStarts) -> tuple[NamedArray, NamedArray]:
    """Returns the averages of values, and the logarithms of the sums of exponentials of scores.

    Args:
        axes: The axes of a block.
        operands: The inputs of attention, with the axis of key positions named as that of the block.
        starts: The starts of each block, as arrays.
    """
    return _attend_forward(axes, operands, starts)[0]


def _attend_forward(axes: BlockAxes, operands: AttentionInputs, starts: BlockStarts) -> tuple[Any, Any]:
    averages, log_sums = average_blocks(axes, operands, starts)
    averages = cast_array(averages, operands.value.dtype)
    return (averages, log_sums), (operands, starts, averages, log_sums)


def average_blocks(axes: BlockAxes, operands: AttentionInputs, starts: BlockStarts) -> tuple[NamedArray, NamedArray]:
    """Returns what `_attend_blocks` does, with averages in the element type of the sums."""
    value, key_axis = operands.value, operands.key_axis
    # Products with one key have the axes and the dtype of the sums; their values are not used.
    sums_like = _multiply_named(operands, operands.query, operands.key[key_axis, 0], operands.contracted)
    averages_like = dot(sums_like, cast_array(value[key_axis, 0], sums_like.dtype), axis=())

    def add_block(state: Any, block: BlockStarts) -> tuple[Any, None]:
        highest, total, averages = (_slice_block(axes, x, block) for x in state)
        scores, _ = _score_block(axes, operands, block)
        new_highest = maximum(highest, scores.max(key_axis))
        # Sums so far are relative to the highest score so far; `decay` makes them relative to the new one.
        weights, decay = exp(scores - new_highest), exp(highest - new_highest)
        total = total * decay + weights.sum(key_axis)
        weights = cast_array(_drop_weights(axes, operands, weights, block), value.dtype)
        average = _multiply_named(operands, weights, _slice_block(axes, value, block), (key_axis,))
        updates = new_highest, total, averages * decay + average
        return tuple(_update_block(axes, x, block, update) for x, update in zip(state, updates, strict=True)), None

    initial = full_like(sums_like, get_masked_score(sums_like)), zeros_like(sums_like), zeros_like(averages_like)
    add_block = _skip_blocks(axes, operands, add_block)
    highest, total, averages = jax.lax.scan(add_block, tuple(map(constrain_sharding, initial)), starts)[0]
    total = where(total == 0, 1, total)  # if no block was needed, the highest score is that of masked keys
    return averages / total, highest + log(total)


def _skip_blocks(axes: BlockAxes, operands: AttentionInputs, add_block: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step of the loop over blocks that leaves out those in which no query attends to a key.

    Most are left out before, by the numbers of the mask. This is for masks of positions that are not known before.
    """

    def add_needed_block(state: Any, block: BlockStarts) -> tuple[Any, None]:
        is_needed = True
        if operands.mask is not None:
            is_needed = operands.mask.is_needed(_locate_mask(axes, block))
        if is_needed is True:
            return add_block(state, block)
        return jax.lax.cond(is_needed, lambda state: add_block(state, block)[0], lambda state: state, state), None

    return add_needed_block


def _locate_mask(axes: BlockAxes, block: BlockStarts) -> MaskBlock:
    take = functools.partial(_slice_block, axes, block=block)
    return MaskBlock(axes.QPos, axes.KPos, block.query, block.key, take)


def _attend_backward(axes: BlockAxes, saved: Any, gradients: tuple[NamedArray, NamedArray]) -> tuple[Any, None]:
    with mapping_context(axes.ambient):  # JAX may trace this after the mapping of the forward pass has ended
        return round_gradients(sum_gradients(axes, saved, gradients), saved[0]), None


def round_gradients(gradients: AttentionInputs, operands: AttentionInputs) -> AttentionInputs:
    """Returns gradients in the element types of the operands."""
    operands = dataclasses.replace(operands, mask=None, dropout_key=None, starts=None)  # which have no gradients
    return jax.tree.map(lambda gradient, x: gradient.astype(x.dtype), gradients, operands)


def sum_gradients(axes: BlockAxes, saved: Any, gradients: tuple[NamedArray, NamedArray]) -> AttentionInputs:
    """Returns the gradients of `_attend_blocks` for its operands, in the element type of the sums.

    The averages and sums that are saved may be those of more keys than the operands have. Then it returns the part of
    the gradients that comes from the keys of the operands.
    """
    operands, starts, averages, log_sums = saved
    query, key, value, bias = operands.query, operands.key, operands.value, operands.bias
    d_averages, d_log_sums = gradients
    # A query that attends to no key has no weights.
    log_sums = where(log_sums <= HIDDEN_BIAS, jnp.inf, log_sums)
    # The softmax subtracts the weighted mean of the gradients of weights, which equals this sum of products.
    products = cast_array(d_averages, log_sums.dtype) * cast_array(averages, log_sums.dtype)
    shift = products.sum(_exclude_names(averages.names, log_sums)) - d_log_sums

    def add_block(totals: Any, block: BlockStarts) -> tuple[Any, None]:
        take = functools.partial(_slice_block, axes, block=block)
        scores, slope = _score_block(axes, operands, block)
        weights = exp(scores - take(log_sums))
        dropped = cast_array(_drop_weights(axes, operands, weights, block), value.dtype)
        d_value = _multiply_named(operands, dropped, take(d_averages), _exclude_names(weights.names, value))
        d_weights = _multiply_named(operands, take(d_averages), take(value), _exclude_names(value.names, weights))
        # Dropout is linear, so it does the same to the gradient as to the weights.
        d_scores = weights * (_drop_weights(axes, operands, d_weights, block) - take(shift))
        d_bias = () if bias is None else (d_scores.sum(_exclude_names(d_scores.names, bias)),)
        d_products = cast_array(d_scores if slope is None else d_scores * slope, query.dtype)
        d_query = _multiply_named(operands, d_products, take(key), _exclude_names(d_products.names, query))
        d_key = _multiply_named(operands, d_products, take(query), _exclude_names(d_products.names, key))
        gradients = d_query, d_key, d_value, *d_bias
        pairs = zip(totals, gradients, strict=True)
        return tuple(_update_block(axes, x, block, take(x) + rearrange(term, x.names)) for x, term in pairs), None

    differentiated = [query, key, value, *(() if bias is None else (bias,))]
    initial = tuple(constrain_sharding(zeros_like(x, log_sums.dtype)) for x in differentiated)
    totals = jax.lax.scan(_skip_blocks(axes, operands, add_block), initial, starts)[0]
    d_query, d_key, d_value, *d_bias = totals
    return dataclasses.replace(
        operands,
        query=d_query,
        key=d_key,
        value=d_value,
        bias=d_bias[0] if d_bias else None,
        mask=None,
        dropout_key=None,
        starts=None,
    )


_attend_blocks.defvjp(_attend_forward, _attend_backward)


def _score_block(
    axes: BlockAxes, operands: AttentionInputs, block: BlockStarts
) -> tuple[NamedArray, NamedArray | None]:
    """Returns the scores of a block, and the slope of the soft cap if there is one."""
    take = functools.partial(_slice_block, axes, block=block)
    scores = _multiply_named(operands, take(operands.query), take(operands.key), operands.contracted)
    names, slope = scores.names, None
    if operands.soft_cap is not None:
        scores = cap_scores(scores, operands.soft_cap)
        slope = 1 - (scores / operands.soft_cap) ** 2
    if operands.bias is not None:
        scores = scores + cast_array(take(operands.bias), scores.dtype)
    if operands.mask is not None:
        scores = mask_scores(scores, operands.mask.compute_block(_locate_mask(axes, block)))
    for axis, start, new in ((axes.QPos, block.query, block.new_query), (axes.KPos, block.key, block.new_key)):
        if axes.is_overlapping and axis is not None:
            scores = where(arange(axis, start=start) >= new, scores, -jnp.inf)
    return rearrange(scores, names), slope


def _drop_weights(axes: BlockAxes, operands: AttentionInputs, weights: NamedArray, block: BlockStarts) -> NamedArray:
    if not operands.dropout:
        return weights
    assert operands.starts is not None
    first_query, first_key = operands.starts
    positions, starts = (axes.KPos,), (first_key + block.key,)
    if axes.QPos is not None:
        positions, starts = (axes.QPos, *positions), (first_query + block.query, *starts)
    mask = draw_dropout_mask(operands.dropout_key, operands.dropout, weights.axes, positions, starts)
    return where(mask, weights / (1 - operands.dropout), 0)


def _multiply_named(operands: AttentionInputs, x: NamedArray, y: NamedArray, axis: Names) -> NamedArray:
    """Returns a product that is summed in float32 at least."""
    dtype = widen_dtype(x.dtype, y.dtype)
    return dot(x, y, axis=axis, precision=operands.precision, preferred_element_type=dtype)


def _exclude_names(names: Names, x: NamedArray) -> Names:
    return tuple(name for name in names if name not in x.names)


def _slice_block(axes: BlockAxes, x: NamedArray, block: BlockStarts) -> NamedArray:
    """Returns the part of an array that belongs to a block."""
    starts, sizes = _locate_block(axes, x, block)
    return x if sizes == x.array.shape else with_array(x, jax.lax.dynamic_slice(x.array, starts, sizes))


def _update_block(axes: BlockAxes, x: NamedArray, block: BlockStarts, update: NamedArray) -> NamedArray:
    """Returns an array with an update in place of a block."""
    update = cast_array(rearrange(update, x.names), x.dtype)
    starts, sizes = _locate_block(axes, x, block)
    if sizes == x.array.shape:
        return update
    return with_array(x, jax.lax.dynamic_update_slice(x.array, update.array, starts))


def _locate_block(axes: BlockAxes, x: NamedArray, block: BlockStarts) -> tuple[list[Any], tuple[int, ...]]:
    """Returns where a block starts along each dimension of an array, and its shape."""
    starts, sizes = {axes.KPos.name: block.key}, {axes.KPos.name: axes.KPos.size}
    if axes.QPos is not None:
        starts[axes.QPos.name], sizes[axes.QPos.name] = block.query, axes.QPos.size
    shape = tuple(sizes.get(name, size) for name, size in zip(x.names, x.array.shape, strict=True))
    return [starts.get(name, np.int32(0)) for name in x.names], shape

"""Attention in blocks of queries and keys, whose memory grows linearly (Rabe & Staats, 2021; Dao et al., 2022).

The softmax is computed online: each block updates the highest score, the sum of the weights and the weighted sum of the
values. The backward pass computes the weights again from the sums, block by block (Dao et al., 2022, algorithm 4).

Blocks are slices, the last of which overlaps with the one before if the size is not a multiple; elements that belong to
the block before have the score of minus infinity there, and so no weight.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..named._ambient import constrain_sharding
from ..named._array import NamedArray, is_named_array
from ..named._axis import Axis, Names
from ..named._base import with_array
from ..named._broadcasting import cached_jit
from ..named._creation import arange, full_like, zeros_like
from ..named._dot import dot
from ..named._elementwise._arithmetic import maximum, where
from ..named._elementwise._functions import exp, log
from ..named._shape._rearrange import rearrange
from ._attention_inputs import AttentionInputs
from ._attention_layout import find_mesh_axes
from ._attention_mask import AttentionMask, as_attention_mask
from ._attention_scores import apply_sinks, cap_scores, draw_kept, find_lowest, hide_scores
from ._inputs import cast_array, widen_dtype
from ._mask_block import MaskBlock


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """What the blocks have in common: axes of positions, with the size of a block, and how scores are computed."""

    QPos: Axis | None
    KPos: Axis
    Key: Names
    is_overlapping: bool
    precision: Any
    soft_cap: float | None
    dropout: float

    def slice_array(self, x: NamedArray, starts: "_Starts") -> NamedArray:
        """Returns the part of an array that belongs to a block."""
        at, sizes = self._locate(x, starts)
        return x if sizes == x.array.shape else with_array(x, jax.lax.dynamic_slice(x.array, at, sizes))

    def update_array(self, x: NamedArray, starts: "_Starts", part: NamedArray) -> NamedArray:
        """Returns an array with another part in place of a block."""
        part = cast_array(rearrange(part, x.names), x.dtype)
        at, sizes = self._locate(x, starts)
        return part if sizes == x.array.shape else with_array(x, jax.lax.dynamic_update_slice(x.array, part.array, at))

    def add_to_array(self, x: NamedArray, starts: "_Starts", part: NamedArray) -> NamedArray:
        """Returns an array with something added to the part that belongs to a block."""
        return self.update_array(x, starts, self.slice_array(x, starts) + rearrange(part, x.names))

    def _locate(self, x: NamedArray, starts: "_Starts") -> tuple[list[Any], tuple[int, ...]]:
        axes = (self.QPos, starts.query), (self.KPos, starts.key)
        blocks = {axis.name: (start, axis.size) for axis, start in axes if axis is not None}
        pairs = [blocks.get(name, (np.int32(0), size)) for name, size in zip(x.names, x.array.shape, strict=True)]
        return [start for start, _ in pairs], tuple(size for _, size in pairs)


class _Starts(NamedTuple):
    """The first positions of a block, and its first positions that the block before lacks."""

    query: Any
    key: Any
    new_query: Any
    new_key: Any


class _Operands(NamedTuple):
    """The arrays of attention; their axes of key positions have the name that no mapping has."""

    query: NamedArray
    key: NamedArray
    value: NamedArray
    bias: NamedArray | None
    mask: AttentionMask | None
    dropout_key: jax.Array | None


def find_blocked_obstacle(inputs: AttentionInputs) -> str | None:
    """Returns why attention cannot be computed in blocks, None if it can."""
    scores = {*inputs.query.names, *inputs.key.names} - {*inputs.Key}
    mask = () if inputs.mask is None else as_attention_mask(inputs.mask).arrays
    for what, x in (("bias", inputs.bias), *(("mask", x) for x in mask)):
        if x is not None and (extra := [name for name in x.names if name not in scores]):
            return f"the {what} has axis {extra[0]!r}, which neither query nor key has"
    return None


def attend_in_blocks(inputs: AttentionInputs, block_size: int) -> NamedArray:
    """Returns the average of values; see `dot_product_attention`."""
    mask = None if inputs.mask is None else as_attention_mask(inputs.mask)
    blocks, starts = _plan_blocks(inputs, mask, block_size)
    hide = functools.partial(_rename_keys, inputs.KPos, blocks.KPos.name)
    key, value, bias, mask = jax.tree.map(
        hide, (cast_array(inputs.key, inputs.dtype), inputs.value, inputs.bias, mask), is_leaf=is_named_array
    )
    operands = _Operands(inputs.scale_query(), key, value, bias, mask, inputs.dropout_key)
    averages, log_sums = cached_jit(_attend_blocks, blocks)(operands, starts)
    if mask is not None:
        empty = log_sums <= find_lowest(log_sums)
        averages = where(empty, cast_array(value.mean(blocks.KPos.name), averages.dtype), averages)
    if inputs.sinks is not None:
        averages = apply_sinks(averages, log_sums, inputs.sinks)
    return constrain_sharding(averages)


def _rename_keys(old: str, new: str, x: Any) -> Any:
    """Renames the axis of key positions to a name that no mapping has, so that arrays are whole along it."""
    return constrain_sharding(x.rename({old: new})) if is_named_array(x) and old in x.names else x


def _plan_blocks(inputs: AttentionInputs, mask: AttentionMask | None, size: int) -> tuple[_Blocks, _Starts]:
    """Returns the axes of a block, and where the blocks start in which a query may attend to a key."""
    KPos = inputs.key.resolve_axis(inputs.KPos)
    keys = Axis(f"{KPos.name} (block)", min(size, KPos.size))
    QPos, queries = None if inputs.QPos is None else inputs.query.resolve_axis(inputs.QPos), None
    if QPos is not None:
        queries = QPos if _is_sharded(inputs.query, QPos) else QPos.resize(min(size, QPos.size))
    q_size, q_block = (1, 1) if QPos is None or queries is None else (QPos.size, queries.size)
    new_query, new_key = np.meshgrid(np.arange(0, q_size, q_block), np.arange(0, KPos.size, keys.size), indexing="ij")
    query, key = np.minimum(new_query, q_size - q_block), np.minimum(new_key, KPos.size - keys.size)
    chosen = np.ones(query.shape, bool)
    if mask is not None:
        chosen &= mask.bound_block((query, query + q_block - 1), (key, key + keys.size - 1))[0]
    is_overlapping = bool(q_size % q_block or KPos.size % keys.size)
    precision = tuple(inputs.precision) if isinstance(inputs.precision, list) else inputs.precision
    blocks = _Blocks(queries, keys, inputs.Key, is_overlapping, precision, inputs.soft_cap, inputs.dropout)
    return blocks, _Starts(*(each[chosen].astype(np.int32) for each in (query, key, new_query, new_key)))


def _is_sharded(x: NamedArray, axis: Axis) -> bool:
    """Returns whether an axis is sharded by the active mapping, or in the type of the array."""
    return bool(find_mesh_axes(axis) or jax.typeof(x.array).sharding.spec[x.names.index(axis.name)])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_blocks(blocks: _Blocks, operands: _Operands, starts: _Starts) -> tuple[NamedArray, NamedArray]:
    """Returns the averages of values, and the logarithms of the sums of exponentials of scores."""
    return _attend_forward(blocks, operands, starts)[0]


def _attend_forward(blocks: _Blocks, operands: _Operands, starts: _Starts) -> tuple[Any, Any]:
    value = operands.value
    log_sums = _compute_scores(blocks, operands.query, operands.key[blocks.KPos.name, 0])
    averages = dot(log_sums, cast_array(value[blocks.KPos.name, 0], log_sums.dtype), axis=())

    def add_block(state: Any, at: _Starts) -> tuple[Any, None]:
        highest, total, averages = (blocks.slice_array(x, at) for x in state)
        scores, _ = _score_block(blocks, operands, at)
        new_highest = maximum(highest, scores.max(blocks.KPos.name))
        weights, decay = exp(scores - new_highest), exp(highest - new_highest)
        total = total * decay + weights.sum(blocks.KPos.name)
        weights = cast_array(_drop_weights(blocks, operands, weights, at), value.dtype)
        part = _multiply_named(blocks, weights, blocks.slice_array(value, at), (blocks.KPos.name,))
        found = new_highest, total, averages * decay + part
        return tuple(blocks.update_array(x, at, one) for x, one in zip(state, found, strict=True)), None

    initial = full_like(log_sums, find_lowest(log_sums)), zeros_like(log_sums), zeros_like(averages)
    highest, total, averages = jax.lax.scan(add_block, tuple(map(constrain_sharding, initial)), starts)[0]
    averages = cast_array(averages / where(total == 0, 1, total), value.dtype)
    log_sums = highest + log(total)
    return (averages, log_sums), (operands, starts, averages, log_sums)


def _attend_backward(blocks: _Blocks, saved: Any, gradients: tuple[NamedArray, NamedArray]) -> tuple[Any, None]:
    operands, starts, averages, log_sums = saved
    query, key, value, bias = operands[:4]
    out, log_sums_gradient = gradients
    # A query that attends to no key has no weights: its average is computed elsewhere.
    log_sums = where(log_sums <= find_lowest(log_sums), jnp.inf, log_sums)
    products = cast_array(out, log_sums.dtype) * cast_array(averages, log_sums.dtype)
    shift = products.sum(_exclude_names(averages.names, log_sums)) - log_sums_gradient

    def add_block(totals: Any, at: _Starts) -> tuple[Any, None]:
        part = functools.partial(blocks.slice_array, starts=at)
        scores, slope = _score_block(blocks, operands, at)
        weights = exp(scores - part(log_sums))
        dropped = cast_array(_drop_weights(blocks, operands, weights, at), value.dtype)
        for_value = _multiply_named(blocks, dropped, part(out), _exclude_names(weights.names, value))
        for_weights = _multiply_named(blocks, part(out), part(value), _exclude_names(value.names, weights))
        for_scores = weights * (_drop_weights(blocks, operands, for_weights, at) - part(shift))
        for_bias = () if bias is None else (for_scores.sum(_exclude_names(for_scores.names, bias)),)
        low = cast_array(for_scores if slope is None else for_scores * slope, query.dtype)
        for_query = _multiply_named(blocks, low, part(key), _exclude_names(low.names, query))
        for_key = _multiply_named(blocks, low, part(query), _exclude_names(low.names, key))
        found = for_query, for_key, for_value, *for_bias
        return tuple(blocks.add_to_array(x, at, one) for x, one in zip(totals, found, strict=True)), None

    wanted = [query, key, value, *(() if bias is None else (bias,))]
    initial = tuple(constrain_sharding(zeros_like(x, log_sums.dtype)) for x in wanted)
    found = jax.lax.scan(add_block, initial, starts)[0]
    query, key, value, *rest = (cast_array(one, x.dtype) for one, x in zip(found, wanted, strict=True))
    return _Operands(query, key, value, rest[0] if rest else None, None, None), None


_attend_blocks.defvjp(_attend_forward, _attend_backward)


def _exclude_names(names: Names, x: NamedArray) -> Names:
    return tuple(name for name in names if name not in x.names)


def _multiply_named(blocks: _Blocks, x: NamedArray, y: NamedArray, axis: Names) -> NamedArray:
    """Returns a product that is summed in float32 at least."""
    dtype = widen_dtype(x.dtype, y.dtype)
    return dot(x, y, axis=axis, precision=blocks.precision, preferred_element_type=dtype)


def _compute_scores(blocks: _Blocks, query: NamedArray, key: NamedArray) -> NamedArray:
    return _multiply_named(blocks, query, key, blocks.Key)


def _score_block(blocks: _Blocks, operands: _Operands, at: _Starts) -> tuple[NamedArray, NamedArray | None]:
    """Returns the scores of a block, and the slope of the soft cap if there is one."""
    part = functools.partial(blocks.slice_array, starts=at)
    scores, slope = _compute_scores(blocks, part(operands.query), part(operands.key)), None
    names = scores.names
    if blocks.soft_cap is not None:
        scores = cap_scores(scores, blocks.soft_cap)
        slope = 1 - (scores / blocks.soft_cap) ** 2
    if operands.bias is not None:
        scores = scores + cast_array(part(operands.bias), scores.dtype)
    if operands.mask is not None:
        mask = operands.mask.compute_block(MaskBlock(blocks.QPos, blocks.KPos, at.query, at.key, part))
        scores = hide_scores(scores, mask)
    for axis, start, new in ((blocks.QPos, at.query, at.new_query), (blocks.KPos, at.key, at.new_key)):
        if blocks.is_overlapping and axis is not None:
            scores = where(arange(axis, start=start) >= new, scores, -jnp.inf)
    return rearrange(scores, names), slope


def _drop_weights(blocks: _Blocks, operands: _Operands, weights: NamedArray, at: _Starts) -> NamedArray:
    """Returns the weights after dropout. It is linear, so it does the same to their gradient."""
    if not blocks.dropout:
        return weights
    positions, starts = ((blocks.KPos,), (at.key,))
    if blocks.QPos is not None:
        positions, starts = (blocks.QPos, *positions), (at.query, *starts)
    kept = draw_kept(operands.dropout_key, blocks.dropout, weights.axes, positions, starts)
    return where(kept, weights / (1 - blocks.dropout), 0)

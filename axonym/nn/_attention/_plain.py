"""Attention that computes all scores at once, and the changes of scores that the blocked implementation shares."""

from typing import Any

import jax
import jax.numpy as jnp

from ... import random
from ...named._array import NamedArray
from ...named._axis import Axis
from ...named._broadcasting import cached_jit
from ...named._dot import dot, get_natural_order
from ...named._elementwise._arithmetic import where
from ...named._elementwise._functions import tanh
from ...named._reduce import _reductions
from ...named._shape._rearrange import rearrange
from ...named._sharding import constrain_sharding, reshard_named
from ...named._transforms import vmap
from .._activations import sigmoid
from .._layer import cast_array
from ._inputs import AttentionInputs


def attend_at_once(inputs: AttentionInputs) -> NamedArray:
    """Computes attention with all scores in memory; the other implementations compute the same."""
    query, key = inputs.scale_query(), cast_array(inputs.key, inputs.dtype)
    swapped_precision = inputs.precision[::-1] if isinstance(inputs.precision, tuple) else inputs.precision
    positions = tuple(name for name in (inputs.QPos, inputs.KPos) if name is not None)

    # Grouped queries have other axes after those that keys share. With the positions last, XLA:TPU fuses the gradient
    # of a mask with the products that take it. Otherwise it writes an array as large as the scores: 2 % of the
    # estimated cycles of a training step of Llama 70B, and 10 % of its temporary memory.
    score_axes = get_natural_order((query.names, key.names), inputs.Key)
    is_grouped = inputs.QPos is not None and score_axes[-2:] != positions
    if is_grouped:
        scores = dot(key, query, axis=inputs.Key, precision=swapped_precision, out_axes=(..., *positions))
    else:
        scores = dot(query, key, axis=inputs.Key, precision=inputs.precision)

    if inputs.soft_cap is not None:
        scores = cap_scores(scores, inputs.soft_cap)
    if inputs.bias is not None:
        scores = scores + cast_array(inputs.bias, scores.dtype)
    if (mask := inputs.materialize_mask()) is not None:
        scores = mask_scores(scores, mask)
    weights = _reductions.softmax(scores, inputs.KPos)

    if inputs.dropout:
        # In the natural order, so that grouped scores draw the same as those of other implementations.
        last_axes = score_axes if is_grouped else ()
        axes = (*(axis for axis in weights.axes if axis.name not in last_axes), *map(weights.resolve_axis, last_axes))
        position_axes = tuple(map(weights.resolve_axis, positions))
        dropout_mask = draw_dropout_mask(inputs.dropout_key, inputs.dropout, axes, position_axes, (0,) * len(positions))
        weights = where(dropout_mask, weights / (1 - inputs.dropout), 0)

    weights = cast_array(weights, inputs.value.dtype)
    if is_grouped:
        # `jnp.einsum` multiplies in this order, too. In the other one XLA keeps an array of the size of the scores for
        # longer on GPUs, 1 GiB of 8.6 in a training step of Llama 8B on 64 H100s, and estimates 3 % more cycles for
        # such a step on 256 TPUs v5e.
        averages = dot(inputs.value, weights, axis=inputs.KPos, precision=swapped_precision)
        averages = rearrange(averages, (..., *get_natural_order((score_axes, inputs.value.names), (inputs.KPos,))))
    else:
        averages = dot(weights, inputs.value, axis=inputs.KPos, precision=inputs.precision)
    if inputs.sinks is not None:
        averages = apply_sinks(averages, _reductions.logsumexp(scores, inputs.KPos), inputs.sinks)
    return constrain_sharding(averages)


def get_masked_score(scores: NamedArray) -> Any:
    """Returns the score of masked keys: finite, so that a query whose keys are all masked averages all of them."""
    return jnp.finfo(scores.dtype).min


def mask_scores(scores: NamedArray, mask: NamedArray) -> NamedArray:
    """Sets masked scores to the dtype's minimum, and keeps the order of axes."""
    if len(mask.names) == len(scores.names) and {*mask.names} == {*scores.names}:
        mask = rearrange(mask, scores.names)
    return where(mask, scores, get_masked_score(scores))


def cap_scores(scores: NamedArray, soft_cap: float) -> NamedArray:
    """Limits the absolute value of scores smoothly."""
    return tanh(scores / soft_cap) * soft_cap


def apply_sinks(averages: NamedArray, log_sums: NamedArray, sinks: NamedArray) -> NamedArray:
    """Scales averages as if there were one more key for each sink, with this score and a value of zero.

    Args:
        averages: The result of attention without sinks.
        log_sums: The logarithm of the sum of the exponentials of the scores of each query.
        sinks: The scores of the sinks.
    """
    return averages * cast_array(sigmoid(log_sums - cast_array(sinks, log_sums.dtype)), averages.dtype)


def draw_dropout_mask(
    key: Any, rate: float, axes: tuple[Axis, ...], positions: tuple[Axis, ...], starts: tuple[Any, ...]
) -> NamedArray:
    """Draws a boolean array with these axes, False for weights that are dropped.

    Each pair of a query and a key position has its own random key, so that blocks of positions draw the same as all
    positions at once.

    Args:
        key: A random key.
        rate: Probability with which a weight is dropped.
        axes: The axes of the weights.
        positions: Those among them that are axes of positions.
        starts: Index of the first position along each of these.
    """
    position_names = [axis.name for axis in positions]
    other_axes = tuple(axis for axis in axes if axis.name not in position_names)
    mask = cached_jit(_draw_by_position, 1 - rate, other_axes, positions)(key, *starts)
    return rearrange(mask, tuple(axis.name for axis in axes))


def _draw_by_position(
    probability: float, other_axes: tuple[Axis, ...], positions: tuple[Axis, ...], key: Any, *starts: Any
) -> NamedArray:
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    indices = [start + jnp.arange(axis.size) for axis, start in zip(positions, starts, strict=True)]
    keys = NamedArray(_fold_in_positions(key, indices), positions)
    draw = vmap(lambda key: random.bernoulli(key, other_axes, probability), positions)
    return constrain_sharding(reshard_named(draw(keys)))


def _fold_in_positions(key: Any, indices: list[Any]) -> Any:
    """Returns a random key for each combination of positions, with one axis for each list of them."""
    if not indices:
        return key
    return jax.vmap(lambda index: _fold_in_positions(jax.random.fold_in(key, index), indices[1:]))(indices[0])

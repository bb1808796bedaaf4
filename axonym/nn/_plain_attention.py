"""Attention that computes all scores at once, by which the other implementations are measured."""

from typing import Any

import jax
import jax.numpy as jnp

from .. import random
from ..named._ambient import constrain_sharding, reshard_named
from ..named._array import NamedArray
from ..named._axis import Axis
from ..named._cached_jit import cached_jit
from ..named._dot import dot, get_natural_order
from ..named._elementwise._trigonometric import tanh
from ..named._elementwise._where import where
from ..named._reduce import _softmax
from ..named._shape._rearrange import rearrange
from ..named._transforms import vmap
from ._activations import sigmoid
from ._attention_inputs import AttentionInputs
from ._inputs import cast_array


def attend_plainly(inputs: AttentionInputs) -> NamedArray:
    """Returns the average of values; see `dot_product_attention`."""
    query, key = inputs.scale_query(), cast_array(inputs.key, inputs.dtype)
    order = get_natural_order((query.names, key.names), inputs.Key)
    is_grouped = inputs.QPos is not None and order[-2:] != (inputs.QPos, inputs.KPos)
    scores = (compute_grouped_scores if is_grouped else compute_scores)(inputs, query, key)
    if inputs.soft_cap is not None:
        scores = cap_scores(scores, inputs.soft_cap)
    if inputs.bias is not None:
        scores = scores + cast_array(inputs.bias, scores.dtype)
    if (mask := inputs.materialize_mask()) is not None:
        scores = where(mask, scores, jnp.finfo(scores.dtype).min)
    weights = _softmax.softmax(scores, inputs.KPos)
    if inputs.dropout:
        last = order if is_grouped else ()
        axes = (*(axis for axis in weights.axes if axis.name not in last), *map(weights.resolve_axis, last))
        weights = where(draw_kept(inputs, axes), weights / (1 - inputs.dropout), 0)
    weights = cast_array(weights, inputs.value.dtype)
    averages = dot(weights, inputs.value, axis=inputs.KPos, precision=inputs.precision)
    if is_grouped:
        averages = rearrange(averages, (..., *get_natural_order((order, inputs.value.names), (inputs.KPos,))))
    if inputs.sinks is not None:
        averages = apply_sinks(averages, _softmax.logsumexp(scores, inputs.KPos), inputs.sinks)
    return constrain_sharding(averages)


def compute_scores(inputs: AttentionInputs, query: NamedArray, key: NamedArray) -> NamedArray:
    """Returns the products of queries and keys."""
    return dot(query, key, axis=inputs.Key, precision=inputs.precision)


def compute_grouped_scores(inputs: AttentionInputs, query: NamedArray, key: NamedArray) -> NamedArray:
    """Returns the products with the positions last, where the queries have other axes after those that keys share.

    In this form XLA:TPU fuses the gradient of a mask with the products that take it. Otherwise it writes an array as
    large as the scores: 2 % of the estimated cycles of a training step of Llama 70B, and 10 % of its temporary memory.
    """
    precision = inputs.precision[::-1] if isinstance(inputs.precision, tuple | list) else inputs.precision
    positions = [name for name in (inputs.QPos, inputs.KPos) if name is not None]
    return dot(key, query, axis=inputs.Key, precision=precision, out_axes=(..., *positions))


def cap_scores(scores: NamedArray, soft_cap: float) -> NamedArray:
    """Returns scores that stay below a cap in absolute value."""
    return tanh(scores / soft_cap) * soft_cap


def apply_sinks(averages: NamedArray, log_sums: NamedArray, sinks: NamedArray) -> NamedArray:
    """Returns averages of which each sink takes a part, as a key with this score and a value of zero would.

    Args:
        averages: What attention returns without sinks.
        log_sums: The logarithm of the sum of the exponentials of the scores of each query.
        sinks: The scores of the sinks.
    """
    return averages * cast_array(sigmoid(log_sums - cast_array(sinks, log_sums.dtype)), averages.dtype)


def draw_kept(inputs: AttentionInputs, axes: tuple[Axis, ...], k_start: Any = 0) -> NamedArray:
    """Draws the weights that dropout keeps, a boolean array with these axes, among them that of key positions.

    Each key position has a random key of its own, so that blocks of positions draw the same as all at once.
    """
    rest = tuple(axis for axis in axes if axis.name != inputs.KPos)
    (KPos,) = (axis for axis in axes if axis.name == inputs.KPos)
    return cached_jit(_draw_by_position, 1 - inputs.dropout, rest, KPos)(inputs.dropout_key, k_start)


def _draw_by_position(probability: float, rest: tuple[Axis, ...], KPos: Axis, key: Any, k_start: Any) -> NamedArray:
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, k_start + jnp.arange(KPos.size))
    draw = vmap(lambda one: random.bernoulli(one, rest, probability), KPos)
    return constrain_sharding(reshard_named(draw(NamedArray(keys, KPos))))

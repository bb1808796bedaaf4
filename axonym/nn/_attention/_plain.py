"""Attention that computes all scores at once."""

from ...named._array import NamedArray
from ...named._dot import dot, get_natural_order
from ...named._elementwise._arithmetic import maximum, where
from ...named._reduce import _reductions
from ...named._shape._rearrange import rearrange
from ...named._sharding import constrain_sharding
from .._layer import cast_array
from ._inputs import AttentionInputs
from ._scores import apply_sinks, cap_scores, draw_dropout_mask, get_masked_score, mask_scores


def attend_at_once(inputs: AttentionInputs) -> NamedArray:
    """Computes attention with all scores in memory; the other implementations compute the same."""
    query, key = inputs.scale_query(), cast_array(inputs.key, inputs.dtype)
    value = cast_array(inputs.value, inputs.query.dtype)
    swapped_precision = inputs.precision[::-1] if isinstance(inputs.precision, tuple) else inputs.precision
    position_names = tuple(name for name in (inputs.query_axis, inputs.key_axis) if name is not None)

    # In the natural order, an axis of grouped queries that keys lack may come between the positions. With the positions
    # last, XLA:TPU fuses the gradient of a mask with the products that take it. Otherwise it writes an array as large
    # as the scores: 2 % of the estimated cycles of a training step of Llama 70B, and 10 % of its temporary memory.
    score_names = get_natural_order((query.names, key.names), inputs.contracted)
    is_grouped = inputs.query_axis is not None and score_names[-2:] != position_names
    if is_grouped:
        scores = dot(key, query, axis=inputs.contracted, precision=swapped_precision, out_axes=(..., *position_names))
    else:
        scores = dot(query, key, axis=inputs.contracted, precision=inputs.precision)

    if inputs.soft_cap is not None:
        scores = cap_scores(scores, inputs.soft_cap)
    if inputs.bias is not None:
        # Finite, as -1e9 is not in float16: a query would be NaN with minus infinity for all keys.
        scores = scores + maximum(cast_array(inputs.bias, scores.dtype), get_masked_score(scores) / 2)
    if (mask := inputs.materialize_mask()) is not None:
        scores = mask_scores(scores, mask)
    weights = _reductions.softmax(scores, inputs.key_axis)

    if inputs.dropout:
        axes = weights.axes
        if is_grouped:  # the natural order, in which other implementations draw
            other_axes = tuple(axis for axis in axes if axis.name not in score_names)
            axes = (*other_axes, *map(weights.resolve_axis, score_names))
        position_axes = tuple(map(weights.resolve_axis, position_names))
        dropout_mask = draw_dropout_mask(
            inputs.dropout_key, inputs.dropout, axes, position_axes, (0,) * len(position_axes)
        )
        weights = where(dropout_mask, weights / (1 - inputs.dropout), 0)

    weights = cast_array(weights, value.dtype)
    if is_grouped:
        # `jnp.einsum` multiplies in this order, too. In the other one XLA keeps an array of the size of the scores for
        # longer on GPUs, 1 GiB of 8.6 in a training step of Llama 8B on 64 H100s, and estimates 3 % more cycles for
        # such a step on 256 TPUs v5e.
        averages = dot(value, weights, axis=inputs.key_axis, precision=swapped_precision)
        averages = rearrange(averages, (..., *get_natural_order((score_names, value.names), (inputs.key_axis,))))
    else:
        averages = dot(weights, value, axis=inputs.key_axis, precision=inputs.precision)
    averages = inputs.zero_hidden_queries(averages)
    if inputs.sinks is not None:
        averages = apply_sinks(averages, _reductions.logsumexp(scores, inputs.key_axis), inputs.sinks)
    return constrain_sharding(averages)

"""Attention that computes all scores at once; the other implementations compute the same."""

from ..named._ambient import constrain_sharding
from ..named._array import NamedArray
from ..named._dot import dot
from ..named._elementwise._where import where
from ..named._reduce import _softmax
from ._attention_inputs import AttentionInputs
from ._attention_scores import apply_sinks, cap_scores, draw_kept, hide_scores
from ._inputs import cast_array


def attend_plainly(inputs: AttentionInputs) -> NamedArray:
    """Returns the average of values; see `dot_product_attention`."""
    key = cast_array(inputs.key, inputs.dtype)
    scores = dot(inputs.scale_query(), key, axis=inputs.Key, precision=inputs.precision)
    if inputs.soft_cap is not None:
        scores = cap_scores(scores, inputs.soft_cap)
    if inputs.bias is not None:
        scores = scores + cast_array(inputs.bias, scores.dtype)
    if (mask := inputs.materialize_mask()) is not None:
        scores = hide_scores(scores, mask)
    weights = _softmax.softmax(scores, inputs.KPos)
    if inputs.dropout:
        positions = tuple(weights.resolve_axis(name) for name in (inputs.QPos, inputs.KPos) if name is not None)
        kept = draw_kept(inputs.dropout_key, inputs.dropout, weights.axes, positions, (0,) * len(positions))
        weights = where(kept, weights / (1 - inputs.dropout), 0)
    weights = cast_array(weights, inputs.value.dtype)
    averages = dot(weights, inputs.value, axis=inputs.KPos, precision=inputs.precision)
    if inputs.sinks is not None:
        averages = apply_sinks(averages, _softmax.logsumexp(scores, inputs.KPos), inputs.sinks)
    return constrain_sharding(averages)

"""`haliax.nn.attention`: attention and its masks."""

import math
import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ... import nn, random
from ..._ground.formats import format_value
from ...named._array import is_named_array
from ...named._axis import Axis, AxisSelection, axis_name, parse_selection
from ...named._creation import arange, named
from ...named._elementwise import _arithmetic
from ...named._sharding import constrain_sharding
from .._adapt import adapt
from .._array import convert_result
from .._operations import broadcast_axis, dot


alibi_attention_bias = adapt(nn.alibi_bias)


def causal_mask(QPos: Axis, KPos: Axis, q_start: Any = 0, k_start: Any = 0) -> Any:
    """Returns where a query may attend to a key: at its own position and before; see `axonym.nn.causal_mask`.

    Starts that are arrays, such as one for each element of the batch, add their axes.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.attention.causal_mask(*hax.make_axes(q=2, k=2)).array
        Array([[ True, False],
               [ True,  True]], dtype=bool)
    """
    if any(getattr(start, "names", ()) for start in (q_start, k_start)):
        mask = nn.AttentionMask.causal(q_start, k_start).materialize(QPos, KPos)
        return convert_result(mask.rearrange((QPos, ..., KPos)))
    return convert_result(nn.causal_mask(QPos, KPos, q_start, k_start))


def dot_product_attention_weights(
    Key: AxisSelection,
    KPos: AxisSelection,
    query: Any,
    key: Any,
    mask: Any = None,
    bias: Any = None,
    attention_dtype: Any = None,
    precision: Any = None,
    scaling_factor: float | None = None,
) -> Any:
    """Returns how much each query attends to each key: the softmax of their scaled products over `KPos`.

    A query from which a bias of minus infinity hides all keys has zeros, and not NaN as in Haliax.

    Example:
        >>> import axonym.haliax as hax
        >>> q, k = hax.ones({"pos": 2, "head_dim": 4}), hax.ones({"key_pos": 2, "head_dim": 4})
        >>> hax.nn.attention.dot_product_attention_weights("head_dim", "key_pos", q, k).array
        Array([[0.5, 0.5],
               [0.5, 0.5]], dtype=float32)
    """
    dtype = query.dtype
    if scaling_factor is None:
        scaling_factor = 1 / math.sqrt(math.prod(query.axis_size(axis) for axis in parse_selection(Key)))
    query = query * scaling_factor
    if attention_dtype is not None:
        query, key = query.astype(attention_dtype), key.astype(attention_dtype)
    scores = dot(query, key, axis=Key, precision=precision)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = _arithmetic.where(mask, scores, jnp.finfo(scores.dtype).min)
    is_finite = None if bias is None else scores != -jnp.inf
    return nn.softmax(scores, KPos, where=is_finite).astype(dtype)


def dot_product_attention(
    KPos: AxisSelection,
    Key: AxisSelection,
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    bias: Any = None,
    attention_dtype: Any = None,
    precision: Any = None,
) -> Any:
    """Averages values by how well their keys match each query; see `axonym.nn.dot_product_attention`.

    Example:
        >>> import axonym.haliax as hax
        >>> q, k = hax.ones({"pos": 2, "head_dim": 4}), hax.ones({"key_pos": 3, "head_dim": 4})
        >>> hax.nn.attention.dot_product_attention("key_pos", "head_dim", q, k, k).shape
        {'pos': 2, 'head_dim': 4}
    """
    if not is_named_array(query):
        raise TypeError(
            f"the third argument of `dot_product_attention` is the query, a named array, not {format_value(query)}; "
            "older versions of Haliax took the axis of the queries first: leave it out, and pass `KPos, Key, query, "
            "key, value`"
        )
    key_names = [axis_name(axis) for axis in parse_selection(KPos)]
    if missing := [name for name in key_names if name not in key.names]:
        raise ValueError(f"axis {missing[0]!r} is not found in the keys ({', '.join(key.names)})")
    if common := [name for name in key_names if name in query.names]:
        raise ValueError(f"the axes of queries and keys must be distinct, {common[0]!r} is in both; rename it in one")
    weights = dot_product_attention_weights(Key, KPos, query, key, mask, bias, attention_dtype, precision)
    return constrain_sharding(dot(weights, value, axis=KPos))


def mask_to_bias(mask: Any, mask_value: float = -1e9) -> Any:
    """Returns a bias that is `mask_value` where a mask is True, and 0 elsewhere.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.attention.mask_to_bias(hax.named([True, False], "i")).array.tolist()
        [-1000000000.0, 0.0]
    """
    return mask * mask_value


def combine_masks_and(mask1: Any, mask2: Any) -> Any:
    """Returns where both masks are True; None is a mask that is True everywhere."""
    return _combine_masks(operator.and_, mask1, mask2)


def combine_masks_or(mask1: Any, mask2: Any) -> Any:
    """Returns where either mask is True, or the one that is given if the other is None."""
    return _combine_masks(operator.or_, mask1, mask2)


def _combine_masks(combine: Callable[[Any, Any], Any], mask1: Any, mask2: Any) -> Any:
    if mask1 is None:
        return mask2
    if mask2 is None:
        return mask1
    return combine(mask1, broadcast_axis(mask2, mask1.axes))


def prefix_lm_mask(QSeqLen: Axis, KSeqLen: Axis, prefix_len: int, q_start: int = 0, k_start: int = 0) -> Any:
    """Returns the causal mask with which every query also attends to the first `prefix_len` keys.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.attention.prefix_lm_mask(*hax.make_axes(q=2, k=2), 2).array
        Array([[ True,  True],
               [ True,  True]], dtype=bool)
    """
    is_prefix = arange(KSeqLen) < prefix_len
    return convert_result(is_prefix | nn.causal_mask(QSeqLen, KSeqLen, q_start, k_start))


def forgetful_causal_mask(KPos: Axis, mask_prob: float, sample_prob: bool = True, *, key: Any) -> Any:
    """Returns a mask that is False for random keys, and never for the first one.

    With `sample_prob`, the share of these keys is drawn below `mask_prob`, except that 1 hides all of them.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> bool(hax.nn.attention.forgetful_causal_mask(hax.Axis("k", 8), 1.0, False, key=jax.random.key(0))["k", 0])
        True
    """
    prob_key, mask_key = random.split(key, 2)
    probability = named(mask_prob, ())
    if sample_prob and mask_prob != 1:
        probability = random.uniform(prob_key, (), maxval=mask_prob)
    is_kept = random.bernoulli(mask_key, KPos, 1 - probability)
    return convert_result(is_kept | (arange(KPos) == 0))


def dropout_mask(axes: Any, dropout_rate: float, *, key: Any) -> Any:
    """Returns a mask that is False with a probability.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> hax.nn.attention.dropout_mask(hax.Axis("k", 2), 0.0, key=jax.random.key(0)).array
        Array([ True,  True], dtype=bool)
    """
    return convert_result(random.bernoulli(key, axes, 1 - dropout_rate))

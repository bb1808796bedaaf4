"""Scaled dot-product attention over named axes."""

from typing import Any

import jax

from ..named._array import NamedArray
from ..named._axis import AxisSelection, AxisSelector
from ..named._named_call import enter_function_scope
from ._attention_inputs import check_attention_inputs
from ._attention_mask import AttentionMask
from ._plain_attention import attend_plainly


def dot_product_attention(
    KPos: AxisSelector,
    Key: AxisSelection,
    query: NamedArray,
    key: NamedArray,
    value: NamedArray,
    mask: NamedArray | AttentionMask | None = None,
    bias: NamedArray | None = None,
    attention_dtype: Any = None,
    precision: Any = None,
    *,
    QPos: AxisSelector | None = None,
    scale: Any = None,
    soft_cap: float | None = None,
    sinks: NamedArray | None = None,
    dropout: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> NamedArray:
    """Averages values by how well their keys match each query (Vaswani et al., 2017).

    The scores are the products of queries and keys times the scale; then come the soft cap, the bias and the mask. With
    grouped queries (Ainslie et al., 2023), the query has an axis of groups that key and value lack; nothing else
    changes.

    Args:
        KPos: The axis of key positions, which `key` and `value` have and `query` lacks.
        Key: The axes of `query` and `key` to contract, often the size of a head.
        query: Array with `Key` and any other axes, such as batch, heads and query positions.
        key: Array with `KPos`, `Key` and other axes of `query`.
        value: Array with `KPos` and any others.
        mask: An `AttentionMask`, or a boolean array that broadcasts with the scores, True where a query attends to a
            key. A query that attends to no key averages all of them.
        bias: Added to the scores, after scaling.
        attention_dtype: dtype of the scores and weights; the dtype of the query if None.
        precision: As for `jax.lax.dot_general`.
        QPos: The axis of query positions, which masks compare with those of keys; if None, the axis of `query` that
            `key` lacks, or the one of several that arrays in the mask have.
        scale: Factor of the products of queries and keys; `1 / sqrt(size of Key)` if None.
        soft_cap: Scores become `soft_cap * tanh(scores / soft_cap)` before bias and mask (Gemma Team, 2024).
        sinks: Scores of keys whose values are zero, one for each element of the axes of this array, such as heads
            (OpenAI, 2025, gpt-oss). A query that attends to no key attends to its sink alone, and gets zeros.
        dropout: Probability with which a weight is set to zero; the others are scaled by `1 / (1 - dropout)`.
        dropout_key: A random key, needed if `dropout` is not 0.

    Returns:
        Array with the axes shared by weights and values, then the remaining axes of the query, then those of the value.

    Raises:
        ValueError: If an array lacks one of its axes, `query` has `KPos`, there are no keys, several axes may be that
            of query positions, or a number is out of its range.
        TypeError: If an array is not named, or `mask` is not boolean.

    Example:
        >>> import axonym as nym
        >>> q = nym.ones({"heads": 2, "pos": 3, "head_dim": 4})
        >>> k = q.rename({"pos": "key_pos"})
        >>> mask = nym.nn.AttentionMask.causal()
        >>> nym.nn.dot_product_attention("key_pos", "head_dim", q, k, k, mask).shape
        (heads: 2, pos: 3, head_dim: 4)
    """
    options = {"QPos": QPos, "scale": scale, "soft_cap": soft_cap, "sinks": sinks}
    inputs = check_attention_inputs(
        KPos,
        Key,
        query,
        key,
        value,
        mask,
        bias,
        attention_dtype,
        precision,
        **options,
        dropout=dropout,
        dropout_key=dropout_key,
    )
    with enter_function_scope("dot_product_attention", (*inputs.Key, inputs.KPos)):
        return attend_plainly(inputs)

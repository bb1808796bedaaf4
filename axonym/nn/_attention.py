"""Scaled dot-product attention over named axes."""

from typing import Any

import jax

from ..named._arguments import check_integer
from ..named._array import NamedArray
from ..named._axis import AxisSelection, AxisSelector
from ..named._named_call import enter_function_scope
from ._attention_choice import AttentionChoice, choose_implementation, explain_choice
from ._attention_inputs import check_attention_inputs
from ._attention_mask import AttentionMask
from ._blocked_attention import attend_in_blocks
from ._jax_attention import attend_by_jax
from ._plain_attention import attend_plainly
from ._splash_attention import attend_by_splash


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
    implementation: str = "auto",
    QPos: AxisSelector | None = None,
    scale: Any = None,
    soft_cap: float | None = None,
    sinks: NamedArray | None = None,
    dropout: float = 0.0,
    dropout_key: jax.Array | None = None,
    block_size: int = 512,
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
        implementation: "plain" computes all scores at once; "blocked" computes them in blocks, so that memory grows
            linearly with the keys; "jax" is `jax.nn.dot_product_attention`, with the kernel of cuDNN where it can;
            "splash" is the Pallas kernel for TPUs; "auto" chooses by platform and shapes, see `explain_attention`.
        QPos: The axis of query positions, which masks compare with those of keys; if None, the axis of `query` that
            `key` lacks, or the one of several that arrays in the mask have.
        scale: Factor of the products of queries and keys; `1 / sqrt(size of Key)` if None.
        soft_cap: Scores become `soft_cap * tanh(scores / soft_cap)` before bias and mask (Gemma Team, 2024).
        sinks: Scores of keys whose values are zero, one for each element of the axes of this array, such as heads
            (OpenAI, 2025, gpt-oss). A query that attends to no key attends to its sink alone, and gets zeros.
        dropout: Probability with which a weight is set to zero; the others are scaled by `1 / (1 - dropout)`.
        dropout_key: A random key, needed if `dropout` is not 0.
        block_size: The number of query and of key positions in a block of the implementation "blocked".

    Returns:
        Array with the axes shared by weights and values, then the remaining axes of the query, then those of the value.

    Raises:
        ValueError: If an array lacks one of its axes, `query` has `KPos`, there are no keys, several axes may be that
            of query positions, a number is out of its range, or the implementation asked for cannot compute this.
        TypeError: If an array is not named, or `mask` is not boolean.

    Example:
        >>> import axonym as nym
        >>> q = nym.ones({"heads": 2, "pos": 3, "head_dim": 4})
        >>> k = q.rename({"pos": "key_pos"})
        >>> mask = nym.nn.AttentionMask.causal()
        >>> nym.nn.dot_product_attention("key_pos", "head_dim", q, k, k, mask).shape
        (heads: 2, pos: 3, head_dim: 4)
    """
    inputs = check_attention_inputs(
        *(KPos, Key, query, key, value, mask, bias, attention_dtype, precision),
        **{"QPos": QPos, "scale": scale, "soft_cap": soft_cap, "sinks": sinks},
        **{"dropout": dropout, "dropout_key": dropout_key},
    )
    block_size = check_integer("dot_product_attention: `block_size`", block_size, 1)
    chosen = choose_implementation(inputs, implementation)
    with enter_function_scope("dot_product_attention", (*inputs.Key, inputs.KPos)):
        if chosen == "blocked":
            return attend_in_blocks(inputs, block_size)
        return {"plain": attend_plainly, "jax": attend_by_jax, "splash": attend_by_splash}[chosen](inputs)


def explain_attention(
    *args: Any, implementation: str = "auto", block_size: int = 512, **options: Any
) -> AttentionChoice:
    """Returns which implementation `dot_product_attention` uses for the same arguments, and why; nothing is computed.

    Args:
        *args: As for `dot_product_attention`; arrays may be `jax.ShapeDtypeStruct`s with names.
        implementation: As for `dot_product_attention`.
        block_size: As for `dot_product_attention`.
        **options: As for `dot_product_attention`.

    Returns:
        An object with the fields `implementation`, `reason` and `others`, which prints as a table.

    Raises:
        ValueError: As `dot_product_attention` does.
        TypeError: As `dot_product_attention` does.

    Example:
        >>> import axonym as nym
        >>> q = nym.ones({"heads": 2, "pos": 3, "head_dim": 4})
        >>> k = q.rename({"pos": "key_pos"})
        >>> print(nym.nn.explain_attention("key_pos", "head_dim", q, k, k, nym.nn.AttentionMask.causal()))
        plain (used)    it is the fastest for few scores, and has all features
        splash          on cpu it runs in interpret mode, which is slow
        jax             without the kernel of cuDNN it is no better than 'plain': there is no NVIDIA GPU
        blocked         the scores of a head are few: 9, at most 4,194,304
    """
    return explain_choice(check_attention_inputs(*args, **options), implementation)

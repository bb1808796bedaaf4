"""Scaled dot-product attention over named axes, and the list of its implementations."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from ..._ground.arguments import check_choice
from ...named._array import NamedArray
from ...named._axis import AxisSelection, AxisSelector
from ...named._named_call import enter_function_scope
from ...named._sharding import mapping_context
from ._blocked import attend_in_blocks
from ._context import (
    ContextChoice,
    attend_by_heads,
    choose_context,
    find_context_axes,
    find_ring_kernel_obstacle,
    gather_keys,
    shape_part,
)
from ._inputs import AttentionInputs, parse_attention_inputs
from ._kernels import attend_by_jax, find_cudnn_obstacle, find_jax_obstacle
from ._mask import AttentionMask
from ._plain import attend_at_once
from ._ring import attend_in_ring
from ._splash import attend_by_splash, find_splash_objection, find_splash_obstacle


# "auto" computes more scores of a head than this in blocks: those of 2,048 positions take 16 MiB in float32.
MOST_SCORES = 2048 * 2048


@dataclasses.dataclass(frozen=True)
class Implementation:
    """A way to compute attention, an entry of `IMPLEMENTATIONS`.

    Attributes:
        name: The argument `implementation` of `dot_product_attention` that selects it.
        run: Computes attention of inputs for which there is no obstacle. The result has the axes that
            `dot_product_attention` returns, in that order, and is sharded by the active mapping. `AttentionInputs` has
            the checked arguments, with the mask as `dot_product_attention` takes it.
        find_obstacle: Returns why it cannot compute some inputs, None if it can. The text ends a sentence of an error:
            "implementation 'x' cannot compute this: it has no `bias`".
        find_objection: Returns why "auto" does not take it even where there is no obstacle, such as its speed on this
            platform; None if nothing speaks against it.
        describe_advantage: Returns why "auto" takes it, for `explain_attention`.
    """

    name: str
    run: Callable[[AttentionInputs], NamedArray]
    find_obstacle: Callable[[AttentionInputs], str | None]
    find_objection: Callable[[AttentionInputs], str | None]
    describe_advantage: Callable[[AttentionInputs], str]


def _find_jax_objection(inputs: AttentionInputs) -> str | None:
    obstacle = find_cudnn_obstacle(inputs)
    return f"without the kernel of cuDNN it is no better than 'plain': {obstacle}" if obstacle else None


def _find_blocked_objection(inputs: AttentionInputs) -> str | None:
    count = inputs.count_scores()
    if count > MOST_SCORES:
        return None
    return f"the scores of a head are few: {count:,}, at most {MOST_SCORES:,}"


# In the order in which "auto" tries them. "plain" comes last: it can compute everything.
IMPLEMENTATIONS = (
    Implementation(
        name="splash",
        run=attend_by_splash,
        find_obstacle=find_splash_obstacle,
        find_objection=find_splash_objection,
        describe_advantage=lambda inputs: "the kernel for TPUs takes these inputs",
    ),
    Implementation(
        name="jax",
        run=attend_by_jax,
        find_obstacle=find_jax_obstacle,
        find_objection=_find_jax_objection,
        describe_advantage=lambda inputs: "the kernel of cuDNN takes these inputs",
    ),
    Implementation(
        name="blocked",
        run=attend_in_blocks,
        find_obstacle=AttentionInputs.find_foreign_axis,
        find_objection=_find_blocked_objection,
        describe_advantage=lambda inputs: (
            f"the scores of a head are many: {inputs.count_scores():,}, more than {MOST_SCORES:,}"
        ),
    ),
    Implementation(
        name="plain",
        run=attend_at_once,
        find_obstacle=lambda inputs: None,
        find_objection=lambda inputs: None,
        describe_advantage=lambda inputs: "it is the fastest for few scores, and has all features",
    ),
)


@dataclasses.dataclass(frozen=True)
class AttentionChoice:
    """The implementation that `dot_product_attention` uses for some arguments; see `explain_attention`.

    Attributes:
        implementation: Its name.
        reason: Why it is used.
        others: Pairs of each other implementation and why it is not used.
        context: How devices exchange keys and values, None if positions are not sharded.
        context_reason: Why they do it so.

    Example:
        >>> import axonym as nym
        >>> q, k = nym.ones({"pos": 3, "head_dim": 4}), nym.ones({"key_pos": 3, "head_dim": 4})
        >>> nym.nn.explain_attention("key_pos", "head_dim", q, k, k).implementation
        'plain'
    """

    implementation: str
    reason: str
    others: tuple[tuple[str, str], ...]
    context: str | None = None
    context_reason: str = ""

    def __str__(self) -> str:
        """Formats a line for each implementation, and one for the context."""
        lines = [(f"{self.implementation} (used)", self.reason), *self.others]
        if self.context is not None:
            lines.append((f"context {self.context}", self.context_reason))
        width = max(16, *(len(name) + 2 for name, _ in lines))
        return "\n".join(f"{name:<{width}}{reason}" for name, reason in lines)


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
    positions: NamedArray | None = None,
    context: str = "auto",
) -> NamedArray:
    """Averages values by how well their keys match each query (Vaswani et al., 2017).

    The scores are the products of queries and keys times the scale; then come the soft cap, the bias and the mask. With
    grouped queries (Ainslie et al., 2023), the query has an axis of groups that key and value lack; nothing else
    changes.

    Args:
        KPos: The axis of key positions, which `key` and `value` have and `query` lacks.
        Key: The axes of `query` and `key` to contract, often the size of a head.
        query: Array with `Key` and any other axes, such as batch, heads and query positions.
        key: Array with `KPos`, `Key` and other axes of `query`. It may have fewer bits than the query, as in a cache.
        value: Array with `KPos` and any others, of any float dtype.
        mask: An `AttentionMask`, or a boolean array that broadcasts with the scores, True where a query attends to a
            key. A query that attends to no key gets zeros.
        bias: Added to the scores, after scaling. Minus infinity, or the lowest number of float32 or bfloat16, hides a
            key as a mask does.
        attention_dtype: dtype of the scores and weights; the dtype of the query if None.
        precision: As for `jax.lax.dot_general`.
        implementation: "plain" computes all scores at once; "blocked" computes them in blocks, so that memory grows
            linearly with the keys; "jax" is `jax.nn.dot_product_attention`, with the kernel of cuDNN where it can;
            "splash" is the Pallas kernel for TPUs; "auto" chooses by platform and shapes, see `explain_attention`.
        QPos: The axis of query positions, which masks compare with those of keys; if None, the axis of `query` that
            `key` lacks, or the one of several that arrays in the mask have.
        scale: Factor of the products of queries and keys, a number or a named array with axes of the query;
            `1 / sqrt(size of Key)` if None.
        soft_cap: Scores become `soft_cap * tanh(scores / soft_cap)` before bias and mask (Gemma Team, 2024).
        sinks: Scores of keys whose values are zero, one for each element of the axes of this array, such as heads
            (OpenAI, 2025, gpt-oss).
        dropout: Probability with which a weight is set to zero; the others are scaled by `1 / (1 - dropout)`. The
            weights are the same for all implementations and contexts, but depend on the mesh in a context other than
            "all_gather" if it divides more axes than positions.
        dropout_key: A random key, needed if `dropout` is not 0.
        block_size: The number of query and of key positions in a block of the implementation "blocked", and of a
            device in a ring.
        positions: The position of each query, and of each key, for the mask: an integer array with `QPos` and perhaps
            other axes of the query. If None, these are 0, 1, and so on.
        context: How devices that share the positions of a sequence exchange keys and values, if the mapping shards
            `QPos`: "all_gather" gives each all of them; "ring" sends them around, while each computes with those that
            it has (Liu et al., 2023); "all_to_all" gives each all positions of a part of the heads (Jacobs et al.,
            2023); "mixed" exchanges heads along the last of several mesh axes of positions and sends keys and values
            around a ring along the first ones (Fang & Zhao, 2024); "auto" exchanges heads, among all or in groups,
            where that sends less than a gather, and goes around a ring where gathered keys and values would take more
            than 64 MiB of a device and no kernel computes them.

    Returns:
        Array with the axes shared by weights and values, then the remaining axes of the query, then those of the value.
        It has the dtype of the query; products are summed in float32 at least.

    Raises:
        ValueError: If an array lacks one of its axes, `query` has `KPos`, there are no keys, several axes may be that
            of query positions, a number is out of its range, or the implementation or the context asked for cannot
            compute this.
        TypeError: If an array is not named, or `mask` is not boolean.

    Example:
        >>> import axonym as nym
        >>> q = nym.ones({"heads": 2, "pos": 3, "head_dim": 4})
        >>> k = q.rename({"pos": "key_pos"})
        >>> mask = nym.nn.AttentionMask.causal()
        >>> nym.nn.dot_product_attention("key_pos", "head_dim", q, k, k, mask).shape
        (heads: 2, pos: 3, head_dim: 4)
    """
    inputs = parse_attention_inputs(
        KPos,
        Key,
        query,
        key,
        value,
        mask,
        bias,
        attention_dtype,
        precision,
        QPos=QPos,
        scale=scale,
        soft_cap=soft_cap,
        sinks=sinks,
        dropout=dropout,
        dropout_key=dropout_key,
        block_size=block_size,
        positions=positions,
    )
    context_choice = _choose_context(inputs, context, implementation)
    with enter_function_scope("dot_product_attention", (*inputs.contracted, inputs.key_axis)):
        if context_choice.context in ("ring", "mixed"):
            is_mixed = context_choice.context == "mixed"
            has_kernel = find_ring_kernel_obstacle(inputs, implementation, is_mixed=is_mixed) is None
            return attend_in_ring(inputs, is_mixed=is_mixed, has_kernel=has_kernel)
        if context_choice.context == "all_to_all":
            return attend_by_heads(inputs, lambda part: _choose_implementation(part, implementation).run(part))
        choice = _choose_implementation(inputs, implementation)
        return choice.run(gather_keys(inputs) if context_choice.context == "all_gather" else inputs)


def explain_attention(
    *args: Any, implementation: str = "auto", block_size: int = 512, context: str = "auto", **options: Any
) -> AttentionChoice:
    """Returns which implementation `dot_product_attention` uses for the same arguments, and why; nothing is computed.

    Args:
        *args: As for `dot_product_attention`; arrays may be `jax.ShapeDtypeStruct`s with names.
        implementation: As for `dot_product_attention`.
        block_size: As for `dot_product_attention`.
        context: As for `dot_product_attention`.
        **options: As for `dot_product_attention`.

    Returns:
        An object with the fields `implementation`, `reason`, `others`, `context` and `context_reason`, which prints as
        a table.

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
    inputs = parse_attention_inputs(*args, block_size=block_size, **options)
    context_choice = _choose_context(inputs, context, implementation)
    if context_choice.context == "all_to_all":
        with mapping_context(None):  # as on a device
            return _explain_implementation(shape_part(inputs), implementation, context_choice)
    return _explain_implementation(inputs, implementation, context_choice)


def _explain_implementation(
    inputs: AttentionInputs, implementation: str, context_choice: ContextChoice
) -> AttentionChoice:
    if context_choice.context in ("ring", "mixed"):
        return _explain_ring(inputs, implementation, context_choice)
    choice = _choose_implementation(inputs, implementation)
    if implementation == "auto":
        reason = choice.describe_advantage(inputs)
        reason_against_others = f"{choice.name!r} comes first"
    else:
        reason = "it is asked for"
        reason_against_others = f"{choice.name!r} is asked for"
    others = [
        (candidate.name, candidate.find_objection(inputs) or candidate.find_obstacle(inputs) or reason_against_others)
        for candidate in IMPLEMENTATIONS
        if candidate is not choice
    ]
    return AttentionChoice(choice.name, reason, tuple(others), *context_choice)


def _explain_ring(inputs: AttentionInputs, implementation: str, context_choice: ContextChoice) -> AttentionChoice:
    obstacle = find_ring_kernel_obstacle(inputs, implementation, is_mixed=context_choice.context == "mixed")
    name, reason = "splash", "the kernel for TPUs takes the shards of these inputs"
    if obstacle is not None:
        name, reason = "blocked", "a ring computes in blocks where it has no kernel"
    reasons = {"splash": obstacle, "blocked": "'splash' comes first"}
    if implementation != "auto":
        reason = "it is asked for"
    other_reasons = [
        (candidate.name, reasons.get(candidate.name) or "a ring computes as 'splash' or 'blocked' do")
        for candidate in IMPLEMENTATIONS
        if candidate.name != name
    ]
    return AttentionChoice(name, reason, tuple(other_reasons), *context_choice)


def _choose_context(inputs: AttentionInputs, context: str, implementation: str) -> ContextChoice:
    """Returns how devices exchange keys and values, if an implementation is asked for; see `choose_context`."""
    has_kernel = False
    if (context, implementation) == ("auto", "auto") and find_context_axes(inputs):
        has_kernel = _choose_implementation(inputs, implementation).name in ("splash", "jax")
    return choose_context(inputs, context, implementation, has_kernel)


def _choose_implementation(inputs: AttentionInputs, name: str) -> Implementation:
    """Returns the implementation of a name; for "auto", the first without an objection or an obstacle."""
    names = [candidate.name for candidate in IMPLEMENTATIONS]
    check_choice("dot_product_attention: `implementation`", name, ("auto", *names))
    if name == "auto":
        return next(
            candidate
            for candidate in IMPLEMENTATIONS
            if not (candidate.find_objection(inputs) or candidate.find_obstacle(inputs))
        )
    choice = IMPLEMENTATIONS[names.index(name)]
    if obstacle := choice.find_obstacle(inputs):
        alternatives = [candidate.name for candidate in IMPLEMENTATIONS if not candidate.find_obstacle(inputs)]
        raise ValueError(
            f"dot_product_attention: implementation {name!r} cannot compute this: {obstacle}; "
            f"these can: {', '.join(map(repr, alternatives))}"
        )
    return choice

"""The cross-entropy loss of a linear head, without storing its logits."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ..named._ambient import constrain_sharding
from ..named._arguments import check_integer, check_number
from ..named._array import NamedArray
from ..named._axis import AxisSelection, AxisSelector, axis_name, parse_selection
from ..named._base import format_shape, with_array
from ..named._broadcasting import cached_jit, check_matching_sizes
from ..named._format import format_axes
from ..named._named_call import enter_function_scope
from ..named._reduce import _reductions
from ._cross_entropy import add_z_loss
from ._gather_parameter import gather_parameter
from ._inputs import check_axes_among, check_input
from ._reduce_loss import reduce_loss
from ._vocabulary_blocks import Head, score_tokens


def fused_cross_entropy(
    hidden: NamedArray,
    head: NamedArray,
    targets: NamedArray,
    Embed: AxisSelection,
    Vocab: AxisSelector,
    reduction: Callable[..., Any] | None = _reductions.mean,
    where: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
    *,
    weight: NamedArray | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    logit_soft_cap: float | None = None,
    block_size: int = 4096,
    precision: Any = None,
) -> NamedArray:
    """Computes the cross entropy of the logits `dot(hidden, head, axis=Embed)`, which are never stored as a whole.

    It equals `cross_entropy_loss` of these logits. Its memory grows with `block_size` instead of the vocabulary: a
    block of logits at a time, in the forward and in the backward pass, which computes the logits again. With the
    vocabulary sharded, each device has the blocks of its own part. Gradients are those of reverse mode only.

    Args:
        hidden: Array with `Embed` and any others, such as batch and position.
        head: The weight of the head with `Vocab` and `Embed`, such as `Linear.weight` or `Embedding.weight`. It is
            gathered as layers gather their parameters.
        targets: Integer labels with other axes of `hidden`. A label out of range counts as a score of 0.
        Embed: The axes to contract.
        Vocab: The label axis.
        reduction: How the losses are reduced, such as `axonym.mean` or `axonym.sum`; None keeps them all.
        where: Boolean array; losses where it is False are left out.
        reduction_axis: The axes reduced over; all of them if None.
        weight: Weights of the losses, as for `reduce_loss`.
        label_smoothing: As for `cross_entropy_loss`.
        z_loss: As for `cross_entropy_loss`.
        logit_soft_cap: Replaces logits by `logit_soft_cap * tanh(logits / logit_soft_cap)`, as Gemma 2 does.
        block_size: How many labels a block has; a device uses as many for its own part.
        precision: As for `jax.lax.dot_general`.

    Returns:
        Array with the remaining axes of `hidden`, in float32 at least. Sums over `Embed` are kept in that type too.

    Raises:
        ValueError: If an array lacks one of its axes, `head` has others, the axes of `targets` are not among those of
            `hidden`, the targets are not integers, or an option is out of range.
        TypeError: If `hidden`, `head` or `targets` is not a named array.

    Example:
        >>> import axonym as nym
        >>> hidden, head = nym.zeros({"batch": 3, "embed": 2}), nym.ones({"vocab": 4, "embed": 2})
        >>> targets = nym.named([0, 1, 2], "batch")
        >>> nym.nn.fused_cross_entropy(hidden, head, targets, "embed", "vocab", block_size=2).item()  # log 4
        1.386...
    """
    _check_operands(hidden, head, targets, Embed, Vocab)
    label_smoothing = check_number("fused_cross_entropy: `label_smoothing`", label_smoothing, least=0, most=1)
    check_number("fused_cross_entropy: `z_loss`", z_loss, least=0)
    block_size = check_integer("fused_cross_entropy: `block_size`", block_size, 1)
    if logit_soft_cap is not None:
        logit_soft_cap = check_number("fused_cross_entropy: `logit_soft_cap`", logit_soft_cap, above=0)
    vocab = axis_name(Vocab)
    options = (block_size, label_smoothing, logit_soft_cap, precision)
    static = Head(hidden.names, head.names, targets.names, vocab, *options)
    with enter_function_scope("fused_cross_entropy", tuple(map(axis_name, parse_selection(Embed))), (vocab,)):
        hidden, head, targets = constrain_sharding(hidden), gather_parameter(head), constrain_sharding(targets)
        arrays = cached_jit(score_tokens, static)(hidden.array, head.array, targets.array)
        log_normalizers, scores = (with_array(hidden, array, static.tokens) for array in arrays)
        losses = log_normalizers - scores
        if z_loss:
            losses = add_z_loss(losses, log_normalizers, z_loss)
        return reduce_loss(losses, reduction, reduction_axis, where=where, weight=weight)


def _check_operands(
    hidden: NamedArray, head: NamedArray, targets: NamedArray, Embed: AxisSelection, Vocab: AxisSelector
) -> None:
    name = "fused_cross_entropy"
    check_input(f"{name} (hidden)", hidden, Embed, (axis_name(Vocab),))
    check_input(f"{name} (head)", head, (Vocab, *parse_selection(Embed)))
    check_matching_sizes((hidden.names, hidden.array.shape), (head.names, head.array.shape))
    used = {axis_name(axis) for axis in (Vocab, *parse_selection(Embed))}
    if extra := [name for name in head.names if name not in used]:
        raise ValueError(
            f"{name}: the head {format_shape(head)} has axes {format_axes(extra)} besides {format_axes(sorted(used))}; "
            "a head for each of their elements is computed by `axonym.vmap`"
        )
    check_axes_among(name, "targets", targets, "hidden", hidden)
    check_matching_sizes((hidden.names, hidden.array.shape), (targets.names, targets.array.shape))
    if clash := [name for name in targets.names if name in used]:
        raise ValueError(f"{name}: the targets {format_shape(targets)} must not have axis {clash[0]!r}")
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(
            f"{name}: targets of {targets.dtype} are not integer labels; `cross_entropy_loss` takes probabilities"
        )

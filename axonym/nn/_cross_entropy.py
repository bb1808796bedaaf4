"""The cross-entropy loss over a named label axis."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ..named._array import NamedArray
from ..named._axis import AxisSelection, AxisSelector, axis_name, format_axes
from ..named._base import format_shape
from ..named._broadcasting import apply_broadcast
from ..named._creation import arange
from ..named._elementwise import _where
from ..named._named_call import enter_function_scope
from ..named._reduce import _softmax, _sum
from ._inputs import check_input, widen_array


def cross_entropy_loss(
    logits: NamedArray,
    Label: AxisSelector,
    targets: NamedArray,
    reduction: Callable[..., Any] | None = _sum.mean,
    where: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
) -> NamedArray:
    """Computes the cross entropy between `softmax(logits)` over the label axis and the targets, in nats.

    Args:
        logits: Scores with the label axis and any others.
        Label: The label axis.
        targets: Either integer labels, without the label axis, or probabilities with it. A label out
            of range counts as a score of 0.
        reduction: How the losses are reduced, such as `axonym.mean` or `axonym.sum`; None keeps them all.
        where: Boolean array; losses where it is False are left out.
        reduction_axis: The axes reduced over; all of them if None.

    Returns:
        Array with the remaining axes, in float32 at least.

    Raises:
        ValueError: If `logits` lacks the label axis, the axes of `targets` are not among those of `logits`, or they
            are neither integer labels nor probabilities.
        TypeError: If `logits` or `targets` is not a named array.

    Example:
        >>> import axonym as nym
        >>> logits = nym.zeros({"batch": 3, "vocab": 4})
        >>> nym.nn.cross_entropy_loss(logits, "vocab", nym.named([0, 1, 2], "batch")).item()  # log 4
        1.386...
    """
    check_input("cross_entropy_loss", logits, Label)
    check_input("cross_entropy_loss (targets)", targets, ())
    if extra := [name for name in targets.names if name not in logits.names]:
        raise ValueError(
            f"cross_entropy_loss: the targets {format_shape(targets)} have axes {format_axes(extra)}, which the logits "
            f"{format_shape(logits)} lack"
        )
    with enter_function_scope("cross_entropy_loss", (axis_name(Label),)):
        losses = _compute_losses(logits, Label, targets)
        if reduction is None:
            return losses if where is None else _where.where(where, losses, 0)
        return reduction(losses, reduction_axis, where=where)


def _compute_losses(logits: NamedArray, Label: AxisSelector, targets: NamedArray) -> NamedArray:
    wide = widen_array(logits)
    label = wide.resolve_axis(Label)
    if targets.has_axis(label.name):
        return -_sum.sum(_softmax.log_softmax(wide, label) * targets, label)
    if jnp.issubdtype(targets.dtype, jnp.integer):
        target_scores = apply_broadcast(_select_target_scores, wide, targets, arange(label))
        return _softmax.logsumexp(wide, label) - _sum.sum(target_scores, label)
    raise ValueError(
        f"cross_entropy_loss: targets of {targets.dtype} without axis {label.name!r} are neither integer labels nor "
        "probabilities"
    )


def _select_target_scores(scores: Any, targets: Any, labels: Any) -> Any:
    return jnp.where(labels == targets, scores, 0)

"""The cross-entropy loss over a named label axis."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ..named._arguments import check_number
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelection, AxisSelector, axis_name
from ..named._broadcasting import apply_broadcast
from ..named._creation import arange
from ..named._named_call import enter_function_scope
from ..named._reduce import _reductions
from ._inputs import check_axes_among, check_input, widen_array
from ._reduce_loss import reduce_loss


def cross_entropy_loss(
    logits: NamedArray,
    Label: AxisSelector,
    targets: NamedArray,
    reduction: Callable[..., Any] | None = _reductions.mean,
    where: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
    *,
    weight: NamedArray | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> NamedArray:
    """Computes the cross entropy between `softmax(logits)` over the label axis and the targets, in nats.

    `fused_cross_entropy` computes the same from the input of the last layer, without storing the logits.

    Args:
        logits: Scores with the label axis and any others.
        Label: The label axis.
        targets: Either integer labels, without the label axis, or probabilities with it. A label out
            of range counts as a score of 0.
        reduction: How the losses are reduced, such as `axonym.mean` or `axonym.sum`; None keeps them all.
        where: Boolean array; losses where it is False are left out.
        reduction_axis: The axes reduced over; all of them if None.
        weight: Weights of the losses, as for `reduce_loss`.
        label_smoothing: Share of the probability of the targets that is spread evenly over all labels (Szegedy et al.,
            2016), between 0 and 1.
        z_loss: Factor of the squared log-normalizer, which is added to each loss and keeps the logits from drifting
            (Chowdhery et al., 2022, with 1e-4).

    Returns:
        Array with the remaining axes, in float32 at least.

    Raises:
        ValueError: If `logits` lacks the label axis, the axes of `targets` are not among those of `logits`, they
            are neither integer labels nor probabilities, or `label_smoothing` is not between 0 and 1.
        TypeError: If `logits` or `targets` is not a named array.

    Example:
        >>> import axonym as nym
        >>> logits = nym.zeros({"batch": 3, "vocab": 4})
        >>> nym.nn.cross_entropy_loss(logits, "vocab", nym.named([0, 1, 2], "batch")).item()  # log 4
        1.386...
    """
    _check_targets("cross_entropy_loss", logits, Label, targets, label_smoothing)
    check_number("cross_entropy_loss: `z_loss`", z_loss, least=0)
    with enter_function_scope("cross_entropy_loss", (axis_name(Label),)):
        losses = _compute_losses(logits, Label, targets, label_smoothing)
        if z_loss:
            losses = add_z_loss(losses, _reductions.logsumexp(widen_array(logits), Label), z_loss)
        return reduce_loss(losses, reduction, reduction_axis, where=where, weight=weight)


def cross_entropy_loss_and_log_normalizers(
    logits: NamedArray, Label: AxisSelector, targets: NamedArray, *, label_smoothing: float = 0.0
) -> tuple[NamedArray, NamedArray]:
    """Computes the cross entropy of each example, and its log-normalizer: `logsumexp(logits, Label)`.

    Args:
        logits: Scores with the label axis and any others.
        Label: The label axis.
        targets: As for `cross_entropy_loss`.
        label_smoothing: As for `cross_entropy_loss`.

    Returns:
        Two arrays with the other axes of `logits`, in float32 at least. `reduce_loss` reduces them.

    Raises:
        ValueError: As for `cross_entropy_loss`.
        TypeError: If `logits` or `targets` is not a named array.

    Example:
        >>> import axonym as nym
        >>> logits, targets = nym.zeros({"batch": 2, "vocab": 4}), nym.named([0, 1], "batch")
        >>> losses, log_normalizers = nym.nn.cross_entropy_loss_and_log_normalizers(logits, "vocab", targets)
        >>> (losses - log_normalizers).array
        Array([0., 0.], dtype=float32)
    """
    _check_targets("cross_entropy_loss_and_log_normalizers", logits, Label, targets, label_smoothing)
    with enter_function_scope("cross_entropy_loss_and_log_normalizers", (axis_name(Label),)):
        losses = _compute_losses(logits, Label, targets, label_smoothing)
        return losses, _reductions.logsumexp(widen_array(logits), Label)


def _check_targets(
    function: str, logits: NamedArray, Label: AxisSelector, targets: NamedArray, label_smoothing: float
) -> None:
    check_input(function, logits, Label)
    check_axes_among(function, "targets", targets, "logits", logits)
    check_number(f"{function}: `label_smoothing`", label_smoothing, least=0, most=1)
    if not targets.has_axis(axis_name(Label)) and not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(
            f"{function}: targets of {targets.dtype} without axis {axis_name(Label)!r} are neither integer labels nor "
            "probabilities"
        )


def add_z_loss(losses: NamedArray, log_normalizers: NamedArray, z_loss: float) -> NamedArray:
    """Returns the losses with the squared log-normalizers times a factor added."""
    return losses + log_normalizers * log_normalizers * z_loss


def _compute_losses(logits: NamedArray, Label: AxisSelector, targets: NamedArray, label_smoothing: float) -> NamedArray:
    wide = widen_array(logits)
    label = wide.resolve_axis(Label)
    if targets.has_axis(label.name):
        if label_smoothing:
            targets = targets * (1 - label_smoothing) + label_smoothing / label.size
        return -_reductions.sum(_reductions.log_softmax(wide, label) * targets, label)
    scores = _compute_target_scores(wide, label, targets)
    if label_smoothing:
        scores = scores * (1 - label_smoothing) + _reductions.mean(wide, label) * label_smoothing
    return _reductions.logsumexp(wide, label) - scores


def _compute_target_scores(logits: NamedArray, label: Axis, targets: NamedArray) -> NamedArray:
    return _reductions.sum(apply_broadcast(_select_target_scores, logits, targets, arange(label)), label)


def _select_target_scores(scores: Any, targets: Any, labels: Any) -> Any:
    return jnp.where(labels == targets, scores, 0)

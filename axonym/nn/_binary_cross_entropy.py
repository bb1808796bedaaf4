"""The binary cross-entropy loss."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ..named._array import NamedArray
from ..named._axis import AxisSelection
from ..named._broadcasting import apply_broadcast
from ..named._named_call import enter_function_scope
from ..named._reduce import _reductions
from ._inputs import check_axes_among, check_input, widen_array
from ._reduce_loss import reduce_loss


def binary_cross_entropy_loss(
    logits: NamedArray,
    targets: NamedArray,
    reduction: Callable[..., Any] | None = _reductions.mean,
    where: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
    *,
    weight: NamedArray | None = None,
) -> NamedArray:
    """Computes the cross entropy between `sigmoid(logits)` and the targets, in nats.

    It is computed as `max(logits, 0) - logits * targets + log(1 + exp(-abs(logits)))`, without overflow.

    Args:
        logits: Scores of any axes.
        targets: Labels 0 and 1, booleans or probabilities, with some of the axes of `logits`.
        reduction: How the losses are reduced, such as `axonym.mean` or `axonym.sum`; None keeps them all.
        where: Boolean array; losses where it is False are left out.
        reduction_axis: The axes reduced over; all of them if None.
        weight: Weights of the losses, as for `reduce_loss`.

    Returns:
        Array with the remaining axes, in float32 at least.

    Raises:
        ValueError: If the axes of `targets` are not among those of `logits`.
        TypeError: If `logits` or `targets` is not a named array.

    Example:
        >>> import axonym as nym
        >>> logits, targets = nym.zeros({"batch": 2}), nym.named([True, False], "batch")
        >>> nym.nn.binary_cross_entropy_loss(logits, targets).item()  # log 2
        0.693...
    """
    check_input("binary_cross_entropy_loss", logits, ())
    check_axes_among("binary_cross_entropy_loss", "targets", targets, "logits", logits)
    with enter_function_scope("binary_cross_entropy_loss", ()):
        losses = apply_broadcast(_compute_binary_losses, widen_array(logits), targets)
        return reduce_loss(losses, reduction, reduction_axis, where=where, weight=weight)


def _compute_binary_losses(logits: Any, targets: Any) -> Any:
    return jnp.maximum(logits, 0) - logits * targets + jnp.log1p(jnp.exp(-jnp.abs(logits)))

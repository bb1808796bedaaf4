"""`haliax.nn.loss`: losses with weights."""

from typing import Any

import jax.numpy as jnp

from ... import nn
from ...named._array import is_named_array
from ...named._axis import AxisSelection, AxisSelector
from ...named._creation import named
from ...named._elementwise._arithmetic import abs as compute_abs, maximum
from ...named._elementwise._functions import exp, log1p
from ...named._reduce._reductions import mean
from .._adapt import adapt
from ..core import FUNCTIONS
from ..util import UNSPECIFIED


cross_entropy_loss_and_log_normalizers = adapt(
    nn.cross_entropy_loss_and_log_normalizers, "pred_y=logits target_y=targets"
)


def maybe_reduce_loss(
    arr: Any, reduction: Any, reduction_axis: AxisSelection | None, where: Any, weight: Any = None
) -> Any:
    """Reduces losses with a mask and weights, by their weighted mean if the reduction is `UNSPECIFIED`.

    The mean divides by the sum of the weights, and is 0 if that is 0; see `axonym.nn.reduce_loss`. Any other reduction
    gets the losses times their weights, and 0 where the mask is False. A mask of numbers counts as weights.

    Args:
        arr: The losses.
        reduction: How they are reduced; None keeps them all.
        reduction_axis: The axes reduced over; all of them if None.
        where: Boolean array of the losses that count.
        weight: The weights, an array with some of the axes of `arr` or a number.

    Returns:
        Array with the remaining axes, of the dtype of `arr`.

    Example:
        >>> import axonym.haliax as hax
        >>> losses, weight = hax.named([1.0, 3.0], "i"), hax.named([3.0, 1.0], "i")
        >>> [hax.nn.loss.maybe_reduce_loss(losses, fn, None, None, weight).item() for fn in (hax.mean, hax.sum)]
        [1.5, 6.0]
    """
    if where is not None and where.dtype != bool:
        where, weight = None, where if weight is None else where * weight
    if weight is not None and not is_named_array(weight):
        weight = named(weight, ())
    if reduction is UNSPECIFIED or reduction in (FUNCTIONS["mean"], jnp.mean):
        return nn.reduce_loss(arr, mean, reduction_axis, where=where, weight=weight).astype(arr.dtype)
    losses = nn.reduce_loss(arr, None, where=where, weight=weight).astype(arr.dtype)
    return losses if reduction is None else reduction(losses, axis=reduction_axis)


def reduce_loss(
    arr: Any, reduction: Any = UNSPECIFIED, reduction_axis: Any = None, where: Any = None, weight: Any = None
) -> Any:
    """Reduces losses with a mask and weights, by their weighted mean unless another reduction is given.

    See `maybe_reduce_loss`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.reduce_loss(hax.named([1.0, 3.0], "i"), weight=hax.named([3.0, 1.0], "i")).item()
        1.5
    """
    return maybe_reduce_loss(arr, reduction, reduction_axis, where, weight)


def cross_entropy_loss(
    logits: Any,
    Label: AxisSelector,
    targets: Any,
    reduction: Any = UNSPECIFIED,
    where: Any = None,
    weight: Any = None,
    reduction_axis: AxisSelection | None = None,
) -> Any:
    """Computes the cross entropy of logits and targets; see `axonym.nn.cross_entropy_loss`.

    Example:
        >>> import axonym.haliax as hax
        >>> logits, weight = hax.zeros({"batch": 2, "vocab": 4}), hax.named([1.0, 0.0], "batch")
        >>> hax.nn.cross_entropy_loss(logits, "vocab", hax.named([0, 1], "batch"), weight=weight).item()  # log 4
        1.386...
    """
    losses = nn.cross_entropy_loss(logits, Label, targets, reduction=None)
    return maybe_reduce_loss(losses, reduction, reduction_axis, where, weight)


def binary_cross_entropy_loss(
    logits: Any,
    targets: Any,
    reduction: Any = UNSPECIFIED,
    where: Any = None,
    weight: Any = None,
    reduction_axis: AxisSelection | None = None,
) -> Any:
    """Computes the binary cross entropy between `sigmoid(logits)` and targets.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.binary_cross_entropy_loss(hax.zeros({"i": 2}), hax.ones({"i": 2})).item()  # log 2
        0.693...
    """
    losses = maximum(logits, 0) - logits * targets + log1p(exp(-compute_abs(logits)))
    return maybe_reduce_loss(losses, reduction, reduction_axis, where, weight)

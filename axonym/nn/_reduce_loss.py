"""The reduction of losses, with weights and a mask."""

from collections.abc import Callable
from typing import Any

from ..named._arguments import check_function
from ..named._array import NamedArray
from ..named._axis import AxisSelection
from ..named._creation import ones_like
from ..named._elementwise import _arithmetic
from ..named._reduce import _reductions
from ._inputs import check_axes_among, check_input, widen_array


def reduce_loss(
    losses: NamedArray,
    reduction: Callable[..., Any] | None = _reductions.mean,
    reduction_axis: AxisSelection | None = None,
    *,
    where: NamedArray | None = None,
    weight: NamedArray | None = None,
) -> NamedArray:
    """Reduces losses with a mask and weights, as all losses of `axonym.nn` do.

    The mean is that of the losses where `where` is True, each with its weight: the sum of losses times weights, divided
    by the sum of the weights. It is 0, with a gradient of 0, if this divisor is 0, as for a batch that is masked
    entirely. Any other reduction gets the losses times their weights.

    Args:
        losses: Array of any axes.
        reduction: How the losses are reduced, such as `axonym.mean` or `axonym.sum`; None keeps them all.
        reduction_axis: The axes reduced over; all of them if None.
        where: Boolean array with some of the axes of `losses`; losses where it is False are left out, or are 0 if the
            reduction is None.
        weight: Array with some of the axes of `losses`; 1 if None.

    Returns:
        Array with the remaining axes.

    Raises:
        ValueError: If `losses` lacks an axis that is reduced over, or an axis of `where` or `weight`.
        TypeError: If `losses`, `where` or `weight` is not a named array, or `reduction` not a function.

    Example:
        >>> import axonym as nym
        >>> losses, weight = nym.named([1.0, 3.0], "batch"), nym.named([3.0, 1.0], "batch")
        >>> nym.nn.reduce_loss(losses, weight=weight).item(), nym.nn.reduce_loss(losses, nym.sum, weight=weight).item()
        (1.5, 6.0)
    """
    check_input("reduce_loss", losses, ())
    if weight is not None:
        check_axes_among("reduce_loss", "weights", weight, "losses", losses)
    if reduction is _reductions.mean and not (where is None and weight is None):
        return _compute_weighted_mean(losses, reduction_axis, where, weight)
    if weight is not None:
        losses = losses * weight
    if reduction is not None:
        check_function("reduce_loss: `reduction`", reduction, "axonym.mean")
        return reduction(losses, reduction_axis, where=where)
    return losses if where is None else _arithmetic.where(where, losses, 0)


def _compute_weighted_mean(
    losses: NamedArray, axis: AxisSelection | None, where: NamedArray | None, weight: NamedArray | None
) -> NamedArray:
    """Returns the sum of losses times weights, divided by the sum of the weights, or 0 if that is 0."""
    losses = widen_array(losses)
    weights = ones_like(losses) if weight is None else ones_like(losses) * weight
    total = _reductions.sum(losses * weights, axis, where=where)
    divisor = _reductions.sum(weights, axis, where=where)
    # A divisor that is replaced beforehand has a gradient of 0 instead of nan.
    return _arithmetic.where(divisor == 0, 0, total / _arithmetic.where(divisor == 0, 1, divisor))

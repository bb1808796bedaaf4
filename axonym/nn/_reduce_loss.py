"""The reduction of losses, with weights and a mask."""

from collections.abc import Callable
from typing import Any

from ..named._array import NamedArray
from ..named._axis import AxisSelection
from ..named._elementwise import _where
from ..named._reduce import _sum
from ._inputs import check_axes_among, check_input


def reduce_loss(
    losses: NamedArray,
    reduction: Callable[..., Any] | None = _sum.mean,
    reduction_axis: AxisSelection | None = None,
    *,
    where: NamedArray | None = None,
    weight: NamedArray | None = None,
) -> NamedArray:
    """Multiplies losses by weights and reduces them, as all losses of `axonym.nn` do.

    Args:
        losses: Array of any axes.
        reduction: How the losses are reduced, such as `axonym.mean` or `axonym.sum`; None keeps them all.
        reduction_axis: The axes reduced over; all of them if None.
        where: Boolean array with some of the axes of `losses`; losses where it is False are left out, or are 0 if the
            reduction is None.
        weight: Array with some of the axes of `losses`. The mean divides by the number of losses, not by the sum of
            the weights; `axonym.average` does that.

    Returns:
        Array with the remaining axes.

    Raises:
        ValueError: If `losses` lacks an axis that is reduced over, or an axis of `where` or `weight`.
        TypeError: If `losses`, `where` or `weight` is not a named array.

    Example:
        >>> import axonym as nym
        >>> losses, weight = nym.named([1.0, 3.0], "batch"), nym.named([2.0, 0.0], "batch")
        >>> nym.nn.reduce_loss(losses, nym.sum, weight=weight).item()
        2.0
    """
    check_input("reduce_loss", losses, ())
    if weight is not None:
        check_axes_among("reduce_loss", "weights", weight, "losses", losses)
        losses = losses * weight
    if reduction is not None:
        return reduction(losses, reduction_axis, where=where)
    return losses if where is None else _where.where(where, losses, 0)

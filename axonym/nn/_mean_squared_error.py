"""The squared error of predictions."""

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


def mean_squared_error(
    predictions: NamedArray,
    targets: NamedArray,
    reduction: Callable[..., Any] | None = _reductions.mean,
    where: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
    *,
    weight: NamedArray | None = None,
) -> NamedArray:
    """Computes the squared difference between predictions and targets, and its mean or another reduction.

    Args:
        predictions: Array of any axes.
        targets: Array with some of the axes of `predictions`.
        reduction: How the squares are reduced, such as `axonym.mean` or `axonym.sum`; None keeps them all.
        where: Boolean array; squares where it is False are left out.
        reduction_axis: The axes reduced over; all of them if None.
        weight: Weights of the squares, as for `reduce_loss`.

    Returns:
        Array with the remaining axes, in float32 at least.

    Raises:
        ValueError: If the axes of `targets` are not among those of `predictions`.
        TypeError: If `predictions` or `targets` is not a named array.

    Example:
        >>> import axonym as nym
        >>> predictions, targets = nym.named([1.0, 2.0], "batch"), nym.named([1.0, 4.0], "batch")
        >>> nym.nn.mean_squared_error(predictions, targets).item()
        2.0
    """
    check_input("mean_squared_error", predictions, ())
    check_axes_among("mean_squared_error", "targets", targets, "predictions", predictions)
    with enter_function_scope("mean_squared_error", ()):
        losses = apply_broadcast(_square_differences, widen_array(predictions), targets)
        return reduce_loss(losses, reduction, reduction_axis, where=where, weight=weight)


def _square_differences(predictions: Any, targets: Any) -> Any:
    return jnp.square(predictions - targets)

"""`haliax.nn.loss`: losses with weights."""

from typing import Any

from ... import nn
from ...named._axis import AxisSelection, AxisSelector
from ...named._elementwise._arithmetic import abs as compute_abs
from ...named._elementwise._exponential import exp, log1p
from ...named._elementwise._maximum import maximum
from ...named._reduce._sum import mean
from ..util import UNSPECIFIED


def maybe_reduce_loss(
    arr: Any, reduction: Any, reduction_axis: AxisSelection | None, where: Any, weight: Any = None
) -> Any:
    """Multiplies losses by weights and reduces them, by their mean if the reduction is `UNSPECIFIED`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.loss.maybe_reduce_loss(hax.named([1.0, 3.0], "i"), hax.sum, None, None).item()
        4.0
    """
    if weight is not None:
        arr = arr * weight
    return nn.reduce_loss(arr, mean if reduction is UNSPECIFIED else reduction, reduction_axis, where=where)


def reduce_loss(
    arr: Any, reduction: Any = UNSPECIFIED, reduction_axis: Any = None, where: Any = None, weight: Any = None
) -> Any:
    """Reduces losses, by their mean unless another reduction is given.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.reduce_loss(hax.named([1.0, 3.0], "i")).item()
        2.0
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
        >>> hax.nn.cross_entropy_loss(logits, "vocab", hax.named([0, 1], "batch"), weight=weight).item()  # log(4) / 2
        0.693...
    """
    losses = nn.cross_entropy_loss(logits, Label, targets, reduction=None)
    return maybe_reduce_loss(losses, reduction, reduction_axis, where, weight)


def cross_entropy_loss_and_log_normalizers(pred_y: Any, Label: AxisSelector, target_y: Any) -> tuple[Any, Any]:
    """Returns the cross entropy of each example, and the logarithm of the sum of its exponentiated logits.

    Example:
        >>> import axonym.haliax as hax
        >>> logits, target = hax.zeros({"vocab": 4}), hax.nn.one_hot(0, hax.Axis("vocab", 4))
        >>> [x.item() for x in hax.nn.cross_entropy_loss_and_log_normalizers(logits, "vocab", target)]
        [1.386..., 1.386...]
    """
    return nn.cross_entropy_loss_and_log_normalizers(pred_y, Label, target_y)


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

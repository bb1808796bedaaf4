"""`softmax`, `log_softmax`, `logsumexp` and `logmeanexp`."""

import jax

from .._axis import AxesOrPositions
from .._base import A
from ._apply_reduction import Mask, apply_keeping_axes, apply_reduction


def logsumexp(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Computes `log(sum(exp(x)))` along axes without overflow; see `jax.nn.logsumexp`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.logsumexp(nym.full({"i": 4}, 1000.0), "i").item()  # 1000 + log 4
        1001.386...
    """
    return apply_reduction(jax.nn.logsumexp, x, axis, where)


def logmeanexp(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Computes `log(mean(exp(x)))` along axes without overflow; see `jax.nn.logmeanexp`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.logmeanexp(nym.full({"i": 4}, 1000.0), "i").item()
        1000.0
    """
    return apply_reduction(jax.nn.logmeanexp, x, axis, where)


def softmax(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Computes `exp(x) / sum(exp(x))` along axes without overflow; see `jax.nn.softmax`.

    Args:
        x: Array of any axes.
        axis: One axis, several, or None for all.
        where: Boolean array with some of the axes of `x`; elements where it is False become 0.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `x` lacks an axis, or an `Axis` given has another size.

    Example:
        >>> import axonym as nym
        >>> nym.softmax(nym.zeros({"i": 4}), "i").array
        Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    return apply_keeping_axes(jax.nn.softmax, x, axis, where)


def log_softmax(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Computes `log(softmax(x))` along axes without overflow; see `jax.nn.log_softmax`. Arguments as for `softmax`.

    Example:
        >>> import axonym as nym
        >>> nym.log_softmax(nym.zeros({"i": 1}), "i").array
        Array([0.], dtype=float32)
    """
    return apply_keeping_axes(jax.nn.log_softmax, x, axis, where)

"""Standardisation: mean 0 and variance 1 over axes."""

from typing import Any

import jax
import jax.numpy as jnp

from ..named._arguments import check_number
from ..named._axis import AxisSelection
from ..named._base import N, NamedBase, check_named
from ..named._broadcasting import check_scalar
from ..named._elementwise._arithmetic import rsqrt
from ..named._reduce._reductions import mean as compute_mean, var as compute_variance


def standardize(
    x: N,
    axis: AxisSelection | None = None,
    *,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 1e-5,
    where: Any = None,
) -> N:
    """Subtracts the mean and divides by the standard deviation over axes; see `jax.nn.standardize`.

    The variance is the mean square of what is left after subtracting the mean; JAX subtracts the squared mean from the
    mean square, which is less exact.

    Args:
        x: Array of any axes.
        axis: One axis, several, or None for all.
        mean: A mean to use, a number or a named array of some of the axes; computed from `x` if None.
        variance: A variance to use, likewise.
        epsilon: Added to the variance.
        where: Boolean array with some of the axes of `x`; elements where it is False do not count in mean and variance.

    Returns:
        Array with the axes of `x`.

    Raises:
        TypeError: If `x` is not a named array, or a mean or variance not a number.
        ValueError: If `x` lacks an axis, or `epsilon` is negative.

    Example:
        >>> import axonym as nym
        >>> nym.nn.standardize(nym.named([1.0, 3.0], "i"), "i").array.round(3)
        Array([-1.,  1.], dtype=float32)
    """
    check_named(x)
    for moment in (mean, variance):
        if moment is not None and not isinstance(moment, NamedBase):
            check_scalar(moment)
    if not isinstance(epsilon, jax.Array):
        check_number("standardize: `epsilon`", epsilon, least=0)
    mean = compute_mean(x, axis, where=where) if mean is None else mean
    variance = compute_variance(x, axis, where=where) if variance is None else variance
    return (x - mean) * rsqrt(variance + jnp.asarray(epsilon, x.dtype))

"""From the coefficients of polynomials to their roots, and back."""

from typing import Any

import jax.numpy as jnp

from ..named._axis import AxisSelector
from ..named._base import N
from ..named._gufunc import apply_gufunc
from ._coefficients import coefficient_axis


def roots(p: N, axis: AxisSelector | None = None) -> N:
    """Finds the roots of polynomials; see `jax.numpy.roots` with `strip_zeros=False`.

    Args:
        p: Coefficients, highest power first.
        axis: The axis of the coefficients; the only one there is if None.

    Returns:
        Complex array of `n - 1` roots for `n` coefficients, along an axis of the same name, behind the others. If the
        first coefficients are zero there are fewer roots, and NaN for those that are missing, at the end.

    Raises:
        ValueError: If the axis is not there or not clear.
        TypeError: If `p` is not a named array.

    Example:
        >>> import axonym as nym
        >>> found = nym.poly.roots(nym.named([1.0, -3.0, 2.0], "power"))
        >>> nym.round(nym.sort(found.real, "power"), 4).array
        Array([1., 2.], dtype=float32)
    """
    name = coefficient_axis(p, axis)
    return apply_gufunc(_roots, (p,), (name,), ((name,),))[0]


def _roots(p: Any) -> Any:
    def found(one: Any) -> Any:
        return jnp.roots(one, strip_zeros=False)

    return jnp.vectorize(found, signature="(n)->(k)")(p)


def poly(zeros: N, axis: AxisSelector | None = None) -> N:
    """Finds the coefficients of the polynomials that have these roots; see `jax.numpy.poly`.

    Args:
        zeros: The roots.
        axis: The axis of the roots; the only one there is if None.

    Returns:
        Coefficients, highest power first, one more than roots, along an axis of the same name, behind the others. The
        first ones are 1.

    Raises:
        ValueError: If the axis is not there or not clear.
        TypeError: If `zeros` is not a named array.

    Example:
        >>> import axonym as nym
        >>> nym.poly.poly(nym.named([1.0, 2.0], "power")).array
        Array([ 1., -3.,  2.], dtype=float32)
    """
    name = coefficient_axis(zeros, axis, "roots")
    return apply_gufunc(_coefficients, (zeros,), (name,), ((name,),))[0]


def _coefficients(zeros: Any) -> Any:
    return jnp.vectorize(lambda one: jnp.atleast_1d(jnp.poly(one)), signature="(n)->(k)")(zeros)

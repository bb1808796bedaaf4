"""The roots of polynomials, and polynomials from their roots."""

from typing import Any

import jax.numpy as jnp

from ..named._axis import AxisSelector
from ..named._base import N
from ._coefficient_axis import apply_to_polynomials, find_coefficient_axis


def roots(p: N, axis: AxisSelector | None = None) -> N:
    """Finds the roots of polynomials; see `jax.numpy.roots` with `strip_zeros=False`.

    Args:
        p: Coefficients, highest power first.
        axis: The axis of the coefficients; by default the only one.

    Returns:
        Complex array of `n - 1` roots for `n` coefficients, along a last axis of the same name. If
        leading coefficients are zero there are fewer roots, and the missing ones are NaN, at the end.

    Raises:
        ValueError: If the axis is missing or ambiguous.
        TypeError: If `p` is not a named array.

    Example:
        >>> import axonym as nym
        >>> found = nym.poly.roots(nym.named([1.0, -3.0, 2.0], "power"))
        >>> nym.round(nym.sort(found.real, "power"), 4).array
        Array([1., 2.], dtype=float32)
    """
    name = find_coefficient_axis(p, axis)
    return apply_to_polynomials(jnp.roots, "(n)->(k)", (p,), (name,), ((name,),), strip_zeros=False)[0]


def poly(zeros: N, axis: AxisSelector | None = None) -> N:
    """Finds the coefficients of polynomials from their roots; see `jax.numpy.poly`.

    Args:
        zeros: The roots.
        axis: The axis of the roots; by default the only one.

    Returns:
        Coefficients, highest power first, one more than roots, along a last axis of the same name. The
        leading ones are 1.

    Raises:
        ValueError: If the axis is missing or ambiguous.
        TypeError: If `zeros` is not a named array.

    Example:
        >>> import axonym as nym
        >>> nym.poly.poly(nym.named([1.0, 2.0], "power")).array
        Array([ 1., -3.,  2.], dtype=float32)
    """
    name = find_coefficient_axis(zeros, axis, "roots")
    return apply_to_polynomials(_compute_coefficients, "(n)->(k)", (zeros,), (name,), ((name,),))[0]


def _compute_coefficients(zeros: Any) -> Any:
    return jnp.atleast_1d(jnp.poly(zeros))

"""Sums, differences, products and quotients of polynomials, and their coefficients without the zeros at the ends."""

from typing import Any

import jax.numpy as jnp

from ..named._ambient import replicate_dims
from ..named._axis import AxisSelection, AxisSelector, find_axes
from ..named._base import N, check_named, format_shape, is_traced, with_array
from ..named._gufunc import apply_gufunc
from ._coefficients import common_axis


def polyadd(p: N, q: N, axis: AxisSelector | None = None) -> N:
    """Adds polynomials; see `jax.numpy.polyadd`.

    Args:
        p: Coefficients, highest power first.
        q: Coefficients, highest power first; there may be more or fewer. Its other axes are lined up by name.
        axis: The axis of the coefficients, by name if the two have different numbers; the only one there is if None.

    Returns:
        Coefficients of the sum, as many as the longer one has. Their axis stands behind the others.

    Raises:
        ValueError: If the axis is not there or not clear, or the other axes do not broadcast.
        TypeError: If one is not a named array.

    Example:
        >>> import axonym as nym
        >>> p, q = nym.named([1, 2, 3], "power"), nym.named([10, 20], "power")
        >>> nym.poly.polyadd(p, q).array
        Array([ 1, 12, 23], dtype=int32)
    """
    name = common_axis(p, q, axis)
    return apply_gufunc(_added, (p, q), (name, name), ((name,),))[0]


def polysub(p: N, q: N, axis: AxisSelector | None = None) -> N:
    """Subtracts polynomials; see `jax.numpy.polysub`. Arguments as for `polyadd`.

    Example:
        >>> import axonym as nym
        >>> p, q = nym.named([1, 2, 3], "power"), nym.named([10, 20], "power")
        >>> nym.poly.polysub(p, q).array
        Array([  1,  -8, -17], dtype=int32)
    """
    name = common_axis(p, q, axis)
    return apply_gufunc(_subtracted, (p, q), (name, name), ((name,),))[0]


def polymul(p: N, q: N, axis: AxisSelector | None = None) -> N:
    """Multiplies polynomials; see `jax.numpy.polymul`. Arguments as for `polyadd`.

    Returns:
        Coefficients of the product, `n + m - 1` for `n` and `m`. Zeros in front are kept: see `trim_zeros`.

    Example:
        >>> import axonym as nym
        >>> p, q = nym.named([1.0, 2.0], "power"), nym.named([1.0, 3.0], "power")
        >>> nym.poly.polymul(p, q).array
        Array([1., 5., 6.], dtype=float32)
    """
    name = common_axis(p, q, axis)
    return apply_gufunc(_multiplied, (p, q), (name, name), ((name,),))[0]


def polydiv(p: N, q: N, axis: AxisSelector | None = None) -> tuple[N, N]:
    """Divides polynomials; see `jax.numpy.polydiv`. Arguments as for `polyadd`.

    Returns:
        Coefficients of the quotient, `n - m + 1` for `n` and `m` but at least one, and of the remainder, as many as `p`
        has. Zeros in front are kept: see `trim_zeros`.

    Example:
        >>> import axonym as nym
        >>> p, q = nym.named([1.0, 5.0, 7.0], "power"), nym.named([1.0, 3.0], "power")
        >>> [x.array for x in nym.poly.polydiv(p, q)]
        [Array([1., 2.], dtype=float32), Array([0., 0., 1.], dtype=float32)]
    """
    name = common_axis(p, q, axis)
    quotient, remainder = apply_gufunc(_divided, (p, q), (name, name), ((name,), (name,)))
    return quotient, remainder


def _added(p: Any, q: Any) -> Any:
    return jnp.vectorize(jnp.polyadd, signature="(n),(m)->(k)")(p, q)


def _subtracted(p: Any, q: Any) -> Any:
    return jnp.vectorize(jnp.polysub, signature="(n),(m)->(k)")(p, q)


def _multiplied(p: Any, q: Any) -> Any:
    return jnp.vectorize(jnp.polymul, signature="(n),(m)->(k)")(p, q)


def _divided(p: Any, q: Any) -> Any:
    return jnp.vectorize(jnp.polydiv, signature="(n),(m)->(k),(n)")(p, q)


def trim_zeros(x: N, trim: str = "fb", axis: AxisSelection | None = None) -> N:
    """Cuts off what is zero at the ends; see `jax.numpy.trim_zeros`.

    How much that is depends on the values, so this is not for traced arrays.

    Args:
        x: Array.
        trim: Which ends: "f" for the front, "b" for the back, "fb" for both.
        axis: Axis, several of them, or all for None. Along an axis, what is zero for all other axes is cut off.

    Returns:
        Array with the same names, undivided on an Explicit mesh.

    Raises:
        ValueError: If an axis is not there, or `trim` is something else.
        TypeError: If `x` is not a named array, or traced.

    Example:
        >>> import axonym as nym
        >>> nym.poly.trim_zeros(nym.named([0, 0, 1, 2, 0], "power"), "f").array
        Array([1, 2, 0], dtype=int32)
    """
    check_named(x)
    if is_traced(x.array):
        raise TypeError(
            f"`trim_zeros` of {format_shape(x)} has a size that depends on values, which are not known inside `jax.jit` "
            "and the like; call it outside"
        )
    if not trim or set(trim) - set("fb"):
        raise ValueError(f"`trim` is 'f', 'b' or 'fb', not {trim!r}")
    dims = find_axes(x.names, x.array.shape, axis)
    return with_array(x, jnp.trim_zeros(replicate_dims(x.array, range(x.ndim)), trim, axis=dims) if dims else x.array)

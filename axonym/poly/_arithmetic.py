"""Sums, differences, products and quotients of polynomials, and trimming of zero coefficients."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ..named._axis import AxisSelection, AxisSelector, find_axes
from ..named._base import N, check_named, format_shape, is_traced, with_array
from ..named._operation import run_operation, shard_over_auto
from ._coefficient_axis import apply_to_polynomials, find_common_axis


def polyadd(p: N, q: N, axis: AxisSelector | None = None) -> N:
    """Adds polynomials; see `jax.numpy.polyadd`.

    Args:
        p: Coefficients, highest power first.
        q: Coefficients, highest power first; their number may differ. Its other axes broadcast by name.
        axis: The axis of the coefficients, by name if the sizes differ; by default the only one.

    Returns:
        Coefficients of the sum, as many as the longer one. Their axis comes last.

    Raises:
        ValueError: If the axis is missing or ambiguous, or the other axes do not broadcast.
        TypeError: If one is not a named array.

    Example:
        >>> import axonym as nym
        >>> p, q = nym.named([1, 2, 3], "power"), nym.named([10, 20], "power")
        >>> nym.poly.polyadd(p, q).array
        Array([ 1, 12, 23], dtype=int32)
    """
    return _combine_polynomials(jnp.polyadd, p, q, axis)[0]


def polysub(p: N, q: N, axis: AxisSelector | None = None) -> N:
    """Subtracts polynomials; see `jax.numpy.polysub`. Arguments as for `polyadd`.

    Example:
        >>> import axonym as nym
        >>> p, q = nym.named([1, 2, 3], "power"), nym.named([10, 20], "power")
        >>> nym.poly.polysub(p, q).array
        Array([  1,  -8, -17], dtype=int32)
    """
    return _combine_polynomials(jnp.polysub, p, q, axis)[0]


def polymul(p: N, q: N, axis: AxisSelector | None = None) -> N:
    """Multiplies polynomials; see `jax.numpy.polymul`. Arguments as for `polyadd`.

    Returns:
        Coefficients of the product, `n + m - 1` for `n` and `m`. Leading zeros are kept: see `trim_zeros`.

    Example:
        >>> import axonym as nym
        >>> p, q = nym.named([1.0, 2.0], "power"), nym.named([1.0, 3.0], "power")
        >>> nym.poly.polymul(p, q).array
        Array([1., 5., 6.], dtype=float32)
    """
    return _combine_polynomials(_multiply_polynomials, p, q, axis)[0]


def _multiply_polynomials(p: Any, q: Any) -> Any:
    """Returns the product; it is a convolution, whose gradient XLA gets wrong if the coefficients are sharded."""
    whole = {"coefficient": ()}
    p, q = (shard_over_auto(coefficients, ("coefficient",), whole) for coefficients in (p, q))
    return shard_over_auto(jnp.polymul(p, q), ("coefficient",), whole)


def polydiv(p: N, q: N, axis: AxisSelector | None = None) -> tuple[N, N]:
    """Divides polynomials; see `jax.numpy.polydiv`. Arguments as for `polyadd`.

    Returns:
        Coefficients of the quotient, `n - m + 1` for `n` and `m` but at least one, and of the remainder, as many as of
        `p`. Leading zeros are kept: see `trim_zeros`.

    Example:
        >>> import axonym as nym
        >>> p, q = nym.named([1.0, 5.0, 7.0], "power"), nym.named([1.0, 3.0], "power")
        >>> [x.array for x in nym.poly.polydiv(p, q)]
        [Array([1., 2.], dtype=float32), Array([0., 0., 1.], dtype=float32)]
    """
    quotient, remainder = _combine_polynomials(jnp.polydiv, p, q, axis, "(k),(n)")
    return quotient, remainder


def _combine_polynomials(
    fn: Callable[..., Any], p: N, q: N, axis: AxisSelector | None, out: str = "(k)"
) -> tuple[N, ...]:
    name = find_common_axis(p, q, axis)
    return apply_to_polynomials(fn, f"(n),(m)->{out}", (p, q), (name, name), ((name,),) * (out.count(",") + 1))


def trim_zeros(x: N, trim: str = "fb", axis: AxisSelection | None = None) -> N:
    """Removes zeros at the ends; see `jax.numpy.trim_zeros`.

    The size of the result depends on the values, so `x` must not be traced.

    Args:
        x: Array.
        trim: Which ends: "f" for the front, "b" for the back, "fb" for both.
        axis: Axis, several of them, or all for None. Along each, positions are removed where all elements are zero.

    Returns:
        Array with the same names, replicated on an Explicit mesh.

    Raises:
        ValueError: If an axis is missing, or `trim` is invalid.
        TypeError: If `x` is not a named array, or is traced.

    Example:
        >>> import axonym as nym
        >>> nym.poly.trim_zeros(nym.named([0, 0, 1, 2, 0], "power"), "f").array
        Array([1, 2, 0], dtype=int32)
    """
    check_named(x)
    if is_traced(x.array):
        raise TypeError(
            f"`trim_zeros` of {format_shape(x)} has a size that depends on values, which are unknown under `jax.jit`; "
            "call it outside"
        )
    if not isinstance(trim, str) or not trim or set(trim) - set("fb"):
        raise ValueError(f"`trim` must be 'f', 'b' or 'fb', not {trim!r}")
    dims = find_axes(x.names, x.array.shape, axis)
    return with_array(
        x,
        run_operation(functools.partial(jnp.trim_zeros, trim=trim, axis=dims), [x.names], None, x.array, whole=x.names)
        if dims
        else x.array,
    )

"""Floating-point numbers: signs, fractions, exponents, neighbours and NaN."""

import functools
from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._base import A, N
from .._broadcasting import apply_binary, apply_unary
from ._split_pair import split_pair


def signbit(x: A) -> A:
    """Returns whether the sign bit is set, for -0 as well; see `jax.numpy.signbit`.

    Example:
        >>> import axonym as nym
        >>> nym.signbit(nym.named([-0.0], "i")).item()
        True
    """
    return apply_unary(jnp.signbit, x)


@overload
def copysign(x: N, y: N | ArrayLike) -> N: ...
@overload
def copysign(x: ArrayLike, y: N) -> N: ...
@overload
def copysign(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def copysign(x: Any, y: Any) -> Any:
    """Returns `x` with the sign of `y`, broadcast by name; see `jax.numpy.copysign`.

    Example:
        >>> import axonym as nym
        >>> nym.copysign(nym.named([3.0], "i"), -2.0).item()
        -3.0
    """
    return apply_binary(jnp.copysign, x, y)


@overload
def nextafter(x: N, y: N | ArrayLike) -> N: ...
@overload
def nextafter(x: ArrayLike, y: N) -> N: ...
@overload
def nextafter(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def nextafter(x: Any, y: Any) -> Any:
    """Returns the next number after `x` towards `y`, broadcast by name; see `jax.numpy.nextafter`.

    Example:
        >>> import axonym as nym
        >>> nym.nextafter(nym.named([1.0], "i"), 2.0).item()
        1.000000119...
    """
    return apply_binary(jnp.nextafter, x, y)


def spacing(x: A) -> A:
    """Returns the distance from `x` to the next number; see `jax.numpy.spacing`.

    Example:
        >>> import axonym as nym
        >>> nym.spacing(nym.named([1.0], "i")).item()
        1.192...e-07
    """
    return apply_unary(jnp.spacing, x)


def frexp(x: A) -> tuple[A, A]:
    """Splits numbers into fractions and powers of 2: `x = fraction * 2 ** exponent`; see `jax.numpy.frexp`.

    Args:
        x: Array of any axes.

    Returns:
        The fractions, from 0.5 to 1, and the integer exponents, each with the axes of `x`.

    Example:
        >>> import axonym as nym
        >>> fraction, exponent = nym.frexp(nym.named([6.0], "i"))
        >>> fraction.item(), exponent.item()
        (0.75, 3)
    """
    return split_pair(apply_unary(jnp.frexp, x))


@overload
def ldexp(x: N, y: N | ArrayLike) -> N: ...
@overload
def ldexp(x: ArrayLike, y: N) -> N: ...
@overload
def ldexp(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def ldexp(x: Any, y: Any) -> Any:
    """Returns `x * 2 ** y`, the inverse of `frexp`, broadcast by name; see `jax.numpy.ldexp`.

    Example:
        >>> import axonym as nym
        >>> nym.ldexp(nym.named([0.75], "i"), 3).item()
        6.0
    """
    return apply_binary(jnp.ldexp, x, y)


def modf(x: A) -> tuple[A, A]:
    """Splits numbers into fractional and integral parts; see `jax.numpy.modf`.

    Args:
        x: Array of any axes.

    Returns:
        The fractional and the integral parts, both with the sign and the axes of `x`.

    Example:
        >>> import axonym as nym
        >>> fraction, integer = nym.modf(nym.named([2.5], "i"))
        >>> fraction.item(), integer.item()
        (0.5, 2.0)
    """
    return split_pair(apply_unary(jnp.modf, x))


def nan_to_num(x: A, nan: ArrayLike = 0.0, posinf: ArrayLike | None = None, neginf: ArrayLike | None = None) -> A:
    """Replaces NaN and infinite elements by numbers; see `jax.numpy.nan_to_num`.

    Args:
        x: Array of any axes.
        nan: The number for NaN.
        posinf: The number for infinity, the largest of the element type by default.
        neginf: The number for minus infinity, the lowest of the element type by default.

    Returns:
        Array with the axes of `x`.

    Example:
        >>> import axonym as nym
        >>> nym.nan_to_num(nym.named([float("nan"), 2.0], "i"), nan=1.0).array
        Array([1., 2.], dtype=float32)
    """
    return apply_unary(functools.partial(jnp.nan_to_num, nan=nan, posinf=posinf, neginf=neginf), x)

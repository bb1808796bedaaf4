"""Rounding to integers and to decimals."""

import jax.numpy as jnp

from .._arguments import check_integer
from .._base import A
from .._broadcasting import apply_unary


def floor(x: A) -> A:
    """Returns the largest integer not above `x`; see `jax.numpy.floor`.

    Example:
        >>> import axonym as nym
        >>> nym.floor(nym.named([1.5], "i")).item()
        1.0
    """
    return apply_unary(jnp.floor, x)


def ceil(x: A) -> A:
    """Returns the smallest integer not below `x`; see `jax.numpy.ceil`.

    Example:
        >>> import axonym as nym
        >>> nym.ceil(nym.named([1.5], "i")).item()
        2.0
    """
    return apply_unary(jnp.ceil, x)


def rint(x: A) -> A:
    """Returns the nearest integer, halves to even; see `jax.numpy.rint`.

    Example:
        >>> import axonym as nym
        >>> nym.rint(nym.named([2.5], "i")).item()
        2.0
    """
    return apply_unary(jnp.rint, x)


def round(x: A, decimals: int = 0) -> A:
    """Returns `x` rounded to a number of decimals, halves to even; see `jax.numpy.round`. Alias: `around`.

    Example:
        >>> import axonym as nym
        >>> nym.round(nym.named([0.4375], "i"), 1).item() == nym.named(0.4, ()).item()
        True
    """
    decimals = check_integer("round: `decimals`", decimals)
    return apply_unary(lambda array: jnp.round(array, decimals), x)


def trunc(x: A) -> A:
    """Returns `x` rounded towards 0; see `jax.numpy.trunc`. Alias: `fix`.

    Example:
        >>> import axonym as nym
        >>> nym.trunc(nym.named([-2.5], "i")).item()
        -2.0
    """
    return apply_unary(jnp.trunc, x)


around = round
fix = trunc

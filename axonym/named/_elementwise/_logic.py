"""Comparisons, tests of what a number is, and logic on truth values and on bits."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from .._align import binary, unary
from .._base import A, N


def equal(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns whether `x == y`, broadcast by name; see `jax.numpy.equal`.

    Example:
        >>> import axonym as nym
        >>> nym.equal(nym.named([3.0], "i"), 3.0).item()
        True
    """
    return binary(jnp.equal, x, y)


def not_equal(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns whether `x != y`, broadcast by name; see `jax.numpy.not_equal`.

    Example:
        >>> import axonym as nym
        >>> nym.not_equal(nym.named([3.0], "i"), 3.0).item()
        False
    """
    return binary(jnp.not_equal, x, y)


def less(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns whether `x < y`, broadcast by name; see `jax.numpy.less`.

    Example:
        >>> import axonym as nym
        >>> nym.less(nym.named([3.0], "i"), 4.0).item()
        True
    """
    return binary(jnp.less, x, y)


def less_equal(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns whether `x <= y`, broadcast by name; see `jax.numpy.less_equal`.

    Example:
        >>> import axonym as nym
        >>> nym.less_equal(nym.named([3.0], "i"), 3.0).item()
        True
    """
    return binary(jnp.less_equal, x, y)


def greater(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns whether `x > y`, broadcast by name; see `jax.numpy.greater`.

    Example:
        >>> import axonym as nym
        >>> nym.greater(nym.named([3.0], "i"), 4.0).item()
        False
    """
    return binary(jnp.greater, x, y)


def greater_equal(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns whether `x >= y`, broadcast by name; see `jax.numpy.greater_equal`.

    Example:
        >>> import axonym as nym
        >>> nym.greater_equal(nym.named([3.0], "i"), 3.0).item()
        True
    """
    return binary(jnp.greater_equal, x, y)


def isfinite(x: A) -> A:
    """Returns whether `x` is neither infinite nor NaN; see `jax.numpy.isfinite`.

    Example:
        >>> import axonym as nym
        >>> nym.isfinite(nym.named([1.0], "i")).item()
        True
    """
    return unary(jnp.isfinite, x)


def isinf(x: A) -> A:
    """Returns whether `x` is infinite; see `jax.numpy.isinf`.

    Example:
        >>> import axonym as nym
        >>> nym.isinf(nym.named([1.0], "i")).item()
        False
    """
    return unary(jnp.isinf, x)


def isnan(x: A) -> A:
    """Returns whether `x` is NaN; see `jax.numpy.isnan`.

    Example:
        >>> import axonym as nym
        >>> nym.isnan(nym.named([1.0], "i")).item()
        False
    """
    return unary(jnp.isnan, x)


def logical_not(x: A) -> A:
    """Returns whether `x` is zero or False; see `jax.numpy.logical_not`.

    Example:
        >>> import axonym as nym
        >>> nym.logical_not(nym.named([0.0], "i")).item()
        True
    """
    return unary(jnp.logical_not, x)


def logical_and(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns whether both `x` and `y` are true, broadcast by name; see `jax.numpy.logical_and`.

    Example:
        >>> import axonym as nym
        >>> nym.logical_and(nym.named([3.0], "i"), 0.0).item()
        False
    """
    return binary(jnp.logical_and, x, y)


def logical_or(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns whether `x` or `y` is true, broadcast by name; see `jax.numpy.logical_or`.

    Example:
        >>> import axonym as nym
        >>> nym.logical_or(nym.named([3.0], "i"), 0.0).item()
        True
    """
    return binary(jnp.logical_or, x, y)


def logical_xor(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns whether just one of `x` and `y` is true, broadcast by name; see `jax.numpy.logical_xor`.

    Example:
        >>> import axonym as nym
        >>> nym.logical_xor(nym.named([3.0], "i"), 0.0).item()
        True
    """
    return binary(jnp.logical_xor, x, y)


def bitwise_not(x: A) -> A:
    """Returns `x` with every bit flipped; see `jax.numpy.bitwise_not`.

    Example:
        >>> import axonym as nym
        >>> nym.bitwise_not(nym.named([0], "i")).item()
        -1
    """
    return unary(jnp.bitwise_not, x)


def bitwise_and(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns the bits set in both `x` and `y`, broadcast by name; see `jax.numpy.bitwise_and`.

    Example:
        >>> import axonym as nym
        >>> nym.bitwise_and(nym.named([3], "i"), 5).item()
        1
    """
    return binary(jnp.bitwise_and, x, y)


def bitwise_or(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns the bits set in `x` or `y`, broadcast by name; see `jax.numpy.bitwise_or`.

    Example:
        >>> import axonym as nym
        >>> nym.bitwise_or(nym.named([3], "i"), 5).item()
        7
    """
    return binary(jnp.bitwise_or, x, y)


def bitwise_xor(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns the bits set in just one of `x` and `y`, broadcast by name; see `jax.numpy.bitwise_xor`.

    Example:
        >>> import axonym as nym
        >>> nym.bitwise_xor(nym.named([3], "i"), 5).item()
        6
    """
    return binary(jnp.bitwise_xor, x, y)


def left_shift(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns `x` shifted left by `y` bits, broadcast by name; see `jax.numpy.left_shift`.

    Example:
        >>> import axonym as nym
        >>> nym.left_shift(nym.named([3], "i"), 1).item()
        6
    """
    return binary(jnp.left_shift, x, y)


def right_shift(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns `x` shifted right by `y` bits, broadcast by name; see `jax.numpy.right_shift`.

    Example:
        >>> import axonym as nym
        >>> nym.right_shift(nym.named([3], "i"), 1).item()
        1
    """
    return binary(jnp.right_shift, x, y)

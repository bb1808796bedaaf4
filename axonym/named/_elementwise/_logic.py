"""Elementwise comparisons and tests, logical and bitwise operations."""

from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._base import A, N
from .._broadcasting import apply_binary, apply_broadcast, apply_unary
from . import _jitted


@overload
def equal(x: N, y: N | ArrayLike) -> N: ...
@overload
def equal(x: ArrayLike, y: N) -> N: ...
@overload
def equal(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def equal(x: Any, y: Any) -> Any:
    """Returns whether `x == y`, broadcast by name; see `jax.numpy.equal`.

    Example:
        >>> import axonym as nym
        >>> nym.equal(nym.named([3.0], "i"), 3.0).item()
        True
    """
    return apply_binary(jnp.equal, x, y)


@overload
def not_equal(x: N, y: N | ArrayLike) -> N: ...
@overload
def not_equal(x: ArrayLike, y: N) -> N: ...
@overload
def not_equal(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def not_equal(x: Any, y: Any) -> Any:
    """Returns whether `x != y`, broadcast by name; see `jax.numpy.not_equal`.

    Example:
        >>> import axonym as nym
        >>> nym.not_equal(nym.named([3.0], "i"), 3.0).item()
        False
    """
    return apply_binary(jnp.not_equal, x, y)


@overload
def less(x: N, y: N | ArrayLike) -> N: ...
@overload
def less(x: ArrayLike, y: N) -> N: ...
@overload
def less(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def less(x: Any, y: Any) -> Any:
    """Returns whether `x < y`, broadcast by name; see `jax.numpy.less`.

    Example:
        >>> import axonym as nym
        >>> nym.less(nym.named([3.0], "i"), 4.0).item()
        True
    """
    return apply_binary(jnp.less, x, y)


@overload
def less_equal(x: N, y: N | ArrayLike) -> N: ...
@overload
def less_equal(x: ArrayLike, y: N) -> N: ...
@overload
def less_equal(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def less_equal(x: Any, y: Any) -> Any:
    """Returns whether `x <= y`, broadcast by name; see `jax.numpy.less_equal`.

    Example:
        >>> import axonym as nym
        >>> nym.less_equal(nym.named([3.0], "i"), 3.0).item()
        True
    """
    return apply_binary(jnp.less_equal, x, y)


@overload
def greater(x: N, y: N | ArrayLike) -> N: ...
@overload
def greater(x: ArrayLike, y: N) -> N: ...
@overload
def greater(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def greater(x: Any, y: Any) -> Any:
    """Returns whether `x > y`, broadcast by name; see `jax.numpy.greater`.

    Example:
        >>> import axonym as nym
        >>> nym.greater(nym.named([3.0], "i"), 4.0).item()
        False
    """
    return apply_binary(jnp.greater, x, y)


@overload
def greater_equal(x: N, y: N | ArrayLike) -> N: ...
@overload
def greater_equal(x: ArrayLike, y: N) -> N: ...
@overload
def greater_equal(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def greater_equal(x: Any, y: Any) -> Any:
    """Returns whether `x >= y`, broadcast by name; see `jax.numpy.greater_equal`.

    Example:
        >>> import axonym as nym
        >>> nym.greater_equal(nym.named([3.0], "i"), 3.0).item()
        True
    """
    return apply_binary(jnp.greater_equal, x, y)


def isfinite(x: A) -> A:
    """Returns whether `x` is neither infinite nor NaN; see `jax.numpy.isfinite`.

    Example:
        >>> import axonym as nym
        >>> nym.isfinite(nym.named([1.0], "i")).item()
        True
    """
    return apply_unary(jnp.isfinite, x)


def isinf(x: A) -> A:
    """Returns whether `x` is infinite; see `jax.numpy.isinf`.

    Example:
        >>> import axonym as nym
        >>> nym.isinf(nym.named([1.0], "i")).item()
        False
    """
    return apply_unary(jnp.isinf, x)


def isnan(x: A) -> A:
    """Returns whether `x` is NaN; see `jax.numpy.isnan`.

    Example:
        >>> import axonym as nym
        >>> nym.isnan(nym.named([1.0], "i")).item()
        False
    """
    return apply_unary(jnp.isnan, x)


def logical_not(x: A) -> A:
    """Returns whether `x` is zero or False; see `jax.numpy.logical_not`.

    Example:
        >>> import axonym as nym
        >>> nym.logical_not(nym.named([0.0], "i")).item()
        True
    """
    return apply_unary(jnp.logical_not, x)


@overload
def logical_and(x: N, y: N | ArrayLike) -> N: ...
@overload
def logical_and(x: ArrayLike, y: N) -> N: ...
@overload
def logical_and(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def logical_and(x: Any, y: Any) -> Any:
    """Returns whether both `x` and `y` are true, broadcast by name; see `jax.numpy.logical_and`.

    Example:
        >>> import axonym as nym
        >>> nym.logical_and(nym.named([3.0], "i"), 0.0).item()
        False
    """
    return apply_binary(_jitted.logical_and, x, y)


@overload
def logical_or(x: N, y: N | ArrayLike) -> N: ...
@overload
def logical_or(x: ArrayLike, y: N) -> N: ...
@overload
def logical_or(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def logical_or(x: Any, y: Any) -> Any:
    """Returns whether `x` or `y` is true, broadcast by name; see `jax.numpy.logical_or`.

    Example:
        >>> import axonym as nym
        >>> nym.logical_or(nym.named([3.0], "i"), 0.0).item()
        True
    """
    return apply_binary(_jitted.logical_or, x, y)


@overload
def logical_xor(x: N, y: N | ArrayLike) -> N: ...
@overload
def logical_xor(x: ArrayLike, y: N) -> N: ...
@overload
def logical_xor(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def logical_xor(x: Any, y: Any) -> Any:
    """Returns whether just one of `x` and `y` is true, broadcast by name; see `jax.numpy.logical_xor`.

    Example:
        >>> import axonym as nym
        >>> nym.logical_xor(nym.named([3.0], "i"), 0.0).item()
        True
    """
    return apply_binary(_jitted.logical_xor, x, y)


def isposinf(x: A) -> A:
    """Returns whether `x` is infinity; see `jax.numpy.isposinf`.

    Example:
        >>> import axonym as nym
        >>> nym.isposinf(nym.named([1.0], "i")).item()
        False
    """
    return apply_unary(_jitted.isposinf, x)


def isneginf(x: A) -> A:
    """Returns whether `x` is minus infinity; see `jax.numpy.isneginf`.

    Example:
        >>> import axonym as nym
        >>> nym.isneginf(nym.named([1.0], "i")).item()
        False
    """
    return apply_unary(_jitted.isneginf, x)


def isclose(
    x: N | ArrayLike, y: N | ArrayLike, rtol: N | ArrayLike = 1e-5, atol: N | ArrayLike = 1e-8, equal_nan: bool = False
) -> N:
    """Returns whether `x` and `y` differ by at most `atol + rtol * abs(y)`, broadcast by name; see `jax.numpy.isclose`.

    Args:
        x: Named array or scalar.
        y: Named array or scalar.
        rtol: Relative tolerance, a scalar or a named array.
        atol: Absolute tolerance, a scalar or a named array.
        equal_nan: Whether NaN is close to NaN.

    Returns:
        Boolean array with the broadcast axes.

    Raises:
        ValueError: If the operands do not broadcast by name.

    Example:
        >>> import axonym as nym
        >>> nym.isclose(nym.named([1.0, 1.1], "i"), 1.1, rtol=0.01).array
        Array([False,  True], dtype=bool)
    """
    return apply_broadcast(_is_close_or_nan if equal_nan else jnp.isclose, x, y, rtol, atol)


def _is_close_or_nan(x: Any, y: Any, rtol: Any, atol: Any) -> Any:
    return jnp.isclose(x, y, rtol, atol, equal_nan=True)


def bitwise_not(x: A) -> A:
    """Returns `x` with every bit flipped; see `jax.numpy.bitwise_not`. Aliases: `invert`, `bitwise_invert`.

    Example:
        >>> import axonym as nym
        >>> nym.bitwise_not(nym.named([0], "i")).item()
        -1
    """
    return apply_unary(jnp.bitwise_not, x)


@overload
def bitwise_and(x: N, y: N | ArrayLike) -> N: ...
@overload
def bitwise_and(x: ArrayLike, y: N) -> N: ...
@overload
def bitwise_and(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def bitwise_and(x: Any, y: Any) -> Any:
    """Returns the bits set in both `x` and `y`, broadcast by name; see `jax.numpy.bitwise_and`.

    Example:
        >>> import axonym as nym
        >>> nym.bitwise_and(nym.named([3], "i"), 5).item()
        1
    """
    return apply_binary(_jitted.bitwise_and, x, y)


@overload
def bitwise_or(x: N, y: N | ArrayLike) -> N: ...
@overload
def bitwise_or(x: ArrayLike, y: N) -> N: ...
@overload
def bitwise_or(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def bitwise_or(x: Any, y: Any) -> Any:
    """Returns the bits set in `x` or `y`, broadcast by name; see `jax.numpy.bitwise_or`.

    Example:
        >>> import axonym as nym
        >>> nym.bitwise_or(nym.named([3], "i"), 5).item()
        7
    """
    return apply_binary(_jitted.bitwise_or, x, y)


@overload
def bitwise_xor(x: N, y: N | ArrayLike) -> N: ...
@overload
def bitwise_xor(x: ArrayLike, y: N) -> N: ...
@overload
def bitwise_xor(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def bitwise_xor(x: Any, y: Any) -> Any:
    """Returns the bits set in just one of `x` and `y`, broadcast by name; see `jax.numpy.bitwise_xor`.

    Example:
        >>> import axonym as nym
        >>> nym.bitwise_xor(nym.named([3], "i"), 5).item()
        6
    """
    return apply_binary(_jitted.bitwise_xor, x, y)


@overload
def left_shift(x: N, y: N | ArrayLike) -> N: ...
@overload
def left_shift(x: ArrayLike, y: N) -> N: ...
@overload
def left_shift(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def left_shift(x: Any, y: Any) -> Any:
    """Returns `x` shifted left by `y` bits, broadcast by name; see `jax.numpy.left_shift`.

    Alias: `bitwise_left_shift`.

    Example:
        >>> import axonym as nym
        >>> nym.left_shift(nym.named([3], "i"), 1).item()
        6
    """
    return apply_binary(jnp.left_shift, x, y)


@overload
def right_shift(x: N, y: N | ArrayLike) -> N: ...
@overload
def right_shift(x: ArrayLike, y: N) -> N: ...
@overload
def right_shift(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def right_shift(x: Any, y: Any) -> Any:
    """Returns `x` shifted right by `y` bits, broadcast by name; see `jax.numpy.right_shift`.

    Alias: `bitwise_right_shift`.

    Example:
        >>> import axonym as nym
        >>> nym.right_shift(nym.named([3], "i"), 1).item()
        1
    """
    return apply_binary(jnp.right_shift, x, y)


def bitwise_count(x: A) -> A:
    """Returns how many bits of the absolute value are set; see `jax.numpy.bitwise_count`.

    Example:
        >>> import axonym as nym
        >>> nym.bitwise_count(nym.named([7], "i")).item()
        3
    """
    return apply_unary(jnp.bitwise_count, x)


bitwise_invert = invert = bitwise_not
bitwise_left_shift = left_shift
bitwise_right_shift = right_shift

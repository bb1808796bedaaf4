"""Arithmetic: signs, roots, the operators of numbers, bounds, choice, and the parts of complex numbers."""

from collections.abc import Callable
from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._align import binary, broadcast, unary
from .._base import A, N, NamedBase


def abs(x: A) -> A:
    """Returns the absolute value; see `jax.numpy.abs`.

    Example:
        >>> import axonym as nym
        >>> nym.abs(nym.named([-2.0], "i")).item()
        2.0
    """
    return unary(jnp.abs, x)


def negative(x: A) -> A:
    """Returns `-x`; see `jax.numpy.negative`.

    Example:
        >>> import axonym as nym
        >>> nym.negative(nym.named([2.0], "i")).item()
        -2.0
    """
    return unary(jnp.negative, x)


def positive(x: A) -> A:
    """Returns `+x`; see `jax.numpy.positive`.

    Example:
        >>> import axonym as nym
        >>> nym.positive(nym.named([2.0], "i")).item()
        2.0
    """
    return unary(jnp.positive, x)


def sign(x: A) -> A:
    """Returns the sign: -1, 0 or 1; see `jax.numpy.sign`.

    Example:
        >>> import axonym as nym
        >>> nym.sign(nym.named([-2.0], "i")).item()
        -1.0
    """
    return unary(jnp.sign, x)


def square(x: A) -> A:
    """Returns `x * x`; see `jax.numpy.square`.

    Example:
        >>> import axonym as nym
        >>> nym.square(nym.named([3.0], "i")).item()
        9.0
    """
    return unary(jnp.square, x)


def sqrt(x: A) -> A:
    """Returns the square root; see `jax.numpy.sqrt`.

    Example:
        >>> import axonym as nym
        >>> nym.sqrt(nym.named([9.0], "i")).item()
        3.0
    """
    return unary(jnp.sqrt, x)


def rsqrt(x: A) -> A:
    """Returns `1 / sqrt(x)`; see `jax.lax.rsqrt`.

    Example:
        >>> import axonym as nym
        >>> nym.rsqrt(nym.named([4.0], "i")).item()
        0.5
    """
    return unary(jax.lax.rsqrt, x)


def reciprocal(x: A) -> A:
    """Returns `1 / x`; see `jax.numpy.reciprocal`.

    Example:
        >>> import axonym as nym
        >>> nym.reciprocal(nym.named([4.0], "i")).item()
        0.25
    """
    return unary(jnp.reciprocal, x)


def real(x: A) -> A:
    """Returns the real part; see `jax.numpy.real`.

    Example:
        >>> import axonym as nym
        >>> nym.real(nym.named([2.0], "i")).item()
        2.0
    """
    return unary(jnp.real, x)


def imag(x: A) -> A:
    """Returns the imaginary part; see `jax.numpy.imag`.

    Example:
        >>> import axonym as nym
        >>> nym.imag(nym.named([2.0], "i")).item()
        0.0
    """
    return unary(jnp.imag, x)


def conj(x: A) -> A:
    """Returns the complex conjugate; see `jax.numpy.conj`.

    Example:
        >>> import axonym as nym
        >>> nym.conj(nym.named([2.0], "i")).item()
        2.0
    """
    return unary(jnp.conj, x)


def add(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns `x + y`, broadcast by name; see `jax.numpy.add`.

    Example:
        >>> import axonym as nym
        >>> nym.add(nym.named([3.0], "i"), 2.0).item()
        5.0
    """
    return binary(jnp.add, x, y)


def subtract(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns `x - y`, broadcast by name; see `jax.numpy.subtract`.

    Example:
        >>> import axonym as nym
        >>> nym.subtract(nym.named([3.0], "i"), 3.0).item()
        0.0
    """
    return binary(jnp.subtract, x, y)


def multiply(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns `x * y`, broadcast by name; see `jax.numpy.multiply`.

    Example:
        >>> import axonym as nym
        >>> nym.multiply(nym.named([3.0], "i"), 2.0).item()
        6.0
    """
    return binary(jnp.multiply, x, y)


def divide(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns `x / y`, broadcast by name; see `jax.numpy.divide`.

    Example:
        >>> import axonym as nym
        >>> nym.divide(nym.named([3.0], "i"), 2.0).item()
        1.5
    """
    return binary(jnp.divide, x, y)


def true_divide(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns `x / y`, broadcast by name; see `jax.numpy.true_divide`.

    Example:
        >>> import axonym as nym
        >>> nym.true_divide(nym.named([3.0], "i"), 2.0).item()
        1.5
    """
    return binary(jnp.true_divide, x, y)


def floor_divide(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns `x / y` rounded down, broadcast by name; see `jax.numpy.floor_divide`.

    Example:
        >>> import axonym as nym
        >>> nym.floor_divide(nym.named([3.0], "i"), 2.0).item()
        1.0
    """
    return binary(jnp.floor_divide, x, y)


def mod(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns the remainder of `x / y`, of the sign of `y`, broadcast by name; see `jax.numpy.mod`.

    Example:
        >>> import axonym as nym
        >>> nym.mod(nym.named([3.0], "i"), 2.0).item()
        1.0
    """
    return binary(jnp.mod, x, y)


def remainder(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns the remainder of `x / y`, of the sign of `y`, broadcast by name; see `jax.numpy.remainder`.

    Example:
        >>> import axonym as nym
        >>> nym.remainder(nym.named([3.0], "i"), 2.0).item()
        1.0
    """
    return binary(jnp.remainder, x, y)


def power(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns `x ** y`, broadcast by name; see `jax.numpy.power`.

    Example:
        >>> import axonym as nym
        >>> nym.power(nym.named([3.0], "i"), 2.0).item()
        9.0
    """
    return binary(jnp.power, x, y)


def maximum(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns the larger of `x` and `y`, broadcast by name; see `jax.numpy.maximum`.

    Example:
        >>> import axonym as nym
        >>> nym.maximum(nym.named([3.0], "i"), 5.0).item()
        5.0
    """
    return binary(jnp.maximum, x, y)


def minimum(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns the smaller of `x` and `y`, broadcast by name; see `jax.numpy.minimum`.

    Example:
        >>> import axonym as nym
        >>> nym.minimum(nym.named([3.0], "i"), 5.0).item()
        3.0
    """
    return binary(jnp.minimum, x, y)


def clip(x: A, min: Any = None, max: Any = None) -> A:
    """Limits the elements of `x` to a range; see `jax.numpy.clip`.

    Args:
        x: Array of any axes.
        min: Lower bound, a scalar or a named array; None for none.
        max: Upper bound, a scalar or a named array; None for none.

    Returns:
        Array with the broadcast axes.

    Raises:
        ValueError: If the operands do not broadcast by name.

    Example:
        >>> import axonym as nym
        >>> nym.clip(nym.arange(nym.Axis("i", 4)), 1, 2).array
        Array([1, 1, 2, 2], dtype=int32)
    """
    if min is not None and max is not None:
        return _chosen(jnp.clip, x, min, max)
    bounded: Any = x if min is None else maximum(x, min)
    return bounded if max is None else minimum(bounded, max)


@overload
def where(condition: N, x: N | ArrayLike, y: N | ArrayLike) -> N: ...
@overload
def where(condition: ArrayLike, x: N, y: N | ArrayLike) -> N: ...
@overload
def where(condition: ArrayLike, x: ArrayLike, y: N) -> N: ...
@overload
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def where(condition: Any, x: Any, y: Any) -> Any:
    """Takes elements of `x` where the condition holds and of `y` where it does not; see `jax.numpy.where`.

    Args:
        condition: Boolean array, or a scalar.
        x: Named array or scalar.
        y: Named array or scalar.

    Returns:
        Array with the broadcast axes; all three are computed, nothing is skipped.

    Raises:
        ValueError: If the operands do not broadcast by name.
        TypeError: If one of them is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> i = nym.arange(nym.Axis("i", 4))
        >>> nym.where(i < 2, i, -1).array
        Array([ 0,  1, -1, -1], dtype=int32)
    """
    return _chosen(jnp.where, condition, x, y)


def _chosen(fn: Callable[..., Any], *operands: Any) -> Any:
    named = any(isinstance(operand, NamedBase) for operand in operands)
    return broadcast(fn, *operands) if named else fn(*operands)

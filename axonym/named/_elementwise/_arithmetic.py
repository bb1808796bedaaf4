"""Arithmetic: sums, products, quotients, remainders, signs, roots and powers."""

from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._base import A, N
from .._broadcasting import apply_binary, apply_unary
from .._cached_jit import cached_jit
from . import _jitted
from ._split_pair import split_pair


def abs(x: A) -> A:
    """Returns the absolute value; see `jax.numpy.abs`. Alias: `absolute`.

    Example:
        >>> import axonym as nym
        >>> nym.abs(nym.named([-2.0], "i")).item()
        2.0
    """
    return apply_unary(jnp.abs, x)


def negative(x: A) -> A:
    """Returns `-x`; see `jax.numpy.negative`.

    Example:
        >>> import axonym as nym
        >>> nym.negative(nym.named([2.0], "i")).item()
        -2.0
    """
    return apply_unary(_jitted.negative, x)


def positive(x: A) -> A:
    """Returns `+x`; see `jax.numpy.positive`.

    Example:
        >>> import axonym as nym
        >>> nym.positive(nym.named([2.0], "i")).item()
        2.0
    """
    return apply_unary(jnp.positive, x)


def sign(x: A) -> A:
    """Returns the sign: -1, 0 or 1; see `jax.numpy.sign`.

    Example:
        >>> import axonym as nym
        >>> nym.sign(nym.named([-2.0], "i")).item()
        -1.0
    """
    return apply_unary(jnp.sign, x)


def square(x: A) -> A:
    """Returns `x * x`; see `jax.numpy.square`.

    Example:
        >>> import axonym as nym
        >>> nym.square(nym.named([3.0], "i")).item()
        9.0
    """
    return apply_unary(jnp.square, x)


def sqrt(x: A) -> A:
    """Returns the square root; see `jax.numpy.sqrt`.

    Example:
        >>> import axonym as nym
        >>> nym.sqrt(nym.named([9.0], "i")).item()
        3.0
    """
    return apply_unary(jnp.sqrt, x)


def rsqrt(x: A) -> A:
    """Returns `1 / sqrt(x)`; see `jax.lax.rsqrt`.

    Example:
        >>> import axonym as nym
        >>> nym.rsqrt(nym.named([4.0], "i")).item()
        0.5
    """
    return apply_unary(jax.lax.rsqrt, x)


def reciprocal(x: A) -> A:
    """Returns `1 / x`; see `jax.numpy.reciprocal`.

    Example:
        >>> import axonym as nym
        >>> nym.reciprocal(nym.named([4.0], "i")).item()
        0.25
    """
    return apply_unary(jnp.reciprocal, x)


@overload
def add(x: N, y: N | ArrayLike) -> N: ...
@overload
def add(x: ArrayLike, y: N) -> N: ...
@overload
def add(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def add(x: Any, y: Any) -> Any:
    """Returns `x + y`, broadcast by name; see `jax.numpy.add`.

    Example:
        >>> import axonym as nym
        >>> nym.add(nym.named([3.0], "i"), 2.0).item()
        5.0
    """
    return apply_binary(_jitted.add, x, y)


@overload
def subtract(x: N, y: N | ArrayLike) -> N: ...
@overload
def subtract(x: ArrayLike, y: N) -> N: ...
@overload
def subtract(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def subtract(x: Any, y: Any) -> Any:
    """Returns `x - y`, broadcast by name; see `jax.numpy.subtract`.

    Example:
        >>> import axonym as nym
        >>> nym.subtract(nym.named([3.0], "i"), 3.0).item()
        0.0
    """
    return apply_binary(_jitted.subtract, x, y)


@overload
def multiply(x: N, y: N | ArrayLike) -> N: ...
@overload
def multiply(x: ArrayLike, y: N) -> N: ...
@overload
def multiply(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def multiply(x: Any, y: Any) -> Any:
    """Returns `x * y`, broadcast by name; see `jax.numpy.multiply`.

    Example:
        >>> import axonym as nym
        >>> nym.multiply(nym.named([3.0], "i"), 2.0).item()
        6.0
    """
    return apply_binary(_jitted.multiply, x, y)


@overload
def divide(x: N, y: N | ArrayLike) -> N: ...
@overload
def divide(x: ArrayLike, y: N) -> N: ...
@overload
def divide(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def divide(x: Any, y: Any) -> Any:
    """Returns `x / y`, broadcast by name; see `jax.numpy.divide`. Alias: `true_divide`.

    Example:
        >>> import axonym as nym
        >>> nym.divide(nym.named([3.0], "i"), 2.0).item()
        1.5
    """
    return apply_binary(jnp.true_divide, x, y)


@overload
def floor_divide(x: N, y: N | ArrayLike) -> N: ...
@overload
def floor_divide(x: ArrayLike, y: N) -> N: ...
@overload
def floor_divide(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def floor_divide(x: Any, y: Any) -> Any:
    """Returns `x / y` rounded down, broadcast by name; see `jax.numpy.floor_divide`.

    Example:
        >>> import axonym as nym
        >>> nym.floor_divide(nym.named([3.0], "i"), 2.0).item()
        1.0
    """
    return apply_binary(jnp.floor_divide, x, y)


@overload
def mod(x: N, y: N | ArrayLike) -> N: ...
@overload
def mod(x: ArrayLike, y: N) -> N: ...
@overload
def mod(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def mod(x: Any, y: Any) -> Any:
    """Returns the remainder of `x / y`, of the sign of `y`, broadcast by name; see `jax.numpy.mod`. Alias: `remainder`.

    Example:
        >>> import axonym as nym
        >>> nym.mod(nym.named([3.0], "i"), 2.0).item()
        1.0
    """
    return apply_binary(jnp.remainder, x, y)


@overload
def power(x: N, y: N | ArrayLike) -> N: ...
@overload
def power(x: ArrayLike, y: N) -> N: ...
@overload
def power(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def power(x: Any, y: Any) -> Any:
    """Returns `x ** y`, broadcast by name; see `jax.numpy.power`. Alias: `pow`.

    Example:
        >>> import axonym as nym
        >>> nym.power(nym.named([3.0], "i"), 2.0).item()
        9.0
    """
    if type(y) is int:  # a static exponent lets `jax.numpy` multiply
        return apply_unary(cached_jit(_raise_to_integer, y), x)
    return apply_binary(jnp.power, x, y)


def _raise_to_integer(exponent: int, array: Any) -> Any:
    return jnp.power(array, exponent)


def fabs(x: A) -> A:
    """Returns the absolute value as a floating-point number; see `jax.numpy.fabs`.

    Example:
        >>> import axonym as nym
        >>> nym.fabs(nym.named([-2], "i")).item()
        2.0
    """
    return apply_unary(jnp.fabs, x)


def cbrt(x: A) -> A:
    """Returns the cube root; see `jax.numpy.cbrt`.

    Example:
        >>> import axonym as nym
        >>> nym.cbrt(nym.named([27.0], "i")).item()
        3.0
    """
    return apply_unary(jnp.cbrt, x)


@overload
def float_power(x: N, y: N | ArrayLike) -> N: ...
@overload
def float_power(x: ArrayLike, y: N) -> N: ...
@overload
def float_power(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def float_power(x: Any, y: Any) -> Any:
    """Returns `x ** y` as a floating-point number, broadcast by name; see `jax.numpy.float_power`.

    Example:
        >>> import axonym as nym
        >>> nym.float_power(nym.named([3], "i"), 2).item()
        9.0
    """
    return apply_binary(jnp.float_power, x, y)


@overload
def fmod(x: N, y: N | ArrayLike) -> N: ...
@overload
def fmod(x: ArrayLike, y: N) -> N: ...
@overload
def fmod(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def fmod(x: Any, y: Any) -> Any:
    """Returns the remainder of `x / y`, of the sign of `x`, broadcast by name; see `jax.numpy.fmod`.

    Example:
        >>> import axonym as nym
        >>> nym.fmod(nym.named([-3.0], "i"), 2.0).item()
        -1.0
    """
    return apply_binary(jnp.fmod, x, y)


@overload
def divmod(x: N, y: N | ArrayLike) -> tuple[N, N]: ...
@overload
def divmod(x: ArrayLike, y: N) -> tuple[N, N]: ...
@overload
def divmod(x: ArrayLike, y: ArrayLike) -> tuple[jax.Array, jax.Array]: ...
def divmod(x: Any, y: Any) -> Any:
    """Returns `x // y` and `x % y`, broadcast by name; see `jax.numpy.divmod`.

    Example:
        >>> import axonym as nym
        >>> quotient, rest = nym.divmod(nym.named([7], "i"), 2)
        >>> quotient.item(), rest.item()
        (3, 1)
    """
    return split_pair(apply_binary(jnp.divmod, x, y))


@overload
def gcd(x: N, y: N | ArrayLike) -> N: ...
@overload
def gcd(x: ArrayLike, y: N) -> N: ...
@overload
def gcd(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def gcd(x: Any, y: Any) -> Any:
    """Returns the greatest common divisor of integers, broadcast by name; see `jax.numpy.gcd`.

    Example:
        >>> import axonym as nym
        >>> nym.gcd(nym.named([12], "i"), 18).item()
        6
    """
    return apply_binary(jnp.gcd, x, y)


@overload
def lcm(x: N, y: N | ArrayLike) -> N: ...
@overload
def lcm(x: ArrayLike, y: N) -> N: ...
@overload
def lcm(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def lcm(x: Any, y: Any) -> Any:
    """Returns the least common multiple of integers, broadcast by name; see `jax.numpy.lcm`.

    Example:
        >>> import axonym as nym
        >>> nym.lcm(nym.named([4], "i"), 6).item()
        12
    """
    return apply_binary(jnp.lcm, x, y)


@overload
def heaviside(x: N, y: N | ArrayLike) -> N: ...
@overload
def heaviside(x: ArrayLike, y: N) -> N: ...
@overload
def heaviside(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def heaviside(x: Any, y: Any) -> Any:
    """Returns the step function: 0 below 0, 1 above, `y` at 0, broadcast by name; see `jax.numpy.heaviside`.

    Example:
        >>> import axonym as nym
        >>> nym.heaviside(nym.named([0.0], "i"), 0.5).item()
        0.5
    """
    return apply_binary(jnp.heaviside, x, y)


absolute = abs
pow = power
remainder = mod
true_divide = divide

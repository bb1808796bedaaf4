"""Elementwise functions: exponentials, trigonometry, complex numbers, and the parts of floating-point numbers."""

import functools
from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._base import A, N
from .._broadcasting import apply_binary, apply_unary
from . import _jitted
from ._arithmetic import split_pair


def exp(x: A) -> A:
    """Returns `e ** x`; see `jax.numpy.exp`.

    Example:
        >>> import axonym as nym
        >>> nym.exp(nym.named([0.0], "i")).item()
        1.0
    """
    return apply_unary(jnp.exp, x)


def expm1(x: A) -> A:
    """Returns `exp(x) - 1`, exactly for small `x`; see `jax.numpy.expm1`.

    Example:
        >>> import axonym as nym
        >>> nym.expm1(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.expm1, x)


def exp2(x: A) -> A:
    """Returns `2 ** x`; see `jax.numpy.exp2`.

    Example:
        >>> import axonym as nym
        >>> nym.exp2(nym.named([3.0], "i")).item()
        8.0
    """
    return apply_unary(jnp.exp2, x)


def log(x: A) -> A:
    """Returns the natural logarithm; see `jax.numpy.log`.

    Example:
        >>> import axonym as nym
        >>> nym.log(nym.named([1.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.log, x)


def log1p(x: A) -> A:
    """Returns `log(1 + x)`, exactly for small `x`; see `jax.numpy.log1p`.

    Example:
        >>> import axonym as nym
        >>> nym.log1p(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.log1p, x)


def log2(x: A) -> A:
    """Returns the logarithm to base 2; see `jax.numpy.log2`.

    Example:
        >>> import axonym as nym
        >>> nym.log2(nym.named([8.0], "i")).item()
        3.0
    """
    return apply_unary(jnp.log2, x)


def log10(x: A) -> A:
    """Returns the logarithm to base 10; see `jax.numpy.log10`.

    Example:
        >>> import axonym as nym
        >>> nym.log10(nym.named([1.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.log10, x)


@overload
def logaddexp(x: N, y: N | ArrayLike) -> N: ...
@overload
def logaddexp(x: ArrayLike, y: N) -> N: ...
@overload
def logaddexp(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def logaddexp(x: Any, y: Any) -> Any:
    """Returns `log(exp(x) + exp(y))` without overflow, broadcast by name; see `jax.numpy.logaddexp`.

    Example:
        >>> import axonym as nym
        >>> nym.logaddexp(nym.named([3.0], "i"), 3.0).item()
        3.693...
    """
    return apply_binary(_jitted.logaddexp, x, y)


@overload
def logaddexp2(x: N, y: N | ArrayLike) -> N: ...
@overload
def logaddexp2(x: ArrayLike, y: N) -> N: ...
@overload
def logaddexp2(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def logaddexp2(x: Any, y: Any) -> Any:
    """Returns `log2(2 ** x + 2 ** y)` without overflow, broadcast by name; see `jax.numpy.logaddexp2`.

    Example:
        >>> import axonym as nym
        >>> nym.logaddexp2(nym.named([3.0], "i"), 3.0).item()
        4.0
    """
    return apply_binary(_jitted.logaddexp2, x, y)


def i0(x: A) -> A:
    """Returns the modified Bessel function of the first kind, of order 0; see `jax.numpy.i0`.

    Example:
        >>> import axonym as nym
        >>> nym.i0(nym.named([1.0], "i")).item()
        1.2660...
    """
    return apply_unary(jnp.i0, x)


def sin(x: A) -> A:
    """Returns the sine; `x` in radians; see `jax.numpy.sin`.

    Example:
        >>> import axonym as nym
        >>> nym.sin(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.sin, x)


def cos(x: A) -> A:
    """Returns the cosine; `x` in radians; see `jax.numpy.cos`.

    Example:
        >>> import axonym as nym
        >>> nym.cos(nym.named([0.0], "i")).item()
        1.0
    """
    return apply_unary(jnp.cos, x)


def tan(x: A) -> A:
    """Returns the tangent; `x` in radians; see `jax.numpy.tan`.

    Example:
        >>> import axonym as nym
        >>> nym.tan(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.tan, x)


def arctan(x: A) -> A:
    """Returns the inverse tangent, in radians; see `jax.numpy.arctan`. Alias: `atan`.

    Example:
        >>> import axonym as nym
        >>> nym.arctan(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.arctan, x)


def sinh(x: A) -> A:
    """Returns the hyperbolic sine; see `jax.numpy.sinh`.

    Example:
        >>> import axonym as nym
        >>> nym.sinh(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.sinh, x)


def cosh(x: A) -> A:
    """Returns the hyperbolic cosine; see `jax.numpy.cosh`.

    Example:
        >>> import axonym as nym
        >>> nym.cosh(nym.named([0.0], "i")).item()
        1.0
    """
    return apply_unary(jnp.cosh, x)


def tanh(x: A) -> A:
    """Returns the hyperbolic tangent; see `jax.numpy.tanh`.

    Example:
        >>> import axonym as nym
        >>> nym.tanh(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.tanh, x)


@overload
def arctan2(x: N, y: N | ArrayLike) -> N: ...
@overload
def arctan2(x: ArrayLike, y: N) -> N: ...
@overload
def arctan2(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def arctan2(x: Any, y: Any) -> Any:
    """Returns `arctan(x / y)` in the quadrant of the point `(y, x)`, in radians; see `jax.numpy.arctan2`.

    Alias: `atan2`.

    Example:
        >>> import axonym as nym
        >>> nym.arctan2(nym.named([3.0], "i"), 3.0).item()
        0.785...
    """
    return apply_binary(jnp.arctan2, x, y)


@overload
def hypot(x: N, y: N | ArrayLike) -> N: ...
@overload
def hypot(x: ArrayLike, y: N) -> N: ...
@overload
def hypot(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def hypot(x: Any, y: Any) -> Any:
    """Returns `sqrt(x * x + y * y)`, broadcast by name; see `jax.numpy.hypot`.

    Example:
        >>> import axonym as nym
        >>> nym.hypot(nym.named([3.0], "i"), 4.0).item()
        5.0
    """
    return apply_binary(jnp.hypot, x, y)


def arcsin(x: A) -> A:
    """Returns the inverse sine, in radians; see `jax.numpy.arcsin`. Alias: `asin`.

    Example:
        >>> import axonym as nym
        >>> nym.arcsin(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.arcsin, x)


def arccos(x: A) -> A:
    """Returns the inverse cosine, in radians; see `jax.numpy.arccos`. Alias: `acos`.

    Example:
        >>> import axonym as nym
        >>> nym.arccos(nym.named([1.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.arccos, x)


def arcsinh(x: A) -> A:
    """Returns the inverse hyperbolic sine; see `jax.numpy.arcsinh`. Alias: `asinh`.

    Example:
        >>> import axonym as nym
        >>> nym.arcsinh(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.arcsinh, x)


def arccosh(x: A) -> A:
    """Returns the inverse hyperbolic cosine; see `jax.numpy.arccosh`. Alias: `acosh`.

    Example:
        >>> import axonym as nym
        >>> nym.arccosh(nym.named([1.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.arccosh, x)


def arctanh(x: A) -> A:
    """Returns the inverse hyperbolic tangent; see `jax.numpy.arctanh`. Alias: `atanh`.

    Example:
        >>> import axonym as nym
        >>> nym.arctanh(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.arctanh, x)


def sinc(x: A) -> A:
    """Returns `sin(pi * x) / (pi * x)`, which is 1 at 0; see `jax.numpy.sinc`.

    Example:
        >>> import axonym as nym
        >>> nym.sinc(nym.named([0.0], "i")).item()
        1.0
    """
    return apply_unary(jnp.sinc, x)


def deg2rad(x: A) -> A:
    """Returns degrees as radians; see `jax.numpy.deg2rad`. Alias: `radians`.

    Example:
        >>> import axonym as nym
        >>> nym.deg2rad(nym.named([180.0], "i")).item()
        3.141592...
    """
    return apply_unary(jnp.deg2rad, x)


def rad2deg(x: A) -> A:
    """Returns radians as degrees; see `jax.numpy.rad2deg`. Alias: `degrees`.

    Example:
        >>> import axonym as nym
        >>> nym.rad2deg(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.rad2deg, x)


acos = arccos
acosh = arccosh
asin = arcsin
asinh = arcsinh
atan = arctan
atan2 = arctan2
atanh = arctanh
degrees = rad2deg
radians = deg2rad


def real(x: A) -> A:
    """Returns the real part; see `jax.numpy.real`.

    Example:
        >>> import axonym as nym
        >>> nym.real(nym.named([2.0], "i")).item()
        2.0
    """
    return apply_unary(jnp.real, x)


def imag(x: A) -> A:
    """Returns the imaginary part; see `jax.numpy.imag`.

    Example:
        >>> import axonym as nym
        >>> nym.imag(nym.named([2.0], "i")).item()
        0.0
    """
    return apply_unary(jnp.imag, x)


def conj(x: A) -> A:
    """Returns the complex conjugate; see `jax.numpy.conj`. Alias: `conjugate`.

    Example:
        >>> import axonym as nym
        >>> nym.conj(nym.named([2.0], "i")).item()
        2.0
    """
    return apply_unary(jnp.conjugate, x)


def angle(x: A, deg: bool = False) -> A:
    """Returns the angle of complex numbers, in radians, or in degrees if `deg` is True; see `jax.numpy.angle`.

    Example:
        >>> import axonym as nym
        >>> nym.angle(nym.named([1j], "i"), deg=True).item()
        90.0
    """
    return apply_unary(functools.partial(jnp.angle, deg=deg), x)


def iscomplex(x: A) -> A:
    """Returns whether the imaginary part is not 0; see `jax.numpy.iscomplex`.

    Example:
        >>> import axonym as nym
        >>> nym.iscomplex(nym.named([2.0], "i")).item()
        False
    """
    return apply_unary(jnp.iscomplex, x)


def isreal(x: A) -> A:
    """Returns whether the imaginary part is 0; see `jax.numpy.isreal`.

    Example:
        >>> import axonym as nym
        >>> nym.isreal(nym.named([2.0], "i")).item()
        True
    """
    return apply_unary(jnp.isreal, x)


conjugate = conj


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

"""Circular and hyperbolic functions; angles are in radians."""

from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._base import A, N
from .._broadcasting import apply_binary, apply_unary


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

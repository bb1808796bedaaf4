"""Circular and hyperbolic functions; angles are in radians."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from .._align import binary, unary
from .._base import A, N


def sin(x: A) -> A:
    """Returns the sine; `x` in radians; see `jax.numpy.sin`.

    Example:
        >>> import axonym as nym
        >>> nym.sin(nym.named([0.0], "i")).item()
        0.0
    """
    return unary(jnp.sin, x)


def cos(x: A) -> A:
    """Returns the cosine; `x` in radians; see `jax.numpy.cos`.

    Example:
        >>> import axonym as nym
        >>> nym.cos(nym.named([0.0], "i")).item()
        1.0
    """
    return unary(jnp.cos, x)


def tan(x: A) -> A:
    """Returns the tangent; `x` in radians; see `jax.numpy.tan`.

    Example:
        >>> import axonym as nym
        >>> nym.tan(nym.named([0.0], "i")).item()
        0.0
    """
    return unary(jnp.tan, x)


def arctan(x: A) -> A:
    """Returns the inverse tangent, in radians; see `jax.numpy.arctan`.

    Example:
        >>> import axonym as nym
        >>> nym.arctan(nym.named([0.0], "i")).item()
        0.0
    """
    return unary(jnp.arctan, x)


def sinh(x: A) -> A:
    """Returns the hyperbolic sine; see `jax.numpy.sinh`.

    Example:
        >>> import axonym as nym
        >>> nym.sinh(nym.named([0.0], "i")).item()
        0.0
    """
    return unary(jnp.sinh, x)


def cosh(x: A) -> A:
    """Returns the hyperbolic cosine; see `jax.numpy.cosh`.

    Example:
        >>> import axonym as nym
        >>> nym.cosh(nym.named([0.0], "i")).item()
        1.0
    """
    return unary(jnp.cosh, x)


def tanh(x: A) -> A:
    """Returns the hyperbolic tangent; see `jax.numpy.tanh`.

    Example:
        >>> import axonym as nym
        >>> nym.tanh(nym.named([0.0], "i")).item()
        0.0
    """
    return unary(jnp.tanh, x)


def arctan2(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns `arctan(x / y)` in the quadrant of the point `(y, x)`, in radians; see `jax.numpy.arctan2`.

    Example:
        >>> import axonym as nym
        >>> nym.arctan2(nym.named([3.0], "i"), 3.0).item()
        0.785...
    """
    return binary(jnp.arctan2, x, y)


def hypot(x: N | ArrayLike, y: N | ArrayLike) -> N:
    """Returns `sqrt(x * x + y * y)`, broadcast by name; see `jax.numpy.hypot`.

    Example:
        >>> import axonym as nym
        >>> nym.hypot(nym.named([3.0], "i"), 4.0).item()
        5.0
    """
    return binary(jnp.hypot, x, y)

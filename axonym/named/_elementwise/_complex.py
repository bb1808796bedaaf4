"""Parts, angles and conjugates of complex numbers."""

import functools

import jax.numpy as jnp

from .._base import A
from .._broadcasting import apply_unary


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

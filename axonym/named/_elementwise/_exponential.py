"""Exponentials and logarithms."""

from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._base import A, N
from .._broadcasting import apply_binary, apply_unary
from . import _jitted


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

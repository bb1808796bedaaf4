"""Operations on the bits of integers."""

from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._base import A, N
from .._broadcasting import apply_binary, apply_unary
from . import _jitted


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

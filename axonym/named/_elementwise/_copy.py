"""Copies of arrays, and the number of axes."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from .._base import A, NamedBase
from .._broadcasting import apply_unary


def copy(x: A) -> A:
    """Returns a copy with its own memory; see `jax.numpy.copy`.

    Example:
        >>> import axonym as nym
        >>> nym.copy(nym.named([2.0], "i")).item()
        2.0
    """
    return apply_unary(jnp.copy, x)


def ndim(x: NamedBase | ArrayLike) -> int:
    """Returns the number of axes, a plain integer; see `jax.numpy.ndim`.

    Example:
        >>> import axonym as nym
        >>> nym.ndim(nym.zeros({"batch": 2, "embed": 3}))
        2
    """
    return x.ndim if isinstance(x, NamedBase) else jnp.ndim(x)

"""Tests of whether any or all elements are true, and the number of nonzero elements."""

import jax.numpy as jnp

from .._axis import AxesOrPositions
from .._base import A
from . import _masked
from ._apply_reduction import Mask, apply_reduction


def any(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Returns whether any element along axes is true; see `jax.numpy.any`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.any(nym.arange(nym.Axis("i", 4)) > 2, "i").item()
        True
    """
    return apply_reduction(jnp.any, x, axis, where)


def all(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Returns whether all elements along axes are true; see `jax.numpy.all`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.all(nym.arange(nym.Axis("i", 4)) > 2, "i").item()
        False
    """
    return apply_reduction(jnp.all, x, axis, where)


def count_nonzero(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Counts the elements along axes that are not 0; see `jax.numpy.count_nonzero`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.count_nonzero(nym.arange(nym.Axis("i", 4)) > 1, "i").item()
        2
    """
    return apply_reduction(_masked.compute_count_nonzero, x, axis, where)

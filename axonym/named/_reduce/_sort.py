"""Sorting along an axis."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from .._ambient import find_varying_axes, leave_to_compiler
from .._axis import AxisSelector
from .._base import A
from ._apply_reduction import apply_along


def sort(x: A, axis: AxisSelector | int, *, stable: bool = True, descending: bool = False) -> A:
    """Sorts the elements along an axis, smallest first; see `jax.numpy.sort`.

    Args:
        x: Array of any axes.
        axis: The axis to run along.
        stable: Whether equal elements keep their order.
        descending: Whether the largest comes first.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `x` lacks the axis, or an `Axis` given has another size.

    Example:
        >>> import axonym as nym
        >>> nym.sort(nym.named([3, 9, 4], "i"), "i").array
        Array([3, 4, 9], dtype=int32)
    """
    return apply_along(_compute_sort, x, axis, sharded=False, stable=stable, descending=descending)


def argsort(x: A, axis: AxisSelector | int, *, stable: bool = True, descending: bool = False) -> A:
    """Returns the positions that sort the elements along an axis; see `jax.numpy.argsort`. Arguments as for `sort`.

    Example:
        >>> import axonym as nym
        >>> nym.argsort(nym.named([3, 9, 4], "i"), "i").array
        Array([0, 2, 1], dtype=int32)
    """
    return apply_along(_compute_argsort, x, axis, stable=stable, descending=descending)


def _compute_sort(array: Any, **options: Any) -> Any:
    return leave_to_compiler(functools.partial(jnp.sort, **options), (), array)


def _compute_argsort(array: Any, **options: Any) -> Any:
    order = leave_to_compiler(functools.partial(jnp.argsort, **options), (), array)
    missing = find_varying_axes(array) - find_varying_axes(order)  # JAX forgets them; see `docs/known-faults.md`
    return jax.lax.pcast(order, tuple(missing), to="varying")

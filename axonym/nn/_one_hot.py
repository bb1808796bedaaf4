"""One-hot vectors."""

from typing import Any

import jax
import jax.numpy as jnp

from ..named._ambient import constrain_sharding, reshard_by_name
from ..named._arguments import check_dtype
from ..named._array import NamedArray
from ..named._axis import Axis, Names, intern_names
from ..named._base import format_shape
from ..named._broadcasting import as_integer, cached_jit, get_array
from ..named._format import format_value


def one_hot(x: Any, Class: Axis, *, dtype: Any = None) -> NamedArray:
    """Returns 1 at the position that each integer gives along a new last axis, and 0 elsewhere; see `jax.nn.one_hot`.

    Args:
        x: Named array of integers with any axes, or an integer.
        Class: The new axis.
        dtype: dtype of the result; JAX's default float dtype if None.

    Returns:
        Array with the axes of `x`, then the new axis, sharded by the active mapping. An integer outside of the axis
        gives zeros everywhere.

    Raises:
        TypeError: If `x` is neither a named array of integers nor an integer, or `Class` is not an `Axis`.
        ValueError: If `x` has the new axis already.

    Example:
        >>> import axonym as nym
        >>> nym.nn.one_hot(nym.named([2, -1], "batch"), nym.Axis("label", 3)).array
        Array([[0., 0., 1.],
               [0., 0., 0.]], dtype=float32)
    """
    if not isinstance(Class, Axis):
        raise TypeError(f"`one_hot` takes the new axis as an `Axis` with a size, not {format_value(Class)}.")
    if not isinstance(x, NamedArray):
        if as_integer(x) is None:
            raise TypeError(f"`one_hot` takes a named array of integers or an integer, not {format_value(x)}.")
        x = NamedArray(jnp.asarray(x), ())
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"`one_hot` takes integers, not {x.dtype}.")
    if Class.name in x.names:
        raise ValueError(f"`one_hot`: the input {format_shape(x)} has axis {Class.name!r} already; `rename` it")
    names = intern_names((*x.names, Class.name))
    check_dtype(dtype)
    dtype = jnp.result_type(float if dtype is None else dtype)
    return constrain_sharding(NamedArray(cached_jit(_compute_one_hot, names, Class.size, dtype)(get_array(x)), names))


def _compute_one_hot(names: Names, size: int, dtype: Any, x: jax.Array) -> jax.Array:
    return reshard_by_name(jax.nn.one_hot(x, size, dtype=dtype), names)

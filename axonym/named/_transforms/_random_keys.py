"""Random keys in loops: a key for each step, and errors for keys that would be the same in all of them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._array import NamedArray, is_named_array
from .._axis import Axis, intern_names
from .._base import get_plain_array, with_array
from ._slices import name_argument


def is_random_key(x: Any) -> bool:
    """Returns whether something is a typed random key or an array of them, with or without names."""
    array = get_plain_array(x)
    return isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def fold_in_number(key: Any, number: Any) -> Any:
    """Returns a random key, or an array of them, with a number folded into each; see `jax.random.fold_in`."""
    folded = fold_in_each(get_plain_array(key), number)
    return with_array(key, folded) if isinstance(key, NamedArray) else folded


fold_in_each = jnp.vectorize(jax.random.fold_in)


def spread_keys(arguments: Any, axis: Axis, function: str) -> Any:
    """Returns arguments in which random keys have an axis, so that each slice along it has keys of its own.

    Slices of keys that lack the axis are these keys with the number of the slice folded in. Plain arrays of keys have
    the axis as their first one, as all plain arrays do.

    Raises:
        TypeError: If an argument may be a legacy random key.
    """
    check_legacy_keys(arguments, function)

    def spread_key(leaf: Any) -> Any:
        if not is_random_key(leaf):
            return leaf
        has_axis = axis.name in leaf.names if isinstance(leaf, NamedArray) else leaf.ndim > 0
        if has_axis:
            return leaf
        keys = jax.vmap(lambda number: get_plain_array(fold_in_number(leaf, number)))(jnp.arange(axis.size))
        return with_array(leaf, keys, intern_names((axis.name, *leaf.names))) if isinstance(leaf, NamedArray) else keys

    return jax.tree.map(spread_key, arguments, is_leaf=is_named_array)


def check_legacy_keys(arguments: Any, function: str, called: Callable[..., Any] | None = None) -> None:
    """Raises a TypeError if a pair of arguments by position and by name has what may be a legacy random key.

    Such a key is an array of integers, so that nothing tells it from data.

    Args:
        arguments: The arguments.
        function: The name of the function that would have to fold the key.
        called: The function that gets the arguments, for the name of the one in question.
    """
    leaves, treedef = jax.tree.flatten(arguments, is_leaf=is_named_array)
    for position, leaf in enumerate(leaves):
        if not isinstance(leaf, jax.Array | np.ndarray) or leaf.ndim != 1 or leaf.dtype != np.uint32:
            continue
        if leaf.shape == jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape:
            argument = name_argument(treedef, position, called, has_carry=False)
            raise TypeError(
                f"`{function}` cannot tell whether {argument}, a plain uint32 array of shape {leaf.shape}, is a legacy "
                "random key or data; pass a typed key, from `jax.random.key(seed)` or `jax.random.wrap_key_data(array)`"
                ", or data as a named array"
            )

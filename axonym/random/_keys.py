"""Random keys: the check that something is one key, `split` and `fold_in`."""

from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from .._ground.arguments import check_integer
from .._ground.errors import make_error
from .._ground.formats import format_value
from ..named._array import NamedArray
from ..named._axis import Axis, parse_one_axis
from ..named._base import NamedBase, format_shape
from ..named._broadcasting import apply_binary, split_operand
from ..named._sharding import constrain_sharding
from ..named._transforms import fold_in_each


def as_plain_key(key: Any) -> Any:
    """Returns a key as a plain array."""
    if isinstance(key, NamedBase):
        if key.names:
            raise make_error(
                ValueError, f"one key is needed, not keys {format_shape(key)}; use `axonym.vmap` over their axes"
            )
        key = key.array
    if not isinstance(key, jax.Array | np.ndarray):
        raise make_error(TypeError, f"A random key such as `jax.random.key(0)` is needed, not {format_value(key)}.")
    # Keys of `jax.random.key` have a dtype of JAX and no axes; those of `jax.random.PRNGKey` are vectors of uint32.
    is_untyped = isinstance(key.dtype, np.dtype)
    if is_untyped and key.dtype != np.uint32:
        raise TypeError(
            f"A random key such as `jax.random.key(0)` is needed, not {key.dtype} of shape {tuple(key.shape)}."
        )
    if key.ndim != (1 if is_untyped else 0):
        raise ValueError(
            f"one key is needed, not an array of keys of shape {tuple(key.shape)}; take one of them, as in `keys[0]`, "
            "or use `jax.vmap`"
        )
    return key


def split(key: jax.Array, axis: Axis | int = 2) -> Any:
    """Splits a key into several; see `jax.random.split`.

    Args:
        key: A random key.
        axis: The axis of the new keys, or their number.

    Returns:
        Named array of keys with that axis, sharded by the active mapping; a plain array of keys for a number.

    Raises:
        TypeError: If the axis has no size, or the key is not a typed key.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.split(jax.random.key(0), nym.Axis("layers", 4)).shape
        (layers: 4)
    """
    if isinstance(axis, SupportsIndex):
        return jax.random.split(as_plain_key(key), check_integer("split: the number of keys", axis, 0))
    new_axis, plain_key = parse_one_axis(axis), as_plain_key(key)
    _check_typed("split", plain_key)
    return constrain_sharding(NamedArray(jax.random.split(plain_key, new_axis.size), new_axis))


def fold_in(key: Any, data: Any) -> Any:
    """Folds an integer into a key, or integers into keys by name; see `jax.random.fold_in`.

    Args:
        key: A random key, or a named array of them.
        data: An integer, or a named array of them.

    Returns:
        Named array of keys with the broadcast axes, sharded by the active mapping; a plain key if they have none.

    Raises:
        TypeError: If `data` is no integer, or there are axes and the key is not a typed key.
        ValueError: If the axes of the key and the data do not broadcast by name.
        OverflowError: If an integer does not fit 32 bits, with or without a sign.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.fold_in(jax.random.key(0), nym.arange(nym.Axis("layers", 4))).shape
        (layers: 4)
    """
    if isinstance(data, int | np.integer) and not isinstance(data, bool):
        if not -(2**31) <= data < 2**32:
            raise make_error(
                OverflowError, f"fold_in: `data` has 32 bits, from {-(2**31)} to {2**32 - 1}, which {data} does not fit"
            )
        data = np.uint32(int(data) % 2**32)  # as JAX converts arrays
    numbers, data_names = split_operand(data)
    dtype = jnp.result_type(numbers)
    if not jnp.issubdtype(dtype, jnp.integer):
        raise TypeError(f"fold_in: `data` must be an integer or a named array of them, not of {dtype}.")
    if not data_names and not (isinstance(key, NamedBase) and key.names):
        return jax.random.fold_in(as_plain_key(key), numbers)
    keys = key if isinstance(key, NamedBase) else as_plain_key(key)
    _check_typed("fold_in", keys)
    return constrain_sharding(apply_binary(fold_in_each, keys, data))


def _check_typed(function: str, key: Any) -> None:
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(f"`{function}` along an axis needs a typed key; make it with `jax.random.key(seed)`.")

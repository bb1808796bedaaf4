"""Splitting keys along an axis."""

from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp

from ..named._ambient import constrain_sharding
from ..named._arguments import check_integer
from ..named._array import NamedArray
from ..named._axis import Axis, parse_one_axis
from ._sampling import as_plain_key


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
    one, plain = parse_one_axis(axis), as_plain_key(key)
    if not jnp.issubdtype(plain.dtype, jax.dtypes.prng_key):
        raise TypeError("`split` along an axis needs a typed key; make it with `jax.random.key(seed)`.")
    return constrain_sharding(NamedArray(jax.random.split(plain, one.size), one))

"""`from_dlpack`: arrays of other libraries, without a copy."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._ground.formats import format_value
from ..named._array import NamedArray
from ..named._axis import AxisSelector
from ..named._creation import named


def from_dlpack(x: Any, axes: AxisSelector | Sequence[AxisSelector]) -> NamedArray:
    """Makes a named array of an array of another library, such as a tensor of PyTorch, by DLPack.

    The other way, named arrays have DLPack's methods, so `torch.from_dlpack(named)` and `np.from_dlpack(named)` work.

    Args:
        x: An array with `__dlpack__`, on a device that JAX has.
        axes: One name or `Axis` for each axis, in order.

    Returns:
        Array with those names, on the device of `x`. Where possible it shares the memory of `x`, which must then not
            be written to, because JAX's arrays never change.

    Raises:
        TypeError: If `x` has no `__dlpack__`.
        ValueError: If the number of names is wrong, an `Axis` has another size, or numbers do not fit the 32 bits that
            JAX has for them.

    Example:
        >>> import axonym as nym
        >>> import numpy as np
        >>> nym.interop.from_dlpack(np.ones((2, 3), np.float32), ("batch", "embed")).shape
        (batch: 2, embed: 3)
    """
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"`from_dlpack` takes an array with `__dlpack__`, not {format_value(x)}.")
    with jax.enable_x64(True):  # without which JAX halves 64 bits before they can be checked
        array = jnp.from_dlpack(x)
    if array.dtype == jax.dtypes.canonicalize_dtype(array.dtype):
        return NamedArray(array, axes)
    return jax.device_put(named(np.asarray(array), axes), array.sharding)

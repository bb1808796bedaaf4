"""Bits packed into bytes along an axis, and taken out of them again."""

import operator
from collections.abc import Callable, Hashable
from typing import Any, Literal

import jax.numpy as jnp

from ._ambient import replicate_dims, reshard_by_name
from ._axis import AxisSelector, Names, find_axis
from ._base import N, check_named, format_shape, with_array
from ._cached_jit import cached_jit


def packbits(x: N, axis: AxisSelector, *, bitorder: Literal["big", "little"] = "big") -> N:
    """Packs eight truth values at a time into a byte along an axis; see `jax.numpy.packbits`.

    Args:
        x: Array of truth values or integers, of any axes.
        axis: The axis to pack, filled up with zeros to a multiple of eight.
        bitorder: Whether the first of eight is the highest bit, "big", or the lowest one, "little".

    Returns:
        Array of `uint8` with the axes of `x`; the packed one is an eighth as long, rounded up.

    Raises:
        ValueError: If `x` lacks the axis, or an `Axis` given has another size.
        TypeError: If the elements are neither truth values nor integers.

    Example:
        >>> import axonym as nym
        >>> nym.packbits(nym.named([1, 0, 0, 0, 0, 0, 1, 1, 1], "bit"), "bit")
        NamedArray(uint8, bit: 2, [131, 128])
    """
    check_named(x)
    if not (jnp.issubdtype(x.dtype, jnp.integer) or jnp.issubdtype(x.dtype, jnp.bool_)):
        raise TypeError(f"Truth values or integers are packed, the elements of {format_shape(x)} are {x.dtype}.")
    return _resized(jnp.packbits, x, axis, bitorder=bitorder)


def unpackbits(x: N, axis: AxisSelector, *, count: int | None = None, bitorder: Literal["big", "little"] = "big") -> N:
    """Takes the bits out of bytes along an axis; see `jax.numpy.unpackbits`.

    Args:
        x: Array of `uint8`, of any axes.
        axis: The axis to unpack.
        count: How many bits to take along the axis, zeros where there are no more; all but that many of the last for a
            negative number, and all for None.
        bitorder: As for `packbits`.

    Returns:
        Array of `uint8` with the axes of `x`; the unpacked one is eight times as long, or of `count` elements.

    Raises:
        ValueError: If `x` lacks the axis, or an `Axis` given has another size.
        TypeError: If the elements are not `uint8`.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> nym.unpackbits(nym.named(jnp.array([131, 128], "uint8"), "bit"), "bit", count=9).array
        Array([1, 0, 0, 0, 0, 0, 1, 1, 1], dtype=uint8)
    """
    check_named(x)
    if x.dtype != jnp.uint8:
        raise TypeError(f"Bits are taken out of `uint8`, the elements of {format_shape(x)} are {x.dtype}.")
    return _resized(jnp.unpackbits, x, axis, count=None if count is None else operator.index(count), bitorder=bitorder)


def _resized(fn: Callable[..., Any], x: N, axis: AxisSelector, **options: Hashable) -> N:
    index = find_axis(x.names, x.array.shape, axis)
    return with_array(x, cached_jit(_along, fn, x.names, index, *options.items())(x.array))


def _along(fn: Callable[..., Any], names: Names, index: int, *rest: Any) -> Any:
    """Runs along an axis that gets another size, which the mesh need not divide."""
    *options, array = rest
    left = (*names[:index], "", *names[index + 1 :])
    return reshard_by_name(fn(replicate_dims(array, (index,)), axis=index, **dict(options)), left)

"""Packing of bits into bytes along an axis, and unpacking."""

from typing import Literal

import jax.numpy as jnp

from .._ground.arguments import check_integer
from ._axis import AxisSelector
from ._base import N, check_named, format_shape
from ._reduce._apply_reduction import apply_along


def packbits(x: N, axis: AxisSelector, *, bitorder: Literal["big", "little"] = "big") -> N:
    """Packs booleans into bytes along an axis, eight into each; see `jax.numpy.packbits`.

    Args:
        x: Array of booleans or integers, of any axes.
        axis: The axis to pack, padded with zeros to a multiple of eight.
        bitorder: "big" if the first of eight is the highest bit, "little" if it is the lowest.

    Returns:
        Array of `uint8` with the axes of `x`; the packed axis has an eighth of the size, rounded up.

    Raises:
        ValueError: If `x` lacks the axis, or an `Axis` given has another size.
        TypeError: If the elements are neither booleans nor integers.

    Example:
        >>> import axonym as nym
        >>> nym.packbits(nym.named([1, 0, 0, 0, 0, 0, 1, 1, 1], "bit"), "bit")
        NamedArray(uint8, bit: 2, [131, 128])
    """
    check_named(x)
    if not (jnp.issubdtype(x.dtype, jnp.integer) or jnp.issubdtype(x.dtype, jnp.bool_)):
        raise TypeError(f"`packbits` takes booleans or integers, the elements of {format_shape(x)} are {x.dtype}.")
    return apply_along(jnp.packbits, x, axis, resizes=True, bitorder=bitorder)


def unpackbits(x: N, axis: AxisSelector, *, count: int | None = None, bitorder: Literal["big", "little"] = "big") -> N:
    """Unpacks the bits of bytes along an axis; see `jax.numpy.unpackbits`.

    Args:
        x: Array of `uint8`, of any axes.
        axis: The axis to unpack.
        count: The number of bits to keep along the axis, padded with zeros; a negative number drops as many at the
            end, and None keeps all.
        bitorder: As for `packbits`.

    Returns:
        Array of `uint8` with the axes of `x`; the unpacked axis has eight times the size, or `count`.

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
        raise TypeError(f"`unpackbits` takes `uint8`, the elements of {format_shape(x)} are {x.dtype}.")
    size = None if count is None else check_integer("unpackbits: `count`", count)
    return apply_along(jnp.unpackbits, x, axis, resizes=True, count=size, bitorder=bitorder)

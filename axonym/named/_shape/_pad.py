"""Axes made longer with values around those that are there."""

import operator
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._axis import Axis, AxisSelector, find_axes, find_axis, format_value, parse_one_axis
from .._base import N, NamedBase, check_named, format_shape
from .._broadcasting import check_scalar
from ._apply_unsharded import apply_unsharded
from ._order import rename


def pad(
    x: N,
    pad_width: Mapping[Any, int | tuple[int, int]],
    *,
    mode: str = "constant",
    constant_values: Any = 0,
    **kwargs: Any,
) -> N:
    """Puts values before and after those along axes; see `jax.numpy.pad`.

    Args:
        x: Array of any axes.
        pad_width: For each axis, given by an `Axis` or by name, how many elements to add at each end, or a pair of
            how many before and how many after; the other axes stay as they are.
        mode: What to add, as for `jax.numpy.pad`: "constant", "edge", "reflect", "wrap" and so on.
        constant_values: The value that "constant" adds, a scalar, or a pair of what stands before and what after.
        **kwargs: What other modes take: `end_values`, `stat_length`, `reflect_type`, one value each for all axes.

    Returns:
        Array with the axes of `x`, some of them longer.

    Raises:
        TypeError: If `pad_width` is no mapping, a width no integer, or what another mode takes not one value.
        ValueError: If an axis is not there, is given twice, or a width is negative or no pair.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 3))
        >>> nym.pad(x, {"i": (2, 1)}, constant_values=7).array
        Array([7, 7, 0, 1, 2, 7], dtype=int32)
        >>> nym.pad(x, {"i": 1}, mode="wrap").array
        Array([2, 0, 1, 2, 0], dtype=int32)
    """
    check_named(x)
    if not isinstance(pad_width, Mapping):
        raise TypeError(
            f"`pad` takes a mapping from axis to widths, such as {{'pos': (0, 2)}}, not {format_value(pad_width)}."
        )
    dims = find_axes(x.names, x.array.shape, tuple(pad_width))
    widths = tuple(_width(x, dim, width) for dim, width in zip(dims, pad_width.values(), strict=True))
    for name, value in kwargs.items():
        if not isinstance(value, str | int | float | complex | np.generic | None):
            raise TypeError(
                f"`{name}` of `pad` is one value for all axes, known before compilation, not {format_value(value)}."
            )
    if not dims:
        return x
    if mode == "constant":
        return apply_unsharded(_padded, x, dims, widths, tuple(kwargs.items()), args=_pair(constant_values))
    return apply_unsharded(_padded_otherwise, x, dims, widths, mode, tuple(kwargs.items()))


def _width(x: NamedBase, dim: int, width: Any) -> tuple[int, int]:
    """Returns how many elements come before and after."""
    widths = tuple(width) if isinstance(width, tuple | list) else (width, width)
    if len(widths) != 2:
        raise ValueError(
            f"axis {x.names[dim]!r} is padded by a number, or by a pair of them, not by {format_value(width)}"
        )
    before, after = map(operator.index, widths)
    if before < 0 or after < 0:
        raise ValueError(
            f"axis {x.names[dim]!r} of {format_shape(x)} cannot be padded by a negative number of elements"
        )
    return before, after


def _pair(value: Any) -> tuple[Any, ...]:
    """Returns the one value to pad with, or that before and that after."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not 0 < len(values) < 3:
        raise ValueError(f"`constant_values` is a scalar, or a pair of them, not {format_value(value)}")
    return tuple(_number(one) for one in values)


def _number(value: Any) -> Any:
    if isinstance(value, NamedBase) and value.names:
        raise ValueError(
            f"`constant_values` is a scalar, or a pair of them, not an array with axes {format_shape(value)}"
        )
    return value.array if isinstance(value, NamedBase) else check_scalar(value)


Widths: TypeAlias = tuple[tuple[int, int], ...]


def _all_widths(array: Any, dims: tuple[int, ...], widths: Widths) -> Widths:
    wide = dict(zip(dims, widths, strict=True))
    return tuple(wide.get(dim, (0, 0)) for dim in range(array.ndim))


def _padded(array: Any, dims: tuple[int, ...], widths: Widths, options: tuple[Any, ...], *values: Any) -> Any:
    constant = values[0] if len(values) == 1 else jnp.stack([jnp.asarray(value) for value in values])
    return jnp.pad(array, _all_widths(array, dims, widths), constant_values=constant, **dict(options))


def _padded_otherwise(array: Any, dims: tuple[int, ...], widths: Widths, mode: str, options: tuple[Any, ...]) -> Any:
    def run(array: Any) -> Any:
        return jnp.pad(array, _all_widths(array, dims, widths), mode=mode, **dict(options))

    sharding = jax.typeof(array).sharding
    if any(sharding.spec):
        # On an Explicit mesh JAX has no rule for the shardings of most modes; the compiler has one for all.
        return jax.sharding.auto_axes(run, out_sharding=sharding)(array)
    return run(array)


def pad_left(x: N, axis: AxisSelector, new_axis: Axis, value: Any = 0) -> N:
    """Makes an axis longer by putting a value before what is there.

    Args:
        x: Array of any axes.
        axis: The axis.
        new_axis: The axis that it becomes, at least as long; it may have another name.
        value: The value to add, a scalar.

    Returns:
        Array in which the new axis stands where the old one stood.

    Raises:
        TypeError: If the new axis has no size.
        ValueError: If the axis is not there, the new one is shorter, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> nym.pad_left(nym.arange(nym.Axis("i", 3)), "i", nym.Axis("j", 5), value=9)
        NamedArray(int32, j: 5, [9, 9, 0, 1, 2])
    """
    check_named(x)
    dim, new = find_axis(x.names, x.array.shape, axis), parse_one_axis(new_axis)
    more = new.size - x.array.shape[dim]
    if more < 0:
        raise ValueError(
            f"axis {x.names[dim]!r} of {format_shape(x)} is longer than {new.size}, to which it was padded"
        )
    return pad(rename(x, {x.names[dim]: new.name}), {new.name: (more, 0)}, constant_values=value)

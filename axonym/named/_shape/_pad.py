"""Padding along axes."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._ambient import shard_by_compiler
from .._arguments import check_integer
from .._axis import Axis, AxisSelector, find_axes, find_axis, format_value, parse_one_axis
from .._base import N, NamedBase, check_named, format_shape
from .._broadcasting import get_scalar
from ._apply_unsharded import apply_unsharded
from ._rename import rename


_Widths: TypeAlias = tuple[tuple[int, int], ...]


def pad(
    x: N,
    pad_width: Mapping[Any, int | tuple[int, int]],
    *,
    mode: str = "constant",
    constant_values: Any = 0,
    **kwargs: Any,
) -> N:
    """Pads axes with values at both ends; see `jax.numpy.pad`.

    Args:
        x: Array of any axes.
        pad_width: For each axis, an `Axis` or its name, the number of elements to add at each end, or a pair of numbers
            before and after; the other axes stay as they are.
        mode: The values to add, as for `jax.numpy.pad`: "constant", "edge", "reflect", "wrap" and so on.
        constant_values: The value that "constant" adds, a scalar, or a pair of scalars before and after.
        **kwargs: Options of other modes: `end_values`, `stat_length`, `reflect_type`, one value each for all axes.

    Returns:
        Array with the axes of `x`, some of them longer.

    Raises:
        TypeError: If `pad_width` is not a mapping, a width not an integer, or an option not a single value.
        ValueError: If an axis is missing or given twice, or a width is negative or not a pair.

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
    widths = tuple(_parse_width(x, dim, width) for dim, width in zip(dims, pad_width.values(), strict=True))
    for name, value in kwargs.items():
        if not isinstance(value, str | int | float | complex | np.generic | None):
            raise TypeError(
                f"`{name}` of `pad` is one value for all axes, known before compilation, not {format_value(value)}."
            )
    if not dims:
        return x
    if mode == "constant":
        return apply_unsharded(
            _pad_constant, x, dims, widths, tuple(kwargs.items()), args=_parse_constants(constant_values)
        )
    return apply_unsharded(_pad_by_mode, x, dims, widths, mode, tuple(kwargs.items()))


def _parse_width(x: NamedBase, dim: int, width: Any) -> tuple[int, int]:
    """Returns the numbers of elements to add before and after."""
    widths = tuple(width) if isinstance(width, tuple | list) else (width, width)
    if len(widths) != 2:
        raise ValueError(
            f"axis {x.names[dim]!r} is padded by a number, or by a pair of them, not by {format_value(width)}"
        )
    before, after = (check_integer("pad: a width", width) for width in widths)
    if before < 0 or after < 0:
        raise ValueError(
            f"axis {x.names[dim]!r} of {format_shape(x)} cannot be padded by a negative number of elements"
        )
    return before, after


def _parse_constants(value: Any) -> tuple[Any, ...]:
    """Returns the value to pad with, or the values before and after."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not 0 < len(values) < 3:
        raise ValueError(f"`constant_values` is a scalar, or a pair of them, not {format_value(value)}")
    return tuple(get_scalar("each value of `constant_values`", one) for one in values)


def _expand_widths(array: Any, dims: tuple[int, ...], widths: _Widths) -> _Widths:
    wide = dict(zip(dims, widths, strict=True))
    return tuple(wide.get(dim, (0, 0)) for dim in range(array.ndim))


def _pad_constant(array: Any, dims: tuple[int, ...], widths: _Widths, options: tuple[Any, ...], *values: Any) -> Any:
    constant = values[0] if len(values) == 1 else jnp.stack([jnp.asarray(value) for value in values])
    return jnp.pad(array, _expand_widths(array, dims, widths), constant_values=constant, **dict(options))


def _pad_by_mode(array: Any, dims: tuple[int, ...], widths: _Widths, mode: str, options: tuple[Any, ...]) -> Any:
    def run(array: Any) -> Any:
        return jnp.pad(array, _expand_widths(array, dims, widths), mode=mode, **dict(options))

    sharding = jax.typeof(array).sharding
    if any(sharding.spec):
        # On an Explicit mesh JAX has no rule for the shardings of most modes; the compiler has one for all.
        return shard_by_compiler(run, sharding)(array)
    return run(array)


def pad_left(x: N, axis: AxisSelector, new_axis: Axis, value: Any = 0) -> N:
    """Pads an axis with a value at the start.

    Args:
        x: Array of any axes.
        axis: The axis.
        new_axis: The padded axis, at least as long; it may have another name.
        value: The value to add, a scalar.

    Returns:
        Array with the new axis in place of the old one.

    Raises:
        TypeError: If the new axis has no size.
        ValueError: If the axis is missing, the new one is shorter, or a name would occur twice.

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

"""Making named arrays: from plain ones, filled with a value, and with evenly spaced values."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ._align import scalar
from ._ambient import constrain, out_sharding
from ._array import NamedArray
from ._axis import Axis, AxisSelector, AxisSpec, Names, sized_axis, spec_axes
from ._base import N, NamedBase, check_named, like
from ._plan import planned


def named(array: Any, axes: AxisSelector | Any) -> NamedArray:
    """Gives names to the axes of an array.

    Args:
        array: A JAX or NumPy array, a nested list of numbers, or a scalar.
        axes: One name or `Axis` for each axis, in order; a mapping from name to size does as well.

    Returns:
        Array with those names; it lies where `array` lay.

    Raises:
        ValueError: If a name is empty or occurs twice, the rank does not fit, or an `Axis` has another size.
        TypeError: If the array has names already, or something else is given for an axis.

    Example:
        >>> import axonym as nym
        >>> nym.named([[1, 2, 3]], ("batch", "pos"))
        NamedArray(int32, batch: 1, pos: 3, [[1, 2, 3]])
    """
    if not isinstance(array, jax.Array | jax.ShapeDtypeStruct | NamedBase):
        array = jnp.asarray(array)
    return NamedArray(array, axes)


def _filled(fn: Callable[..., Any], shape: AxisSpec, dtype: Any, *values: Any) -> NamedArray:
    axes = spec_axes(shape)
    names, sizes = tuple(axis.name for axis in axes), tuple(axis.size for axis in axes)
    return constrain(planned(_made, fn, names, sizes, dtype)(*values))


def _made(fn: Callable[..., Any], names: Names, sizes: tuple[int, ...], dtype: Any, *values: Any) -> NamedArray:
    """Fills an array within one compiled function, so that no device ever holds more than its part."""
    return constrain(NamedArray(fn(sizes, *values, dtype=dtype, out_sharding=out_sharding(names, sizes)), names))


def _number(value: Any) -> Any:
    return value.scalar() if isinstance(value, NamedArray) else scalar(value)


def zeros(shape: AxisSpec, dtype: Any = None) -> NamedArray:
    """Makes an array of zeros; see `jax.numpy.zeros`.

    Args:
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        dtype: Element type, JAX's default float if not given.

    Returns:
        Array with those axes, sharded as the mapping in force says.

    Raises:
        TypeError: If an axis has no size.
        ValueError: If a name occurs twice, or the mesh does not divide a mapped axis.

    Example:
        >>> import axonym as nym
        >>> nym.zeros({"batch": 8, "embed": 64})
        NamedArray(float32, batch: 8, embed: 64)
    """
    return _filled(jnp.zeros, shape, dtype)


def ones(shape: AxisSpec, dtype: Any = None) -> NamedArray:
    """Makes an array of ones; see `jax.numpy.ones`. Arguments as for `zeros`.

    Example:
        >>> import axonym as nym
        >>> nym.ones(nym.Axis("i", 3)).array
        Array([1., 1., 1.], dtype=float32)
    """
    return _filled(jnp.ones, shape, dtype)


def full(shape: AxisSpec, fill_value: Any, dtype: Any = None) -> NamedArray:
    """Makes an array of one value; see `jax.numpy.full`. Other arguments as for `zeros`.

    Args:
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        fill_value: The value, a scalar.
        dtype: Element type, that of the value if not given.

    Example:
        >>> import axonym as nym
        >>> nym.full({"i": 2}, 7, int).array
        Array([7, 7], dtype=int32)
    """
    return _filled(jnp.full, shape, dtype, _number(fill_value))


def zeros_like(x: N, dtype: Any = None) -> N:
    """Makes an array of zeros with the axes of another; see `jax.numpy.zeros_like`.

    Example:
        >>> import axonym as nym
        >>> nym.zeros_like(nym.ones({"i": 2})).array
        Array([0., 0.], dtype=float32)
    """
    check_named(x)
    return like(x, jnp.zeros_like(x.array, dtype))


def ones_like(x: N, dtype: Any = None) -> N:
    """Makes an array of ones with the axes of another; see `jax.numpy.ones_like`.

    Example:
        >>> import axonym as nym
        >>> nym.ones_like(nym.zeros({"i": 2})).array
        Array([1., 1.], dtype=float32)
    """
    check_named(x)
    return like(x, jnp.ones_like(x.array, dtype))


def full_like(x: N, fill_value: Any, dtype: Any = None) -> N:
    """Makes an array of one value with the axes of another; see `jax.numpy.full_like`.

    Example:
        >>> import axonym as nym
        >>> nym.full_like(nym.zeros({"i": 2}), 7.0).array
        Array([7., 7.], dtype=float32)
    """
    check_named(x)
    return like(x, jnp.full_like(x.array, _number(fill_value), dtype))


def arange(axis: Axis, *, start: Any = 0, step: Any = 1, dtype: Any = None) -> NamedArray:
    """Makes evenly spaced values along one axis: `start`, `start + step`, and so on.

    Args:
        axis: The axis, which gives the number of values.
        start: First value; it may be traced.
        step: Distance between values; it may be traced.
        dtype: Element type, that of `start` and `step` if not given.

    Returns:
        Array with that axis.

    Raises:
        TypeError: If the axis has no size.

    Example:
        >>> import axonym as nym
        >>> nym.arange(nym.Axis("i", 3), start=5, step=10).array
        Array([ 5, 15, 25], dtype=int32)
    """
    one, start, step = sized_axis(axis), _number(start), _number(step)
    values = jnp.arange(one.size, dtype=jnp.result_type(start, step) if dtype is None else dtype)
    if not (isinstance(step, int) and step == 1):
        values = values * jnp.asarray(step, values.dtype)
    if not (isinstance(start, int) and start == 0):
        values = values + jnp.asarray(start, values.dtype)
    return constrain(NamedArray(values, one))


def linspace(axis: Axis, *, start: Any, stop: Any, endpoint: bool = True, dtype: Any = None) -> NamedArray:
    """Makes evenly spaced values from `start` to `stop` along one axis; see `jax.numpy.linspace`.

    Args:
        axis: The axis, which gives the number of values.
        start: First value.
        stop: Last value.
        endpoint: Whether `stop` is the last value or the first one beyond.
        dtype: Element type, JAX's default float if not given.

    Example:
        >>> import axonym as nym
        >>> nym.linspace(nym.Axis("i", 3), start=0.0, stop=1.0).array
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    one, start, stop = sized_axis(axis), _number(start), _number(stop)
    return constrain(NamedArray(jnp.linspace(start, stop, one.size, endpoint=endpoint, dtype=dtype), one))

"""Creates named arrays: from plain arrays, filled with a value, and with evenly spaced values."""

import math
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from numpy.ma import MaskedArray

from .._ground.arguments import check_dtype
from .._ground.caches import cached_jit
from .._ground.errors import make_error
from .._ground.formats import format_value
from .._ground.jax_compat import is_traced
from ._array import NamedArray, parse_array_names
from ._axis import Axis, AxisSelector, AxisSpec, Names, get_names_and_sizes, parse_axes, parse_one_axis
from ._base import N, NamedBase, check_named, with_array
from ._broadcasting import check_scalar
from ._numpy_input import check_values, find_array_problem, is_jax_dtype
from ._sharding import constrain_sharding, get_out_sharding, place_array


def named(array: Any, axes: AxisSelector | Any) -> NamedArray:
    """Gives names to the axes of an array.

    Args:
        array: A JAX or NumPy array, a nested list of numbers, or a scalar. As in `jax.numpy.asarray`, 64 bits become
            32 unless `jax_enable_x64` is set; NumPy's numbers that do not fit are an error. Arrays of xarray and pandas
            are read as NumPy arrays; the labels of their axes are left behind.
        axes: One name or `Axis` for each axis, in order; or a mapping from name to size.

    Returns:
        Array with those names and the sharding of `array`.

    Raises:
        ValueError: If a name is empty or occurs twice, the number of names is wrong, an `Axis` has another size,
            numbers do not fit the 32 bits that JAX has for them, or the names are in another order than those that an
            array of xarray or pandas has.
        TypeError: If the array already has names, is a masked one of NumPy or has elements that are no numbers, or an
            axis has another type.

    Example:
        >>> import axonym as nym
        >>> nym.named([[1, 2, 3]], ("batch", "pos"))
        NamedArray(int32, batch: 1, pos: 3, [[1, 2, 3]])
    """
    if not isinstance(array, jax.Array | jax.ShapeDtypeStruct | NamedBase | MaskedArray):  # the last is refused below
        if hasattr(type(array), "__array__"):
            if not isinstance(array, np.ndarray | np.generic):
                axes = parse_array_names(array, axes)  # before its own names are left behind
                array = np.asarray(array)
            problem = find_array_problem(array)
            if problem is not None:
                kind = ValueError if is_jax_dtype(array.dtype) else TypeError
                raise make_error(kind, f"an array of shape {array.shape} {problem}")
        try:
            array = jnp.asarray(array)
        except (TypeError, ValueError):
            if array is None or isinstance(array, str | Axis):
                raise TypeError(f"`named` takes an array or numbers first, not {format_value(array)}.") from None
            raise
    return NamedArray(array, axes)


def _fill_array(fn: Callable[..., Any], shape: AxisSpec, dtype: Any, *values: Any) -> NamedArray:
    if isinstance(dtype, Axis):
        raise make_error(TypeError, f"Several axes are given as a tuple, so {dtype!r} was taken for the dtype.")
    names, sizes = get_names_and_sizes(parse_axes(shape))
    try:
        if dtype is None:
            values = tuple(as_plain_number(value) for value in values)
        else:
            values = tuple(_as_number_of(value, dtype) for value in values)
        return place_array(cached_jit(_compute_filled, fn, names, sizes, dtype)(*values))
    except TypeError:
        check_dtype(dtype)
        raise


def _compute_filled(
    fn: Callable[..., Any], names: Names, sizes: tuple[int, ...], dtype: Any, *values: Any
) -> NamedArray:
    """Fills an array within one compiled function, so that no device ever holds more than its shard."""
    return constrain_sharding(
        NamedArray(fn(sizes, *values, dtype=dtype, out_sharding=get_out_sharding(names, sizes)), names)
    )


def as_plain_number(value: Any) -> Any:
    """Returns a number as it is, and the plain array of a named array without axes."""
    return value.scalar() if isinstance(value, NamedArray) else check_scalar(value)


def zeros(shape: AxisSpec, dtype: Any = None) -> NamedArray:
    """Makes an array of zeros; see `jax.numpy.zeros`.

    Args:
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        dtype: Element type; JAX's default float if None.

    Returns:
        Array with those axes, sharded by the active mapping.

    Raises:
        TypeError: If an axis has no size.
        ValueError: If a name occurs twice, or the size of a mapped axis is not divisible by its mesh axes.

    Example:
        >>> import axonym as nym
        >>> nym.zeros({"batch": 2, "embed": 3})
        NamedArray(float32, batch: 2, embed: 3,
          [[0., 0., 0.],
           [0., 0., 0.]])
    """
    return _fill_array(jnp.zeros, shape, dtype)


def ones(shape: AxisSpec, dtype: Any = None) -> NamedArray:
    """Makes an array of ones; see `jax.numpy.ones`. Arguments as for `zeros`.

    Example:
        >>> import axonym as nym
        >>> nym.ones(nym.Axis("i", 3)).array
        Array([1., 1., 1.], dtype=float32)
    """
    return _fill_array(jnp.ones, shape, dtype)


def full(shape: AxisSpec, fill_value: Any, dtype: Any = None) -> NamedArray:
    """Makes an array of one value; see `jax.numpy.full`.

    Args:
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        fill_value: The value, a scalar.
        dtype: Element type; the type of the value if None.

    Example:
        >>> import axonym as nym
        >>> nym.full({"i": 2}, 7, int).array
        Array([7, 7], dtype=int32)
    """
    return _fill_array(jnp.full, shape, dtype, fill_value)


def zeros_like(x: N, dtype: Any = None) -> N:
    """Makes an array of zeros with the axes of another; see `jax.numpy.zeros_like`.

    Example:
        >>> import axonym as nym
        >>> nym.zeros_like(nym.ones({"i": 2})).array
        Array([0., 0.], dtype=float32)
    """
    check_named(x)
    check_dtype(dtype)
    return with_array(x, jnp.zeros_like(x.array, dtype, device=_get_like_sharding(x.array)))


def ones_like(x: N, dtype: Any = None) -> N:
    """Makes an array of ones with the axes of another; see `jax.numpy.ones_like`.

    Example:
        >>> import axonym as nym
        >>> nym.ones_like(nym.zeros({"i": 2})).array
        Array([1., 1.], dtype=float32)
    """
    check_named(x)
    check_dtype(dtype)
    return with_array(x, jnp.ones_like(x.array, dtype, device=_get_like_sharding(x.array)))


def full_like(x: N, fill_value: Any, dtype: Any = None) -> N:
    """Makes an array of one value with the axes of another; see `jax.numpy.full_like`.

    Example:
        >>> import axonym as nym
        >>> nym.full_like(nym.zeros({"i": 2}), 7.0).array
        Array([7., 7.], dtype=float32)
    """
    check_named(x)
    check_dtype(dtype)
    value = _as_number_of(fill_value, x.dtype if dtype is None else dtype)
    return with_array(x, jnp.full_like(x.array, value, dtype, device=_get_like_sharding(x.array)))


def _as_number_of(value: Any, dtype: Any) -> Any:
    """Returns a plain number, if elements of a dtype can take it."""
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if type(value) is not int:
        value = as_plain_number(value)
        check_values(value, dtype)
        return value
    check_values(value, dtype)
    return np.asarray(value, dtype)  # JAX would convert it to its default dtype first


def _get_like_sharding(array: Any) -> NamedSharding | None:
    """Returns the sharding that arrays like another have; None if JAX finds it."""
    if is_traced(array):
        return None
    # Of an array that a traced function closes over, JAX forgets how it is sharded along Explicit axes.
    sharding = jax.typeof(array).sharding
    return sharding if any(sharding.spec.partitions) else None


def arange(axis: AxisSpec, *, start: Any = 0, step: Any = 1, dtype: Any = None) -> NamedArray:
    """Makes evenly spaced values: `start`, `start + step`, and so on; see `jax.numpy.arange`.

    Args:
        axis: The axis, whose size is the number of values; with several axes the last varies fastest.
        start: First value; it may be traced.
        step: Distance between values; it may be traced.
        dtype: Element type; the type of `start` and `step` if None.

    Returns:
        Array with those axes, sharded by the active mapping.

    Raises:
        TypeError: If an axis has no size.

    Example:
        >>> import axonym as nym
        >>> nym.arange(nym.Axis("i", 3), start=5, step=10).array
        Array([ 5, 15, 25], dtype=int32)
        >>> nym.arange({"i": 2, "j": 3})
        NamedArray(int32, i: 2, j: 3, [[0, 1, 2], [3, 4, 5]])
    """
    check_dtype(dtype)
    start, step = as_plain_number(start), as_plain_number(step)
    dtype = jnp.result_type(start, step) if dtype is None else dtype
    # The defaults are left out, so that the program neither multiplies by 1 nor adds 0.
    numbers = {}
    if not (isinstance(start, int) and start == 0):
        numbers["start"] = start
    if not (isinstance(step, int) and step == 1):
        numbers["step"] = step
    return make_from_indices(_compute_arange, parse_axes(axis), dtype, **numbers)


def make_from_indices(fn: Callable[..., Any], axes: tuple[Axis, ...], *static: Hashable, **numbers: Any) -> NamedArray:
    """Makes an array with a function of its sizes and of the indices of its elements along each axis."""
    names, sizes = get_names_and_sizes(axes)
    return place_array(cached_jit(_compute_from_indices, fn, names, sizes, *static)(**numbers))


def _compute_from_indices(
    fn: Callable[..., Any], names: Names, sizes: tuple[int, ...], *static: Hashable, **numbers: Any
) -> NamedArray:
    """Computes an array from the indices of its elements, so that each device computes its own shard only."""
    sharding = get_out_sharding(names, sizes)
    dims = range(len(sizes))
    indices = [jax.lax.broadcasted_iota(jnp.result_type(int), sizes, dim, out_sharding=sharding) for dim in dims]
    return constrain_sharding(NamedArray(fn(sizes, indices, *static, **numbers), names))


def _compute_arange(sizes: tuple[int, ...], indices: list[Any], dtype: Any, start: Any = None, step: Any = None) -> Any:
    # The last axis varies fastest: its index is not multiplied, not even by 1.
    values = indices[-1] if indices else jnp.zeros((), int)
    for dim, index in enumerate(indices[:-1]):
        values = values + index * math.prod(sizes[dim + 1 :])
    values = values.astype(dtype)
    if step is not None:
        values = values * jnp.asarray(step, values.dtype)
    if start is not None:
        values = values + jnp.asarray(start, values.dtype)
    return values


def eye(axis: Axis, other: AxisSelector, *, k: Any = 0, dtype: Any = None) -> NamedArray:
    """Makes a matrix with ones on a diagonal and zeros elsewhere; see `jax.numpy.eye`.

    Args:
        axis: The axis of the rows.
        other: The axis of the columns, an `Axis`, or a name if it has the size of `axis`.
        k: Which diagonal: 0 the main one, above it if positive; it may be traced.
        dtype: Element type; JAX's default float if None.

    Returns:
        Array with those two axes, sharded by the active mapping.

    Raises:
        TypeError: If `axis` has no size.
        ValueError: If the two axes have the same name.

    Example:
        >>> import axonym as nym
        >>> nym.eye(nym.Axis("i", 2), "j")
        NamedArray(float32, i: 2, j: 2, [[1., 0.], [0., 1.]])
    """
    check_dtype(dtype)
    row = parse_one_axis(axis)
    column = Axis(other, row.size) if isinstance(other, str) else parse_one_axis(other)
    k = as_plain_number(k)
    numbers = {} if isinstance(k, int) and k == 0 else {"k": k}
    return make_from_indices(_compute_eye, parse_axes((row, column)), float if dtype is None else dtype, **numbers)


def _compute_eye(sizes: tuple[int, ...], indices: list[Any], dtype: Any, k: Any = None) -> Any:
    row, column = indices
    if k is not None:
        row = row + k
    return (row == column).astype(dtype)


def linspace(axis: AxisSelector, *, start: Any, stop: Any, endpoint: bool = True, dtype: Any = None) -> NamedArray:
    """Makes evenly spaced values from `start` to `stop` along one axis; see `jax.numpy.linspace`.

    Args:
        axis: The axis, whose size is the number of values; a name alone means 50 values.
        start: First value; it may be traced.
        stop: Last value; it may be traced.
        endpoint: Whether `stop` is the last value or the first one beyond.
        dtype: Element type; a float type that holds `start` and `stop` if None.

    Returns:
        Array with that axis, sharded by the active mapping.

    Raises:
        TypeError: If `start` or `stop` is not a scalar.
        ValueError: If there is more than one axis.

    Example:
        >>> import axonym as nym
        >>> nym.linspace(nym.Axis("i", 3), start=0.0, stop=1.0).array
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    return _make_spaced(_compute_linspace, axis, endpoint, dtype, start=start, stop=stop)


def logspace(
    axis: AxisSelector, *, start: Any, stop: Any, endpoint: bool = True, base: Any = 10.0, dtype: Any = None
) -> NamedArray:
    """Makes values from `base**start` to `base**stop` whose logarithms are evenly spaced; see `jax.numpy.logspace`.

    Args:
        axis: The axis, whose size is the number of values; a name alone means 50 values.
        start: Exponent of the first value.
        stop: Exponent of the last value.
        endpoint: Whether `stop` is the last exponent or the first one beyond.
        base: Base of the powers, a scalar.
        dtype: Element type; a float type that holds `start` and `stop` if None.

    Example:
        >>> import axonym as nym
        >>> nym.logspace(nym.Axis("i", 3), start=0, stop=2, base=2.0).array
        Array([1., 2., 4.], dtype=float32)
    """
    return _make_spaced(_compute_logspace, axis, endpoint, dtype, start=start, stop=stop, base=base)


def geomspace(axis: AxisSelector, *, start: Any, stop: Any, endpoint: bool = True, dtype: Any = None) -> NamedArray:
    """Makes values from `start` to `stop`, each the same multiple of the one before; see `jax.numpy.geomspace`.

    Arguments as for `linspace`.

    Example:
        >>> import axonym as nym
        >>> nym.geomspace(nym.Axis("i", 3), start=1, stop=100).array
        Array([  1.,  10., 100.], dtype=float32)
    """
    return _make_spaced(_compute_geomspace, axis, endpoint, dtype, start=start, stop=stop)


def _make_spaced(fn: Callable[..., Any], axis: AxisSelector, endpoint: bool, dtype: Any, **numbers: Any) -> NamedArray:
    check_dtype(dtype)
    axes = (Axis(axis, 50) if isinstance(axis, str) else parse_one_axis(axis),)
    plain_numbers = {name: as_plain_number(number) for name, number in numbers.items()}
    return make_from_indices(fn, axes, dtype, endpoint, **plain_numbers)


def _infer_spaced_dtypes(dtype: Any, *numbers: Any) -> tuple[Any, Any]:
    """Returns the element type of evenly spaced values, and the inexact type in which they are computed."""
    result_dtype = jnp.result_type(*numbers) if dtype is None else jnp.result_type(dtype)
    computed_dtype = result_dtype if jnp.issubdtype(result_dtype, jnp.inexact) else jnp.result_type(float)
    if dtype is None:
        result_dtype = computed_dtype
    return result_dtype, computed_dtype


def _interpolate_values(size: int, index: Any, endpoint: bool, start: Any, stop: Any, dtype: Any) -> Any:
    """Computes the values of `jax.numpy.linspace`, each from its index alone."""
    start, stop = jnp.asarray(start, dtype), jnp.asarray(stop, dtype)
    last = size - 1 if endpoint else size
    # `finfo` gives the real type of complex numbers; an axis of size 1 must not divide by zero.
    weight = (index.astype(jnp.finfo(start.dtype).dtype) / max(last, 1)).astype(start.dtype)
    values = start * (1 - weight) + stop * weight
    if not endpoint or size <= 1:
        return values
    return jnp.where(index == last, stop, values)  # rounding must not change the end


def _compute_linspace(
    sizes: tuple[int, ...], indices: list[Any], dtype: Any, endpoint: bool, start: Any, stop: Any
) -> Any:
    result_dtype, computed_dtype = _infer_spaced_dtypes(dtype, start, stop)
    values = _interpolate_values(sizes[0], indices[0], endpoint, start, stop, computed_dtype)
    if result_dtype == computed_dtype:
        return values
    return jnp.floor(values).astype(result_dtype)  # as JAX does; a conversion alone would round toward zero


def _compute_logspace(
    sizes: tuple[int, ...], indices: list[Any], dtype: Any, endpoint: bool, start: Any, stop: Any, base: Any
) -> Any:
    result_dtype, computed_dtype = _infer_spaced_dtypes(dtype, start, stop)
    powers = _interpolate_values(sizes[0], indices[0], endpoint, start, stop, computed_dtype)
    return jnp.power(base, powers).astype(result_dtype)


def _compute_geomspace(
    sizes: tuple[int, ...], indices: list[Any], dtype: Any, endpoint: bool, start: Any, stop: Any
) -> Any:
    result_dtype, computed_dtype = _infer_spaced_dtypes(dtype, start, stop)
    start, stop = jnp.asarray(start, computed_dtype), jnp.asarray(stop, computed_dtype)
    sign = jnp.sign(start)
    log_start, log_stop = jnp.log10(start / sign), jnp.log10(stop / sign)
    powers = _interpolate_values(sizes[0], indices[0], endpoint, log_start, log_stop, computed_dtype)
    return (sign * jnp.power(10.0, powers)).astype(result_dtype)

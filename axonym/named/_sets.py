"""The different values of an array, a fixed number of them, because shapes do not depend on values."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, overload

import jax.numpy as jnp

from ._axis import Axis, AxisSelector, Names, find_axis, parse_one_axis
from ._base import N, NamedBase, check_named, with_array
from ._broadcasting import check_scalar
from ._gufunc import apply_gufunc


class UniqueAll(NamedTuple, Generic[N]):
    """What `unique_all` returns."""

    values: N
    indices: N
    inverse_indices: N
    counts: N


class UniqueCounts(NamedTuple, Generic[N]):
    """What `unique_counts` returns."""

    values: N
    counts: N


class UniqueInverse(NamedTuple, Generic[N]):
    """What `unique_inverse` returns."""

    values: N
    inverse_indices: N


@overload
def unique(
    x: N, Unique: Axis, *, axis: AxisSelector | None = ..., fill_value: Any = ..., equal_nan: bool = ...
) -> N: ...
@overload
def unique(
    x: NamedBase,
    Unique: Axis,
    *,
    return_index: bool = ...,
    return_inverse: bool = ...,
    return_counts: bool = ...,
    axis: AxisSelector | None = ...,
    fill_value: Any = ...,
    equal_nan: bool = ...,
) -> Any: ...
def unique(
    x: Any,
    Unique: Axis,
    *,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: AxisSelector | None = None,
    fill_value: Any = None,
    equal_nan: bool = True,
) -> Any:
    """Finds the different values, in order, a fixed number of them; see `jax.numpy.unique`.

    Args:
        x: Array of any axes.
        Unique: Axis of the result. Where there are fewer values it is filled up, where there are more the rest is left
            out.
        return_index: Whether to return where each value occurs first: its position along `axis`, or in the elements of
            `x` in order.
        return_inverse: Whether to return which value each element is.
        return_counts: Whether to return how often each value occurs.
        axis: The axis along which whole slices are compared; None for single elements.
        fill_value: What fills the result up; the first value if not given.
        equal_nan: Whether all NaN are one value.

    Returns:
        Array with the axis `Unique`, which takes the place of `axis` if that is given; and in a tuple with it what else
        was asked for: positions and counts with the axis `Unique`, the inverse with the axes of `x`, or `axis` alone.

    Raises:
        ValueError: If `x` lacks the axis, an `Axis` given has another size, or `x` has an axis like `Unique` beside it.
        TypeError: If `Unique` has no size.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([3, 1, 3, 2], "i")
        >>> nym.unique(x, nym.Axis("value", 3))
        NamedArray(int32, value: 3, [1, 2, 3])
        >>> values, counts = nym.unique(x, nym.Axis("value", 3), return_counts=True)
        >>> counts
        NamedArray(int32, value: 3, [1, 1, 2])
    """
    check_named(x)
    found = parse_one_axis(Unique)
    at = None if axis is None else find_axis(x.names, x.array.shape, axis)
    own = (found.name,)
    values = own if at is None else (*x.names[:at], found.name, *x.names[at + 1 :])
    asked = (bool(return_index), bool(return_inverse), bool(return_counts))
    outs = (own, x.names if at is None else (x.names[at],), own)
    chosen = (values, *(names for names, wanted in zip(outs, asked, strict=True) if wanted))
    results = _over_all(_unique, x, fill_value, chosen, asked=asked, axis=at, size=found.size, equal_nan=equal_nan)
    return results if any(asked) else results[0]


def _unique(array: Any, *fill: Any, asked: tuple[bool, bool, bool], **options: Any) -> Any:
    return jnp.unique(array, *asked, fill_value=fill[0] if fill else None, **options)


def unique_values(x: N, Unique: Axis, *, fill_value: Any = None) -> N:
    """Finds the different values; see `jax.numpy.unique_values`, for which every NaN is a value of its own.

    Args:
        x: Array of any axes.
        Unique: Axis of the result, as for `unique`.
        fill_value: What fills the result up; the first value if not given.

    Returns:
        Array with the axis `Unique`.

    Raises:
        TypeError: If `Unique` has no size.

    Example:
        >>> import axonym as nym
        >>> nym.unique_values(nym.named([3, 1, 3, 2], "i"), nym.Axis("value", 4))
        NamedArray(int32, value: 4, [1, 2, 3, 1])
    """
    own = (parse_one_axis(Unique).name,)
    return _over_all(_values, x, fill_value, (own,), size=Unique.size)[0]


def _values(array: Any, *fill: Any, size: int) -> Any:
    return jnp.unique_values(array, size=size, fill_value=fill[0] if fill else None)


def unique_counts(x: N, Unique: Axis, *, fill_value: Any = None) -> UniqueCounts[N]:
    """Finds the different values and how often each occurs; see `jax.numpy.unique_counts`.

    Arguments as for `unique_values`.

    Returns:
        A named tuple of `values` and `counts`, each with the axis `Unique`.

    Example:
        >>> import axonym as nym
        >>> nym.unique_counts(nym.named([3, 1, 3, 2], "i"), nym.Axis("value", 3)).counts
        NamedArray(int32, value: 3, [1, 1, 2])
    """
    own = (parse_one_axis(Unique).name,)
    return UniqueCounts(*_over_all(_counts, x, fill_value, (own, own), size=Unique.size))


def _counts(array: Any, *fill: Any, size: int) -> Any:
    return jnp.unique_counts(array, size=size, fill_value=fill[0] if fill else None)


def unique_inverse(x: N, Unique: Axis, *, fill_value: Any = None) -> UniqueInverse[N]:
    """Finds the different values and which of them each element is; see `jax.numpy.unique_inverse`.

    Arguments as for `unique_values`.

    Returns:
        A named tuple of `values`, with the axis `Unique`, and `inverse_indices`, with the axes of `x`.

    Example:
        >>> import axonym as nym
        >>> nym.unique_inverse(nym.named([3, 1, 3, 2], "i"), nym.Axis("value", 3)).inverse_indices
        NamedArray(int32, i: 4, [2, 0, 2, 1])
    """
    own = (parse_one_axis(Unique).name,)
    check_named(x)
    return UniqueInverse(*_over_all(_inverse, x, fill_value, (own, x.names), size=Unique.size))


def _inverse(array: Any, *fill: Any, size: int) -> Any:
    return jnp.unique_inverse(array, size=size, fill_value=fill[0] if fill else None)


def unique_all(x: N, Unique: Axis, *, fill_value: Any = None) -> UniqueAll[N]:
    """Finds the different values and all that is to know of them; see `jax.numpy.unique_all`.

    Arguments as for `unique_values`.

    Returns:
        A named tuple of `values`; `indices`, where each occurs first in the elements of `x` in order; and `counts`,
        each with the axis `Unique`; and of `inverse_indices`, with the axes of `x`, third.

    Example:
        >>> import axonym as nym
        >>> nym.unique_all(nym.named([3, 1, 3, 2], "i"), nym.Axis("value", 3)).indices
        NamedArray(int32, value: 3, [1, 3, 0])
    """
    own = (parse_one_axis(Unique).name,)
    check_named(x)
    return UniqueAll(*_over_all(_all, x, fill_value, (own, own, x.names, own), size=Unique.size))


def _all(array: Any, *fill: Any, size: int) -> Any:
    return jnp.unique_all(array, size=size, fill_value=fill[0] if fill else None)


def _over_all(
    fn: Callable[..., Any], x: N, fill_value: Any, outs: tuple[Names, ...], **options: Hashable
) -> tuple[N, ...]:
    """Applies a positional function to the array as a whole, with what fills the result up if that is given."""
    check_named(x)
    fill = () if fill_value is None else (with_array(x, jnp.asarray(check_scalar(fill_value)), ()),)
    return apply_gufunc(fn, (x, *fill), (x.names, *(() for _ in fill)), outs, **options)

"""Unique values of an array, in a result of fixed size, because shapes must not depend on values."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, overload

import jax.numpy as jnp

from ._axis import Axis, AxisSelector, Names, find_axis, parse_one_axis
from ._base import N, NamedBase, check_named, with_array
from ._broadcasting import check_scalar
from ._gufunc import apply_gufunc


class UniqueAll(NamedTuple, Generic[N]):
    """Result of `unique_all`."""

    values: N
    indices: N
    inverse_indices: N
    counts: N


class UniqueCounts(NamedTuple, Generic[N]):
    """Result of `unique_counts`."""

    values: N
    counts: N


class UniqueInverse(NamedTuple, Generic[N]):
    """Result of `unique_inverse`."""

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
    """Finds the unique values in ascending order; see `jax.numpy.unique`.

    Args:
        x: Array of any axes.
        Unique: Axis of the result, which is padded if there are fewer values, and truncated if there are more.
        return_index: Whether to return the first position of each value, along `axis` or in the flattened `x`.
        return_inverse: Whether to return the index of the value of each element.
        return_counts: Whether to return the number of occurrences of each value.
        axis: The axis along which slices are compared; None for single elements.
        fill_value: Padding of the result; the first value by default.
        equal_nan: Whether all NaN are one value.

    Returns:
        Array with the axis `Unique`, which replaces `axis` if that is given; or a tuple with the other results that are
        requested: positions and counts with the axis `Unique`, the inverse with the axes of `x`, or `axis` alone.

    Raises:
        ValueError: If `x` lacks the axis, an `Axis` has another size, or `x` has another axis named like `Unique`.
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
    flags = (bool(return_index), bool(return_inverse), bool(return_counts))
    outs = (own, x.names if at is None else (x.names[at],), own)
    chosen = (values, *(names for names, wanted in zip(outs, flags, strict=True) if wanted))
    options = {"flags": flags, "axis": at, "equal_nan": equal_nan}
    results = _apply_unique(jnp.unique, x, fill_value, chosen, found, **options)
    return results if any(flags) else results[0]


def unique_values(x: N, Unique: Axis, *, fill_value: Any = None) -> N:
    """Finds the unique values; see `jax.numpy.unique_values`, which treats every NaN as a different value.

    Args:
        x: Array of any axes.
        Unique: Axis of the result, as for `unique`.
        fill_value: Padding of the result; the first value by default.

    Returns:
        Array with the axis `Unique`.

    Raises:
        TypeError: If `Unique` has no size.

    Example:
        >>> import axonym as nym
        >>> nym.unique_values(nym.named([3, 1, 3, 2], "i"), nym.Axis("value", 4))
        NamedArray(int32, value: 4, [1, 2, 3, 1])
    """
    Unique = parse_one_axis(Unique)
    own = (Unique.name,)
    return _apply_unique(jnp.unique_values, x, fill_value, (own,), Unique)[0]


def unique_counts(x: N, Unique: Axis, *, fill_value: Any = None) -> UniqueCounts[N]:
    """Finds the unique values and their counts; see `jax.numpy.unique_counts`.

    Arguments as for `unique_values`.

    Returns:
        A named tuple of `values` and `counts`, each with the axis `Unique`.

    Example:
        >>> import axonym as nym
        >>> nym.unique_counts(nym.named([3, 1, 3, 2], "i"), nym.Axis("value", 3)).counts
        NamedArray(int32, value: 3, [1, 1, 2])
    """
    Unique = parse_one_axis(Unique)
    own = (Unique.name,)
    return UniqueCounts(*_apply_unique(jnp.unique_counts, x, fill_value, (own, own), Unique))


def unique_inverse(x: N, Unique: Axis, *, fill_value: Any = None) -> UniqueInverse[N]:
    """Finds the unique values and the index of the value of each element; see `jax.numpy.unique_inverse`.

    Arguments as for `unique_values`.

    Returns:
        A named tuple of `values`, with the axis `Unique`, and `inverse_indices`, with the axes of `x`.

    Example:
        >>> import axonym as nym
        >>> nym.unique_inverse(nym.named([3, 1, 3, 2], "i"), nym.Axis("value", 3)).inverse_indices
        NamedArray(int32, i: 4, [2, 0, 2, 1])
    """
    Unique = parse_one_axis(Unique)
    own = (Unique.name,)
    check_named(x)
    return UniqueInverse(*_apply_unique(jnp.unique_inverse, x, fill_value, (own, x.names), Unique))


def unique_all(x: N, Unique: Axis, *, fill_value: Any = None) -> UniqueAll[N]:
    """Finds the unique values, their first positions, the inverse and the counts; see `jax.numpy.unique_all`.

    Arguments as for `unique_values`.

    Returns:
        A named tuple of `values`, `indices`, the first position of each in the flattened `x`, `inverse_indices`, with
        the axes of `x`, and `counts`; the others have the axis `Unique`.

    Example:
        >>> import axonym as nym
        >>> nym.unique_all(nym.named([3, 1, 3, 2], "i"), nym.Axis("value", 3)).indices
        NamedArray(int32, value: 3, [1, 3, 0])
    """
    Unique = parse_one_axis(Unique)
    own = (Unique.name,)
    check_named(x)
    return UniqueAll(*_apply_unique(jnp.unique_all, x, fill_value, (own, own, x.names, own), Unique))


def _apply_unique(
    function: Callable[..., Any], x: N, fill_value: Any, outs: tuple[Names, ...], found: Axis, **options: Hashable
) -> tuple[N, ...]:
    """Applies a positional function over all axes of an array, with the fill value as an argument if given."""
    check_named(x)
    fill = () if fill_value is None else (with_array(x, jnp.asarray(check_scalar(fill_value)), ()),)
    cores = (x.names, *(() for _ in fill))
    return apply_gufunc(_compute_unique, (x, *fill), cores, outs, function=function, size=found.size, **options)


def _compute_unique(
    array: Any, *fill: Any, function: Callable[..., Any], flags: tuple[bool, ...] = (), **options: Any
) -> Any:
    return function(array, *flags, fill_value=fill[0] if fill else None, **options)

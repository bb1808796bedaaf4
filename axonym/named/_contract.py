"""Contractions: products of arrays summed over named axes, as `dot_general` does them, without any transpose."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from . import _reduce
from ._align import check_sizes
from ._ambient import out_sharding
from ._axis import AxisSelection, Names, PartialAxisSpec, intern_names, listed, positions, selected
from ._base import N, check_named, like
from ._plan import planned
from ._shape import rearrange


def dot(
    first: N,
    /,
    *others: N,
    axis: AxisSelection | None,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_axes: PartialAxisSpec | None = None,
) -> N:
    """Multiplies arrays and sums over axes that all of them have; every other shared name is batched.

    Args:
        first: Array of any axes.
        *others: More arrays of any axes.
        axis: The axes to sum over: one, several, `()` for an outer product, or None for all of them.
        precision: As for `jax.lax.dot_general`.
        preferred_element_type: Element type in which the sum is kept and returned.
        out_axes: The order of the result, with `...` for the axes not named.

    Returns:
        Array with the axes that are not summed over. Without `out_axes` the order is `dot_general`'s own: the batched
        axes, then those of the left operand, then those of the right one. So no transpose is ever added.

    Raises:
        ValueError: If an operand lacks a contracted axis, or a name has two sizes.
        TypeError: If an operand is not a named array.

    Example:
        >>> import axonym as nym
        >>> x, w = nym.ones({"batch": 2, "embed": 3}), nym.ones({"embed": 3, "mlp": 4})
        >>> nym.dot(x, w, axis="embed").shape
        (batch: 2, mlp: 4)
    """
    arrays = (first, *others)
    for x in arrays:
        check_named(x)
    operands = tuple(x.names for x in arrays)
    chosen = axis if axis is None or type(axis) is str else selected(axis)
    summed, names = _contraction(operands, tuple(x.array.shape for x in arrays), chosen)
    if not others:
        result = _reduce.sum(first, summed, dtype=preferred_element_type)
    else:
        body = _dot_general if len(arrays) == 2 and all(set(summed) <= set(own) for own in operands) else _einsum
        precision = tuple(precision) if isinstance(precision, list) else precision  # to be hashed
        product = planned(body, operands, summed, names, precision, preferred_element_type)
        result = like(first, product(*(x.array for x in arrays)), names)
    return result if out_axes is None else rearrange(result, out_axes)


@functools.lru_cache(maxsize=8192)
def _contraction(
    operands: tuple[Names, ...], shapes: tuple[tuple[int, ...], ...], axis: AxisSelection | None
) -> tuple[Names, Names]:
    """Returns the names summed over and those of the result: first the batched ones, then those of each operand."""
    summed = _summed(operands, shapes, axis)
    check_sizes(*zip(operands, shapes, strict=True))
    left = [name for names in operands for name in names if name not in summed]
    batched = [name for name in dict.fromkeys(left) if left.count(name) > 1]
    return summed, intern_names((*batched, *(name for name in left if name not in batched)))


def _summed(operands: tuple[Names, ...], shapes: tuple[tuple[int, ...], ...], axis: AxisSelection | None) -> Names:
    if axis is None:
        return tuple(dict.fromkeys(name for names in operands for name in names))
    try:
        found = [positions(names, sizes, axis) for names, sizes in zip(operands, shapes, strict=True)]
    except ValueError as error:
        shown = " and ".join(listed(names, sizes) for names, sizes in zip(operands, shapes, strict=True))
        raise ValueError(f"cannot contract {shown}: {error}") from None
    return tuple(operands[0][i] for i in found[0])


def _dot_general(
    operands: tuple[Names, Names],
    summed: Names,
    names: Names,
    precision: Any,
    dtype: Any,
    x: Any,
    y: Any,
) -> Any:
    left, right = operands
    sizes = {**dict(zip(left, x.shape, strict=True)), **dict(zip(right, y.shape, strict=True))}
    batched = tuple(name for name in names if name in left and name in right)
    contracting = tuple(map(left.index, summed)), tuple(map(right.index, summed))
    batch = tuple(map(left.index, batched)), tuple(map(right.index, batched))
    common = jnp.result_type(x, y)
    return jax.lax.dot_general(
        x.astype(common),
        y.astype(common),
        (contracting, batch),
        precision=precision,
        preferred_element_type=dtype,
        out_sharding=out_sharding(names, tuple(sizes[name] for name in names)),
    )


def _einsum(
    operands: tuple[Names, ...],
    summed: Names,
    names: Names,
    precision: Any,
    dtype: Any,
    *arrays: Any,
) -> Any:
    sizes = {n: s for own, array in zip(operands, arrays, strict=True) for n, s in zip(own, array.shape, strict=True)}
    number = {name: index for index, name in enumerate(sizes)}
    pairs = [item for own, array in zip(operands, arrays, strict=True) for item in (array, [number[n] for n in own])]
    return jnp.einsum(
        *pairs,
        [number[name] for name in names],
        precision=precision,
        preferred_element_type=dtype,
        out_sharding=out_sharding(names, tuple(sizes[name] for name in names)),
    )

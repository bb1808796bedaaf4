"""How layers merge their axes for export: as a reshape, which leaves all elements in their order, or otherwise."""

from typing import Any, TypeAlias

import equinox as eqx
import jax

from ..named._ambient import context
from ..named._array import is_named_array
from ._keys import is_array_leaf


MergedDims: TypeAlias = tuple[tuple[int, ...], ...]
"""Which dimensions of an array each dimension of another one consists of."""


def find_merged_dims(module: Any) -> list[MergedDims] | None:
    """Returns for each array of a module which dimensions its `flatten_for_export` merges.

    Returns None if that method does anything but reshape arrays.
    """
    shapes = jax.tree.map(_drop_values, module)
    arrays, static = eqx.partition(shapes, is_array_leaf)

    def flatten(arrays: Any) -> Any:
        return jax.tree.leaves(eqx.filter(eqx.combine(arrays, static).flatten_for_export(), is_array_leaf))

    with context(None):  # without a mapping, which would add constraints
        jaxpr = jax.make_jaxpr(flatten)(arrays).jaxpr
    sources = {variable: at for at, variable in enumerate(jaxpr.invars)}
    for equation in jaxpr.eqns:
        if equation.primitive.name != "reshape":
            return None
        sources[equation.outvars[0]] = sources[equation.invars[0]]
    if [sources.get(variable) for variable in jaxpr.outvars] != [*range(len(jaxpr.invars))]:
        return None
    pairs = zip(jaxpr.invars, jaxpr.outvars, strict=True)
    found = [merge_dims(own.aval.shape, merged.aval.shape) for own, merged in pairs]
    return None if None in found else found  # pyright: ignore[reportReturnType]


def _drop_values(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array_leaf(x) and not is_named_array(x) else x


def merge_dims(sizes: tuple[int, ...], merged: tuple[int, ...]) -> MergedDims | None:
    """Returns which of some sizes are multiplied for each merged one; None if neighbours do not give these products.

    Example:
        >>> merge_dims((2, 3, 8, 32), (48, 32))
        ((0, 1, 2), (3,))
    """
    found: list[list[int]] = []
    at = 0
    for total in merged:
        found.append([])
        product = 1
        while at < len(sizes) and (product != total or (not found[-1] and sizes[at] == total)):
            product *= sizes[at]
            found[-1].append(at)
            at += 1
        if product != total:
            return None
    if any(size != 1 for size in sizes[at:]) or (at < len(sizes) and not found):
        return None
    if at < len(sizes):
        found[-1] += range(at, len(sizes))
    return tuple(map(tuple, found))


def list_array_leaves(module: Any) -> list[Any]:
    """Returns the named and other arrays of a module."""
    return [leaf for leaf in jax.tree.leaves(module, is_leaf=is_named_array) if is_array_leaf(leaf)]

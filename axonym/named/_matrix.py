"""Matrices over two named axes: triangles, diagonals, traces, and outer, cross and Kronecker products."""

from typing import Any

import jax.numpy as jnp

from .._ground.arguments import check_integer
from .._ground.caches import cached_jit
from ._axis import AxisSelection, AxisSelector, Names, axis_name, find_axes, find_axis, intern_names
from ._base import N, check_named, format_shape, with_array
from ._broadcasting import align_axes
from ._gufunc import apply_gufunc
from ._shape._broadcast import rename
from ._shape._rearrange import rearrange
from ._sharding import get_out_sharding, reshard_by_name


def tril(x: N, axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> N:
    """Keeps the lower triangle of the matrices over two axes and fills the rest with zeros; see `jax.numpy.tril`.

    Args:
        x: Array with these two axes and any others.
        axis1: The axis of the rows.
        axis2: The axis of the columns.
        k: The last diagonal kept, above the main one if positive and below it if negative.

    Returns:
        Array with the axes of `x`, in their order.

    Raises:
        ValueError: If `x` lacks one of the axes, an `Axis` given has another size, or both are the same.

    Example:
        >>> import axonym as nym
        >>> nym.tril(nym.ones({"pos": 2, "key_pos": 3}), "pos", "key_pos").array
        Array([[1., 0., 0.],
               [1., 1., 0.]], dtype=float32)
    """
    return _apply_triangle("tril", x, (axis1, axis2), k)


def triu(x: N, axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> N:
    """Keeps the upper triangle of the matrices over two axes; see `jax.numpy.triu`. Arguments as for `tril`.

    Args:
        x: Array with these two axes and any others.
        axis1: The axis of the rows.
        axis2: The axis of the columns.
        k: The first diagonal kept, above the main one if positive and below it if negative.

    Example:
        >>> import axonym as nym
        >>> nym.triu(nym.ones({"pos": 2, "key_pos": 3}), "pos", "key_pos", k=1).array
        Array([[0., 1., 1.],
               [0., 0., 1.]], dtype=float32)
    """
    return _apply_triangle("triu", x, (axis1, axis2), k)


def _apply_triangle(function: str, x: N, axes: tuple[AxisSelector, AxisSelector], k: int) -> N:
    check_named(x)
    if type(k) is not int:  # nearly always it is, and each call of Python counts in an operation of this size
        k = check_integer(f"{function}: `k`", k)
    dims = find_axes(x.names, x.array.shape, axes)
    return with_array(x, cached_jit(_mask_triangle, x.names, dims, k, function == "tril")(x.array))


def _mask_triangle(names: Names, dims: tuple[int, int], k: int, lower: bool, array: Any) -> Any:
    """Sets elements outside a triangle to zero; the axes keep their order and shardings."""
    rows, columns = (array.shape[dim] for dim in dims)
    # The upper triangle from diagonal k is all that is not in the lower triangle up to diagonal k - 1.
    mask = jnp.tri(rows, columns, k, dtype=bool) if lower else ~jnp.tri(rows, columns, k - 1, dtype=bool)
    mask = align_axes(mask, tuple(names[dim] for dim in dims), names)
    return jnp.where(mask, array, jnp.zeros((), array.dtype))


def trace(x: N, axis1: AxisSelector, axis2: AxisSelector, offset: int = 0, dtype: Any = None) -> N:
    """Sums the diagonal of the matrices over two axes; see `jax.numpy.trace`.

    Args:
        x: Array with these two axes and any others.
        axis1: The axis of the rows.
        axis2: The axis of the columns.
        offset: Which diagonal, above the main one if positive and below it if negative.
        dtype: Element type of the result.

    Returns:
        Array with the other axes of `x`.

    Raises:
        ValueError: If `x` lacks one of the axes, an `Axis` given has another size, or both are the same.

    Example:
        >>> import axonym as nym
        >>> nym.trace(nym.ones({"row": 3, "batch": 2, "column": 3}), "row", "column").array
        Array([3., 3.], dtype=float32)
    """
    options = {"offset": check_integer("trace: `offset`", offset), "axis1": -2, "axis2": -1, "dtype": dtype}
    return apply_gufunc(jnp.trace, (x,), ((axis1, axis2),), ((),), **options)[0]


def diagonal(
    x: N, axis1: AxisSelector, axis2: AxisSelector, *, offset: int = 0, new_axis: AxisSelector | None = None
) -> N:
    """Returns the diagonal of the matrices over two axes; see `jax.numpy.diagonal`.

    Args:
        x: Array with these two axes and any others.
        axis1: The axis of the rows.
        axis2: The axis of the columns.
        offset: Which diagonal, above the main one if positive and below it if negative.
        new_axis: The axis of the diagonal; by default it has the name of `axis1`.

    Returns:
        Array with the other axes of `x`, then the axis of the diagonal.

    Raises:
        ValueError: If `x` lacks one of the axes, an `Axis` given has another size, both are the same, or the new axis
            has the name of another axis.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[1, 2, 3], [4, 5, 6]], ("row", "column"))
        >>> nym.diagonal(x, "row", "column", new_axis="i")
        NamedArray(int32, i: 2, [1, 5])
    """
    name = axis_name(axis1)
    options = {"offset": check_integer("diagonal: `offset`", offset), "axis1": -2, "axis2": -1}
    (result,) = apply_gufunc(jnp.diagonal, (x,), ((axis1, axis2),), ((name,),), **options)
    return result if new_axis is None else rename(result, {name: new_axis})


def diag(x: N, axis: AxisSelector, other: AxisSelector, *, k: int = 0) -> N:
    """Puts the elements along an axis on the diagonal of square matrices; see `jax.numpy.diag`.

    The inverse is `diagonal`.

    Args:
        x: Array with this axis and any others.
        axis: The axis of the elements, which becomes the axis of the rows.
        other: The new axis of the columns.
        k: Which diagonal, above the main one if positive and below it if negative.

    Returns:
        Array with the other axes of `x`, then rows and columns, both of the size of `axis` plus `abs(k)`.

    Raises:
        ValueError: If `x` lacks the axis, an `Axis` given has another size, or `x` has the new one.

    Example:
        >>> import axonym as nym
        >>> nym.diag(nym.named([1, 2], "row"), "row", "column")
        NamedArray(int32, row: 2, column: 2, [[1, 0], [0, 2]])
    """
    check_named(x)
    k, name = check_integer("diag: `k`", k), axis_name(other)
    find_axis((name,), (x.axis_size(axis) + abs(k),), other)  # raises an error if an `Axis` has another size
    return apply_gufunc(_compute_diag, (x,), ((axis,),), ((axis_name(axis), name),), k=k)[0]


def _compute_diag(array: Any, *, k: int) -> Any:
    # Diagonal k begins in column k of the first row, or in row -k of the first column.
    padding = [(0, 0)] * (array.ndim - 1) + [(max(-k, 0), max(k, 0))]
    rows = jnp.pad(array, padding)[..., None]
    size = rows.shape[-2]
    eye = jnp.eye(size, k=k, dtype=bool).reshape((1,) * (array.ndim - 1) + (size, size))
    return jnp.where(eye, rows, jnp.zeros((), array.dtype))


def outer(x: N, y: N) -> N:
    """Computes the outer product of arrays; see `jax.numpy.outer`.

    Args:
        x: Array of any axes.
        y: Array of any other axes.

    Returns:
        Array with the axes of `x`, then those of `y`.

    Raises:
        ValueError: If the arrays share an axis, or on an Explicit mesh two axes are mapped to one mesh axis.

    Example:
        >>> import axonym as nym
        >>> nym.outer(nym.named([1, 2], "i"), nym.named([3, 4], "j"))
        NamedArray(int32, i: 2, j: 2, [[3, 4], [6, 8]])
    """
    check_named(x)
    check_named(y)
    if shared := [name for name in x.names if name in y.names]:
        raise ValueError(
            f"an outer product has the axes of both arrays, but {format_shape(x)} and {format_shape(y)} share axis "
            f"{shared[0]!r}; `rename` it in one of them, or use `multiply` to align it"
        )
    product = cached_jit(_compute_outer, x.names, y.names)(x.array, y.array)
    return with_array(x, product, intern_names(x.names + y.names))


def _compute_outer(x_names: Names, y_names: Names, x: Any, y: Any) -> Any:
    names = x_names + y_names
    get_out_sharding(names, x.shape + y.shape)  # raises an error if two axes are mapped to one mesh axis
    x = align_axes(reshard_by_name(x, x_names), x_names, names)
    y = align_axes(reshard_by_name(y, y_names), y_names, names)
    return reshard_by_name(jnp.multiply(x, y), names)


def cross(x: N, y: N, axis: AxisSelector) -> N:
    """Computes the cross product of vectors with three elements; see `jax.numpy.cross`.

    Args:
        x: Array with this axis, of size 3, and any others.
        y: Array with this axis, of size 3, and any others, which broadcast by name.
        axis: The axis of the vectors.

    Returns:
        Array with the axes of `x`, or of `y` if it has more.

    Raises:
        ValueError: If one of the arrays lacks the axis, it has another size, or the others do not broadcast.

    Example:
        >>> import axonym as nym
        >>> nym.cross(nym.named([1, 0, 0], "xyz"), nym.named([0, 1, 0], "xyz"), "xyz")
        NamedArray(int32, xyz: 3, [0, 0, 1])
    """
    name = axis_name(axis)
    for array in (x, y):
        check_named(array)
        if array.axis_size(axis) != 3:
            raise ValueError(
                f"`cross` takes vectors of 3 elements, axis {name!r} of {format_shape(array)} has size "
                f"{array.axis_size(axis)}"
            )
    (result,) = apply_gufunc(jnp.cross, (x, y), ((name,), (name,)), ((name,),))
    return rearrange(result, max(x.names, y.names, key=len))


def kron(x: N, y: N, axis: AxisSelection | None = None) -> N:
    """Computes the Kronecker product of arrays along axes that both have; see `jax.numpy.kron`.

    Element `i * m + j` of an axis that has `m` elements in `y` is element `i` of `x` times element `j` of `y`.

    Args:
        x: Array of any axes.
        y: Array of any axes.
        axis: The axes whose sizes multiply: one, several, or None for all shared axes. The other axes broadcast by
            name.

    Returns:
        Array with the axes of `x`, or of `y` if it has more.

    Raises:
        ValueError: If one of the arrays lacks one of these axes, or the others do not broadcast.

    Example:
        >>> import axonym as nym
        >>> nym.kron(nym.named([1, 10], "i"), nym.named([1, 2, 3], "i"))
        NamedArray(int32, i: 6, [ 1,  2,  3, 10, 20, 30])
    """
    check_named(x)
    check_named(y)
    if axis is None:
        axis = tuple(name for name in x.names if name in y.names)
    names = tuple(x.names[i] for i in find_axes(x.names, x.array.shape, axis))
    (result,) = apply_gufunc(_compute_kron, (x, y), (names, names), (names,), count=len(names))
    return rearrange(result, max(x.names, y.names, key=len))


def _compute_kron(x: Any, y: Any, *, count: int) -> Any:
    """Multiplies with the core axes of both arrays in pairs, then merges each pair."""
    if not count:
        return jnp.multiply(x, y)
    loop_count = x.ndim - count
    # Behind the loop axes x has a new axis after each core axis, and y before each.
    x_new_dims = tuple(range(loop_count + 1, x.ndim + count, 2))
    y_new_dims = tuple(range(loop_count, x.ndim + count, 2))
    product = jnp.multiply(jnp.expand_dims(x, x_new_dims), jnp.expand_dims(y, y_new_dims))
    merged_sizes = [n * m for n, m in zip(x.shape[loop_count:], y.shape[loop_count:], strict=True)]
    return product.reshape(*product.shape[:loop_count], *merged_sizes)

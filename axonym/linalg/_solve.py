"""Systems of linear equations and inverses."""

import functools
import math
from typing import Any

import jax.numpy as jnp

from ..named._arguments import check_number
from ..named._axis import AxisSelector
from ..named._base import N
from ..named._broadcasting import check_matching_sizes
from ..named._gufunc import apply_gufunc
from ._matrix_axes import find_matrix_axes, find_rhs_axes, get_short_side, parse_new_axis


def solve(a: N, b: N, row: AxisSelector, col: AxisSelector) -> N:
    """Solves linear equations: finds the `x` for which `dot(a, x, axis=col)` is `b`; see `jax.numpy.linalg.solve`.

    Args:
        a: Square matrices with axes `row` and `col`, over any other axes.
        b: Right-hand sides with the axis `row`. Axes shared with `a` broadcast by name; each matrix is factorised
            once and solved for all right-hand sides along the others.
        row: The axis of the equations.
        col: The axis of the unknowns.

    Returns:
        Array with the other axes of `a`, then `col`, then the axes that only `b` has.

    Raises:
        TypeError: If `a` or `b` is not a named array.
        ValueError: If an axis is missing, the matrices are not square, sizes differ, or `b` has the axis `col`.

    Example:
        >>> import axonym as nym
        >>> a = nym.named([[2.0, 0.0], [0.0, 4.0]], ("i", "j"))
        >>> nym.linalg.solve(a, nym.named([2.0, 2.0], "i"), "i", "j")
        NamedArray(float32, j: 2, [1. , 0.5])
    """
    names = find_matrix_axes(a, row, col, "solve")
    extra = find_rhs_axes(a, b, *names)
    check_matching_sizes((a.names, a.array.shape), (b.names, b.array.shape))
    return apply_gufunc(_solve_columns, (a, b), (names, (names[0], *extra)), ((names[1], *extra),))[0]


def _solve_columns(a: Any, b: Any) -> Any:
    x = jnp.linalg.solve(a, _flatten_columns(b, a.ndim - 1))
    return x.reshape(*x.shape[:-1], *b.shape[a.ndim - 1 :])


def _flatten_columns(b: Any, kept: int) -> Any:
    """Returns right-hand sides as the columns of matrices: all axes after the first `kept` become one."""
    return b.reshape(*b.shape[:kept], math.prod(b.shape[kept:]))


def lstsq(
    a: N,
    b: N,
    row: AxisSelector,
    col: AxisSelector,
    new_axis: AxisSelector = "k",
    *,
    rcond: float | None = None,
) -> tuple[N, N, N, N]:
    """Finds the `x` with `dot(a, x, axis=col)` closest to `b`; see `jax.numpy.linalg.lstsq`.

    Args:
        a: Matrices with axes `row` and `col`, over any other axes.
        b: Right-hand sides with the axis `row`; their other axes are as for `solve`.
        row: The axis of the equations.
        col: The axis of the unknowns.
        new_axis: The axis of the singular values.
        rcond: Singular values below this fraction of the largest count as zero; by default the rounding error.

    Returns:
        The solution of smallest norm, with the axis `col` in place of `row`; the sums of
        squared residuals; the ranks of the matrices; and their singular values.

    Raises:
        TypeError: If `a` or `b` is not a named array.
        ValueError: If an axis is missing, sizes differ, `b` has the axis `col`, or `a` has the new axis.

    Example:
        >>> import axonym as nym
        >>> a = nym.named([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], ("i", "j"))
        >>> x, _, rank, _ = nym.linalg.lstsq(a, nym.named([1.0, 3.0, 5.0], "i"), "i", "j")
        >>> x.round(3), rank.item()
        (NamedArray(float32, j: 2, [1., 2.]), 2)
    """
    names = find_matrix_axes(a, row, col)
    extra = find_rhs_axes(a, b, *names)
    check_matching_sizes((a.names, a.array.shape), (b.names, b.array.shape))
    name = parse_new_axis(a, new_axis, get_short_side(a, *names))
    if rcond is not None:
        rcond = check_number("lstsq: `rcond`", rcond)
    outs = ((names[1], *extra), extra, (), (name,))
    x, residuals, rank, values = apply_gufunc(
        _solve_least_squares, (a, b), (names, (names[0], *extra)), outs, rcond=rcond
    )
    return x, residuals, rank, values


def _solve_least_squares(a: Any, b: Any, *, rcond: float | None) -> tuple[Any, ...]:
    fit = jnp.vectorize(functools.partial(jnp.linalg.lstsq, rcond=rcond), signature="(m,n),(m,k)->(n,k),(k),(),(s)")
    x, residuals, rank, values = fit(a, _flatten_columns(b, a.ndim - 1))
    sides = b.shape[a.ndim - 1 :]
    return x.reshape(*x.shape[:-1], *sides), residuals.reshape(*residuals.shape[:-1], *sides), rank, values


def inv(x: N, row: AxisSelector, col: AxisSelector) -> N:
    """Inverts square matrices; see `jax.numpy.linalg.inv`. `solve` is faster and more exact.

    The inverse maps `row` to `col`: `dot(inverse, y, axis=row)` has `col` in place of `row`. For the product with `x`
    itself rename one axis, as names are unique.

    Args:
        x: Square matrices with axes `row` and `col`, over any other axes.
        row: The axis of the rows.
        col: The axis of the columns.

    Returns:
        Array with the other axes of `x`, then `col`, then `row`.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If an axis is missing or the matrices are not square.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[2.0, 0.0], [0.0, 4.0]], ("i", "j"))
        >>> inverse = nym.linalg.inv(x, "i", "j")
        >>> inverse.names
        ('j', 'i')
        >>> nym.dot(x, inverse.rename({"i": "other"}), axis="j")
        NamedArray(float32, i: 2, other: 2, [[1., 0.], [0., 1.]])
    """
    names = find_matrix_axes(x, row, col, "inv")
    return apply_gufunc(jnp.linalg.inv, (x,), (names,), (names[::-1],))[0]


def pinv(x: N, row: AxisSelector, col: AxisSelector, *, rtol: float | None = None, hermitian: bool = False) -> N:
    """Computes the Moore-Penrose inverse of matrices; see `jax.numpy.linalg.pinv`.

    Args:
        x: Matrices with axes `row` and `col`, over any other axes.
        row: The axis of the rows.
        col: The axis of the columns.
        rtol: Singular values below this fraction of the largest count as zero; by default the rounding error.
        hermitian: Whether the matrices are known to be Hermitian, which is faster.

    Returns:
        Array with the other axes of `x`, then `col`, then `row`, each with its size; see `inv`.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If an axis is missing, or `hermitian` is set and the matrices are not square.

    Example:
        >>> import axonym as nym
        >>> nym.linalg.pinv(nym.named([[2.0, 0.0, 0.0], [0.0, 4.0, 0.0]], ("i", "j")), "i", "j").shape
        (j: 3, i: 2)
    """
    names = find_matrix_axes(x, row, col, "pinv" if hermitian else None)
    if rtol is not None:
        rtol = check_number("pinv: `rtol`", rtol, least=0)
    options = {"rtol": rtol, "hermitian": hermitian}
    return apply_gufunc(jnp.linalg.pinv, (x,), (names,), (names[::-1],), **options)[0]

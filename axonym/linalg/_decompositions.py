"""Matrix decompositions: Cholesky, QR, eigenvalues and singular values.

The axis between two factors is new; the argument `new_axis` names it.
"""

from typing import Literal

import jax.numpy as jnp

from ..named._axis import AxisSelector
from ..named._base import N
from ..named._format import format_value
from ..named._gufunc import apply_gufunc
from ._matrix_axes import find_matrix_axes, get_short_side, parse_new_axis


def cholesky(x: N, row: AxisSelector, col: AxisSelector, *, upper: bool = False, symmetrize_input: bool = True) -> N:
    """Factorises positive definite matrices into a triangle times its conjugate; see `jax.numpy.linalg.cholesky`.

    The product is taken over `col`: `dot(y, conj(y.rename({row: "other"})), axis=col)` is `x`.

    Args:
        x: Hermitian, positive definite matrices with axes `row` and `col`, over any other axes.
        row: The axis of the rows.
        col: The axis of the columns.
        upper: Whether to return the upper triangle; the product is then taken over `row`.
        symmetrize_input: Whether to average each matrix with its conjugate transpose first, which gradients need;
            otherwise only one triangle is read.

    Returns:
        Array with the other axes of `x`, then `row`, then `col`; NaN where a matrix is not positive definite.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If an axis is missing or the matrices are not square.

    Example:
        >>> import axonym as nym
        >>> nym.linalg.cholesky(nym.named([[4.0, 2.0], [2.0, 5.0]], ("i", "j")), "i", "j")
        NamedArray(float32, i: 2, j: 2, [[2., 0.], [1., 2.]])
    """
    names = find_matrix_axes(x, row, col, "cholesky")
    options = {"upper": upper, "symmetrize_input": symmetrize_input}
    return apply_gufunc(jnp.linalg.cholesky, (x,), (names,), (names,), **options)[0]


def qr(
    x: N,
    row: AxisSelector,
    col: AxisSelector,
    new_axis: AxisSelector = "k",
    *,
    mode: Literal["reduced", "complete"] = "reduced",
) -> tuple[N, N]:
    """Factorises matrices into orthonormal columns times an upper triangle; see `jax.numpy.linalg.qr`.

    `dot(q, r, axis=new_axis)` is `x`.

    Args:
        x: Matrices with axes `row` and `col`, over any other axes.
        row: The axis of the rows.
        col: The axis of the columns.
        new_axis: The axis between the factors, its name or an `Axis` of its size.
        mode: "reduced" for as many columns as the smaller of rows and columns of `x`; "complete" for as many as rows.

    Returns:
        The orthonormal columns, with axes `row` and `new_axis`, and the triangle, with axes `new_axis` and `col`, each
        after the other axes of `x`.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If an axis is missing, `x` has the new one already, or `mode` is unknown.

    Example:
        >>> import axonym as nym
        >>> q, r = nym.linalg.qr(nym.ones({"i": 3, "j": 2}), "i", "j")
        >>> q.shape, r.shape
        ((i: 3, k: 2), (k: 2, j: 2))
    """
    if mode not in ("reduced", "complete"):
        raise ValueError(f"the `mode` of `qr` must be 'reduced' or 'complete', not {format_value(mode)}")
    names = find_matrix_axes(x, row, col)
    size = x.axis_size(row) if mode == "complete" else get_short_side(x, *names)
    new = parse_new_axis(x, new_axis, size)
    q, r = apply_gufunc(jnp.linalg.qr, (x,), (names,), ((names[0], new), (new, names[1])), mode=mode)
    return q, r


def svd(
    x: N, row: AxisSelector, col: AxisSelector, new_axis: AxisSelector = "k", *, hermitian: bool = False
) -> tuple[N, N, N]:
    """Factorises matrices by their singular values; see `jax.numpy.linalg.svd` with `full_matrices=False`.

    `dot(u * s, vh, axis=new_axis)` is `x`.

    Args:
        x: Matrices with axes `row` and `col`, over any other axes.
        row: The axis of the rows.
        col: The axis of the columns.
        new_axis: The axis of the singular values, its name or an `Axis` of its size: the smaller of `row` and `col`.
        hermitian: Whether the matrices are known to be Hermitian, which is faster.

    Returns:
        The left singular vectors, with axes `row` and `new_axis`; the singular values, largest first; and the right
        singular vectors, with axes `new_axis` and `col`; each after the other axes of `x`.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If an axis is missing, `x` has the new one already, or `hermitian` is set for matrices that
            are not square.

    Example:
        >>> import axonym as nym
        >>> u, s, vh = nym.linalg.svd(nym.ones({"i": 3, "j": 2}), "i", "j", "rank")
        >>> u.shape, s.shape, vh.shape
        ((i: 3, rank: 2), (rank: 2), (rank: 2, j: 2))
    """
    names = find_matrix_axes(x, row, col, "svd" if hermitian else None)
    new = parse_new_axis(x, new_axis, get_short_side(x, *names))
    outs = ((names[0], new), (new,), (new, names[1]))
    u, s, vh = apply_gufunc(jnp.linalg.svd, (x,), (names,), outs, full_matrices=False, hermitian=hermitian)
    return u, s, vh


def svdvals(x: N, row: AxisSelector, col: AxisSelector, new_axis: AxisSelector = "k") -> N:
    """Returns the singular values of matrices, largest first; see `jax.numpy.linalg.svdvals`. Arguments as for `svd`.

    Example:
        >>> import axonym as nym
        >>> nym.linalg.svdvals(nym.named([[3.0, 0.0], [0.0, 4.0]], ("i", "j")), "i", "j")
        NamedArray(float32, k: 2, [4., 3.])
    """
    names = find_matrix_axes(x, row, col)
    new = parse_new_axis(x, new_axis, get_short_side(x, *names))
    return apply_gufunc(jnp.linalg.svdvals, (x,), (names,), ((new,),))[0]


def eigh(
    x: N, row: AxisSelector, col: AxisSelector, new_axis: AxisSelector = "k", *, symmetrize_input: bool = True
) -> tuple[N, N]:
    """Returns the eigenvalues and eigenvectors of Hermitian matrices; see `jax.numpy.linalg.eigh`.

    `dot(x, vectors.rename({row: col}), axis=col)` is `vectors * values`.

    Args:
        x: Hermitian matrices with axes `row` and `col`, over any other axes.
        row: The axis of the rows.
        col: The axis of the columns.
        new_axis: The axis of the eigenvalues, its name or an `Axis` of its size.
        symmetrize_input: Whether to average each matrix with its conjugate transpose first; otherwise only the lower
            triangle is read.

    Returns:
        The eigenvalues, smallest first, with axis `new_axis`, and the eigenvectors, with axes `row` and `new_axis`,
        each after the other axes of `x`.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If an axis is missing, `x` has the new one already, or the matrices are not square.

    Example:
        >>> import axonym as nym
        >>> values, vectors = nym.linalg.eigh(nym.named([[3.0, 0.0], [0.0, 4.0]], ("i", "j")), "i", "j")
        >>> values, vectors.shape
        (NamedArray(float32, k: 2, [3., 4.]), (i: 2, k: 2))
    """
    names = find_matrix_axes(x, row, col, "eigh")
    new = parse_new_axis(x, new_axis, x.axis_size(row))
    options = {"symmetrize_input": symmetrize_input}
    values, vectors = apply_gufunc(jnp.linalg.eigh, (x,), (names,), ((new,), (names[0], new)), **options)
    return values, vectors


def eigvalsh(
    x: N, row: AxisSelector, col: AxisSelector, new_axis: AxisSelector = "k", *, symmetrize_input: bool = True
) -> N:
    """Returns the eigenvalues of Hermitian matrices; see `jax.numpy.linalg.eigvalsh`. Arguments as for `eigh`.

    Example:
        >>> import axonym as nym
        >>> nym.linalg.eigvalsh(nym.named([[3.0, 0.0], [0.0, 4.0]], ("i", "j")), "i", "j")
        NamedArray(float32, k: 2, [3., 4.])
    """
    names = find_matrix_axes(x, row, col, "eigvalsh")
    new = parse_new_axis(x, new_axis, x.axis_size(row))
    options = {"symmetrize_input": symmetrize_input}
    return apply_gufunc(jnp.linalg.eigvalsh, (x,), (names,), ((new,),), **options)[0]


def eig(x: N, row: AxisSelector, col: AxisSelector, new_axis: AxisSelector = "k") -> tuple[N, N]:
    """Returns the eigenvalues and eigenvectors of square matrices, complex and in no order; see `jax.numpy.linalg.eig`.

    JAX computes them on CPUs and some GPUs only. Arguments as for `eigh`.

    Example:
        >>> import axonym as nym
        >>> values, vectors = nym.linalg.eig(nym.named([[0.0, 1.0], [-1.0, 0.0]], ("i", "j")), "i", "j")
        >>> values.dtype, vectors.shape
        (dtype('complex64'), (i: 2, k: 2))
    """
    names = find_matrix_axes(x, row, col, "eig")
    new = parse_new_axis(x, new_axis, x.axis_size(row))
    values, vectors = apply_gufunc(jnp.linalg.eig, (x,), (names,), ((new,), (names[0], new)))
    return values, vectors


def eigvals(x: N, row: AxisSelector, col: AxisSelector, new_axis: AxisSelector = "k") -> N:
    """Returns the eigenvalues of square matrices; see `jax.numpy.linalg.eigvals`. Arguments as for `eig`.

    Example:
        >>> import axonym as nym
        >>> nym.linalg.eigvals(nym.named([[3.0, 1.0], [0.0, 3.0]], ("i", "j")), "i", "j").array.real
        Array([3., 3.], dtype=float32)
    """
    names = find_matrix_axes(x, row, col, "eigvals")
    return apply_gufunc(jnp.linalg.eigvals, (x,), (names,), ((parse_new_axis(x, new_axis, x.axis_size(row)),),))[0]

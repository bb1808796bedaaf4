"""Linear algebra of matrices whose axes are given by name: decompositions, equations, norms and determinants."""

import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp

from .._ground.arguments import check_integer, check_number
from .._ground.formats import format_axes, format_value
from ..named._axis import Axis, AxisSelection, AxisSelector, axis_name, check_matching_sizes, find_axes, find_axis
from ..named._base import N, NamedBase, check_named, format_shape
from ..named._gufunc import apply_gufunc
from ..named._reduce._apply_reduction import apply_reduction
from ..named._wide_sums import compute_wide


def find_matrix_axes(
    x: NamedBase, row: AxisSelector, col: AxisSelector, square_for: str | None = None
) -> tuple[str, str]:
    """Returns the names of the axes of matrices, which must be square if the name of a function is given."""
    check_named(x)
    sizes = x.array.shape
    i, j = find_axes(x.names, sizes, (row, col))
    if square_for is not None and sizes[i] != sizes[j]:
        raise ValueError(
            f"`{square_for}` needs square matrices; axes {x.names[i]!r} and {x.names[j]!r} of {format_shape(x)} have "
            f"sizes {sizes[i]} and {sizes[j]}"
        )
    return x.names[i], x.names[j]


def parse_new_axis(x: NamedBase, new_axis: AxisSelector, size: int) -> str:
    """Returns the name of a new axis of the given size."""
    name = axis_name(new_axis)
    if name in x.names:
        raise ValueError(
            f"{format_shape(x)} has an axis {name!r} already; give the new axis another name with `new_axis`"
        )
    find_axis((name,), (size,), Axis(name, size) if isinstance(new_axis, str) else new_axis)
    return name


def get_short_side(x: NamedBase, row: str, col: str) -> int:
    return min(x.axis_size(row), x.axis_size(col))


def find_rhs_axes(a: NamedBase, b: NamedBase, row: str, col: str) -> tuple[str, ...]:
    """Returns the axes that only `b` has, along which there are several right-hand sides for each matrix of `a`."""
    check_named(b)
    find_axis(b.names, b.array.shape, Axis(row, a.axis_size(row)))
    if col in b.names:
        raise ValueError(
            f"the right-hand side {format_shape(b)} has axis {col!r}, which the solution will have; `rename` it"
        )
    check_matching_sizes((a.names, a.array.shape), (b.names, b.array.shape))
    return tuple(name for name in b.names if name not in a.names)


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
    return apply_gufunc(jnp.linalg.cholesky, (x,), (names,), (names,), upper=upper, symmetrize_input=symmetrize_input)[
        0
    ]


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
    outs = ((new,), (names[0], new))
    values, vectors = apply_gufunc(jnp.linalg.eigh, (x,), (names,), outs, symmetrize_input=symmetrize_input)
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
    return apply_gufunc(jnp.linalg.eigvalsh, (x,), (names,), ((new,),), symmetrize_input=symmetrize_input)[0]


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
    new = parse_new_axis(x, new_axis, x.axis_size(row))
    return apply_gufunc(jnp.linalg.eigvals, (x,), (names,), ((new,),))[0]


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
    return apply_gufunc(_solve_columns, (a, b), (names, (names[0], *extra)), ((names[1], *extra),))[0]


def _solve_columns(a: Any, b: Any) -> Any:
    columns, sides = _flatten_columns(b, a.ndim - 1)
    x = jnp.linalg.solve(a, columns)
    return x.reshape(*x.shape[:-1], *sides)


def _flatten_columns(b: Any, first: int) -> tuple[Any, tuple[int, ...]]:
    """Returns right-hand sides as the columns of matrices: one axis for all from `first` on, and these axes' sizes."""
    sides = b.shape[first:]
    return b.reshape(*b.shape[:first], math.prod(sides)), sides


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
    new = parse_new_axis(a, new_axis, get_short_side(a, *names))
    if rcond is not None:
        rcond = check_number("lstsq: `rcond`", rcond)
    outs = ((names[1], *extra), extra, (), (new,))
    x, residuals, rank, values = apply_gufunc(
        _solve_least_squares, (a, b), (names, (names[0], *extra)), outs, rcond=rcond
    )
    return x, residuals, rank, values


def _solve_least_squares(a: Any, b: Any, *, rcond: float | None) -> tuple[Any, ...]:
    # `jax.numpy.linalg.lstsq` takes one matrix.
    fit = jnp.vectorize(functools.partial(jnp.linalg.lstsq, rcond=rcond), signature="(m,n),(m,k)->(n,k),(k),(),(s)")
    columns, sides = _flatten_columns(b, a.ndim - 1)
    x, residuals, rank, values = fit(a, columns)
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
    return apply_gufunc(jnp.linalg.pinv, (x,), (names,), (names[::-1],), rtol=rtol, hermitian=hermitian)[0]


def norm(x: N, axis: AxisSelection | None = None, *, ord: int | float | str | None = None) -> N:
    """Returns the norms of vectors along one axis, or of matrices along two; see `jax.numpy.linalg.norm`.

    Args:
        x: Array of any axes.
        axis: One axis for vectors; two for matrices, rows first; without `ord` any number of axes. None is for all.
        ord: The order of the norm, as in JAX: by default the square root of the sum of squares. For vectors any number,
            inf or -inf; for matrices 1, -1, 2, -2, inf, -inf, "fro" or "nuc".

    Returns:
        Array with the axes of `x` that were not reduced.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If an axis is missing, or `ord` is unknown for that number of axes.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[3.0, 4.0], [0.0, 2.0]], ("batch", "embed"))
        >>> nym.linalg.norm(x, "embed"), nym.linalg.norm(x, ("batch", "embed"), ord=1).item()
        (NamedArray(float32, batch: 2, [5., 2.]), 6.0)
    """
    check_named(x)
    names = tuple(x.names[i] for i in find_axes(x.names, x.array.shape, axis))
    if ord is not None and len(names) not in (1, 2):
        raise ValueError(f"a norm with `ord` needs one or two axes, not {format_axes(names)}")
    if len(names) == 2 and ord in (2, -2, "nuc"):  # these need singular values
        return apply_gufunc(_compute_norm, (x,), (names,), ((),), axis=(-2, -1), ord=ord)[0]
    return apply_reduction(_compute_norm, x, axis, None, ord=ord)


@compute_wide  # squares may be too large for float16
def _compute_norm(array: Any, *, axis: tuple[int, ...], ord: int | float | str | None) -> Any:
    if ord is not None:
        return jnp.linalg.norm(array, ord=ord, axis=axis)
    # `jax.numpy.linalg.norm` without `ord` takes at most two axes.
    array = array.astype(jax.eval_shape(jnp.sqrt, array).dtype)  # JAX's own float type for integers
    return jnp.sqrt(jnp.sum(jnp.real(array * jnp.conj(array)), axis=axis))


def det(x: N, row: AxisSelector, col: AxisSelector) -> N:
    """Returns the determinants of square matrices; see `jax.numpy.linalg.det`.

    Args:
        x: Square matrices with axes `row` and `col`, over any other axes.
        row: The axis of the rows.
        col: The axis of the columns.

    Returns:
        Array with the other axes of `x`.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If an axis is missing or the matrices are not square.

    Example:
        >>> import axonym as nym
        >>> nym.linalg.det(nym.named([[2.0, 1.0], [0.0, 4.0]], ("i", "j")), "i", "j").item()
        8.0
    """
    return apply_gufunc(jnp.linalg.det, (x,), (find_matrix_axes(x, row, col, "det"),), ((),))[0]


def slogdet(x: N, row: AxisSelector, col: AxisSelector) -> tuple[N, N]:
    """Returns the signs of determinants and the logarithms of their magnitudes; see `jax.numpy.linalg.slogdet`.

    Arguments as for `det`.

    Example:
        >>> import axonym as nym
        >>> sign, log = nym.linalg.slogdet(nym.named([[-1.0, 1.0], [0.0, 1.0]], ("i", "j")), "i", "j")
        >>> sign.item(), log.item()
        (-1.0, 0.0)
    """
    sign, log = apply_gufunc(jnp.linalg.slogdet, (x,), (find_matrix_axes(x, row, col, "slogdet"),), ((), ()))
    return sign, log


def matrix_rank(x: N, row: AxisSelector, col: AxisSelector, *, rtol: float | None = None, hermitian: bool = False) -> N:
    """Returns the ranks of matrices; see `jax.numpy.linalg.matrix_rank`.

    Args:
        x: Matrices with axes `row` and `col`, over any other axes.
        row: The axis of the rows.
        col: The axis of the columns.
        rtol: Singular values below this fraction of the largest count as zero; by default the rounding error.
        hermitian: Whether the matrices are known to be Hermitian, which is faster.

    Returns:
        Integer array with the other axes of `x`.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If an axis is missing, or `hermitian` is set and the matrices are not square.

    Example:
        >>> import axonym as nym
        >>> nym.linalg.matrix_rank(nym.ones({"i": 3, "j": 2}), "i", "j").item()
        1
    """
    names = find_matrix_axes(x, row, col, "matrix_rank" if hermitian else None)
    if rtol is not None:
        rtol = check_number("matrix_rank: `rtol`", rtol, least=0)
    return apply_gufunc(_compute_rank, (x,), (names,), ((),), rtol=rtol, hermitian=hermitian)[0]


def _compute_rank(x: Any, *, rtol: float | None, hermitian: bool) -> Any:
    # `jax.numpy.linalg.matrix_rank` treats a given `rtol` as an absolute tolerance.
    values = jnp.abs(jnp.linalg.eigvalsh(x)) if hermitian else jnp.linalg.svdvals(x)
    relative = max(x.shape[-2:]) * jnp.finfo(values.dtype).eps if rtol is None else rtol
    return jnp.sum(values > relative * jnp.max(values, axis=-1, keepdims=True, initial=0), axis=-1)


def cond(x: N, row: AxisSelector, col: AxisSelector, *, p: int | float | str | None = None) -> N:
    """Returns the condition numbers of matrices; see `jax.numpy.linalg.cond`.

    Args:
        x: Matrices with axes `row` and `col`, over any other axes.
        row: The axis of the rows.
        col: The axis of the columns.
        p: The order of the norm, as for `norm`; by default the ratio of the largest to the smallest singular value.

    Returns:
        Array with the other axes of `x`.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If an axis is missing, or the matrices are not square and the norm needs square ones.

    Example:
        >>> import axonym as nym
        >>> nym.linalg.cond(nym.named([[2.0, 0.0], [0.0, 8.0]], ("i", "j")), "i", "j").item()
        4.0
    """
    names = find_matrix_axes(x, row, col, None if p in (None, 2, -2) else "cond")
    return apply_gufunc(jnp.linalg.cond, (x,), (names,), ((),), p=p)[0]


def matrix_power(x: N, row: AxisSelector, col: AxisSelector, n: int) -> N:
    """Raises square matrices to a power; see `jax.numpy.linalg.matrix_power`.

    `row` and `col` are the same space, since each result of `x` is its next input; the power maps `col` to `row` as `x`
    does, also if it is negative.

    Args:
        x: Square matrices with axes `row` and `col`, over any other axes.
        row: The axis of the rows.
        col: The axis of the columns.
        n: The exponent; 0 gives the identity, a negative number a power of the inverse.

    Returns:
        Array with the other axes of `x`, then `row`, then `col`.

    Raises:
        TypeError: If `x` is not a named array or `n` is not an integer.
        ValueError: If an axis is missing or the matrices are not square.

    Example:
        >>> import axonym as nym
        >>> nym.linalg.matrix_power(nym.named([[1.0, 1.0], [0.0, 1.0]], ("i", "j")), "i", "j", 3)
        NamedArray(float32, i: 2, j: 2, [[1., 3.], [0., 1.]])
    """
    names = find_matrix_axes(x, row, col, "matrix_power")
    return apply_gufunc(jnp.linalg.matrix_power, (x,), (names,), (names,), n=check_integer("matrix_power: `n`", n))[0]

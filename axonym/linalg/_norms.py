"""Norms, determinants, ranks and condition numbers, and powers of matrices."""

from typing import Any

import jax
import jax.numpy as jnp

from ..named._arguments import check_integer, check_number
from ..named._axis import AxisSelection, AxisSelector, find_axes
from ..named._base import N, check_named
from ..named._format import format_axes
from ..named._gufunc import apply_gufunc
from ..named._reduce._apply_reduction import apply_reduction
from ._matrix_axes import find_matrix_axes


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


def _compute_norm(array: Any, *, axis: tuple[int, ...], ord: int | float | str | None) -> Any:
    if ord is not None:
        return jnp.linalg.norm(array, ord=ord, axis=axis)
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

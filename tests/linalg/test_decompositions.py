"""Matrices as products: the factors multiply to the matrix, are what JAX returns, and have the names asked for."""

from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis, linalg


WITH_NEW_AXIS = ["qr", "svd", "svdvals", "eigh", "eigvalsh", "eig", "eigvals"]
SQUARE = ["cholesky", "eigh", "eigvalsh", "eig", "eigvals"]


def in_front(x):
    """The plain array with axes (batch, i, j)."""
    return x.rearrange(("batch", "i", "j")).array


def close(x, expected):
    np.testing.assert_allclose(x.array if isinstance(x, nym.NamedArray) else x, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_is_a_triangle_whose_square_is_the_matrix(matrices, upper):
    x = matrices(3, symmetric=True)
    y = linalg.cholesky(x, "i", "j", upper=upper)
    assert y.names == ("batch", "i", "j")
    close(y, jnp.linalg.cholesky(in_front(x), upper=upper))
    over, other = ("i", "j") if upper else ("j", "i")
    square = nym.dot(y, y.rename({other: "other"}), axis=over).rearrange(("batch", other, "other"))
    close(square, in_front(x))


def test_cholesky_reads_one_triangle_if_told(matrices):
    x = matrices(3)
    got = linalg.cholesky(x, "i", "j", symmetrize_input=False)
    close(got, jnp.linalg.cholesky(in_front(x), symmetrize_input=False))


@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_qr_multiplies_to_the_matrix(draw, mode):
    x = draw(i=4, batch=2, j=3)
    q, r = linalg.qr(x, "i", "j", Axis("new", 3 if mode == "reduced" else 4), mode=mode)
    expected = jnp.linalg.qr(in_front(x), mode=mode)
    assert q.names == ("batch", "i", "new") and r.names == ("batch", "new", "j")
    close(q, expected[0])
    close(r, expected[1])
    close(nym.dot(q, r, axis="new"), in_front(x))


def test_svd_multiplies_to_the_matrix(draw):
    x = draw(j=3, batch=2, i=4)
    u, s, vh = linalg.svd(x, "i", "j")
    expected = jnp.linalg.svd(in_front(x), full_matrices=False)
    assert (u.names, s.names, vh.names) == (("batch", "i", "k"), ("batch", "k"), ("batch", "k", "j"))
    for one, other in zip((u, s, vh), expected, strict=True):
        close(one, other)
    close(nym.dot(u * s, vh, axis="k"), in_front(x))
    close(linalg.svdvals(x, "i", "j", "values"), s.array)


def test_the_svd_of_hermitian_matrices(matrices):
    x = matrices(3, symmetric=True)
    u, s, vh = linalg.svd(x, "i", "j", hermitian=True)
    close(nym.dot(u * s, vh, axis="k"), in_front(x))
    close(s, jnp.linalg.svdvals(in_front(x)))


def test_eigh_gives_eigenvectors(matrices):
    x = matrices(3, symmetric=True)
    values, vectors = linalg.eigh(x, "i", "j", "value")
    assert values.names == ("batch", "value") and vectors.names == ("batch", "i", "value")
    close(values, jnp.linalg.eigh(in_front(x))[0])
    product = nym.dot(x, vectors.rename({"i": "j"}), axis="j").rearrange(vectors.names)
    close(product, (vectors * values).array)
    close(linalg.eigvalsh(x, "i", "j"), values.array)


def test_eigh_reads_one_triangle_if_told(matrices):
    x = matrices(3)
    expected = jnp.linalg.eigvalsh(jnp.tril(in_front(x)) + jnp.tril(in_front(x), -1).transpose(0, 2, 1))
    close(linalg.eigvalsh(x, "i", "j", symmetrize_input=False), expected)
    close(linalg.eigh(x, "i", "j", symmetrize_input=False)[0], expected)


def test_eig_gives_complex_eigenvectors(matrices):
    x = matrices(3)
    values, vectors = linalg.eig(x, "i", "j")
    assert values.names == ("batch", "k") and vectors.names == ("batch", "i", "k")
    product = nym.dot(x.astype(complex), vectors.rename({"i": "j"}), axis="j").rearrange(vectors.names)
    close(product, (vectors * values).array)
    close(linalg.eigvals(x, "i", "j"), values.array)


def _diagonal(x):
    return jnp.einsum("bik,bk,bjk->bij", x[1], jnp.sin(x[0]), x[1])


GRADIENTS = {
    "cholesky": (lambda x: linalg.cholesky(x, "i", "j").array, jnp.linalg.cholesky),
    "qr": (lambda x: linalg.qr(x, "i", "j")[1].array, lambda x: jnp.linalg.qr(x)[1]),
    "svdvals": (lambda x: linalg.svdvals(x, "i", "j").array, jnp.linalg.svdvals),
    "eigh": (
        lambda x: _diagonal([one.array for one in linalg.eigh(x, "i", "j")]),
        lambda x: _diagonal(jnp.linalg.eigh(x)),
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_jax(matrices, name):
    x = matrices(3, symmetric=True)
    own, reference = GRADIENTS[name]
    got = jax.grad(lambda x: (own(x) ** 2).sum())(x)
    want = jax.grad(lambda x: (reference(x) ** 2).sum())(in_front(x))
    assert got.names == x.names
    np.testing.assert_allclose(in_front(got), want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", SQUARE)
def test_some_factors_are_of_square_matrices(draw, name):
    message = f"`{name}` needs square matrices; axes 'i' and 'j' of (i: 2, b: 1, j: 3) have sizes 2 and 3"
    with pytest.raises(ValueError, match=escape(message)):
        getattr(linalg, name)(draw(i=2, b=1, j=3), "i", "j")
    with pytest.raises(TypeError, match="A named array is needed"):
        getattr(linalg, name)(jnp.eye(2), "i", "j")


@pytest.mark.parametrize("name", WITH_NEW_AXIS)
def test_the_new_axis_is_new_and_has_its_size(draw, name):
    function, x = getattr(linalg, name), draw(i=2, k=1, j=2)
    message = "(i: 2, k: 1, j: 2) has an axis 'k' already; give the new axis another name with `new_axis`"
    with pytest.raises(ValueError, match=escape(message)):
        function(x, "i", "j")
    with pytest.raises(ValueError, match="axis 'new' has size 2 here, 3 was asked for"):
        function(x, "i", "j", Axis("new", 3))


@pytest.mark.parametrize("name", ["qr", "svd", "svdvals"])
def test_the_axes_of_a_matrix_must_be_there(draw, name):
    with pytest.raises(ValueError, match=escape("no axis 'embd' in (embed: 2, pos: 3); did you mean 'embed'?")):
        getattr(linalg, name)(draw(embed=2, pos=3), "pos", "embd")
    with pytest.raises(ValueError, match="axis 'embed' has size 2 here, 3 was asked for"):
        getattr(linalg, name)(draw(embed=2, pos=3), "pos", Axis("embed", 3))
    with pytest.raises(TypeError, match="A named array is needed"):
        getattr(linalg, name)(jnp.eye(2), "i", "j")


def test_qr_has_two_modes(draw):
    with pytest.raises(ValueError, match="the `mode` of `qr` must be 'reduced' or 'complete', not 'raw'"):
        linalg.qr(draw(i=2, j=2), "i", "j", mode="raw")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`svd` needs square matrices"):
        linalg.svd(draw(i=2, j=3), "i", "j", hermitian=True)


@pytest.mark.parametrize("name", ["cholesky", "qr", "svd", "eigh", "eig"])
def test_sharded_arrays_give_the_same(mapped, matrices, name):
    function, x = getattr(linalg, name), matrices(symmetric=True)
    with jax.set_mesh(None):
        expected = jax.tree.map(np.asarray, jax.jit(lambda x: function(x, "i", "j"))(x))
    x = nym.shard(x)
    for found in (function(x, "i", "j"), nym.named_jit(lambda x: function(x, "i", "j"))(x)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3), found, expected)
        first = found if isinstance(found, nym.NamedArray) else found[0]
        assert first.sharding.spec[0] == "data"

"""Norms, determinants, ranks, condition numbers and powers: values, gradients and names, sharded and not."""

from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis, linalg


VECTOR = [None, 0, 1, 2, 3, 0.5, jnp.inf, -jnp.inf]
MATRIX = [None, 1, -1, 2, -2, jnp.inf, -jnp.inf, "fro", "nuc"]


def close(x, expected):
    np.testing.assert_allclose(x.array if isinstance(x, nym.NamedArray) else x, expected, rtol=1e-3, atol=1e-4)


def in_front(x):
    """The plain array with axes (batch, i, j)."""
    return x.rearrange(("batch", "i", "j")).array


@pytest.mark.parametrize("ord", VECTOR, ids=str)
def test_the_norms_of_vectors(draw, ord):
    x = draw(i=4, batch=2, j=3)
    for axis in ("batch", ("batch",), Axis("batch", 2)):
        found = linalg.norm(x, axis, ord=ord)
        assert found.names == ("i", "j")
        close(found, jnp.linalg.norm(x.array, ord=ord, axis=1))


@pytest.mark.parametrize("ord", MATRIX, ids=str)
def test_the_norms_of_matrices(draw, ord):
    x = draw(i=4, batch=2, j=3)
    for rows, cols in (("i", "j"), ("j", "i")):
        found = linalg.norm(x, (rows, cols), ord=ord)
        assert found.names == ("batch",)
        close(found, jnp.linalg.norm(x.array, ord=ord, axis=(x.names.index(rows), x.names.index(cols))))


def test_the_norm_over_any_number_of_axes(draw):
    x = draw(i=4, batch=2, j=3)
    close(linalg.norm(x), jnp.linalg.norm(x.array))
    close(linalg.norm(x, ("j", "batch", "i")), jnp.linalg.norm(x.array))
    close(linalg.norm(x, ()), abs(x.array))
    close(linalg.norm(x["i", 0], ord="fro"), jnp.linalg.norm(x.array[0]))
    close(linalg.norm(x["i", 0, "j", 0], ord=1), abs(x.array[0, :, 0]).sum())
    assert linalg.norm(x).names == ()


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.bfloat16, jnp.complex64, bool])
def test_norms_have_the_type_that_jax_gives_them(dtype):
    plain = jnp.array([[100, -100], [1, 0]]).astype(dtype)
    found, expected = linalg.norm(nym.named(plain, ("i", "j")), "j"), jnp.linalg.norm(plain, axis=1)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.array.astype(float), expected.astype(float), rtol=1e-2)


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.int32, jnp.int64, bool, jnp.float16, jnp.complex64])
def test_norms_have_the_type_that_jax_gives_them_in_double_precision(dtype):
    with jax.enable_x64(True):
        plain = jnp.ones((2, 3)).astype(dtype)
        for ord in (None, 1, 2):
            expected = jnp.linalg.norm(plain, ord=ord, axis=1).dtype
            assert linalg.norm(nym.named(plain, ("i", "j")), "j", ord=ord).dtype == expected, ord


def test_a_norm_says_what_does_not_fit(draw):
    x = draw(i=4, batch=2, j=3)
    with pytest.raises(ValueError, match=escape("a norm with `ord` needs one or two axes, not (i, batch, j)")):
        linalg.norm(x, ord=2)
    with pytest.raises(ValueError, match=escape("no axis 'bach' in (i: 4, batch: 2, j: 3); did you mean 'batch'?")):
        linalg.norm(x, "bach")
    with pytest.raises(ValueError, match="axis 'batch' has size 2 here, 3 was asked for"):
        linalg.norm(x, (Axis("batch", 3), "i"), ord="nuc")
    with pytest.raises(TypeError, match="A named array is needed"):
        linalg.norm(jnp.ones(2))  # pyright: ignore[reportArgumentType]


def test_determinants(matrices):
    x = matrices(3)
    sign, log = linalg.slogdet(x, "i", "j")
    expected = jnp.linalg.det(in_front(x))
    assert linalg.det(x, "i", "j").names == sign.names == log.names == ("batch",)
    np.testing.assert_allclose(linalg.det(x, "i", "j").array, expected, rtol=1e-4)
    np.testing.assert_allclose((sign * nym.exp(log)).array, expected, rtol=1e-4)
    np.testing.assert_allclose(linalg.det(x, "j", "i").array, expected, rtol=1e-4)


def test_ranks():
    x = nym.named([[[1.0, 2.0, 0.0], [2.0, 4.0, 0.0]], [[1.0, 0.0, 0.0], [0.0, 1e-3, 0.0]]], ("batch", "i", "j"))
    assert linalg.matrix_rank(x, "i", "j").array.tolist() == [1, 2]
    assert linalg.matrix_rank(x, "j", "i", rtol=0.1).array.tolist() == [1, 1]
    square = x["j", :2]
    assert linalg.matrix_rank(square, "i", "j", hermitian=True).array.tolist() == [1, 2]
    assert linalg.matrix_rank(1000 * x, "i", "j", rtol=0.1).array.tolist() == [1, 1]


@pytest.mark.parametrize("hermitian", [False, True])
def test_ranks_are_those_of_jax(draw, hermitian):
    x = draw(i=3, batch=4, r=2)
    x = nym.dot(x, x.rename({"i": "j"}), axis="r")
    found = linalg.matrix_rank(x, "i", "j", hermitian=hermitian)
    assert found.array.tolist() == jnp.linalg.matrix_rank(in_front(x), hermitian=hermitian).tolist() == [2] * 4


@pytest.mark.parametrize("p", [None, 2, 1, "fro"], ids=str)
def test_condition_numbers(matrices, p):
    x = matrices(3)
    found = linalg.cond(x, "i", "j", p=p)
    assert found.names == ("batch",)
    close(found, jnp.linalg.cond(in_front(x), p=p))


@pytest.mark.parametrize("n", [-2, -1, 0, 1, 3])
def test_powers(matrices, n):
    x = matrices(3)
    found = linalg.matrix_power(x, "i", "j", n)
    assert found.names == ("batch", "i", "j")
    close(found, jnp.linalg.matrix_power(in_front(x), n))


GRADIENTS = {
    "norm": (lambda x: linalg.norm(x, ("i", "j")), lambda x: jnp.linalg.norm(x, axis=(1, 2))),
    "nuc": (lambda x: linalg.norm(x, ("i", "j"), ord="nuc"), lambda x: jnp.linalg.norm(x, "nuc", axis=(1, 2))),
    "slogdet": (lambda x: linalg.slogdet(x, "i", "j")[1], lambda x: jnp.linalg.slogdet(x)[1]),
    "power": (lambda x: linalg.matrix_power(x, "i", "j", 2), lambda x: jnp.linalg.matrix_power(x, 2)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_jax(matrices, name):
    x = matrices(3)
    own, reference = GRADIENTS[name]
    got = jax.grad(lambda x: (own(x) ** 2).sum().scalar())(x)
    want = jax.grad(lambda x: (reference(x) ** 2).sum())(in_front(x))
    assert got.names == x.names
    np.testing.assert_allclose(in_front(got), want, rtol=2e-3, atol=2e-3)


def test_some_numbers_are_of_square_matrices(draw):
    x = draw(i=2, b=1, j=3)
    calls = {
        "det": lambda: linalg.det(x, "i", "j"),
        "slogdet": lambda: linalg.slogdet(x, "i", "j"),
        "matrix_power": lambda: linalg.matrix_power(x, "i", "j", 2),
        "matrix_rank": lambda: linalg.matrix_rank(x, "i", "j", hermitian=True),
        "cond": lambda: linalg.cond(x, "i", "j", p=1),
    }
    for name, call in calls.items():
        message = f"`{name}` needs square matrices; axes 'i' and 'j' of (i: 2, b: 1, j: 3) have sizes 2 and 3"
        with pytest.raises(ValueError, match=escape(message)):
            call()
    for function in (linalg.det, linalg.slogdet, linalg.matrix_rank, linalg.cond):
        with pytest.raises(ValueError, match=escape("no axis 'c' in (i: 2, b: 1, j: 3)")):
            function(x, "i", "c")
        with pytest.raises(TypeError, match="A named array is needed"):
            function(jnp.eye(2), "i", "j")


def test_a_power_is_an_integer(matrices):
    with pytest.raises(TypeError, match=r"matrix_power: `n` must be an integer, not 0\.5"):
        linalg.matrix_power(matrices(2), "i", "j", 0.5)  # pyright: ignore[reportArgumentType]


SHARDED = {
    "norm": lambda x: linalg.norm(x, ("i", "j")),
    "vector": lambda x: linalg.norm(x, "i", ord=jnp.inf),
    "columns": lambda x: linalg.norm(x, ("i", "j"), ord=1),
    "nuc": lambda x: linalg.norm(x, ("i", "j"), ord="nuc"),
    "slogdet": lambda x: linalg.slogdet(x, "i", "j")[1],
    "rank": lambda x: linalg.matrix_rank(x, "i", "j"),
    "power": lambda x: linalg.matrix_power(x, "i", "j", 3),
}


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_arrays_give_the_same(mapped, matrices, name):
    function, x = SHARDED[name], matrices()
    with jax.set_mesh(None):
        expected = np.asarray(jax.jit(function)(x).array)
    x = nym.shard(x)
    for found in (function(x), nym.named_jit(function)(x)):
        np.testing.assert_allclose(found.array, expected, rtol=1e-3, atol=1e-3)
        assert found.sharding.spec[0] == "data"

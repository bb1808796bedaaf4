"""Linear equations and inverses: values, gradients and names, sharded and not, and what does not fit."""

from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis, linalg


def close(x, expected):
    np.testing.assert_allclose(x.array, expected, rtol=2e-4, atol=2e-4)


def in_front(x):
    """The plain array with axes (batch, i, j)."""
    return x.rearrange(("batch", "i", ...)).array


def test_solve_solves(matrices, draw):
    a, b = matrices(), draw(i=4, batch=4)
    x = linalg.solve(a, b, "i", "j")
    assert x.names == ("batch", "j")
    close(x, jnp.linalg.solve(in_front(a), in_front(b)[..., None])[..., 0])
    close(nym.dot(a, x, axis="j").rearrange(("i", "batch")), b.array)


def test_solve_is_for_all_right_hand_sides_of_a_matrix(matrices, draw):
    a, b = matrices(), draw(p=2, i=4, batch=4, q=3)
    x = linalg.solve(a, b, "i", "j")
    assert x.names == ("batch", "j", "p", "q")
    expected = jnp.linalg.solve(in_front(a), b.rearrange(("batch", "i", "p", "q")).array.reshape(4, 4, 6))
    close(x, expected.reshape(4, 4, 2, 3))
    one = a["batch", 1]
    close(linalg.solve(one, b["batch", 1], "i", "j"), x["batch", 1].array)


def test_solve_is_for_all_matrices_of_a_right_hand_side(matrices, draw):
    a, b = matrices(), draw(i=4)
    x = linalg.solve(a, b, Axis("i", 4), Axis("j", 4))
    assert x.names == ("batch", "j")
    close(x["batch", 2], jnp.linalg.solve(a["batch", 2].array, b.array))


def test_each_matrix_is_factorised_once(matrices, draw):
    a, b = matrices()["batch", 0], draw(p=5, i=4)
    jaxpr = str(jax.make_jaxpr(lambda a, b: linalg.solve(a, b, "i", "j"))(a, b))
    assert jaxpr.count(" lu[") <= 1 and "f32[5,4,4]" not in jaxpr


def test_the_gradients_of_solve_are_those_of_jax(matrices, draw):
    a, b = matrices(3), draw(i=3, batch=4)
    got = jax.grad(lambda args: (linalg.solve(*args, "i", "j") ** 2).sum().scalar())((a, b))
    want = jax.grad(lambda args: (jnp.linalg.solve(args[0], args[1][..., None]) ** 2).sum())((in_front(a), in_front(b)))
    assert got[0].names == a.names and got[1].names == b.names
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(in_front(one), other, rtol=1e-3, atol=1e-4)


def test_solve_says_what_does_not_fit(matrices, draw):
    a, b = matrices(), draw(i=4, batch=4)
    message = "`solve` needs square matrices; axes 'i' and 'j' of (i: 2, j: 3) have sizes 2 and 3"
    with pytest.raises(ValueError, match=escape(message)):
        linalg.solve(draw(i=2, j=3), draw(i=2), "i", "j")
    with pytest.raises(ValueError, match=escape("no axis 'k' in (i: 4, batch: 4, j: 4)")):
        linalg.solve(a, b, "i", "k")
    with pytest.raises(ValueError, match=escape("no axis 'i' in (batch: 4)")):
        linalg.solve(a, draw(batch=4), "i", "j")
    with pytest.raises(ValueError, match="axis 'i' has size 5 here, 4 was asked for"):
        linalg.solve(a, draw(i=5), "i", "j")
    with pytest.raises(ValueError, match=escape("axis 'batch' has size 4 and size 2 in (i: 4, batch: 4, j: 4) and")):
        linalg.solve(a, draw(i=4, batch=2), "i", "j")
    with pytest.raises(ValueError, match=escape("(i: 4, j: 4) has axis 'j', which the solution will have; `rename`")):
        linalg.solve(a, draw(i=4, j=4), "i", "j")
    with pytest.raises(ValueError, match=escape("axis 'i' is given more than once in (i, i)")):
        linalg.solve(a, b, "i", "i")
    with pytest.raises(TypeError, match="A named array is needed, not an array of shape"):
        linalg.solve(a, jnp.ones(4), "i", "j")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="A named array is needed, not an array of shape"):
        linalg.solve(jnp.ones((4, 4)), b, "i", "j")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("sides", [{}, {"p": 2, "q": 3}], ids=["one", "several"])
def test_lstsq_comes_closest(draw, sides):
    a, b = draw(i=5, batch=2, j=3), draw(i=5, **sides, batch=2)
    x, residuals, rank, values = linalg.lstsq(a, b, "i", "j", "value")
    assert (x.names, residuals.names) == (("batch", "j", *sides), ("batch", *sides))
    assert (rank.names, values.names) == (("batch",), ("batch", "value"))
    for n in range(2):
        columns = b["batch", n].rearrange(("i", ...)).array.reshape(5, -1)
        expected = jnp.linalg.lstsq(a["batch", n].array, columns)
        found = [one["batch", n].array for one in (x, residuals, rank, values)]
        np.testing.assert_allclose(found[0].reshape(3, -1), expected[0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(found[1].reshape(-1), expected[1], rtol=1e-3, atol=1e-4)
        assert found[2] == expected[2] == 3
        np.testing.assert_allclose(found[3], expected[3], rtol=1e-4)


def test_lstsq_of_one_right_hand_side_for_all_matrices(draw):
    a, b = draw(i=2, batch=2, j=3), draw(i=2)
    x, _, rank, _ = linalg.lstsq(a, b, "i", "j", rcond=1e-3)
    assert x.names == ("batch", "j") and rank.array.tolist() == [2, 2]
    close(nym.dot(a, x, axis="j").rearrange(("batch", "i")), jnp.broadcast_to(b.array, (2, 2)))


def test_lstsq_says_what_does_not_fit(draw):
    a = draw(i=5, batch=2, j=3)
    with pytest.raises(ValueError, match=escape("no axis 'i' in (batch: 2)")):
        linalg.lstsq(a, draw(batch=2), "i", "j")
    with pytest.raises(ValueError, match=escape("axis 'batch' has size 2 and size 4 in")):
        linalg.lstsq(a, draw(i=5, batch=4), "i", "j")
    with pytest.raises(ValueError, match=escape("(i: 5, batch: 2, j: 3) has an axis 'batch' already; give the new")):
        linalg.lstsq(a, draw(i=5), "i", "j", "batch")
    with pytest.raises(ValueError, match="axis 'k' has size 3 here, 5 was asked for"):
        linalg.lstsq(a, draw(i=5), "i", "j", Axis("k", 5))


def test_inv_maps_back(matrices, draw):
    x, y = matrices(), draw(batch=4, i=4)
    inverse = linalg.inv(x, "i", "j")
    assert inverse.names == ("batch", "j", "i")
    close(inverse, jnp.linalg.inv(in_front(x)))
    close(nym.dot(inverse, y, axis="i"), linalg.solve(x, y, "i", "j").array)
    product = nym.dot(x, inverse.rename({"i": "other"}), axis="j").rearrange(("batch", "i", "other"))
    close(product, jnp.broadcast_to(jnp.eye(4), (4, 4, 4)))
    close(linalg.inv(inverse, "j", "i"), in_front(x))


def test_the_gradient_of_inv_is_that_of_jax(matrices):
    x = matrices(3)
    got = jax.grad(lambda x: (linalg.inv(x, "i", "j") ** 3).sum().scalar())(x)
    want = jax.grad(lambda x: (jnp.linalg.inv(x) ** 3).sum())(in_front(x))
    np.testing.assert_allclose(in_front(got), want, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)], ids=["wide", "tall"])
def test_pinv_maps_back_as_far_as_it_can(draw, sizes):
    x = draw(i=sizes[0], batch=2, j=sizes[1])
    inverse = linalg.pinv(x, "i", "j")
    assert inverse.shape == {"batch": 2, "j": sizes[1], "i": sizes[0]}
    close(inverse, jnp.linalg.pinv(in_front(x)))


def test_pinv_takes_what_is_small_for_zero(matrices):
    x = nym.named([[4.0, 0.0], [0.0, 1.0]], ("i", "j"))
    close(linalg.pinv(x, "i", "j", rtol=0.5), [[0.25, 0.0], [0.0, 0.0]])
    symmetric = matrices(3, symmetric=True)
    close(linalg.pinv(symmetric, "i", "j", hermitian=True), jnp.linalg.inv(in_front(symmetric)))


def test_inverses_are_of_square_matrices(draw):
    message = "axes 'i' and 'j' of (i: 2, b: 1, j: 3) have sizes 2 and 3"
    with pytest.raises(ValueError, match=escape(f"`inv` needs square matrices; {message}")):
        linalg.inv(draw(i=2, b=1, j=3), "i", "j")
    with pytest.raises(ValueError, match=escape(f"`pinv` needs square matrices; {message}")):
        linalg.pinv(draw(i=2, b=1, j=3), "i", "j", hermitian=True)
    with pytest.raises(ValueError, match=escape("no axis 'bat' in (i: 2, batch: 1, j: 3); did you mean 'batch'?")):
        linalg.pinv(draw(i=2, batch=1, j=3), "i", "bat")
    with pytest.raises(TypeError, match="A named array is needed"):
        linalg.inv(jnp.eye(2), "i", "j")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["solve", "lstsq", "inv", "pinv"])
def test_sharded_arrays_give_the_same(mapped, matrices, draw, name):
    function = getattr(linalg, name)
    args = (matrices(), draw(i=4, batch=4, p=2)) if name in ("solve", "lstsq") else (matrices(),)
    with jax.set_mesh(None):
        expected = jax.tree.map(np.asarray, jax.jit(lambda *args: function(*args, "i", "j"))(*args))
    args = nym.shard(args)
    for found in (function(*args, "i", "j"), nym.named_jit(lambda *args: function(*args, "i", "j"))(*args)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4), found, expected)
        first = found if isinstance(found, nym.NamedArray) else found[0]
        assert first.sharding.spec[0] == "data"

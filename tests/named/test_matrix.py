import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.refusals import refusal


def last(x, *order):
    """The plain array with these axes, in this order."""
    return np.transpose(np.asarray(x), [x.names.index(name) for name in order])


@pytest.mark.parametrize("k", [-1, 0, 2])
@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles_are_those_of_the_matrices_over_the_two_axes(draw, name, k):
    x = draw(j=4, batch=2, i=3)
    result = getattr(nym, name)(x, "i", "j", k)
    assert result.names == x.names
    np.testing.assert_array_equal(last(result, "batch", "i", "j"), getattr(np, name)(last(x, "batch", "i", "j"), k))


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_trace_and_diagonal_are_those_of_the_matrices_over_the_two_axes(draw, offset):
    x = draw(j=4, batch=2, i=3)
    plain = last(x, "batch", "i", "j")
    trace, diagonal = x.trace("i", "j", offset), nym.diagonal(x, "i", "j", offset=offset)
    assert trace.names == ("batch",) and diagonal.names == ("batch", "i")
    np.testing.assert_allclose(trace.array, np.trace(plain, offset, 1, 2), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(diagonal.array, np.diagonal(plain, offset, 1, 2))


def test_element_types_are_kept_or_given():
    square = nym.ones({"i": 2, "j": 2}, jnp.int8)
    assert jax.eval_shape(lambda x: nym.tril(x, "i", "j"), square > 0).dtype == bool
    assert jax.eval_shape(lambda x: nym.triu(x, "i", "j"), square).dtype == jnp.int8
    assert jax.eval_shape(lambda x: nym.trace(x, "i", "j", dtype=jnp.float32), square).dtype == jnp.float32
    assert nym.diagonal(square, "i", "j", new_axis=nym.Axis("d", 2)).names == ("d",)


@pytest.mark.parametrize("k", [-2, 0, 1])
def test_diag_spreads_an_axis_over_matrices(draw, k):
    x = draw(i=3, batch=2)
    result = nym.diag(x, "i", nym.Axis("j", 3 + abs(k)), k=k)
    assert result.shape == {"batch": 2, "i": 3 + abs(k), "j": 3 + abs(k)}
    for matrix, row in zip(np.asarray(result), last(x, "batch", "i"), strict=True):
        np.testing.assert_array_equal(matrix, np.diag(row, k))


def test_outer_has_the_axes_of_both(draw):
    x, y = draw(i=2, j=3), draw(k=4)
    result = nym.outer(x, y)
    assert result.shape == {"i": 2, "j": 3, "k": 4}
    np.testing.assert_array_equal(result.array.reshape(6, 4), np.outer(np.asarray(x), np.asarray(y)))
    np.testing.assert_array_equal(nym.outer(nym.named(2.0, ()), y).array, 2 * np.asarray(y))


def test_cross_takes_vectors_along_the_axis_and_broadcasts_the_others(draw):
    x, y = draw(xyz=3, batch=2), draw(pos=2, xyz=3, batch=2)
    plain_x, plain_y = last(x, "batch", "xyz")[None], last(y, "pos", "batch", "xyz")
    for operands, plain in (((x, y), (plain_x, plain_y)), ((y, x), (plain_y, plain_x))):
        result = nym.cross(*operands, "xyz")
        assert result.names == ("pos", "xyz", "batch")
        np.testing.assert_allclose(last(result, "pos", "batch", "xyz"), np.cross(*plain), rtol=1e-5, atol=1e-5)


def test_kron_multiplies_the_sizes_of_shared_axes(draw):
    x, y = draw(i=2, j=3), draw(j=2, i=4)
    result = nym.kron(x, y)
    assert result.shape == {"i": 8, "j": 6}
    np.testing.assert_allclose(result.array, np.kron(np.asarray(x), last(y, "i", "j")), rtol=1e-5, atol=1e-5)


def test_kron_lines_up_the_axes_that_it_does_not_multiply(draw):
    x, y = draw(i=2, batch=3, j=2), draw(batch=3, i=2)
    result = nym.kron(x, y, "i")
    assert result.shape == {"i": 4, "batch": 3, "j": 2}
    for n in range(3):
        expected = np.kron(np.asarray(x)[:, n], np.asarray(y)[n][:, None])
        np.testing.assert_allclose(result.array[:, n], expected, rtol=1e-5, atol=1e-5)
    assert nym.kron(y, x, "i").names == x.names
    np.testing.assert_array_equal(nym.kron(x, y, ()).array, (x * y).array)


PLAIN, NAMED = np.ones(3, np.float32), "A named array is needed"
ROW, TABLE = nym.ones({"i": 3}), nym.ones({"i": 3, "j": 4})
REFUSALS = [
    (lambda: nym.diagonal(TABLE, "i", "j", new_axis=nym.Axis("d", 2)), "axis 'i' has size 3, it cannot become (d: 2)"),
    (lambda: nym.diagonal(nym.ones({"b": 2, "i": 3, "j": 4}), "i", "j", new_axis="b"), "'b' occurs more than once"),
    (lambda: nym.diag(ROW, "i", nym.Axis("j", 3), k=1), "axis 'j' has size 4 here, 3 was asked for"),
    (lambda: nym.diag(ROW, "i", "i"), "axis 'i' occurs more than once"),
    (lambda: nym.outer(TABLE, ROW), "(i: 3, j: 4) and (i: 3) share axis 'i'; `rename` it in one of them"),
    (lambda: nym.cross(TABLE, TABLE, "j"), "vectors of 3 elements, axis 'j' of (i: 3, j: 4) has size 4"),
    (lambda: nym.cross(ROW, nym.ones({"j": 3}), "i"), "no axis 'i' in (j: 3)"),
    (lambda: nym.kron(TABLE, ROW, "j"), "no axis 'j' in (i: 3)"),
    (lambda: nym.kron(TABLE, nym.ones({"i": 3, "j": 2}), "i"), "axis 'j' has size 4 and size 2"),
]


@pytest.mark.parametrize(("call", "text"), REFUSALS)
def test_axes_that_do_not_fit_are_refused(call, text):
    with refusal(text):
        call()


def test_plain_arrays_are_refused():
    for call in (
        lambda: nym.diag(PLAIN, "i", "j"),
        lambda: nym.outer(ROW, PLAIN),
        lambda: nym.cross(ROW, PLAIN, "i"),
        lambda: nym.kron(ROW, PLAIN),
    ):
        with refusal(NAMED, TypeError):
            call()


@pytest.mark.parametrize("function", [nym.tril, nym.triu, nym.trace, nym.diagonal])
def test_matrices_need_two_axes_that_are_there(function):
    for x, axes, text, error in (
        (TABLE, ("i", "k"), "no axis 'k' in (i: 3, j: 4)", ValueError),
        (TABLE, ("i", "i"), "axis 'i' is given more than once in (i, i)", ValueError),
        (PLAIN, ("i", "j"), "A named array is needed, not an array of shape (3,)", TypeError),
    ):
        with refusal(text, error):
            function(x, *axes)


SHARDED = {
    "tril": (lambda x, y: nym.tril(x, "batch", "embed", 1), "dpm"),
    "triu": (lambda x, y: nym.triu(x, "embed", "pos"), "dpm"),
    "trace": (lambda x, y: nym.trace(x, "pos", "embed"), "d"),
    "diagonal": (lambda x, y: nym.diagonal(x, "pos", "batch", new_axis="d"), "mp"),
    "diag": (lambda x, y: nym.diag(x, "pos", "other"), "dmpp"),
    "outer": (lambda x, y: nym.outer(y, x), "pdpm"),
    "cross": (lambda x, y: nym.cross(x, x * 2.0 + 1.0, "pos"), "dpm"),
    "kron": (lambda x, y: nym.kron(x, x, "pos"), "dpm"),
    "gradient": (lambda x, y: jax.grad(compute_loss)(x), "dpm"),
}


def test_matrices_and_gradients_are_the_same_sharded(check_sharded, draw):
    check_sharded(SHARDED, draw(batch=4, pos=3, embed=2), draw(k=2), outside=list(SHARDED)[:-1])


def compute_loss(x):
    parts = nym.tril(x, "batch", "pos"), nym.diagonal(x, "embed", "batch"), nym.diag(x["pos", 0], "embed", "other")
    return sum(nym.sum(part * part).scalar() for part in parts) + nym.trace(x, "pos", "embed").sum().scalar()


def test_an_outer_product_may_be_one_of_an_array_with_itself_renamed(mapped, draw):
    x = draw(batch=4)
    result = nym.outer(nym.shard(x), nym.shard(x).rename({"batch": "other"}))
    np.testing.assert_allclose(result.array, np.outer(np.asarray(x), np.asarray(x)), rtol=1e-6)


def test_an_outer_product_over_one_mesh_axis_says_which_axes(explicit_mesh):
    left, right = nym.ones({"a": 8}), nym.ones({"b": 8})
    with jax.set_mesh(explicit_mesh), nym.axis_mapping({"a": "data", "b": "data"}):
        for run in (nym.outer, jax.jit(nym.outer)):
            with refusal("axes 'a' and 'b' of (a: 8, b: 8) are both mapped to mesh axis 'data'"):
                run(left, right)

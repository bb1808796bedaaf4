import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym


def last(x, *order):
    """The plain array with these axes, in this order."""
    return x.rearrange(order).array


@pytest.mark.parametrize("k", [-1, 0, 2])
@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles_are_those_of_the_matrices_over_the_two_axes(draw, name, k):
    x = draw(j=4, batch=2, i=3)
    result = getattr(nym, name)(x, "i", "j", k)
    assert result.names == x.names
    np.testing.assert_array_equal(last(result, "batch", "i", "j"), getattr(jnp, name)(last(x, "batch", "i", "j"), k))


def test_which_axis_is_the_one_of_the_rows_matters(draw):
    x = draw(i=2, j=3)
    np.testing.assert_array_equal(nym.tril(x, "j", "i").array, nym.triu(x, "i", "j").array)


def test_triangles_keep_the_element_type():
    assert nym.tril(nym.ones({"i": 2, "j": 2}, bool), "i", "j").dtype == bool
    assert nym.triu(nym.ones({"i": 2, "j": 2}, jnp.int8), "i", "j").dtype == jnp.int8


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_trace_and_diagonal_are_those_of_the_matrices_over_the_two_axes(draw, offset):
    x = draw(j=4, batch=2, i=3)
    plain = last(x, "batch", "i", "j")
    trace, diagonal = x.trace("i", "j", offset), nym.diagonal(x, "i", "j", offset=offset)
    assert trace.names == ("batch",)
    assert diagonal.names == ("batch", "i")
    np.testing.assert_allclose(trace.array, jnp.trace(plain, offset, 1, 2), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(diagonal.array, jnp.diagonal(plain, offset, 1, 2))


def test_trace_adds_up_in_the_type_given(draw):
    assert nym.trace(nym.ones({"i": 2, "j": 2}, jnp.int8), "i", "j", dtype=jnp.float32).dtype == jnp.float32


def test_the_axis_of_a_diagonal_can_be_renamed(draw):
    x = draw(i=2, batch=2, j=3)
    assert nym.diagonal(x, "i", "j", new_axis=nym.Axis("d", 2)).names == ("batch", "d")
    with pytest.raises(ValueError, match=r"axis 'i' has size 2, it cannot become \(d: 3\)"):
        nym.diagonal(x, "i", "j", new_axis=nym.Axis("d", 3))
    with pytest.raises(ValueError, match="axis 'batch' occurs more than once"):
        nym.diagonal(x, "i", "j", new_axis="batch")


@pytest.mark.parametrize("name", ["tril", "triu", "trace", "diagonal"])
def test_matrices_need_two_axes_that_are_there(draw, name):
    function = getattr(nym, name)
    with pytest.raises(ValueError, match=r"no axis 'k' in \(i: 2, j: 3\)"):
        function(draw(i=2, j=3), "i", "k")
    with pytest.raises(ValueError, match=r"axis 'i' is given more than once in \(i, i\)"):
        function(draw(i=2, j=3), "i", "i")
    with pytest.raises(ValueError, match="axis 'j' has size 3 here, 5 was asked for"):
        function(draw(i=2, j=3), "i", nym.Axis("j", 5))
    with pytest.raises(TypeError, match=r"A named array is needed, not an array of shape \(2, 2\)"):
        function(jnp.ones((2, 2)), "i", "j")


@pytest.mark.parametrize("k", [-2, 0, 1])
def test_diag_spreads_an_axis_over_matrices(draw, k):
    x = draw(i=3, batch=2)
    result = nym.diag(x, "i", "j", k=k)
    assert result.shape == {"batch": 2, "i": 3 + abs(k), "j": 3 + abs(k)}
    for n in range(2):
        np.testing.assert_array_equal(result["batch", n].array, jnp.diag(x["batch", n].array, k))
    np.testing.assert_array_equal(nym.diagonal(result, "i", "j", offset=k).array, last(x, "batch", "i"))


def test_diag_needs_a_new_axis_of_the_size_that_the_matrix_has(draw):
    assert nym.diag(draw(i=3), "i", nym.Axis("j", 4), k=-1).names == ("i", "j")
    with pytest.raises(ValueError, match="axis 'j' has size 4 here, 3 was asked for"):
        nym.diag(draw(i=3), "i", nym.Axis("j", 3), k=1)
    with pytest.raises(ValueError, match="axis 'i' occurs more than once"):
        nym.diag(draw(i=3), "i", "i")
    with pytest.raises(ValueError, match=r"no axis 'k' in \(i: 3\)"):
        nym.diag(draw(i=3), "k", "j")
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.diag(jnp.ones(3), "i", "j")


def test_outer_has_the_axes_of_both(draw):
    x, y = draw(i=2, j=3), draw(k=4)
    result = nym.outer(x, y)
    assert result.shape == {"i": 2, "j": 3, "k": 4}
    np.testing.assert_array_equal(result.array.reshape(6, 4), jnp.outer(x.array, y.array))
    np.testing.assert_array_equal(nym.outer(nym.named(2.0, ()), y).array, 2 * y.array)


def test_outer_refuses_a_shared_axis(draw):
    with pytest.raises(ValueError, match=r"\(i: 2, j: 3\) and \(j: 3\) share axis 'j'; `rename` it in one of them"):
        nym.outer(draw(i=2, j=3), draw(j=3))
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.outer(draw(i=2), jnp.ones(3))


def test_cross_takes_vectors_along_the_axis_and_broadcasts_the_others(draw):
    x, y = draw(xyz=3, batch=2), draw(pos=2, xyz=3, batch=2)
    for left, right in ((x, y), (y, x)):
        result = nym.cross(left, right, "xyz")
        assert result.names == ("pos", "xyz", "batch")
        with jax.numpy_rank_promotion("allow"):
            plain = jnp.cross(
                *(last(one, *(n for n in ("pos", "batch") if n in one.names), "xyz") for one in (left, right))
            )
        np.testing.assert_allclose(last(result, "pos", "batch", "xyz"), plain, rtol=1e-5, atol=1e-5)


def test_cross_needs_three_elements(draw):
    with pytest.raises(ValueError, match=r"vectors of 3 elements, axis 'i' of \(i: 2\) has size 2"):
        nym.cross(draw(i=2), draw(i=2), "i")
    with pytest.raises(ValueError, match=r"no axis 'i' in \(j: 3\)"):
        nym.cross(draw(i=3), draw(j=3), "i")
    with pytest.raises(ValueError, match="cannot broadcast"):
        nym.cross(draw(i=3, a=2), draw(i=3, b=2), "i")
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.cross(draw(i=3), jnp.ones(3), "i")


def test_kron_multiplies_the_sizes_of_shared_axes(draw):
    x, y = draw(i=2, j=3), draw(j=2, i=4)
    result = nym.kron(x, y)
    assert result.shape == {"i": 8, "j": 6}
    np.testing.assert_allclose(result.array, jnp.kron(x.array, last(y, "i", "j")), rtol=1e-5, atol=1e-5)


def test_kron_lines_up_the_axes_that_it_does_not_multiply(draw):
    x, y = draw(i=2, batch=3, j=2), draw(batch=3, i=2)
    result = nym.kron(x, y, "i")
    assert result.shape == {"i": 4, "batch": 3, "j": 2}
    for n in range(3):
        expected = jnp.kron(x["batch", n].array, y["batch", n].array[:, None])
        np.testing.assert_allclose(result["batch", n].array, expected, rtol=1e-5, atol=1e-5)
    assert nym.kron(y, x, "i").names == x.names


def test_kron_over_no_axis_is_a_product(draw):
    x, y = draw(i=2, batch=3), draw(i=2)
    np.testing.assert_array_equal(nym.kron(x, y, ()).array, (x * y).array)


def test_kron_needs_its_axes_in_both_arrays(draw):
    with pytest.raises(ValueError, match=r"no axis 'j' in \(i: 2\)"):
        nym.kron(draw(i=2, j=2), draw(i=2), "j")
    with pytest.raises(ValueError, match="axis 'batch' has size 3 and size 2"):
        nym.kron(draw(i=2, batch=3), draw(i=2, batch=2), "i")
    with pytest.raises(ValueError, match="cannot broadcast"):
        nym.kron(draw(i=2, j=3), draw(i=2, k=3))
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.kron(draw(i=3), jnp.ones(3))


def _all(x, y):
    return (
        nym.tril(x, "batch", "embed", 1),
        nym.triu(x, "embed", "pos"),
        nym.trace(x, "pos", "embed"),
        nym.diagonal(x, "pos", "batch", new_axis="d"),
        nym.diag(x, "pos", "other"),
        nym.outer(y, x),
        nym.cross(x, x * 2.0 + 1.0, "pos"),
        nym.kron(x, x, "pos"),
    )


def test_matrices_are_the_same_sharded_on_both_meshes(mapped, draw):
    x, y = draw(batch=4, pos=3, embed=2), draw(k=2)
    expected, results = jax.jit(_all)(x, y), _all(nym.shard(x), y)
    for result, one in zip(results, expected, strict=True):
        assert result.names == one.names
        np.testing.assert_allclose(result.array, one.array, rtol=1e-5, atol=1e-5)
    assert tuple(results[0].sharding.spec) == ("data", None, "model")
    assert tuple(results[5].sharding.spec) == (None, "data", None, "model")


def test_an_outer_product_may_be_one_of_an_array_with_itself_renamed(mapped, draw):
    x = draw(batch=4)
    result = nym.outer(nym.shard(x), nym.shard(x).rename({"batch": "other"}))
    np.testing.assert_allclose(result.array, np.outer(np.asarray(x), np.asarray(x)), rtol=1e-6)


def test_an_outer_product_over_one_mesh_axis_says_which_axes(explicit_mesh):
    left, right = nym.ones({"a": 8}), nym.ones({"b": 8})
    with jax.set_mesh(explicit_mesh), nym.axis_mapping({"a": "data", "b": "data"}):
        for run in (nym.outer, jax.jit(nym.outer)):
            with pytest.raises(
                ValueError, match=r"axes 'a' and 'b' of \(a: 8, b: 8\) are both mapped to mesh axis 'data'"
            ):
                run(left, right)


def _loss(x):
    parts = nym.tril(x, "batch", "pos"), nym.trace(x, "pos", "embed"), nym.diagonal(x, "embed", "batch")
    return sum(nym.sum(part * part).scalar() for part in parts)


def test_gradients_are_the_same_sharded_on_both_meshes(mapped, draw):
    x = draw(batch=4, pos=3, embed=2)
    gradient, expected = (jax.jit(jax.grad(_loss))(one) for one in (nym.shard(x), x))
    assert gradient.names == x.names
    np.testing.assert_allclose(gradient.array, expected.array, rtol=1e-5, atol=1e-5)


def test_gradients_flow_through_triangles_traces_and_diagonals(draw):
    x, w = draw(i=3, batch=2, j=3), draw(batch=2, i=3)

    def loss(x):
        parts = nym.tril(x, "i", "j"), nym.diag(nym.diagonal(x, "i", "j") * w, "i", "j")
        return (sum(nym.sum(part * part).scalar() for part in parts)) + nym.trace(x, "i", "j").sum().scalar()

    def plain(x):
        diagonal = jnp.diagonal(x, 0, 1, 2) * w.array
        return (jnp.tril(x) ** 2).sum() + (diagonal**2).sum() + jnp.trace(x, 0, 1, 2).sum()

    gradient = jax.jit(jax.grad(loss))(x)
    assert gradient.names == x.names
    expected = jax.jit(jax.grad(plain))(last(x, "batch", "i", "j"))
    np.testing.assert_allclose(last(gradient, "batch", "i", "j"), expected, rtol=1e-5, atol=1e-5)

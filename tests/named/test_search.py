import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym


Hit = nym.Axis("hit", 4)
Bin = nym.Axis("bin", 5)


def last(x, *order):
    """The plain array with these axes, in this order."""
    return x.rearrange(order).array


def test_top_k_takes_the_largest_and_their_positions(draw):
    x = draw(batch=2, vocab=5, pos=3)
    values, indices = nym.top_k(x, "vocab", 2)
    assert values.shape == indices.shape == {"batch": 2, "vocab": 2, "pos": 3}
    assert values.names == x.names
    expected = jax.lax.top_k(last(x, "batch", "pos", "vocab"), 2)
    for result, one in zip((values, indices), expected, strict=True):
        np.testing.assert_array_equal(last(result, "batch", "pos", "vocab"), one)


def test_the_axis_of_top_k_can_be_renamed(draw):
    x = draw(vocab=5, pos=3)
    for choice in ("choice", nym.Axis("choice", 2)):
        values, indices = nym.top_k(x, nym.Axis("vocab", 5), 2, choice)
        assert values.names == indices.names == ("choice", "pos")
    np.testing.assert_array_equal(x["vocab", indices].array, values.array)
    with pytest.raises(ValueError, match=r"axis 'vocab' has size 2, it cannot become \(choice: 3\)"):
        nym.top_k(x, "vocab", 2, nym.Axis("choice", 3))
    with pytest.raises(ValueError, match="axis 'pos' occurs more than once"):
        nym.top_k(x, "vocab", 2, "pos")


def test_top_k_needs_that_many_elements(draw):
    assert nym.top_k(draw(i=3), "i", 0)[0].shape == {"i": 0}
    with pytest.raises(
        ValueError, match=r"`k` of `top_k` must be from 0 to the size of axis 'i' of \(i: 3\), 4 was given"
    ):
        nym.top_k(draw(i=3), "i", 4)
    with pytest.raises(ValueError, match="-1 was given"):
        nym.top_k(draw(i=3), "i", -1)
    with pytest.raises(ValueError, match=r"no axis 'j' in \(i: 3\)"):
        nym.top_k(draw(i=3), "j", 1)
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.top_k(jnp.ones(3), "i", 1)


def test_elements_are_taken_along_an_axis_for_each_element_of_the_others(draw):
    x, indices = draw(pos=3, batch=2, i=4), draw.integers(0, 4, i=2, batch=2, pos=3)
    result = nym.take_along_axis(x, indices, "i")
    assert result.names == x.names
    order = ("pos", "batch", "i")
    np.testing.assert_array_equal(result.array, np.take_along_axis(np.asarray(x), np.asarray(last(indices, *order)), 2))


def test_positions_and_elements_broadcast_by_name(draw):
    x, indices = draw(i=4, batch=2), draw.integers(0, 4, i=3)
    np.testing.assert_array_equal(nym.take_along_axis(x, indices, "i").array, x.array[indices.array])
    result = nym.take_along_axis(x["batch", 0], draw.integers(0, 4, pos=2, i=3), "i")
    assert result.shape == {"pos": 2, "i": 3}


def test_what_positions_out_of_range_take_can_be_said():
    x, indices = nym.named([1.0, 2.0], "i"), nym.named([7, -1], "i")
    np.testing.assert_array_equal(nym.take_along_axis(x, indices, "i", mode="clip").array, [2.0, 2.0])
    np.testing.assert_array_equal(nym.take_along_axis(x, indices, "i").array, [np.nan, 2.0])


def test_taking_along_an_axis_undoes_a_sort(draw):
    x = draw(batch=2, i=4)
    np.testing.assert_array_equal(nym.take_along_axis(x, x.argsort("i"), "i").array, x.sort("i").array)


def test_positions_to_take_need_the_axis_and_integers(draw):
    with pytest.raises(ValueError, match=r"must have that axis, they have \(batch: 2\); use `take`"):
        nym.take_along_axis(draw(batch=2, i=4), draw.integers(0, 4, batch=2), "i")
    with pytest.raises(TypeError, match="along axis 'i' at integer positions, not at float32"):
        nym.take_along_axis(draw(i=4), draw(i=2), "i")
    with pytest.raises(ValueError, match=r"no axis 'j' in \(i: 4\)"):
        nym.take_along_axis(draw(i=4), draw(j=2), "j")
    with pytest.raises(ValueError, match="axis 'batch' has size 2 and size 3"):
        nym.take_along_axis(draw(i=4, batch=2), draw.integers(0, 4, i=4, batch=3), "i")
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.take_along_axis(draw(i=4), jnp.zeros(4, int), "i")


@pytest.mark.parametrize(("side", "method"), [("left", "scan"), ("right", "sort"), ("left", "compare_all")])
def test_values_are_placed_in_a_sorted_array(side, method, draw):
    a, v = nym.named([-1.0, 0.0, 0.0, 1.0], "edge"), nym.named([[-2.0, 0.0, 3.0]], ("edge", "batch"))
    result = nym.searchsorted(a, v, side=side, method=method)
    assert result.names == v.names
    np.testing.assert_array_equal(result.array, np.searchsorted(np.asarray(a), np.asarray(v), side))


def test_a_sorter_and_a_number_can_be_given(draw):
    a, order = nym.named([2.0, 0.0, 1.0], "i"), nym.named([1, 2, 0], "i")
    assert nym.searchsorted(a, 1.5, sorter=order).item() == 2
    assert nym.searchsorted(a, nym.named(0.5, ()), sorter=order).names == ()


def test_values_are_placed_in_one_axis(draw):
    with pytest.raises(ValueError, match=r"`a` must have one axis, it has \(i: 2, j: 3\)"):
        nym.searchsorted(draw(i=2, j=3), 1.0)
    with pytest.raises(ValueError, match=r"`sorter` must have the axis of `a`, \(i: 3\), it has \(j: 3\)"):
        nym.searchsorted(draw(i=3), 1.0, sorter=draw.integers(0, 3, j=3))
    with pytest.raises(TypeError, match=r"plain array of shape \(3,\) has no axis names"):
        nym.searchsorted(draw(i=3), jnp.ones(3))
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.searchsorted(jnp.ones(3), draw(i=3))


@pytest.mark.parametrize(
    "options",
    [{}, {"left": -1.0, "right": 9.0}, {"left": "extrapolate", "right": "extrapolate"}, {"period": 2.0}],
    ids=["ends", "numbers", "extrapolated", "periodic"],
)
def test_interpolation_is_that_of_jnp(draw, options):
    x, xp, fp = draw(batch=2, point=3), nym.named([-1.0, 0.0, 1.5], "point"), draw(point=3)
    result = nym.interp(x, xp, fp, **options)
    assert result.names == x.names
    np.testing.assert_allclose(result.array, jnp.interp(x.array, xp.array, fp.array, **options), rtol=1e-4, atol=1e-5)


def test_interpolation_keeps_a_short_element_type():
    x = nym.named(jnp.array([0.5, 2.0], jnp.bfloat16), "i")
    points = nym.named(jnp.array([0.0, 1.0], jnp.bfloat16), "point")
    result = nym.interp(x, points, points, right=4.0)
    assert result.dtype == jnp.bfloat16
    np.testing.assert_array_equal(result.array.astype(float), [0.5, 4.0])


def test_ends_of_an_interpolation_may_be_named_or_traced(draw):
    x, xp = nym.named([-5.0, 5.0], "i"), nym.named([0.0, 1.0], "point")
    result = jax.jit(lambda end: nym.interp(x, xp, xp, left=end, right=nym.named(end, ())))(7.0)
    np.testing.assert_array_equal(result.array, [7.0, 7.0])


def test_points_to_interpolate_between_have_one_axis(draw):
    with pytest.raises(ValueError, match=r"`xp` must have one axis, it has \(i: 2, j: 3\)"):
        nym.interp(draw(i=2), draw(i=2, j=3), draw(j=3))
    with pytest.raises(ValueError, match=r"`fp` must have the axis of `xp`, \(i: 3\), it has \(j: 3\)"):
        nym.interp(draw(i=2), draw(i=3), draw(j=3))
    with pytest.raises(TypeError, match=r"plain array of shape \(2,\) has no axis names"):
        nym.interp(draw(i=2), draw(i=3), draw(i=3), left=jnp.ones(2))
    with pytest.raises(ValueError, match=r"`left` must be a scalar, not an array with axes \(i: 2\)"):
        nym.interp(draw(i=2), draw(i=3), draw(i=3), left=draw(i=2))
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.interp(0.5, draw(i=3), draw(i=3))


@pytest.mark.parametrize("invert", [False, True])
def test_membership_is_that_of_jnp(draw, invert):
    x, elements = draw.integers(0, 6, i=4, batch=3), draw.integers(0, 6, j=2, i=2)
    result = nym.isin(x, elements, invert=invert)
    assert result.names == x.names
    np.testing.assert_array_equal(result.array, np.isin(np.asarray(x), np.asarray(elements), invert=invert))


def test_membership_takes_plain_elements(draw):
    x = nym.arange(nym.Axis("i", 3))
    for elements in ([2, 5], jnp.array([[2], [5]]), 2):
        np.testing.assert_array_equal(nym.isin(x, elements).array, [False, False, True])
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.isin(jnp.arange(3), [2])


def test_positions_of_what_is_not_zero_index_the_array(draw):
    x = draw.integers(-1, 2, batch=3, i=4)
    found = nym.nonzero(x, size=nym.Axis("hit", 12), fill_value=[0, 1])
    plain = np.asarray(x)
    for result, one, fill in zip(found, np.nonzero(plain), (0, 1), strict=True):
        assert result.shape == {"hit": 12}
        np.testing.assert_array_equal(np.asarray(result), [*one, *([fill] * (12 - len(one)))])
    picked = x[dict(zip(x.names, found, strict=True))]
    hits = plain[plain != 0]
    np.testing.assert_array_equal(np.asarray(picked)[: len(hits)], hits)


def test_the_number_of_elements_that_are_not_zero_may_be_an_integer():
    (found,) = nym.nonzero(nym.named([0, 3, 0, 4], "i"), size=3, fill_value=-1)
    assert found.names == ("nonzero",)
    np.testing.assert_array_equal(found.array, [1, 3, -1])
    with pytest.raises(ValueError, match="`nonzero` needs an array with axes"):
        nym.nonzero(nym.named(1, ()), size=1)
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.nonzero(jnp.ones(3), size=1)
    with pytest.raises(TypeError, match="The size of axis 'nonzero' must be an integer"):
        nym.nonzero(nym.ones({"i": 2}), size=1.5)


def test_integers_are_counted(draw):
    x, weights = draw.integers(0, 6, i=4, batch=3), draw(batch=3, i=4)
    counts = nym.bincount(x, Bin)
    assert counts.names == ("bin",)
    plain = np.asarray(x).ravel()
    np.testing.assert_array_equal(counts.array, np.bincount(plain, minlength=6)[:5])
    expected = np.bincount(plain, np.asarray(weights).T.ravel(), minlength=6)[:5]
    np.testing.assert_allclose(nym.bincount(x, Bin, weights=weights).array, expected, rtol=1e-4, atol=1e-5)


def test_weights_of_counts_need_not_have_all_axes():
    x = nym.named([[0, 1], [1, 1]], ("batch", "i"))
    result = nym.bincount(x, nym.Axis("bin", 2), weights=nym.named([1.0, 10.0], "batch"))
    np.testing.assert_array_equal(result.array, [1.0, 21.0])


def test_counts_need_an_axis_and_integers(draw):
    with pytest.raises(ValueError, match="axis 'bin' has size 5 here, 6 was asked for with `minlength`"):
        nym.bincount(draw.integers(0, 3, i=4), Bin, minlength=6)
    with pytest.raises(TypeError, match=r"`bincount` takes integers, the elements of \(i: 4\) are float32"):
        nym.bincount(draw(i=4), Bin)
    with pytest.raises(TypeError, match=r"A new axis needs a size: give `Axis\('bin', size\)`"):
        nym.bincount(draw.integers(0, 3, i=4), "bin")
    with pytest.raises(ValueError, match=r"which lacks \(j\)"):
        nym.bincount(draw.integers(0, 3, i=4), Bin, weights=draw(j=4))
    with pytest.raises(TypeError, match=r"A named array is needed, not an array of shape \(4,\)"):
        nym.bincount(draw.integers(0, 3, i=4), Bin, weights=jnp.ones(4))
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.bincount(jnp.arange(3), Bin)


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("limits", [None, (-1.0, 2.0)], ids=["extremes", "limits"])
def test_histograms_are_those_of_jnp(draw, density, limits):
    x, weights = draw(batch=3, i=4), draw(0.0, 1.0, i=4, batch=3)
    for given, plain in ((None, None), (weights, np.asarray(weights).T)):
        counts, edges = nym.histogram(x, Bin, limits, given, density)
        assert (counts.shape, edges.shape) == ({"bin": 5}, {"bin_edges": 6})
        expected = np.histogram(np.asarray(x), 5, limits, density, plain)
        np.testing.assert_allclose(counts.array, expected[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(edges.array, expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32])
def test_counts_of_histograms_are_exact_integers(dtype):
    x = nym.named(np.repeat([0, 1], [5001, 3]), "i").astype(dtype)
    counts, edges = nym.histogram(x, nym.Axis("bin", 2))
    assert counts.dtype == jnp.int32 and counts.array.tolist() == [5001, 3]
    assert edges.dtype == (jnp.float32 if dtype == jnp.int32 else dtype)
    assert nym.histogram(x, nym.Axis("bin", 2), density=True)[0].dtype == edges.dtype


def test_histograms_need_bins(draw):
    with pytest.raises(ValueError, match="a histogram needs at least one bin, axis 'bin' has size 0"):
        nym.histogram(draw(i=4), nym.Axis("bin", 0))
    with pytest.raises(TypeError, match="A new axis needs a size"):
        nym.histogram(draw(i=4), "bin")
    with pytest.raises(ValueError, match=r"which lacks \(j\)"):
        nym.histogram(draw(i=4), Bin, weights=draw(j=4))
    with pytest.raises(ValueError, match=r"`range` must be two numbers, a lower and an upper limit, not \(1\.0\)"):
        nym.histogram(draw(i=4), Bin, (1.0,))
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.histogram(jnp.ones(4), Bin)


def _all(x, tokens):
    points = nym.named([-1.0, 0.0, 1.0], "batch")
    return (
        *nym.top_k(x, "embed", 3, "choice"),
        nym.take_along_axis(x, tokens, "pos"),
        nym.searchsorted(points, x),
        nym.interp(x, points, points * points),
        nym.isin(tokens, [1, 2]),
        *nym.nonzero(tokens, size=Hit),
        nym.bincount(tokens, Bin, weights=x["pos", :2]),
        *nym.histogram(x, Bin, (-2, 2)),
    )


def _loss(x, tokens):
    points = nym.named([-1.0, 0.0, 1.0], "batch")
    parts = nym.top_k(x, "pos", 2)[0], nym.take_along_axis(x, tokens, "pos"), nym.interp(x, points, points * points)
    return sum(nym.sum(part * part).scalar() for part in parts)


def test_gradients_are_the_same_sharded_on_both_meshes(mapped, draw):
    x, tokens = draw(batch=4, pos=3, embed=6), draw.integers(0, 3, embed=6, batch=4, pos=2)
    expected = jax.jit(jax.grad(_loss))(x, tokens)
    gradient = jax.jit(jax.grad(_loss))(*nym.shard((x, tokens)))
    assert gradient.names == x.names
    np.testing.assert_allclose(gradient.array, expected.array, rtol=1e-4, atol=1e-5)


def test_searches_are_the_same_sharded_on_both_meshes(mapped, draw):
    x, tokens = draw(batch=4, pos=3, embed=6), draw.integers(0, 3, embed=6, batch=4, pos=2)
    sharded = nym.shard((x, tokens))
    expected, results = jax.jit(_all)(x, tokens), _all(*sharded)
    apart = jax.jit(_all)(x, sharded[1]), jax.jit(_all)(sharded[0], tokens)  # where one array is on no mesh
    for found in (results, *apart):
        for result, one in zip(found, expected, strict=True):
            assert result.names == one.names
            np.testing.assert_allclose(result.array, one.array, rtol=1e-4, atol=1e-5)
    assert results[3].sharding.spec[0] == "data"


def test_weights_may_be_sharded_otherwise(mapped, draw):
    tokens, weights = draw.integers(0, 5, batch=4, pos=4), draw(pos=4, batch=4)
    elsewhere = nym.shard(weights.rename({"pos": "batch", "batch": "pos"})).rename({"pos": "batch", "batch": "pos"})
    expected = np.bincount(np.asarray(tokens).ravel(), np.asarray(weights).T.ravel(), minlength=5)
    result = nym.bincount(nym.shard(tokens), Bin, weights=elsewhere)
    np.testing.assert_allclose(result.array, expected, rtol=1e-4, atol=1e-5)


def test_gradients_flow_through_what_is_found(draw):
    x, indices = draw(i=4, batch=2), draw.integers(0, 4, batch=2, i=3)
    xp, fp = nym.named([-3.0, 0.0, 3.0], "point"), draw(point=3)

    def loss(x, fp):
        parts = nym.top_k(x, "i", 2)[0], nym.take_along_axis(x, indices, "i"), nym.interp(x, xp, fp)
        return sum(nym.sum(part * part).scalar() for part in parts)

    def plain(x, fp):
        taken = jnp.take_along_axis(x, indices.array, 1)
        parts = jax.lax.top_k(x, 2)[0], taken, jnp.interp(x, xp.array, fp)
        return sum((part * part).sum() for part in parts)

    of_x, of_fp = jax.jit(jax.grad(loss, (0, 1)))(x, fp)
    expected = jax.jit(jax.grad(plain, (0, 1)))(last(x, "batch", "i"), fp.array)
    assert of_x.names == x.names
    np.testing.assert_allclose(last(of_x, "batch", "i"), expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_fp.array, expected[1], rtol=1e-4, atol=1e-5)

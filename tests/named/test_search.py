import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.refusals import refusal


Hit = nym.Axis("hit", 4)
Bin = nym.Axis("bin", 5)


def test_top_k_takes_the_largest_and_their_positions(draw):
    x = draw(batch=2, vocab=5, pos=3)
    values, indices = nym.top_k(x, "vocab", 2)
    assert values.shape == indices.shape == {"batch": 2, "vocab": 2, "pos": 3}
    order = np.argsort(-np.asarray(x), axis=1, stable=True)[:, :2]
    np.testing.assert_array_equal(indices.array, order)
    np.testing.assert_array_equal(values.array, np.take_along_axis(np.asarray(x), order, 1))


def test_the_axis_of_top_k_can_be_renamed(draw):
    x = draw(vocab=5, pos=3)
    for choice in ("choice", nym.Axis("choice", 2)):
        values, indices = nym.top_k(x, nym.Axis("vocab", 5), 2, choice)
        assert values.names == indices.names == ("choice", "pos")
    np.testing.assert_array_equal(x["vocab", indices].array, values.array)
    assert nym.top_k(x, "vocab", 0)[0].shape == {"vocab": 0, "pos": 3}


def test_elements_are_taken_along_an_axis_for_each_element_of_the_others(draw):
    x, indices = draw(pos=3, batch=2, i=4), draw.integers(0, 4, i=2, batch=2, pos=3)
    result = nym.take_along_axis(x, indices, "i")
    assert result.names == x.names
    np.testing.assert_array_equal(result.array, np.take_along_axis(np.asarray(x), np.asarray(indices).T, 2))
    result = nym.take_along_axis(x["batch", 0, "pos", 0], draw.integers(0, 4, pos=2, i=3), "i")
    assert result.shape == {"pos": 2, "i": 3}
    result = nym.take_along_axis(x, indices["batch", 0, "pos", 0], "i")
    np.testing.assert_array_equal(result.array, np.asarray(x)[..., np.asarray(indices)[:, 0, 0]])


def test_what_positions_out_of_range_take_can_be_said():
    x, indices = nym.named([1.0, 2.0], "i"), nym.named([7, -1], "i")
    np.testing.assert_array_equal(nym.take_along_axis(x, indices, "i", mode="clip").array, [2.0, 2.0])
    np.testing.assert_array_equal(nym.take_along_axis(x, indices, "i").array, [np.nan, 2.0])


@pytest.mark.parametrize(("side", "method"), [("left", "scan"), ("right", "sort"), ("left", "compare_all")])
def test_values_are_placed_in_a_sorted_array(side, method):
    a, v = nym.named([-1.0, 0.0, 0.0, 1.0], "edge"), nym.named([[-2.0, 0.0, 3.0]], ("edge", "batch"))
    result = nym.searchsorted(a, v, side=side, method=method)
    assert result.names == v.names
    np.testing.assert_array_equal(result.array, np.searchsorted(np.asarray(a), np.asarray(v), side))


def test_a_sorter_and_a_number_can_be_given():
    a, order = nym.named([2.0, 0.0, 1.0], "i"), nym.named([1, 2, 0], "i")
    assert nym.searchsorted(a, 1.5, sorter=order).item() == 2
    assert jax.eval_shape(lambda: nym.searchsorted(a, nym.named(0.5, ()), sorter=order)).names == ()


def test_interpolation_is_that_of_numpy(draw):
    x, xp, fp = draw(batch=2, point=3), nym.named([-1.0, 0.0, 1.5], "point"), draw(point=3)
    linear = {"left": "extrapolate", "right": "extrapolate"}
    options = ({}, {"left": -1.0, "right": 9.0}, {"period": 2.0}, linear)
    results = jax.jit(lambda *args: [nym.interp(*args, **given) for given in options])(x, xp, fp)
    plain = [np.asarray(array) for array in (x, xp, fp)]
    expected = [np.interp(*plain, **given) for given in options[:-1]]
    for result, other in zip(results, expected, strict=False):
        assert result.names == x.names
        np.testing.assert_allclose(result.array, other, rtol=1e-4, atol=1e-5)
    slopes = np.diff(plain[2]) / np.diff(plain[1])
    lines = np.where(plain[0] < 0, slopes[0], slopes[1]) * plain[0] + plain[2][1]
    np.testing.assert_allclose(results[-1].array, lines, rtol=1e-4, atol=1e-5)


def test_interpolation_keeps_a_short_element_type():
    x, points = nym.named(np.array([0.5, 2.0], jnp.bfloat16), "i"), nym.named(np.array([0, 1], jnp.bfloat16), "point")
    result = nym.interp(x, points, points, right=4.0)
    assert result.dtype == jnp.bfloat16
    np.testing.assert_array_equal(result.array.astype(float), [0.5, 4.0])
    wide = nym.interp(x, points, points.astype(jnp.float32))
    assert wide.dtype == jnp.float32
    np.testing.assert_array_equal(wide.array, [0.5, 1.0])


def test_ends_of_an_interpolation_may_be_named_or_traced():
    x, xp = nym.named([-5.0, 5.0], "i"), nym.named([0.0, 1.0], "point")
    result = jax.jit(lambda end: nym.interp(x, xp, xp, left=end, right=nym.named(end, ())))(7.0)
    np.testing.assert_array_equal(result.array, [7.0, 7.0])


@pytest.mark.parametrize("invert", [False, True])
def test_membership_is_that_of_numpy(draw, invert):
    x, elements = draw.integers(0, 6, i=4, batch=3), draw.integers(0, 6, j=2, i=2)
    result = nym.isin(x, elements, invert=invert)
    assert result.names == x.names
    np.testing.assert_array_equal(result.array, np.isin(np.asarray(x), np.asarray(elements), invert=invert))
    for plain in ([2, 5], np.array([[2], [5]]), 2):
        assert nym.isin(nym.named([0, 1, 2], "i"), plain, invert=invert).tolist() == [invert, invert, not invert]


def test_positions_of_what_is_not_zero_index_the_array(draw):
    x = draw.integers(-1, 2, batch=3, i=4)
    positions = nym.nonzero(x, size=nym.Axis("hit", 12), fill_value=[0, 1])
    plain = np.asarray(x)
    for result, hits, fill in zip(positions, np.nonzero(plain), (0, 1), strict=True):
        assert result.shape == {"hit": 12}
        np.testing.assert_array_equal(result.array, [*hits, *([fill] * (12 - len(hits)))])
    picked = x[dict(zip(x.names, positions, strict=True))]
    hits = plain[plain != 0]
    np.testing.assert_array_equal(np.asarray(picked)[: len(hits)], hits)
    (positions,) = nym.nonzero(nym.named([0, 3, 0, 4], "i"), size=3, fill_value=-1)
    assert positions.names == ("nonzero",) and positions.tolist() == [1, 3, -1]


def test_integers_are_counted(draw):
    x, weights = draw.integers(0, 6, i=4, batch=3), draw(batch=3, i=4)
    counts = nym.bincount(x, Bin)
    assert counts.names == ("bin",)
    plain = np.asarray(x).ravel()
    np.testing.assert_array_equal(counts.array, np.bincount(plain, minlength=6)[:5])
    expected = np.bincount(plain, np.asarray(weights).T.ravel(), minlength=6)[:5]
    np.testing.assert_allclose(nym.bincount(x, Bin, weights=weights).array, expected, rtol=1e-4, atol=1e-5)
    expected = np.bincount(plain, np.tile(np.asarray(weights)[:, 0], 4), minlength=6)[:5]
    np.testing.assert_allclose(nym.bincount(x, Bin, weights=weights["i", 0]).array, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limits", [None, (-1.0, 2.0)], ids=["extremes", "limits"])
def test_histograms_are_those_of_numpy(draw, limits):
    x, weights = draw(batch=3, i=4), draw(0.0, 1.0, i=4, batch=3)
    cases = [(given, density) for given in (None, weights) for density in (False, True)]
    results = jax.jit(lambda x: [nym.histogram(x, Bin, limits, *case) for case in cases])(x)
    for (counts, edges), (given, density) in zip(results, cases, strict=True):
        assert (counts.shape, edges.shape) == ({"bin": 5}, {"bin_edges": 6})
        plain = None if given is None else np.asarray(given).T
        expected = np.histogram(np.asarray(x), 5, limits, density, plain)
        np.testing.assert_allclose(counts.array, expected[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(edges.array, expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int32])
def test_counts_of_histograms_are_exact_integers(dtype):
    x, axis = nym.named(np.repeat([0, 1], [5001, 3]).astype(dtype), "i"), nym.Axis("bin", 2)
    counts, edges = nym.histogram(x, axis)
    assert counts.dtype == jnp.int32 and counts.tolist() == [5001, 3]
    assert edges.dtype == (jnp.float32 if dtype == jnp.int32 else dtype)
    assert jax.eval_shape(lambda x: nym.histogram(x, axis, density=True)[0], x).dtype == edges.dtype


NO_AXIS = "no axis 'j' in (i: 3)"
PLAIN, NAMED = np.ones(3, np.float32), "A named array is needed"
NO_NAMES = "plain array of shape (3,) has no axis names"
ONES, COUNTS, TABLE = nym.ones({"i": 3}), nym.zeros({"i": 3}, int), nym.ones({"i": 2, "j": 3})
OTHER, OTHER_COUNTS = nym.ones({"j": 3}), nym.zeros({"j": 3}, int)
REFUSALS = [
    (lambda: nym.top_k(ONES, "i", 2, nym.Axis("k", 3)), "axis 'i' has size 2, it cannot become (k: 3)", ValueError),
    (lambda: nym.top_k(TABLE, "j", 2, "i"), "axis 'i' occurs more than once", ValueError),
    (lambda: nym.top_k(ONES, "i", 4), "to the size of axis 'i' of (i: 3), 4 was given", ValueError),
    (lambda: nym.top_k(PLAIN, "i", 1), NAMED, TypeError),
    (lambda: nym.take_along_axis(ONES, OTHER_COUNTS, "i"), "that axis, they have (j: 3); use `take`", ValueError),
    (lambda: nym.take_along_axis(ONES, ONES, "i"), "along axis 'i' at integer positions, not at float32", TypeError),
    (lambda: nym.take_along_axis(ONES, OTHER_COUNTS, "j"), NO_AXIS, ValueError),
    (lambda: nym.take_along_axis(TABLE, COUNTS, "j"), "must have that axis, they have (i: 3)", ValueError),
    (
        lambda: nym.take_along_axis(TABLE, nym.zeros({"i": 3, "j": 1}, int), "j"),
        "axis 'i' has size 2 and size 3",
        ValueError,
    ),
    (lambda: nym.take_along_axis(ONES, PLAIN.astype(int), "i"), NAMED, TypeError),
    (lambda: nym.searchsorted(TABLE, 1.0), "`a` must have one axis, it has (i: 2, j: 3)", ValueError),
    (lambda: nym.searchsorted(ONES, 1.0, sorter=OTHER_COUNTS), "the axis of `a`, (i: 3), it has (j: 3)", ValueError),
    (lambda: nym.searchsorted(ONES, PLAIN), NO_NAMES, TypeError),
    (lambda: nym.searchsorted(PLAIN, ONES), NAMED, TypeError),
    (lambda: nym.interp(ONES, TABLE, OTHER), "`xp` must have one axis, it has (i: 2, j: 3)", ValueError),
    (lambda: nym.interp(ONES, ONES, OTHER), "`fp` must have the axis of `xp`, (i: 3), it has (j: 3)", ValueError),
    (lambda: nym.interp(ONES, ONES, ONES, left=PLAIN), NO_NAMES, TypeError),
    (lambda: nym.interp(ONES, ONES, ONES, left=ONES), "`left` must be a scalar, not an array with axes", ValueError),
    (lambda: nym.interp(0.5, ONES, ONES), NAMED, TypeError),
    (lambda: nym.isin(PLAIN, [2]), NAMED, TypeError),
    (lambda: nym.nonzero(nym.named(1, ()), size=1), "`nonzero` needs an array with axes", ValueError),
    (lambda: nym.nonzero(PLAIN, size=1), NAMED, TypeError),
    (lambda: nym.nonzero(ONES, size=1.5), "The size of axis 'nonzero' must be an integer", TypeError),
    (lambda: nym.bincount(COUNTS, Bin, minlength=6), "has size 5 here, 6 was asked for with `minlength`", ValueError),
    (lambda: nym.bincount(ONES, Bin), "takes integers, the elements of (i: 3) are float32", TypeError),
    (lambda: nym.bincount(COUNTS, Bin, weights=OTHER), "which lacks (j)", ValueError),
    (
        lambda: nym.bincount(COUNTS, Bin, weights=PLAIN),
        "A named array is needed, not an array of shape (3,)",
        TypeError,
    ),
    (lambda: nym.bincount(PLAIN, Bin), NAMED, TypeError),
    (lambda: nym.histogram(ONES, nym.Axis("bin", 0)), "at least one bin, axis 'bin' has size 0", ValueError),
    (lambda: nym.histogram(ONES, Bin, (1.0,)), "two numbers, a lower and an upper limit, not (1.0)", ValueError),
    (lambda: nym.histogram(PLAIN, Bin), NAMED, TypeError),
]


@pytest.mark.parametrize(("call", "text", "error"), REFUSALS)
def test_what_does_not_fit_is_refused(call, text, error):
    with refusal(text, error):
        call()


def search_both(x, tokens):
    return nym.take_along_axis(x, tokens, "pos"), nym.bincount(tokens, Bin, weights=x["pos", :2])


def search(x, tokens):
    points = nym.named([-1.0, 0.0, 1.0], "batch")
    taken, counts = search_both(x, tokens)
    return (
        *nym.top_k(x, "embed", 3, "choice"),
        taken,
        nym.searchsorted(points, x),
        nym.interp(x, points, points * points),
        nym.isin(tokens, [1, 2]),
        *nym.nonzero(tokens, size=Hit),
        counts,
        *nym.histogram(x, Bin, (-2, 2)),
    )


def compute_loss(x, tokens, fp):
    points = nym.named([-1.0, 0.0, 1.0], "point")
    parts = nym.top_k(x, "pos", 2)[0], nym.take_along_axis(x, tokens, "pos"), nym.interp(x, points, fp)
    return sum(nym.sum(part * part).scalar() for part in parts)


def test_searches_and_gradients_are_the_same_sharded_on_both_meshes(compute_sharded, draw):
    x, tokens = draw(batch=4, pos=3, embed=6), draw.integers(0, 3, embed=6, batch=4, pos=2)
    sharded = nym.shard((x, tokens))

    def compute(x, tokens, fp):
        return search(x, tokens), jax.grad(compute_loss, (0, 2))(x, tokens, fp)

    expected, _ = compute_sharded(compute, x, tokens, draw(point=3), tolerance=1e-4)
    for operands in ((x, sharded[1]), (sharded[0], tokens)):  # where only one array is on the mesh
        for result, other in zip(jax.jit(search_both)(*operands), (expected[2], expected[-3]), strict=True):
            np.testing.assert_allclose(result.array, other.array, rtol=1e-4, atol=1e-5)
    placed = nym.searchsorted(nym.named([-1.0, 0.0, 1.0], "batch"), sharded[0])
    assert placed.sharding.spec[0] == "data"


def test_weights_may_be_sharded_otherwise(mapped, draw):
    tokens, weights = draw.integers(0, 5, batch=4, pos=4), draw(pos=4, batch=4)
    elsewhere = nym.shard(weights.rename({"pos": "batch", "batch": "pos"})).rename({"pos": "batch", "batch": "pos"})
    expected = np.bincount(np.asarray(tokens).ravel(), np.asarray(weights).T.ravel(), minlength=5)
    result = nym.bincount(nym.shard(tokens), Bin, weights=elsewhere)
    np.testing.assert_allclose(result.array, expected, rtol=1e-4, atol=1e-5)


Value = nym.Axis("value", 4)
FLAGS = {"return_index": True, "return_inverse": True, "return_counts": True}
VALUES = np.array([[3, 1, 3], [2, 1, 3]])
ROWS = nym.named(VALUES, ("batch", "i"))
FIELDS = {
    "values": [1, 2, 3, 1],
    "indices": [1, 3, 0, 1],
    "inverse_indices": [[2, 0, 2], [1, 0, 2]],
    "counts": [2, 1, 3, 0],
}


def same(results, names, expected):
    assert tuple(result.names for result in results) == names
    for result, other in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.array, other)


def test_unique_values_fill_the_axis_and_what_else_is_asked_for_is_returned():
    @jax.jit
    def compute(x):
        filled = nym.unique(x, Value, fill_value=9), nym.unique(x, nym.Axis("i", 2))
        return nym.unique(x, Value, **FLAGS), nym.unique(x, Value, return_counts=True), filled

    everything, (_, counts), filled = compute(ROWS)
    same(everything, (("value",), ("value",), ("batch", "i"), ("value",)), FIELDS.values())
    same([counts, *filled], (("value",), ("value",), ("i",)), ([2, 1, 3, 0], [1, 2, 3, 9], [1, 2]))


def test_unique_compares_slices_along_an_axis():
    results = nym.unique(ROWS, nym.Axis("column", 4), axis="i", fill_value=7, **FLAGS)
    expected = np.unique(VALUES, True, True, True, axis=1)
    columns = np.pad(expected[0], ((0, 0), (0, 1)), constant_values=7)
    filled = columns, np.append(expected[1], expected[1][0]), expected[2], np.append(expected[3], 0)
    same(results, (("batch", "column"), ("column",), ("i",), ("column",)), filled)
    assert jax.eval_shape(lambda x: nym.unique(x, nym.Axis("i", 2), axis="i"), ROWS).shape == {"batch": 2, "i": 2}


def test_nan_is_one_value_or_each_its_own():
    x, axis = nym.named([np.nan, 1.0, np.nan], "i"), nym.Axis("v", 3)
    np.testing.assert_array_equal(nym.unique(x, axis).array, [1.0, np.nan, 1.0])
    np.testing.assert_array_equal(nym.unique(x, axis, equal_nan=False).array, [1.0, np.nan, np.nan])
    np.testing.assert_array_equal(nym.unique_values(x, axis).array, [1.0, np.nan, np.nan])


FUNCTIONS = {
    nym.unique_all: ("values", "indices", "inverse_indices", "counts"),
    nym.unique_counts: ("values", "counts"),
    nym.unique_inverse: ("values", "inverse_indices"),
}


@pytest.mark.parametrize("fill_value", [None, 9])
def test_the_functions_of_the_array_standard_return_their_fields(fill_value):
    @jax.jit
    def compute(x):
        values = nym.unique_values(x, Value, fill_value=fill_value)
        return values, [function(x, Value, fill_value=fill_value) for function in FUNCTIONS]

    expected = FIELDS | {"values": [1, 2, 3, fill_value or 1]}
    values, results = compute(ROWS)
    same([values], (("value",),), [expected["values"]])
    for result, fields in zip(results, FUNCTIONS.values(), strict=True):
        assert result._fields == fields
        names = tuple(("batch", "i") if field == "inverse_indices" else ("value",) for field in fields)
        same(result, names, [expected[field] for field in fields])


@pytest.mark.parametrize("function", [nym.unique, nym.unique_values, *FUNCTIONS], ids=lambda fn: fn.__name__)
def test_unique_needs_a_named_array_and_an_axis_with_a_size(function):
    with refusal("A named array is needed", TypeError):
        function(np.arange(3), Value)
    with refusal("A new axis needs a size: give `Axis('value', size)`", TypeError):
        function(ROWS, "value")
    with refusal("A plain array of shape (2,) has no axis names", TypeError):
        function(ROWS, Value, fill_value=np.arange(2))


def test_unique_is_the_same_sharded_on_both_meshes(compute_sharded, draw):
    def compute(x):
        return (*nym.unique_all(x, Value), *nym.unique(x, Value, axis="i", return_inverse=True))

    x = draw.integers(0, 2, batch=4, i=3)
    values, _, _, counts, *_ = compute_sharded(compute, x)
    same(nym.unique_counts(nym.shard(x), Value), (("value",),) * 2, (values.array, counts.array))

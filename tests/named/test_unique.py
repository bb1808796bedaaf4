import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym


Value = nym.Axis("value", 4)
FLAGS = {"return_index": True, "return_inverse": True, "return_counts": True}


@pytest.fixture
def x():
    return nym.named([[3, 1, 3], [2, 1, 3]], ("batch", "i"))


def same(results, names, expected):
    assert tuple(result.names for result in results) == names
    for result, one in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.array, one)


def test_unique_values_fill_the_axis(x):
    np.testing.assert_array_equal(nym.unique(x, Value).array, [1, 2, 3, 1])
    np.testing.assert_array_equal(nym.unique(x, Value, fill_value=9).array, [1, 2, 3, 9])
    np.testing.assert_array_equal(nym.unique(x, nym.Axis("i", 2)).array, [1, 2])
    assert nym.unique(x, Value).names == ("value",)


def test_unique_returns_what_else_is_asked_for(x):
    results = nym.unique(x, Value, **FLAGS)
    expected = jnp.unique(x.array, True, True, True, size=4)
    same(results, (("value",), ("value",), ("batch", "i"), ("value",)), expected)
    _, counts = nym.unique(x, Value, return_counts=True)
    np.testing.assert_array_equal(counts.array, [2, 1, 3, 0])


def test_unique_compares_slices_along_an_axis(x):
    results = nym.unique(x, nym.Axis("column", 4), axis="i", fill_value=7, **FLAGS)
    expected = jnp.unique(x.array, True, True, True, axis=1, size=4, fill_value=7)
    same(results, (("batch", "column"), ("column",), ("i",), ("column",)), expected)
    assert nym.unique(x, nym.Axis("i", 2), axis="i").shape == {"batch": 2, "i": 2}


def test_nan_is_one_value_or_each_its_own():
    x = nym.named([np.nan, 1.0, np.nan], "i")
    np.testing.assert_array_equal(nym.unique(x, nym.Axis("v", 3)).array, [1.0, np.nan, 1.0])
    np.testing.assert_array_equal(nym.unique(x, nym.Axis("v", 3), equal_nan=False).array, [1.0, np.nan, np.nan])
    np.testing.assert_array_equal(nym.unique_values(x, nym.Axis("v", 3)).array, [1.0, np.nan, np.nan])


@pytest.mark.parametrize("fill_value", [None, 9])
def test_the_functions_of_the_array_standard_return_their_fields(x, fill_value):
    everything = nym.unique_all(x, Value, fill_value=fill_value)
    expected = jnp.unique_all(x.array, size=4, fill_value=fill_value)
    assert everything._fields == expected._fields
    same(everything, (("value",), ("value",), ("batch", "i"), ("value",)), expected)
    counted, inverse = nym.unique_counts(x, Value, fill_value=fill_value), nym.unique_inverse(x, Value)
    assert counted._fields == ("values", "counts")
    assert inverse._fields == ("values", "inverse_indices")
    same(counted, (("value",), ("value",)), (expected.values, expected.counts))
    np.testing.assert_array_equal(inverse.inverse_indices.array, expected.inverse_indices)
    np.testing.assert_array_equal(nym.unique_values(x, Value, fill_value=fill_value).array, expected.values)


FUNCTIONS = ["unique", "unique_all", "unique_counts", "unique_inverse", "unique_values"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_unique_needs_a_named_array_and_an_axis_with_a_size(x, name):
    with pytest.raises(TypeError, match="A named array is needed"):
        getattr(nym, name)(jnp.arange(3), Value)
    with pytest.raises(TypeError, match=r"A new axis needs a size: give `Axis\('value', size\)`"):
        getattr(nym, name)(x, "value")
    with pytest.raises(TypeError, match=r"A plain array of shape \(2,\) has no axis names"):
        getattr(nym, name)(x, Value, fill_value=jnp.arange(2))


def test_unique_slices_need_an_axis_that_is_there(x):
    with pytest.raises(ValueError, match=r"no axis 'j' in \(batch: 2, i: 3\)"):
        nym.unique(x, Value, axis="j")
    with pytest.raises(ValueError, match="axis 'batch' occurs more than once"):
        nym.unique(x, nym.Axis("batch", 3), axis="i")


def _both(x):
    return (*nym.unique_all(x, Value), *nym.unique(x, Value, axis="i", return_inverse=True))


def test_unique_is_the_same_sharded_on_both_meshes(mapped, draw):
    x = draw.integers(0, 2, batch=4, i=3)
    expected = _both(x)
    for run in (_both, nym.named_jit(_both)):
        results = run(nym.shard(x))
        same(results, tuple(one.names for one in expected), [one.array for one in expected])

"""What holds for all arrays, checked on random ones: broadcasting, pickling, and going through trees."""

import copy
import pickle

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import axonym as nym


NAMES = ("a", "b", "c", "d")
OPERATORS = {"add": nym.add, "multiply": nym.multiply, "maximum": nym.maximum}


@st.composite
def sizes(draw, low: int = 0, high: int = 4):
    return {name: draw(st.integers(low, high)) for name in NAMES}


@st.composite
def arrays(draw, sizes: dict[str, int]):
    """An array of integers with some of the axes, in any order."""
    names = draw(st.permutations(NAMES))[: draw(st.integers(0, len(NAMES)))]
    shape = tuple(sizes[name] for name in names)
    values = np.random.default_rng(draw(st.integers(0, 2**32))).integers(-9, 9, shape, np.int32)
    return nym.named(values, names)


def same(x: nym.NamedArray, y: nym.NamedArray) -> bool:
    return set(x.names) == set(y.names) and np.array_equal(x.rearrange(y.names).array, y.array)


def result(fn, *operands):
    """The result, or None where it is not defined because no operand has the axes of all others."""
    if any(operand is None for operand in operands):
        return None
    try:
        return fn(*operands)
    except ValueError as error:
        assert "cannot broadcast" in str(error)
        return None


@pytest.mark.parametrize("operator", OPERATORS)
@settings(max_examples=60)
@given(st.data())
def test_broadcasting_is_associative_and_commutative_where_defined(operator, data):
    fn, shape = OPERATORS[operator], data.draw(sizes())
    x, y, z = (data.draw(arrays(shape)) for _ in range(3))
    left, right = result(fn, result(fn, x, y), z), result(fn, x, result(fn, y, z))
    if left is not None and right is not None:
        assert same(left, right)
    xy, yx = result(fn, x, y), result(fn, y, x)
    assert (xy is None) == (yx is None)
    assert xy is None or same(xy, yx)


@settings(max_examples=60)
@given(st.data())
def test_broadcasting_never_depends_on_sizes(data):
    """The names of a result, and whether there is one, are the same for any sizes: those that agree, 0 and 1 too."""
    names = [data.draw(st.permutations(NAMES))[: data.draw(st.integers(0, 4))] for _ in range(2)]
    found = set()
    for _ in range(3):
        shape = data.draw(sizes())
        x, y = (nym.named(np.ones([shape[name] for name in own], np.int32), own) for own in names)
        z = result(nym.add, x, y)
        found.add(None if z is None else z.names)
        assert z is None or z.shape == tuple(shape[name] for name in z.names)
    assert len(found) == 1


@settings(max_examples=40)
@given(st.data())
def test_round_trips_keep_names_and_elements(data):
    x = data.draw(sizes().flatmap(arrays))
    leaves, treedef = jax.tree.flatten(x)
    trips = [
        pickle.loads(pickle.dumps(x)),
        copy.copy(x),
        copy.deepcopy(x),
        jax.tree.unflatten(treedef, leaves),
        jax.tree.map(lambda leaf: leaf, {"x": [x]})["x"][0],
        jax.tree.unflatten(pickle.loads(pickle.dumps(treedef)), leaves),
    ]
    for y in trips:
        assert type(y) is nym.NamedArray and y.names == x.names and y.dtype == x.dtype
        assert np.array_equal(y.array, x.array)

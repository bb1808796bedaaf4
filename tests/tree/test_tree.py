"""Trees in which a named array is one leaf, and functions of each layer of stacked ones."""

import pickle
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import NamedArray, tree, tree_util
from tests.refusals import refusal


Layers, Outer, Embed = nym.make_axes(layers=3, outer=2, embed=4)
A, B = nym.ones({"i": 2}), nym.arange(nym.Axis("j", 3))
TREE = {"a": A, "b": [B, 5], "c": None}


def is_list(x):
    return isinstance(x, list)


def is_array(x):
    return isinstance(x, jax.Array)


class Layer(eqx.Module):
    weight: NamedArray
    plain: jax.Array
    scale: float = 2.0

    @staticmethod
    def init(Embed, start):
        return Layer(start + nym.arange(Embed, dtype=float), start.array + jnp.ones(2))


@pytest.fixture(scope="module")
def stack():
    start = nym.arange(Layers, dtype=float)
    return nym.nn.Stacked.init(Layers, Layer)(Embed, start)


def test_the_namespaces_have_the_same_functions():
    assert tree_util.tree_map is tree.map and tree_util.scan_aware_tree_map is tree.scan_aware_map
    assert tree_util.tree_flatten is tree.flatten and tree_util.tree_unflatten is tree.unflatten
    assert tree_util.tree_leaves is tree.leaves and tree_util.tree_structure is tree.structure


def test_a_named_array_is_a_leaf():
    leaves, structure = tree.flatten(TREE)
    assert leaves[0] is A and leaves[1] is B and leaves[2:] == [5]
    assert [id(x) for x in tree.leaves(TREE)] == [id(x) for x in leaves]
    assert structure == tree.structure(TREE) == jax.tree.structure({"a": 0, "b": [0, 0], "c": None})
    reloaded = tree.unflatten(structure, leaves)
    assert jax.tree.structure(TREE) == pickle.loads(pickle.dumps(jax.tree.structure(TREE)))
    assert reloaded["a"] is A and reloaded["b"][0] is B and reloaded["c"] is None
    assert tree.unflatten(structure, "xyz") == {"a": "x", "b": ["y", "z"], "c": None}
    assert tree.leaves(A) == [A] and tree.map(type, A) is NamedArray


def test_more_leaves_can_be_told():
    for is_leaf, count in ((is_list, 2), (is_array, 3), (lambda x: x is None, 4), (None, 3)):
        leaves, structure = tree.flatten(TREE, is_leaf=is_leaf)
        assert len(leaves) == len(tree.leaves(TREE, is_leaf=is_leaf)) == count
        assert structure == tree.structure(TREE, is_leaf=is_leaf) and structure.num_leaves == count
    calls = []  # what is told does not look into named arrays
    tree.leaves({"a": A}, is_leaf=lambda x: calls.append(x) or False)
    assert not any(x is A.array for x in calls)


def test_map():
    result = tree.map(lambda x: x + 1, TREE)
    assert isinstance(result["a"], NamedArray) and result["a"].names == ("i",) and result["b"][1] == 6
    assert result["a"].array.tolist() == [2, 2] and result["c"] is None
    assert tree.map(len, {"b": [B, 5]}, is_leaf=is_list) == {"b": 2}
    pairs = tree.map(lambda x, y: (x, y), {"a": A, "b": 1}, {"a": [B, 1], "b": 2})
    assert pairs["a"][0] is A and pairs["a"][1][0] is B and pairs["b"] == (1, 2)
    with refusal("pytree structure error"):
        tree.map(lambda x, y: x, {"a": A}, {"b": A})
    with refusal("Too many leaves"):
        tree.unflatten(tree.structure({"a": A}), [1, 2])


def test_functions_of_stacked_layers_see_one_layer(stack):
    calls = []

    def normalised(x):
        calls.append(getattr(x, "shape", None))
        return x if isinstance(x, float) else x / x.sum()

    result = tree.scan_aware_map(normalised, {"other": A, "stack": stack})
    assert calls == [{"i": 2}, {"embed": 4}, (2,), None]
    for layer, before in zip(result["stack"].unstacked(), stack.unstacked(), strict=True):
        np.testing.assert_allclose(layer.weight.array, before.weight.array / before.weight.array.sum(), rtol=1e-6)
        np.testing.assert_allclose(layer.plain, before.plain / before.plain.sum(), rtol=1e-6)
        assert layer.scale == 2.0
    assert type(result["stack"]) is nym.nn.Stacked and result["stack"].Block == Layers
    assert result["other"].array.tolist() == [0.5, 0.5]


def test_without_stacked_layers_it_is_map_and_they_may_be_leaves(stack):
    assert tree.scan_aware_map(lambda x, y: x * y, {"a": [2, 3]}, {"a": [4, 5]}) == {"a": [8, 15]}
    assert tree.scan_aware_map(len, {"b": [B, 5]}, is_leaf=is_list) == {"b": 2}
    result = tree.scan_aware_map(lambda x: "leaf", {"s": stack}, is_leaf=lambda x: isinstance(x, nym.nn.Stacked))
    assert result == {"s": "leaf"}


def test_layers_of_several_trees_go_together(stack):
    double = tree.map(lambda x: 2 * x, stack)
    result = tree.scan_aware_map(lambda x, y: x if isinstance(x, float) else x + y.sum(), stack, double)
    expected = stack.stacked.weight + double.stacked.weight.sum("embed")
    np.testing.assert_allclose(result.stacked.weight.rearrange(expected.names).array, expected.array)


def test_stacks_in_stacks():
    class Group(eqx.Module):
        inner: nym.nn.Stacked

        @staticmethod
        def init(Embed, start):
            return Group(nym.nn.Stacked.init(Layers, Layer)(Embed, start + nym.arange(Layers, dtype=float)))

    nested = nym.nn.Stacked.init(Outer, Group)(Embed, nym.arange(Outer, dtype=float))
    shapes = []

    def seen(x):
        shapes.append(getattr(x, "shape", None))
        return x

    result, inner = tree.scan_aware_map(seen, nested).stacked.inner, nested.stacked.inner
    assert shapes[:2] == [{"embed": 4}, (2,)] and result.stacked.weight.shape == inner.stacked.weight.shape
    np.testing.assert_array_equal(result.stacked.plain, inner.stacked.plain)


def test_other_stacks_must_fit(stack):
    message = "Layers along layers: 3 need another `Stacked`, not 5."
    with refusal(message, TypeError):
        tree.scan_aware_map(lambda x, y: x, {"s": stack}, {"s": 5})
    second = nym.nn.Stacked.init(Outer, Layer)(Embed, nym.arange(Outer, dtype=float))
    with refusal("layers along layers: 3 do not match layers along outer: 2"):
        tree.scan_aware_map(lambda x, y: x, stack, second)


def test_layers_stay_sharded(mesh, stack):
    with nym.axis_mapping({"embed": "data"}):
        result = nym.named_jit(lambda s: tree.scan_aware_map(lambda x: x * 2, s))(nym.shard(stack))
    assert result.stacked.weight.sharding.spec == jax.P(None, "data")
    np.testing.assert_array_equal(result.stacked.weight.array, 2 * stack.stacked.weight.array)


def test_wrong_arguments_are_errors_that_name_them():
    wrong: Any = tree  # without types, because every call here is wrong
    for call, message in (
        (lambda: wrong.map(TREE, is_list), "`axonym.tree.map` takes a function first, not {'a'"),
        (lambda: wrong.scan_aware_map(TREE, is_list), "`axonym.tree.scan_aware_map` takes a function first, not {'a'"),
        (lambda: wrong.leaves(TREE, 3), "`is_leaf` is a function or None, not 3"),
        (lambda: wrong.unflatten([A], A), "`axonym.tree.unflatten` takes a structure and then leaves, not a"),
        (
            lambda: tree_util.resize_axis(TREE, "i", 3, cast(Any, 7)),
            "A random key such as `jax.random.key(0)` is needed, not 7",
        ),
    ):
        with refusal(message, TypeError):
            call()

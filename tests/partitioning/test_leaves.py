"""`ShardedBy`: parts of a tree that go by a mapping of their own."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym


VALUES = np.arange(32.0, dtype=np.float32).reshape(8, 4)
DATA, MODEL = {"batch": "data"}, {"embed": "model"}


def array():
    return nym.NamedArray(VALUES, ("batch", "embed"))


def specs(tree):
    return [tuple(x.sharding.spec) for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize(
    "shard",
    [
        lambda tree: nym.shard(tree, DATA),
        lambda tree: jax.jit(lambda tree: nym.shard(tree, DATA))(tree),
        lambda tree: nym.named_jit(lambda tree: tree, DATA)(tree),
        lambda tree: nym.named_jit(lambda tree: tree, in_axis_resources=DATA)(tree),
        lambda tree: nym.shard(jax.eval_shape(lambda: jax.tree.map(jnp.asarray, tree)), DATA),
    ],
    ids=["shard", "inside jit", "result", "argument", "shapes"],
)
def test_a_part_goes_by_its_own_mapping(mesh, shard):
    tree = [array(), nym.ShardedBy({"x": array(), "deeper": nym.ShardedBy((array(),), DATA)}, MODEL), array()]
    result = shard(tree)
    assert [[entry or None for entry in spec + (None,) * (2 - len(spec))] for spec in specs(result)] == [
        ["data", None],
        ["data", None],  # `deeper`
        [None, "model"],
        ["data", None],
    ]
    assert result[1].mapping == nym.AxisMapping(MODEL)


def test_its_fallback_rule_and_what_it_does_about_uneven_axes_are_its_own(mesh):
    class Rows:
        def apply(self, array):
            return P("data")

    mapping = nym.AxisMapping({"batch": "data"}, fallback=Rows(), uneven="replicate")
    uneven = nym.NamedArray(VALUES[:6], ("batch", "embed"))
    plain, part = nym.shard((VALUES, nym.ShardedBy((VALUES, uneven), mapping)), DATA)
    assert plain is VALUES
    assert specs(part) == [("data",), (None, None)]


def test_an_error_says_where_in_the_part_it_is(mesh):
    with pytest.raises(
        ValueError, match=r"\[0\]\.tree\['x'\]: axis 'embed' has size 4, which is not divisible by mesh axis 'data' of"
    ):
        nym.shard([nym.ShardedBy({"x": array()}, {"embed": ("data", "model")})], DATA)


def test_it_is_a_tree_of_its_part():
    one = nym.ShardedBy({"x": array()}, {"embed": ["model"]})
    assert jax.tree.structure(one) == jax.tree.structure(nym.ShardedBy({"x": array()}, MODEL))
    assert jax.tree.structure(one) != jax.tree.structure(nym.ShardedBy({"x": array()}, DATA))
    doubled = jax.tree.map(lambda x: 2 * x, one)
    np.testing.assert_array_equal(doubled.tree["x"].array, 2 * VALUES)
    assert doubled.mapping == one.mapping
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert jax.tree.structure(other) == jax.tree.structure(one)


@pytest.mark.parametrize("wrong", [None, 3, "data"])
def test_it_needs_a_mapping(wrong):
    with pytest.raises(TypeError, match=r"A mapping (goes )?from names to mesh axes"):
        nym.ShardedBy(array(), wrong)


def test_a_part_with_a_mapping_needs_no_other(mesh):
    """The rest stays where it is, and a warning would be wrong."""
    x = nym.NamedArray(np.ones((8, 4), np.float32), ("batch", "embed"))
    for sharded in (nym.shard, nym.auto_sharded, nym.named_jit(lambda tree: tree)):
        part, rest = sharded((nym.ShardedBy(x, {"batch": "data"}), x))
        assert part.tree.sharding.spec[0] == "data" and part.mapping == {"batch": "data"}
        assert rest.array is x.array or not any(rest.sharding.spec)

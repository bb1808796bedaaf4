"""Rules of one's own: what a class with `apply` alone is taken to say."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym


class Rows(nym.ShardingRule):
    """Divides the first axis of each matrix."""

    def apply(self, pytree):
        return jax.tree.map(lambda x: P("data") if x.ndim > 1 else P(), pytree)


@dataclasses.dataclass(frozen=True)
class Named(nym.ShardingRule):
    """A rule with an attribute."""

    axis: str

    def apply(self, pytree):
        return jax.tree.map(lambda x: P(self.axis), pytree)


def test_a_rule_has_to_have_apply():
    with pytest.raises(TypeError, match="apply"):
        nym.ShardingRule()


def test_an_empty_spec_of_a_rule_with_apply_alone_says_nothing():
    class Given(nym.ShardingRule):
        def apply(self, pytree):
            return pytree

    specs = {"a": P(), "b": P(None, None), "c": P(None, "data"), "d": None, "e": [P((), None)], "f": P(P.UNCONSTRAINED)}
    said = Given().decide(specs)
    assert said == {"a": None, "b": None, "c": P(None, "data"), "d": None, "e": [None], "f": P(P.UNCONSTRAINED)}


def test_a_rule_shows_what_it_was_made_of():
    rule = Rows()
    assert repr(rule) == "Rows()"
    rule.axis = "data"
    assert repr(rule) == "Rows(axis='data')"
    assert repr(Named("data")) == "Named(axis='data')"


def test_a_frozen_dataclass_is_a_rule_that_compares_and_survives_a_copy():
    assert Named("data") == pickle.loads(pickle.dumps(Named("data")))
    assert len({Named("data"), Named("data"), Named("model")}) == 2


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_rule_with_apply_alone_shards_a_tree(mesh, compiled):
    tree = {"weight": jnp.ones((8, 4)), "bias": jnp.ones(8)}
    shard = nym.named_jit(nym.shard) if compiled else nym.shard
    with nym.axis_mapping({}, fallback=Rows()):
        result = shard(tree)
    assert (result["weight"].sharding.shard_shape((8, 4)), result["bias"].sharding.shard_shape((8,))) == ((2, 4), (8,))


def test_specs_in_place_of_a_named_array_count_as_its_spec():
    tree = {"x": nym.ones({"a": 4, "b": 8}), "y": np.ones((2, 2))}
    assert nym.CompositeShardingRule(Rows()).apply(tree) == {"x": P("data"), "y": P("data")}

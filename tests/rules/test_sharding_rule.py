"""Rules of one's own, and several rules as one, of which the first decides."""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import axonym as nym

from ..partitioning.arrays import Fails, Given
from ..refusals import refusal


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


def test_an_empty_spec_of_a_rule_with_apply_alone_says_nothing():
    specs = {"a": P(), "b": P(None, None), "c": P(None, "data"), "d": None, "e": [P((), None)], "f": P(P.UNCONSTRAINED)}
    decided = Given(specs, for_tree=True).decide(specs)
    assert decided == {"a": None, "b": None, "c": P(None, "data"), "d": None, "e": [None], "f": P(P.UNCONSTRAINED)}


def test_rules_of_ones_own_are_shown_compared_and_copied():
    rule = Rows()
    assert repr(rule) == "Rows()"
    rule.axis = "data"
    assert repr(rule) == "Rows(axis='data')"
    assert repr(Named("data")) == "Named(axis='data')"
    assert Named("data") == pickle.loads(pickle.dumps(Named("data")))
    assert len({Named("data"), Named("data"), Named("model")}) == 2


def test_specs_in_place_of_a_named_array_count_as_its_spec():
    tree = {"x": nym.ones({"a": 4, "b": 8}), "y": np.ones((2, 2))}
    assert nym.CompositeShardingRule(Rows()).apply(tree) == {"x": P("data"), "y": P("data")}


# Several rules as one


TREE = {"attn": np.ones((4, 8), np.float32), "norm": np.ones(8, np.float32), "mlp": [np.ones((4, 8), np.float32), None]}
SHAPES = nym.ShapeBasedShardingRule({(None, 8): P("data", None), (8,): P("model")})


def test_the_first_rule_that_decides_is_followed_and_a_matched_empty_spec_decides():
    attention = nym.PathShardingRule([("attn", P(None, "model"))])
    rule = nym.CompositeShardingRule(attention, SHAPES)
    assert rule.apply(TREE) == {"attn": P(None, "model"), "norm": P("model"), "mlp": [P("data", None), None]}
    rule = nym.CompositeShardingRule(nym.PathShardingRule([("norm|mlp", P())]), SHAPES)
    assert rule.apply(TREE) == {"attn": P("data", None), "norm": P(), "mlp": [P(), None]}
    rule = nym.CompositeShardingRule(nym.ShapeBasedShardingRule({(None, 8): P(None, None)}), SHAPES)
    assert rule.apply(TREE) == {"attn": P(None, None), "norm": P("model"), "mlp": [P(None, None), None]}
    rule = nym.CompositeShardingRule(attention)
    assert rule.apply(TREE) == {"attn": P(None, "model"), "norm": P(), "mlp": [P(), None]}
    assert rule.decide(TREE) == {"attn": P(None, "model"), "norm": None, "mlp": [None, None]}


def test_a_strict_rule_leaves_to_others_what_it_does_not_match():
    strict = nym.PathShardingRule([("attn", P("data"))], strict=True)
    assert nym.CompositeShardingRule(strict, SHAPES).apply(TREE)["norm"] == P("model")
    with pytest.raises(ValueError, match=r"the strict `PathShardingRule` .* pattern 'attn' matches no array"):
        nym.CompositeShardingRule(strict, SHAPES).apply({"mlp": np.ones(8)})


def test_a_subclass_that_decides_in_another_way_is_asked_for_that():
    class Turned(nym.ShapeBasedShardingRule):
        def apply(self, pytree):
            return jax.tree.map(lambda _: P("model"), pytree)

    class Keeps(nym.ShapeBasedShardingRule):
        def decide(self, pytree):
            return jax.tree.map(lambda _: P(), pytree)

    assert nym.CompositeShardingRule(Keeps({}), SHAPES).apply(TREE) == {"attn": P(), "norm": P(), "mlp": [P(), None]}
    rule = nym.CompositeShardingRule(Turned({(8,): P("data")}))
    assert rule.apply(TREE) == {"attn": P("model"), "norm": P("model"), "mlp": [P("model"), None]}


def test_an_error_names_the_rule_that_decided(mesh):
    by_path = nym.PathShardingRule([("norm", P("data"))])
    own, nested = Given(P("data")), nym.CompositeShardingRule(Given(P("data")))
    named_own = "the rule `Given`"
    for rule, name in [(by_path, "the pattern 'norm' of a `PathShardingRule`"), (own, named_own), (nested, named_own)]:
        text = f"['norm']: {name} gives P('data',) for shape (6,): dimension 0 has size 6, which is not divisible by"
        with refusal(text):
            nym.CompositeShardingRule(rule, SHAPES).apply({"norm": jax.ShapeDtypeStruct((6,), jnp.float32)})


MESH = AbstractMesh((4, 2), ("data", "model"))
PAIR = {name: jax.ShapeDtypeStruct((1024, 64), jnp.float32) for name in "ab"}  # 262,144 bytes each
WHOLE_A = nym.PathShardingRule({"a": P()})


def limited(limit, **options):
    return nym.MemoryConstrainedShardingRule(limit, MESH, **options)


def test_a_limit_counts_what_other_rules_have_decided():
    flat = nym.CompositeShardingRule
    for nested in (
        flat,
        lambda first, second: flat(first, flat(second)),
        lambda first, second: flat(flat(first), second),
    ):
        assert nested(WHOLE_A, limited(300_000)).apply(PAIR) == {"a": P(), "b": P("data", "model")}
        assert nested(WHOLE_A, limited(393_216)).apply(PAIR) == {"a": P(), "b": P("model", None)}
        halved = nym.PathShardingRule({"a": P("model")}, uneven="replicate")
        assert nested(halved, limited(393_216)).apply(PAIR) == {"a": P("model"), "b": P()}
        with refusal("need 294,912 bytes on each device, 262,144 of them of arrays whose specs ot"):
            nested(WHOLE_A, limited(294_911)).apply(PAIR)
        with pytest.warns(RuntimeWarning, match="294,812 more than the 100 of"):
            assert nested(WHOLE_A, limited(100, on_excess="warn")).apply(PAIR)["b"] == P("data", "model")


def test_specs_that_do_not_divide_count_as_what_they_leave():
    tree = {"a": jax.ShapeDtypeStruct((6, 64), jnp.float32), "b": jax.ShapeDtypeStruct((64,), jnp.float32)}
    uneven = nym.PathShardingRule({"a": P("data", "model")}, MESH, uneven="replicate")  # 6 x 32 of 4 bytes
    assert nym.CompositeShardingRule(uneven, limited(1024)).apply(tree) == {"a": P(None, "model"), "b": P()}
    assert nym.CompositeShardingRule(uneven, limited(1023)).apply(tree)["b"] == P("model")


def test_rules_after_a_limit_can_only_divide_more_and_one_that_overrides_it_is_asked():
    class Rows(nym.MemoryConstrainedShardingRule):
        def decide(self, pytree):
            return jax.tree.map(lambda _: P("data"), pytree)

    rule = nym.CompositeShardingRule(limited(300_000), nym.PathShardingRule({"a": P(), "b": P("data")}))
    assert rule.apply(PAIR) == {"a": P("data", "model"), "b": P("data")}
    assert nym.CompositeShardingRule(WHOLE_A, Rows(1, MESH)).apply(PAIR) == {"a": P(), "b": P("data")}


def test_what_a_rule_raises_names_it():
    with pytest.raises(ValueError, match=r"^the rule `Fails`: no spec$"):
        nym.CompositeShardingRule(SHAPES, nym.CompositeShardingRule(Fails(ValueError("no spec")))).apply(TREE)
    with pytest.raises(KeyError, match="norm") as caught:
        nym.CompositeShardingRule(SHAPES, Fails(KeyError("norm"))).apply(TREE)
    assert caught.value.__notes__ == ["The rule `Fails` raises this."]
    with pytest.raises(ValueError, match=r"^`AutoShardingRule` needs a mesh"):
        nym.CompositeShardingRule(nym.AutoShardingRule()).apply(TREE)


def test_an_answer_of_another_structure_or_kind_is_an_error_that_names_the_rule():
    for answer in (P("data"), {"attn": P()}, None, [P()] * 3):
        with refusal("the rule `Given` returns a tree of another structure than that of the tree it is applied to"):
            nym.CompositeShardingRule(SHAPES, Given(answer, for_tree=True)).apply(TREE)
    for answer in ("data", ("data", None), 5):
        with pytest.raises(TypeError, match=r"\['attn'\]: the rule `Given` gives .*; a rule gives a `.*` or None\."):
            nym.CompositeShardingRule(Given(answer)).apply({"attn": np.ones(4)})


def test_equal_composites_are_equal_and_survive_copies():
    rule = nym.CompositeShardingRule(SHAPES, nym.PathShardingRule([("a", P())]))
    assert rule != nym.CompositeShardingRule(*reversed(rule.rules))
    for copied in (pickle.loads(pickle.dumps(rule)), copy.deepcopy(rule), eval(repr(rule), {**vars(nym), "P": P})):
        assert copied == rule
        assert hash(copied) == hash(rule)
    with pytest.raises(AttributeError, match="cannot assign"):
        rule.rules = ()


def test_what_is_no_rule_is_refused_at_once():
    with refusal("a `CompositeShardingRule` has no rule to ask; give it some: CompositeShardingRule(one, other)"):
        nym.CompositeShardingRule()
    for rule, text in [([SHAPES], "a list of length 1."), (Given, ""), (P("data"), "")]:
        with refusal(f"asks instances of `ShardingRule`, one argument each, not {text}", TypeError):
            nym.CompositeShardingRule(rule)
    with pytest.raises(TypeError, match="apply"):
        nym.ShardingRule()

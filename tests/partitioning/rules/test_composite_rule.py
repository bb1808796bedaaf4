"""Several rules as one: the first that decides about an array is followed."""

import copy
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import axonym as nym


class Given(nym.ShardingRule):
    """Gives whatever it is told to, for each array or for the whole tree."""

    def __init__(self, spec, whole=False):
        self.spec, self.whole = spec, whole

    def apply(self, pytree):
        return self.spec if self.whole else jax.tree.map(lambda _: self.spec, pytree)


TREE = {"attn": np.ones((4, 8), np.float32), "norm": np.ones(8, np.float32), "mlp": [np.ones((4, 8), np.float32), None]}
SHAPES = nym.ShapeBasedShardingRule({(None, 8): P("data", None), (8,): P("model")})


def test_the_first_rule_that_decides_is_followed():
    rule = nym.CompositeShardingRule(nym.PathShardingRule([("attn", P(None, "model"))]), SHAPES)
    assert rule.apply(TREE) == {"attn": P(None, "model"), "norm": P("model"), "mlp": [P("data", None), None]}


def test_a_matched_empty_spec_keeps_an_array_whole():
    rule = nym.CompositeShardingRule(nym.PathShardingRule([("norm|mlp", P())]), SHAPES)
    assert rule.apply(TREE) == {"attn": P("data", None), "norm": P(), "mlp": [P(), None]}
    rule = nym.CompositeShardingRule(nym.ShapeBasedShardingRule({(None, 8): P(None, None)}), SHAPES)
    assert rule.apply(TREE) == {"attn": P(None, None), "norm": P("model"), "mlp": [P(None, None), None]}


@pytest.mark.parametrize("spec", [None, P(), P(None, None), P(())], ids=["none", "empty", "nones", "no-axes"])
def test_a_rule_with_apply_alone_that_divides_nothing_says_nothing(spec):
    assert nym.CompositeShardingRule(Given(spec), SHAPES).apply(TREE) == SHAPES.apply(TREE)


def test_what_no_rule_decides_stays_whole_and_says_nothing():
    rule = nym.CompositeShardingRule(nym.PathShardingRule([("attn", P("data"))]))
    assert rule.apply(TREE) == {"attn": P("data"), "norm": P(), "mlp": [P(), None]}
    assert rule.decide(TREE) == {"attn": P("data"), "norm": None, "mlp": [None, None]}


def test_a_composite_may_be_part_of_another():
    inner = nym.CompositeShardingRule(nym.PathShardingRule([("norm", P())]), Given(P()))
    rule = nym.CompositeShardingRule(inner, SHAPES)
    assert rule.apply(TREE) == {"attn": P("data", None), "norm": P(), "mlp": [P("data", None), None]}
    assert rule.rules == (inner, SHAPES)


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


@pytest.mark.parametrize(
    "rule, text",
    [
        (
            nym.PathShardingRule([("norm", P("data"))]),
            "the pattern 'norm' of a `PathShardingRule` gives P('data',) for",
        ),
        (Given(P("data")), "the rule `Given` gives P('data',) for"),
        (
            nym.CompositeShardingRule(Given(P("data"))),
            "the rule `Given` gives P('data',) for",
        ),
    ],
    ids=["paths", "own", "nested"],
)
def test_an_error_names_the_rule_that_decided(mesh, rule, text):
    text = f"['norm']: {text} shape (6,): dimension 0 has size 6, which is not divisible by mesh axis 'data' of size 4"
    with pytest.raises(ValueError, match=re.escape(text)):
        nym.CompositeShardingRule(rule, SHAPES).apply({"norm": jax.ShapeDtypeStruct((6,), jnp.float32)})


MESH = AbstractMesh((4, 2), ("data", "model"))
PAIR = {name: jax.ShapeDtypeStruct((1024, 64), jnp.float32) for name in "ab"}  # 262,144 bytes each
WHOLE_A = nym.PathShardingRule({"a": P()})


def limited(limit, **options):
    return nym.MemoryConstrainedShardingRule(limit, MESH, **options)


@pytest.mark.parametrize(
    "nested",
    [
        lambda *rules: nym.CompositeShardingRule(*rules),
        lambda one, *rest: nym.CompositeShardingRule(one, nym.CompositeShardingRule(*rest)),
        lambda one, *rest: nym.CompositeShardingRule(nym.CompositeShardingRule(one), *rest),
    ],
    ids=["flat", "inside", "before"],
)
def test_a_limit_counts_what_other_rules_have_decided(nested):
    assert nested(WHOLE_A, limited(300_000)).apply(PAIR) == {"a": P(), "b": P("data", "model")}
    assert nested(WHOLE_A, limited(393_216)).apply(PAIR) == {"a": P(), "b": P("model", None)}
    halved = nym.PathShardingRule({"a": P("model")}, uneven="replicate")
    assert nested(halved, limited(393_216)).apply(PAIR) == {"a": P("model"), "b": P()}
    with pytest.raises(
        ValueError, match=r"need 294,912 bytes on each device, 262,144 of them of arrays whose specs ot"
    ):
        nested(WHOLE_A, limited(294_911)).apply(PAIR)
    with pytest.warns(RuntimeWarning, match="294,812 more than the 100 of"):
        assert nested(WHOLE_A, limited(100, on_excess="warn")).apply(PAIR)["b"] == P("data", "model")


def test_specs_that_do_not_divide_count_as_what_they_leave():
    tree = {"a": jax.ShapeDtypeStruct((6, 64), jnp.float32), "b": jax.ShapeDtypeStruct((64,), jnp.float32)}
    uneven = nym.PathShardingRule({"a": P("data", "model")}, MESH, uneven="replicate")  # 6 x 32 of 4 bytes
    assert nym.CompositeShardingRule(uneven, limited(1024)).apply(tree) == {"a": P(None, "model"), "b": P()}
    assert nym.CompositeShardingRule(uneven, limited(1023)).apply(tree)["b"] == P("model")


def test_rules_after_a_limit_can_only_divide_more():
    rule = nym.CompositeShardingRule(limited(300_000), nym.PathShardingRule({"a": P(), "b": P("data")}))
    assert rule.apply(PAIR) == {"a": P("data", "model"), "b": P("data")}


def test_a_limit_in_a_fallback_counts_what_other_rules_have_decided(mesh):
    tree = {"a": jnp.ones((16, 8)), "b": jnp.ones((16, 8)), "named": nym.ones({"embed": 64})}
    limit = nym.MemoryConstrainedShardingRule(640)
    sharded = nym.shard(tree, nym.AxisMapping({}, fallback=nym.CompositeShardingRule(WHOLE_A, limit)))
    assert sharded["a"].sharding.is_fully_replicated
    assert sharded["b"].sharding.shard_shape((16, 8)) == (4, 8)


def test_a_limit_that_decides_in_another_way_is_asked_for_that():
    class Rows(nym.MemoryConstrainedShardingRule):
        def decide(self, pytree):
            return jax.tree.map(lambda _: P("data"), pytree)

    assert nym.CompositeShardingRule(WHOLE_A, Rows(1, MESH)).apply(PAIR) == {"a": P(), "b": P("data")}


def test_what_a_rule_raises_names_it():
    class Fails(nym.ShardingRule):
        def __init__(self, error):
            self.error = error

        def apply(self, pytree):
            raise self.error

    with pytest.raises(ValueError, match=r"^the rule `Fails`: no spec$"):
        nym.CompositeShardingRule(SHAPES, nym.CompositeShardingRule(Fails(ValueError("no spec")))).apply(TREE)
    with pytest.raises(KeyError, match="norm") as caught:
        nym.CompositeShardingRule(SHAPES, Fails(KeyError("norm"))).apply(TREE)
    assert caught.value.__notes__ == ["The rule `Fails` raises this."]
    with pytest.raises(ValueError, match=r"^`AutoShardingRule` needs a mesh"):
        nym.CompositeShardingRule(nym.AutoShardingRule()).apply(TREE)


@pytest.mark.parametrize("answer", [P("data"), {"attn": P()}, None, [P()] * 3], ids=["spec", "part", "none", "list"])
def test_a_tree_of_another_structure_is_an_error_that_names_the_rule(answer):
    text = (
        "the rule `Given` returns a tree of another structure than that of the tree it is applied to; return a spec in "
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        nym.CompositeShardingRule(SHAPES, Given(answer, whole=True)).apply(TREE)


@pytest.mark.parametrize("answer", ["data", ("data", None), 5], ids=["string", "tuple", "number"])
def test_what_is_no_spec_is_an_error_that_names_leaf_and_rule(answer):
    text = r"\['attn'\]: the rule `Given` gives .*; a rule gives a `PartitionSpec` or None\."
    with pytest.raises(TypeError, match=text):
        nym.CompositeShardingRule(Given(answer)).apply({"attn": np.ones(4)})


def test_uneven_axes_stay_whole_where_the_rule_that_decided_says_so(mesh):
    whole = nym.PathShardingRule([("attn", P("data", "model"))], uneven="replicate")
    rule = nym.CompositeShardingRule(whole, SHAPES)
    assert rule.apply({"attn": np.ones((6, 8))}) == {"attn": P(None, "model")}
    with pytest.raises(ValueError, match="not divisible"):
        rule.apply({"mlp": np.ones((6, 8))})


def test_equal_composites_are_equal_and_survive_copies():
    rule = nym.CompositeShardingRule(SHAPES, nym.PathShardingRule([("a", P())]))
    assert rule != nym.CompositeShardingRule(*reversed(rule.rules))
    for copied in (pickle.loads(pickle.dumps(rule)), copy.deepcopy(rule), eval(repr(rule), {**vars(nym), "P": P})):
        assert copied == rule
        assert hash(copied) == hash(rule)
    with pytest.raises(AttributeError, match="cannot assign"):
        rule.rules = ()


@pytest.mark.parametrize(
    "rules, kind, text",
    [
        (
            [],
            ValueError,
            "a `CompositeShardingRule` has no rule to ask; give it some: CompositeShardingRule(one, other)",
        ),
        ([[SHAPES]], TypeError, "asks instances of `ShardingRule`, one argument each, not a list of length 1."),
        ([Given], TypeError, "asks instances of `ShardingRule`, one argument each, not "),
        ([P("data")], TypeError, "asks instances of `ShardingRule`, one argument each, not "),
    ],
    ids=["none", "list", "class", "spec"],
)
def test_what_is_no_rule_is_refused_at_once(rules, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        nym.CompositeShardingRule(*rules)

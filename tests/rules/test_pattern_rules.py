"""Rules written by hand: by shape and by path, what they decide, and what they refuse."""

import copy
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym

from ..refusals import refusal


def arrays(**shapes):
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


Shapes, Paths = nym.ShapeBasedShardingRule, nym.PathShardingRule


def by_path(spec, *mesh, **options):
    return nym.PathShardingRule([("a", spec)], *mesh, **options)


def by_shape(spec, *mesh, **options):
    return nym.ShapeBasedShardingRule({(None, None): spec}, *mesh, **options)


BOTH = pytest.mark.parametrize("make", [by_path, by_shape], ids=["paths", "shapes"])


def test_the_most_specific_pattern_decides_and_of_equal_ones_the_first():
    patterns = [((None, None), P()), ((None, 8), P("data")), ((8, 8), P("data", "model"))]
    for given in (patterns, patterns[::-1]):
        specs = nym.ShapeBasedShardingRule(dict(given)).apply(arrays(a=(8, 8), b=(4, 8), c=(4, 4), d=(2, 4, 8), e=()))
        assert specs == {"a": P("data", "model"), "b": P("data"), "c": P(), "d": P(), "e": P()}
    rows, columns = ((None, 8), P("data")), ((8, None), P("model"))
    for first, second in ((rows, columns), (columns, rows)):
        assert nym.ShapeBasedShardingRule(dict([first, second])).apply(arrays(a=(8, 8))) == {"a": first[1]}


def test_the_patterns_are_read_as_they_were_given():
    given = {(None, 8): P("data"), (8, 8): P()}
    rule = nym.ShapeBasedShardingRule(given)
    assert rule.shape_patterns == given
    rule.shape_patterns[4, 4] = P("model")
    given[4, 4] = P("model")
    assert (4, 4) not in rule.shape_patterns
    with pytest.raises(AttributeError, match="cannot assign"):
        rule.uneven = "replicate"


@pytest.mark.parametrize(
    "rule",
    [
        nym.ShapeBasedShardingRule({(None, 8): P(None, "model")}),
        nym.PathShardingRule([("array|shape|named|key|static", P(None, "model"))]),
    ],
    ids=["shapes", "paths"],
)
def test_every_kind_of_array_gets_one_spec_and_nothing_else_does(mesh, rule):
    specs = rule.apply(
        {
            "array": np.ones((4, 8), np.float32),
            "shape": jax.ShapeDtypeStruct((2, 8), jnp.float32),
            "named": nym.ones({"a": 4, "b": 8}),
            "key": jax.random.split(jax.random.key(0), (4, 8)),
            "static": ["text", len, 1.5, None],
        }
    )
    assert [specs[name] for name in ("array", "shape", "named", "key")] == [P(None, "model")] * 4
    assert specs["static"] == [P(), P(), P(), None]
    traced = []
    jax.jit(lambda x: traced.append(rule.apply(x)))({"array": np.ones((4, 8))})
    assert traced == [{"array": P(None, "model")}]


def test_rules_that_say_the_same_are_equal_and_survive_copies():
    by_size, whole = {(None, 8): P("data"), (8,): P()}, {"attn": P("data"), "mlp": P()}
    uneven = nym.ShapeBasedShardingRule(by_size, uneven="replicate")
    compiled = [(re.compile("attn"), P("data")), ("mlp", P())]
    for rule, same, other in [
        (nym.ShapeBasedShardingRule(by_size), nym.ShapeBasedShardingRule(dict(reversed(by_size.items()))), uneven),
        (nym.PathShardingRule(whole, strict=True), nym.PathShardingRule(compiled, strict=True), Paths(whole)),
        (nym.PathShardingRule(whole), nym.PathShardingRule(compiled), Paths(dict(reversed(whole.items())))),
    ]:
        assert (rule, hash(rule)) == (same, hash(same))
        assert rule != other
        for copied in (pickle.loads(pickle.dumps(rule)), copy.deepcopy(rule), eval(repr(rule), {**vars(nym), "P": P})):
            assert (copied, hash(copied)) == (rule, hash(rule))
    shown = "ShapeBasedShardingRule({(None,): P()}, uneven='replicate')"
    assert repr(nym.ShapeBasedShardingRule({(None,): P()}, uneven="replicate")) == shown


def test_paths_are_written_with_slashes_and_searched():
    layers = [{"attn": {"weight": np.ones((4, 8))}}] * 2
    rule = nym.PathShardingRule([("^layers/1/attn/weight$", P("data")), ("attn", P("model"))])
    assert rule.apply({"layers": layers, "old_attn": np.ones(4)}) == {
        "layers": [{"attn": {"weight": P("model")}}, {"attn": {"weight": P("data")}}],
        "old_attn": P("model"),
    }
    embed, mlp = nym.make_axes(embed=8, mlp=4)
    model = jax.eval_shape(lambda: nym.nn.Linear.init(embed, mlp, key=jax.random.key(0)))
    specs = nym.PathShardingRule([(re.compile("WEIGHT", re.IGNORECASE), P("data"))]).apply(model)
    assert (specs.weight, specs.bias) == (P("data"), P())
    assert nym.PathShardingRule([("^$", P("data"))]).apply(np.ones(4)) == P("data")


def test_what_the_mesh_cannot_do_is_an_error_that_names_leaf_and_pattern(mesh):
    for spec, shape, text in [
        (P("model"), (3,), "dimension 0 has size 3, which is not divisible by mesh axis 'model' of size 2; the next"),
        (P("data", "dta"), (4, 4), "dimension 1: no mesh axis 'dta' in (data: 4, model: 2); did you mean 'data'?"),
        (P(None, "data"), (4,), "P(None, 'data') has 2 entries, the array (4,) has 1 dimension"),
        (P(("data", "model")), (4,), "dimension 0 has size 4, which is not divisible by mesh axis 'data' of size 4 x"),
    ]:
        with refusal(f"['a']['w']: the pattern 'w$' of a `PathShardingRule` gives {spec} for shape {shape}: {text}"):
            nym.PathShardingRule([("w$", spec)]).apply({"a": arrays(w=shape)})
    with refusal("['a']: the pattern (None,) of a `ShapeBasedShardingRule` gives P('data',) for shape (6,): dim"):
        nym.ShapeBasedShardingRule({(None,): P("data")}).apply(arrays(a=(6,)))


@BOTH
def test_uneven_axes_stay_whole_on_request(mesh, make):
    assert make(P("data", "model"), uneven="replicate").apply(arrays(a=(6, 8))) == {"a": P(None, "model")}
    with refusal("no mesh axis 'dta' in"):
        make(P("data", "dta"), uneven="replicate").apply(arrays(a=(6, 8)))
    with refusal("`uneven` is 'error' or 'replicate', not 'drop'"):
        make(P(), uneven="drop")


def test_strict_rules_want_a_pattern_for_each_array_of_several_elements():
    rule = nym.PathShardingRule([("w", P("data"))], strict=True)
    state = {"w": np.ones(4), "static": "text", "count": np.zeros((), np.int32), "scale": np.ones(1)}
    assert rule.apply(state) == {"w": P("data"), "static": P(), "count": P(), "scale": P()}
    with refusal("strict `PathShardingRule` matches 'b/0', 'b/1'; add patterns for them, with P() for arrays"):
        rule.apply({"w": np.ones(4), "b": [np.ones(4)] * 2})
    with pytest.raises(ValueError, match=r"matches '0', .* '7' and 4 more; add"):
        nym.PathShardingRule([], strict=True).apply([np.ones(4)] * 12)


def test_strict_rules_want_an_array_for_each_pattern():
    with refusal("`strict` must be True or False, not 'yes'.", TypeError):
        nym.PathShardingRule({}, strict="yes")
    text = (
        "the strict `PathShardingRule` does not need all its patterns: all arrays that pattern 'wx' matches are "
        "matched by earlier ones: 'w'; pattern 'zz' matches no array; the arrays are 'wx'; correct, move or "
        "remove them"
    )
    with refusal(text):
        nym.PathShardingRule([("w", P("data")), ("wx", P()), ("zz", P())], strict=True).apply({"wx": np.ones(4)})
    rule = nym.PathShardingRule([(r"atn/wieght$", P()), (".", P())], strict=True)
    with refusal("pattern 'atn/wieght$' matches no array; did you mean 'a/attn/weight'?"):
        rule.apply({"a": {"attn": arrays(weight=(4,))}, "b": arrays(bias=(4,))})


def test_a_strict_fallback_takes_trees_that_do_not_need_all_its_patterns(mesh):
    rule = nym.PathShardingRule({"w": P("data"), "^0$": P("model"), "batch": P("data")}, strict=True)
    weights = {"w": jnp.ones(8)}
    with nym.axis_mapping({}, fallback=rule):
        whole = nym.shard({"rules": weights, "loss": jnp.ones(())})
        doubled, total = nym.named_jit(lambda tree: (tree["w"] * 2, tree["w"].sum()))(weights)
        assert whole["rules"]["w"].sharding.spec == P("data")
        assert doubled.sharding.spec == P("model")
        assert total.sharding.is_fully_replicated
        with pytest.raises(ValueError, match="no pattern of the strict `PathShardingRule` matches 'other'"):
            nym.shard({"other": jnp.ones(8)})


def test_the_value_of_a_variable_may_be_left_out_of_a_pattern():
    nnx = pytest.importorskip("flax.nnx")
    state = nnx.eval_shape(lambda: nnx.state(nnx.Linear(8, 4, rngs=nnx.Rngs(0))))
    for pattern in ("^kernel$", "kernel/value$", "^kernel/"):
        specs = nym.PathShardingRule({pattern: P("data"), "^bias$": P()}, strict=True).apply(state)
        assert jax.tree.leaves(specs) == [P(), P("data")]
    assert nym.PathShardingRule({"^a$": P("data")}).apply({"a": arrays(value=(8,))}) == {"a": {"value": P()}}


@BOTH
def test_a_rule_with_a_mesh_is_a_value_that_is_checked_against_it(auto_mesh, make):
    with pytest.raises(ValueError, match=r"has the spec P\('dta',\): dimension 0: no mesh axis 'dta' in .*'data'\?"):
        make(P("dta"), auto_mesh)
    with refusal("`mesh` is a mesh, such as `axonym.create_mesh` returns, not 8", TypeError):
        make(P(), 8)
    rule = make(P("data"), auto_mesh.abstract_mesh)
    with jax.set_mesh(nym.create_mesh((8,), ("other",))):
        assert rule.apply(arrays(a=(4, 3))) == {"a": P("data")}
        assert nym.CompositeShardingRule(rule).apply(arrays(a=(4, 3))) == {"a": P("data")}
    with refusal("dimension 0 has size 6, which is not divisible by mesh axis 'data' of size 4"):
        rule.apply(arrays(a=(6, 3)))
    rule = make(P("data"), auto_mesh, uneven="replicate")
    assert rule.apply(arrays(a=(6, 3))) == {"a": P(None)}
    assert rule.mesh is auto_mesh
    assert rule != make(P("data"), uneven="replicate")
    assert f"mesh={auto_mesh!r}, uneven='replicate'" in repr(rule)
    both = nym.CompositeShardingRule(rule, nym.AutoShardingRule(auto_mesh))
    for original in (rule, both):
        for copied in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
            assert (copied, hash(copied), repr(copied)) == (original, hash(original), repr(original))


SPEC = "is a `PartitionSpec`, such as P('data', None), or P() to replicate the array, not "
PAIRS = (
    "The patterns of a `PathShardingRule` are pairs of a regular expression and a spec, such as "
    "[('attn/.*weight', P('data'))], or a dictionary, not "
)


SIZES = "A pattern is a tuple of sizes, None for any, such as (None, 8), not "


@pytest.mark.parametrize(
    ("rule", "patterns", "kind", "text"),
    [
        (Shapes, [(8,)], TypeError, "goes from shapes to specs, such as {(None, 8): P('data')}, not"),
        (Shapes, {8: P()}, TypeError, f"{SIZES}8."),
        (Shapes, {(-1,): P()}, ValueError, "the pattern (-1,) has a negative size; write None"),
        (Shapes, {(8,): ("data",)}, TypeError, f"The spec of the pattern (8,) {SPEC}('data')."),
        (Shapes, {(8,): P(None, "x")}, ValueError, "(8,) has the spec P(None, 'x'): P(None, 'x') has"),
        (Paths, [("a", "data")], TypeError, f"The spec of the pattern 'a' {SPEC}'data'."),
        (Paths, [("a", P("x", "x"))], ValueError, "'a' has the spec P('x', 'x'): mesh axis 'x' shards both"),
        (Paths, [("(", P())], ValueError, "the pattern '(' is not a regular expression: missing )"),
        (Paths, [(b"a", P())], TypeError, "A pattern for paths is a regular expression, such as 'attn/.*w"),
        (Paths, "a", TypeError, f"{PAIRS}'a'."),
        (Paths, 5, TypeError, f"{PAIRS}5."),
    ],
)
def test_what_is_no_pattern_is_refused_at_once(rule, patterns, kind, text):
    with refusal(text, kind):
        rule(patterns)

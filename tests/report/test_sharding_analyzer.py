"""`ShardingAnalyzer`: what is wrong with specs, the memory they take, and where arrays lie."""

import itertools
import math
from typing import Any

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as nym
from axonym.report import LayerTime, TimeByLayer

from ..refusals import refusal


def problems(tree: Any, specs: Any) -> list[str]:
    """What is wrong with specs on the mesh in force."""
    return nym.ShardingAnalyzer().validate_partition_specs(tree, specs)


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def named(**sizes: int) -> nym.NamedArray:
    return nym.NamedArray(shape(*sizes.values()), tuple(sizes))


def test_what_jax_takes_has_no_problems(auto_mesh):
    specs = [None, P(), P("data"), P(None, "model"), P(("data", "model")), P(("model",), ("data",)), P((), None)]
    specs.append(NamedSharding(auto_mesh.abstract_mesh, P("model")))
    with jax.set_mesh(auto_mesh):
        assert problems([shape(8, 4) for _ in specs], specs) == []


ONE_ARRAY = [
    (P("data", None, "model"), "P('data', None, 'model') has 3 entries, the array (8, 6) has 2 dimensions; "),
    (P("modle"), "dimension 0: no mesh axis 'modle' in (data: 4, model: 2); did you mean 'model'?"),
    (P("model", "model"), "mesh axis 'model' shards both dimension 0 and dimension 1; leave it out of one"),
    (P(("model", "model")), "mesh axis 'model' shards dimension 0 twice; leave it out of one"),
    (P(None, "data"), "dimension 1 has size 6, which is not divisible by mesh axis 'data' of size 4; the next size"),
    (P(None, ("data", "model")), "not divisible by mesh axis 'data' of size 4 x 'model' of size 2; the next size"),
    (P(3), "dimension 0: an entry is a name of a mesh axis, a tuple of names, or None, not 3"),
    (P(("data", None)), "dimension 0: an entry is a name of a mesh axis, a tuple of names, or None, not None"),
    (P(unreduced={"stage"}), "unreduced: no mesh axis 'stage' in (data: 4, model: 2)"),
    ("data", "a string is not a spec; write P('data')"),
    (("data", None), "`tuple` is not a spec; write P('data', None)"),
    (["data"], "`list` is not a spec; write P('data')"),
    ({"a": P()}, "`dict` is not a spec; give a `PartitionSpec`"),
]


@pytest.mark.parametrize(("spec", "message"), ONE_ARRAY, ids=[str(number) for number in range(len(ONE_ARRAY))])
def test_each_problem_is_said_with_its_path(mesh, spec, message):
    (problem,) = problems({"head": {"weight": shape(8, 6)}}, {"head": {"weight": spec}})
    assert problem.startswith("['head']['weight']: ")
    assert message in problem


def test_all_problems_of_specs_are_said_once(mesh):
    assert problems(shape(6), P("data")) == [
        "dimension 0 has size 6, which is not divisible by mesh axis 'data' of size 4; the next size that fits is 8"
    ]
    result = problems(shape(7, 6), P("modle", "data", 5))
    message = ("3 entries", "'modle'", "size 6", "not 5")
    assert [part in problem for part, problem in zip(message, result, strict=True)] == [True] * 4
    assert len(problems(shape(8), P(("model", "model", "model")))) == 1
    layer = {"weight": shape(7, 6)}
    result = problems([layer, layer], [{"weight": P("data")}, {"weight": P("data")}])
    assert [problem.split(":")[0] for problem in result] == ["[0]['weight']", "[1]['weight']"]


class Layer(eqx.Module):
    weight: Any = nym.field(axis_names=("embed", "mlp"))
    kind: str = eqx.field(static=True, default="relu")


def test_axes_with_names_are_called_by_them(mesh):
    x = named(batch=8, embed=6)
    (problem,) = problems({"x": x}, {"x": P("model", "model")})
    pair = "both axis 'batch' and axis 'embed'"
    assert problem == f"['x']: mesh axis 'model' shards {pair}; leave it out of one of the entries"
    assert problems([x, x], [P("data"), jax.tree.map(lambda _: P("data"), x)]) == []
    assert len(problems([x, x], [P(None, "data"), jax.tree.map(lambda _: P(None, "data"), x)])) == 2
    (problem,) = problems(Layer(shape(8, 6)), P(None, "data"))
    assert problem.startswith(".weight: axis 'mlp' has size 6")
    assert problems(Layer(shape(8, 8)), Layer(P("data"))) == []
    (problem,) = problems(Layer(shape(8, 8)), Layer(P("data"), "gelu"))
    assert "the specs have a `Layer` whose static fields differ from the tree's; use the same" in problem


def test_one_spec_stands_for_all_below_it(mesh):
    tree = {"a": [shape(8), shape(6)], "b": (shape(4), None, "relu")}
    result = problems(tree, {"a": P("data"), "b": P("data")})
    assert [problem.split(":")[0] for problem in result] == ["['a'][1]"]
    assert len(problems(tree, P("data"))) == 1
    assert problems(tree, None) == []


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({"a": P()}, ["['b']: no spec is given for it; add one, or None to replicate it"]),
        ({"a": P(), "b": {}}, ["['b']['w']: no spec is given for it; add one, or None to replicate it"]),
        ({"a": P(), "b": P(), "bb": P()}, ["['bb']: a spec is given for it, and the tree has no such part; did you"]),
        ({"a": P(), "b": [P()]}, ["['b']: the specs have a list where the tree has a dict; use the same, or one spec"]),
        ([P(), P()], ["the specs have a list where the tree has a dict; use the same, or one spec for all arrays in"]),
        ({"a": {"w": P()}, "b": P()}, ["['a']: `dict` is not a spec; give a `PartitionSpec`, or None"]),
        ({"a": P(), "b": P(), 3: P()}, ["JAX cannot flatten the tree of specs: "]),
    ],
    ids=["missing", "missing below", "extra", "list", "list at the top", "too deep", "keys"],
)
def test_specs_of_another_structure_are_said_where_they_differ(mesh, specs, message):
    result = problems({"a": shape(8), "b": {"w": shape(8)}}, specs)
    assert [problem.startswith(part) for problem, part in zip(result, message, strict=True)] == [True]


def test_a_sharding_on_another_mesh_is_a_problem(mesh):
    second = nym.create_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    (problem,) = problems(shape(8), NamedSharding(second, P("data")))
    meshes = "(data: 2, model: 2), not on (data: 4, model: 2)"
    assert problem == f"its sharding is on the mesh {meshes}; give its `PartitionSpec`"
    assert problems(shape(8), NamedSharding(mesh, P("data"))) == []
    reordered = nym.create_mesh((4, 2), ("data", "model"), devices=jax.devices()[::-1])
    (problem,) = problems(shape(8), NamedSharding(reordered, P("data")))
    assert "is on the mesh (data: 4, model: 2), of other devices or types of mesh axes; give its" in problem
    (problem,) = problems(shape(8), jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    assert problem == "`SingleDeviceSharding` is not on a mesh; give its `PartitionSpec`"


def test_some_specs_need_mesh_axes_of_their_type(auto_mesh, explicit_mesh):
    spec, tree = P(P.UNCONSTRAINED, "model"), shape(8, 4)
    auto, explicit = nym.ShardingAnalyzer(auto_mesh), nym.ShardingAnalyzer(explicit_mesh)
    assert auto.validate_partition_specs(tree, spec) == []
    (problem,) = explicit.validate_partition_specs(tree, spec)
    assert problem == "dimension 0 is left to the compiler, which only Auto mesh axes allow, and the mesh has none"
    for kind in ("unreduced", "reduced"):
        spec = P("data", **{kind: {"model"}})
        assert explicit.validate_partition_specs(tree, spec) == []
        (problem,) = auto.validate_partition_specs(tree, spec)
        assert problem == f"{kind}: mesh axis 'model' is not Explicit, and an array can be {kind} over such alone"


def test_manual_mesh_axes_are_in_no_spec_and_divide_nothing(auto_mesh):
    seen = []

    def inside(x):
        report = nym.ShardingAnalyzer().sharding_report({"x": x}, P(None, "model"))
        seen.append((problems(x, P("data")), problems(x, P(None, "model")), report))
        return x

    with jax.set_mesh(auto_mesh):
        part = P("data")
        jax.jit(jax.shard_map(inside, in_specs=part, out_specs=part, axis_names={"data"})).trace(shape(8, 4))
    wrong, right, report = seen[0]
    assert wrong == ["dimension 0: mesh axis 'data' is Manual here, where no spec can name it; leave it out"]
    assert right == []
    assert report.unused_mesh_axes == {"data": "it is Manual here"}
    assert report.devices == 2
    assert "2 devices outside the Manual mesh axes" in str(report)


AXES = st.sampled_from(["data", "model", "one", "modle", None, 3])
ENTRIES = st.one_of(AXES, st.lists(AXES, max_size=3).map(tuple), st.just(P.UNCONSTRAINED))
ANY_SPEC = st.lists(ENTRIES, max_size=4).map(lambda entries: P(*entries))
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 16]), max_size=3).map(tuple)
TYPES = st.sampled_from([AxisType.Auto, AxisType.Explicit])


@settings(max_examples=120)
@given(SHAPES, ANY_SPEC, st.tuples(TYPES, TYPES, TYPES))
def test_an_array_has_a_problem_if_and_only_if_jax_refuses_its_spec(sizes, spec, types):
    mesh = AbstractMesh((4, 2, 1), ("data", "model", "one"), axis_types=types)
    try:
        sharding = NamedSharding(mesh, spec)
        sharding.check_compatible_aval(sizes)
        sharding.shard_shape(sizes)
        refused = False
    except Exception:
        refused = True
    tree = {"weight": jax.ShapeDtypeStruct(sizes, jnp.float32)}
    result = nym.ShardingAnalyzer(mesh).validate_partition_specs(tree, {"weight": spec})
    assert bool(result) == refused
    assert all(problem.startswith("['weight']: ") and "JAX refuses" not in problem for problem in result)


def test_no_specs_whatever_raise_an_error():
    analyzer = nym.ShardingAnalyzer(AbstractMesh((4, 2, 1), ("data", "model", "one")))
    trees = [shape(8), None, "relu", [shape(6, 8), "relu"], (shape(), [shape(8)]), {"a": (shape(6),), "b": None}]
    wrong = [True, 3, math.nan, "data", "", P("data"), P(3), P(("model", None)), np.ones(2), None]
    nested = [[], (), {}, *([spec] for spec in wrong), *((spec, spec) for spec in wrong)]
    nested += [{"a": spec} for spec in wrong] + [{"a": [spec], 0: spec} for spec in wrong]
    for tree, specs in itertools.product(trees, wrong[:-1] + nested):
        problems = analyzer.validate_partition_specs(tree, specs)
        assert len(set(problems)) == len(problems)
        report = analyzer.sharding_report(tree, specs)
        assert list(report.problems) == problems
        assert len(report.leaves) == len([leaf for leaf in jax.tree.leaves(tree) if leaf != "relu"])
        assert str(report)


def test_memory_of_random_keys_odd_shapes_and_meshes_without_devices(auto_mesh):
    keys = jax.random.split(jax.random.key(0), 8)
    analyzer = nym.ShardingAnalyzer(auto_mesh)
    placed = jax.device_put(keys, NamedSharding(auto_mesh, P("data")))
    part = placed.addressable_shards[0].data.nbytes
    assert analyzer.estimate_memory_usage(keys, P("data")) == {"total_size": keys.nbytes, "size_per_device": part}
    odd = analyzer.estimate_memory_usage(shape(8, 3, dtype="uint2"), P("data"))
    assert odd == {"total_size": 6, "size_per_device": 2}
    mesh = AbstractMesh((1, 64, 8), ("data", "fsdp", "tensor"))
    usage = nym.ShardingAnalyzer(mesh).estimate_memory_usage(shape(4096, 14336), P("fsdp", "tensor"))
    assert usage == {"total_size": 4096 * 14336 * 4, "size_per_device": 4096 * 14336 * 4 // 512}
    tree, specs = {"a": shape(6), "b": shape(8), "c": shape(6)}, {"a": P("data"), "b": P("data"), "c": P("modle")}
    text = r"for specs with 2 problems:\n\['a'\]: dimension 0 has size 6.*\n\['c'\]: dimension 0: no mesh axis 'modle'"
    with pytest.raises(ValueError, match=text):
        analyzer.estimate_memory_usage(tree, specs)
    for tree in ({}, None, [], {"fn": len, "name": "relu"}):
        assert analyzer.estimate_memory_usage(tree, tree) == {"total_size": 0, "size_per_device": 0}
        assert analyzer.validate_partition_specs(tree, tree) == []
        report = analyzer.sharding_report(tree, P())
        assert (report.leaves, report.bytes, report.imbalance, report.share_whole) == ((), 0, 1.0, 0.0)
        assert report.unused_mesh_axes == {"data": "there are no arrays", "model": "there are no arrays"}
        assert "0 arrays" in str(report)


def test_the_mesh_is_the_one_given_or_the_one_in_force(auto_mesh):
    assert nym.ShardingAnalyzer().mesh is None
    analyzer, second = nym.ShardingAnalyzer(), nym.create_mesh((8,), ("data",))
    for method in ("validate_partition_specs", "estimate_memory_usage", "sharding_report"):
        with pytest.raises(ValueError, match=rf"`{method}`.* needs a mesh; set one with `jax.set_mesh"):
            getattr(analyzer, method)(shape(8), P("data"))
    with jax.set_mesh(auto_mesh):
        assert analyzer.mesh == auto_mesh
        assert nym.ShardingAnalyzer(second).mesh == second
    assert repr(nym.ShardingAnalyzer()) == "ShardingAnalyzer()"
    assert repr(nym.ShardingAnalyzer(second)).startswith("ShardingAnalyzer(Mesh(")


def test_a_rule_stands_for_the_specs_that_it_gives(mesh):
    tree, rule = {"weight": shape(8, 4)}, nym.AutoShardingRule()
    specs = nym.AutoShardingRule(mesh).apply(tree)
    for analyzer in (nym.ShardingAnalyzer(), nym.ShardingAnalyzer(mesh), nym.ShardingAnalyzer(mesh.abstract_mesh)):
        by_rule, by_specs = analyzer.sharding_report(tree, rule), analyzer.sharding_report(tree, specs)
        assert [leaf.spec for leaf in by_rule.leaves] == [leaf.spec for leaf in by_specs.leaves]
        assert by_rule.bytes_per_device == by_specs.bytes_per_device
        assert (by_rule.rule, by_specs.rule) == ("AutoShardingRule", None)
        assert analyzer.estimate_memory_usage(tree, rule) == {"total_size": 128, "size_per_device": 16}
    with jax.set_mesh(None):
        assert nym.ShardingAnalyzer(mesh).validate_partition_specs(tree, rule) == []


def test_without_specs_a_report_goes_by_the_shardings_of_the_arrays(mesh):
    values = np.ones((8, 4), np.float32)
    tree = {
        "weight": jax.device_put(values, NamedSharding(mesh, P("data", None))),
        "whole": jax.device_put(values, NamedSharding(mesh, P())),
        "shape": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, P("data", "model"))),
    }
    report = nym.ShardingAnalyzer().sharding_report(tree)
    shape, weight, whole = report.leaves
    assert (shape.path, shape.spec, shape.bytes_per_device) == ("['shape']", P("data", "model"), 16)
    assert (weight.path, weight.spec, weight.bytes_per_device) == ("['weight']", P("data", None), 32)
    assert (whole.path, whole.spec, whole.bytes_per_device) == ("['whole']", P(None, None), 128)
    assert weight.axes[0].why == "its own sharding: 'data'"
    assert (report.source, report.bytes_per_device, report.imbalance) == ("shardings", 176, 1.0)
    with jax.set_mesh(None):
        tree = {"a": jax.device_put(values), "b": values[0]}
        report = nym.ShardingAnalyzer(mesh).sharding_report(tree)
        assert nym.ShardingAnalyzer().sharding_report(tree["a"]).mesh == {}
    assert [leaf.axes[0].why for leaf in report.leaves] == [
        "on one device; 'data' or 'model' could shard it",
        "on the host; 'data' or 'model' could shard it",
    ]
    assert report.bytes_per_device == 128 + 16
    assert report.imbalance == pytest.approx((128 + 16) / (128 / 8 + 16))


def test_traced_arrays_are_checked_and_reported(mesh):
    reports = []

    def step(x, y):
        analyzer = nym.ShardingAnalyzer()
        (problem,) = problems({"y": y}, {"y": P("data")})
        assert problem.startswith("['y']: axis 'batch' has size 6")
        reports.extend([analyzer.sharding_report({"x": x}, P("data")), analyzer.sharding_report({"x": x, "y": y})])
        return x

    x = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("model")))
    jax.jit(step).trace(x, named(batch=6))
    assert reports[0].leaves[0].bytes_per_device == 32
    assert [leaf.bytes for leaf in reports[1].leaves] == [128, 24]


def test_sums_that_are_still_to_be_made_are_reported(explicit_mesh):
    sharding = NamedSharding(explicit_mesh, P("data", unreduced={"model"}))
    analyzer, x = nym.ShardingAnalyzer(explicit_mesh), jax.ShapeDtypeStruct((8,), "float32", sharding=sharding)
    report = analyzer.sharding_report(x)
    assert report.leaves[0].unused == {"model": "the array is unreduced over it"}
    specs = analyzer.sharding_report(shape(8), sharding)
    assert specs.leaves[0].unused == report.leaves[0].unused
    (leaf,) = analyzer.sharding_report(shape(8), P(unreduced={"model"})).leaves
    assert leaf.unused["model"] == "the array is unreduced over it"
    assert leaf.axes[0].why == "the spec: replicated; 'data' could shard it"


MESH = nym.create_abstract_mesh((4, 2), ("data", "model"))
ANALYZER = nym.ShardingAnalyzer(MESH)
TREE = {"w": jax.ShapeDtypeStruct((8, 4), "float32")}
SPECS = {"w": P("data")}
X = nym.NamedArray(TREE["w"], ("batch", "embed"))
TIMES = TimeByLayer((LayerTime("up", 0.1, 0.0, 1.0, 1),), 1, ("jit_step",))
NO_MESH = "`mesh` is a mesh, such as `axonym.create_mesh` returns, not 'data'."
SWAPPED = "The first argument has `PartitionSpec`s in place of arrays; the specs are the second one."


def make_report():
    return ANALYZER.sharding_report(TREE, SPECS)


TYPES_REFUSED = [
    (lambda: nym.explain(X, mesh="data"), NO_MESH),
    (lambda: nym.explain({"batch": "data"}, X, MESH), "A mapping goes from names to"),
    (lambda: nym.ShardingAnalyzer("data"), NO_MESH),
    (lambda: ANALYZER.sharding_report(SPECS, TREE), SWAPPED),
    (lambda: ANALYZER.sharding_report(TREE, nym.AxisMapping()), "`axonym.explain(tree, mapping, mesh)` explains"),
    (lambda: ANALYZER.sharding_report(TREE, depth="2"), "a path that make a group, an integer; it was '2'."),
    (lambda: make_report().largest_replicated("2"), "`n` is the number of arrays to return, an integer; it was '2'."),
    (lambda: make_report().table("2"), "the number of arrays to show, or None for all, an integer; it was '2'."),
    (lambda: TIMES.table(True), "`limit` is the number of layers to show"),
    (lambda: ANALYZER.compare(make_report(), TREE), "`compare` takes two `ShardingReport`s, not {'w'"),
    (lambda: make_report().to_html(None), "The page needs the path of a file, not None."),
    (lambda: make_report().to_html("report.html", title=3), "`title` is the heading of the page, a string, not 3."),
    (lambda: make_report().save_lock(None), "The lock needs the path of a file, not None."),
    (lambda: nym.assert_sharding_lock("a.lock", TREE), "The sharding lock needs the path of a file, not {'w': "),
]


def test_arguments_of_other_types_or_in_another_order_are_refused():
    for call, text in TYPES_REFUSED:
        with refusal(text, TypeError):
            call()
    with refusal("`depth` is the number of keys of a path that make a group; it was -1."):
        ANALYZER.sharding_report(TREE, depth=-1)

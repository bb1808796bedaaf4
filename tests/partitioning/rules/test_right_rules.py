"""What goes wrong with sharding rules and their analysis in eformer: one test each, named after what is right here."""

import math
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as nym


SPEC = P("data", "model")
NAMES = ("dp", "fsdp", "ep", "tp", "sp")
GPT2 = [(50257, 768), (1024, 768), (768, 3, 12, 64), (3, 12, 64), (12, 64, 768), (768, 3072), (3072,), (768,)]
VIT = [(1, 197, 1024), (16, 16, 3, 1024), (1024, 16, 64), (16, 64), (1, 1, 1024), (1024, 4096), (1024, 1000), (1000,)]
AWKWARD = [(7, 16), (6, 1000), (30522, 768), (1, 768), (2, 8), (4, 768), (12, 64), (3, 3, 3, 64), (3, 3, 64, 128)]


def of_axes(**sizes: int) -> AbstractMesh:
    """A mesh without devices, of Auto axes."""
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def five(*sizes: int) -> AbstractMesh:
    """A mesh of the five usual axes."""
    return of_axes(**dict(zip(NAMES, sizes, strict=True)))


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def parts(spec: P, shape: tuple[int, ...], mesh: AbstractMesh) -> int:
    """Returns into how many parts a spec divides an array; JAX raises an error if it is not valid."""
    return math.prod(shape) // math.prod(NamedSharding(mesh, spec).shard_shape(shape))


def axes_used(spec: P) -> set[str]:
    return {axis for entry in spec for axis in ((entry,) if isinstance(entry, str) else entry or ())}


# AutoShardingRule


def test_the_automatic_rule_needs_nothing_but_a_mesh():
    mesh = of_axes(dp=2, tp=4)
    for least in (None, 0):
        spec = nym.AutoShardingRule(mesh=mesh, min_shard_size=least).apply(struct(64, 32))
        assert parts(spec, (64, 32), mesh) == 8
    shapes = nym.ShapeBasedShardingRule({(None, 1024): P("tp")})
    both = nym.CompositeShardingRule(shapes, nym.AutoShardingRule(mesh=mesh))
    specs = both.apply({"table": struct(64, 1024), "weight": struct(64, 32)})
    assert parts(specs["table"], (64, 1024), mesh) == 4
    assert parts(specs["weight"], (64, 32), mesh) == 8


def test_all_processes_get_the_same_specs_whatever_their_hash_seed():
    program = (
        "import axonym as nym, jax\n"
        "mesh = jax.sharding.AbstractMesh((1, 4, 1, 2, 1), ('dp', 'fsdp', 'ep', 'tp', 'sp'))\n"
        "shapes = [jax.ShapeDtypeStruct(shape, 'float32') for shape in [(4096, 14336), (64, 64), (128,), (7, 16)]]\n"
        "rules = nym.AutoShardingRule(mesh), nym.MemoryConstrainedShardingRule(60_000_000, mesh)\n"
        "print([rule.apply(shapes) for rule in rules], nym.MeshPartitionHelper(mesh).partition_specs(shapes))\n"
    )
    command = [sys.executable, "-c", program]
    seeds = [os.environ | {"PYTHONHASHSEED": seed} for seed in ("1", "2", "7")]
    runs = [subprocess.Popen(command, env=seed, stdout=subprocess.PIPE, text=True) for seed in seeds]
    printed = [run.communicate(timeout=300)[0] for run in runs]
    assert "fsdp" in printed[0] and len(set(printed)) == 1


@pytest.mark.parametrize("sizes", [(1, 8, 1, 1, 1), (1, 1, 1, 8, 1), (1, 4, 1, 2, 1), (2, 2, 1, 1, 2)])
def test_mesh_axes_of_size_one_take_no_dimension_from_others(sizes):
    mesh = five(*sizes)
    for shape in [(4096, 4096), (1 << 20,), (4096, 14336)]:
        specs = [nym.AutoShardingRule(mesh).apply(struct(*shape))]
        specs.append(nym.MeshPartitionHelper(mesh).partition_specs(struct(*shape)))
        for spec in specs:
            assert parts(spec, shape, mesh) == 8
            assert axes_used(spec) == {name for name, size in mesh.shape.items() if size > 1}


def test_rules_go_by_the_mesh_that_jax_set_mesh_puts_in_force(mesh):
    specs = nym.AutoShardingRule().apply(struct(8, 16))
    assert parts(specs, (8, 16), mesh) == 8
    assert parts(nym.MemoryConstrainedShardingRule(128).apply(struct(8, 16)), (8, 16), mesh) >= 4


def test_a_rule_without_a_mesh_says_so():
    with pytest.raises(ValueError, match=r"`AutoShardingRule` needs a mesh; set one with `jax.set_mesh\(mesh\)`"):
        nym.AutoShardingRule().apply(struct(8, 16))


def test_a_rule_that_shards_inside_jit_has_an_effect(mesh):
    with nym.axis_mapping(fallback=nym.AutoShardingRule()):
        result = jax.jit(lambda x: nym.shard(x * 2))(jnp.ones((8, 16)))
    assert result.addressable_shards[0].data.size == 16


def test_leaves_that_are_no_arrays_are_whole():
    mesh = of_axes(dp=2, tp=4)
    tree = {"w": struct(64, 32), "rate": 0.1, "name": "relu", "none": None, "empty": struct(0, 8), "step": struct()}
    for rule in [
        nym.AutoShardingRule(mesh),
        nym.MemoryConstrainedShardingRule(1028, mesh),
        nym.ShapeBasedShardingRule({(64, 32): P("tp")}),
    ]:
        specs = rule.apply(tree)
        assert specs["none"] is None
        assert all(specs[name] == P() for name in ("rate", "name", "empty", "step"))
        assert parts(specs["w"], (64, 32), mesh) > 1


@pytest.mark.parametrize("rule", [nym.AutoShardingRule, lambda **given: nym.MemoryConstrainedShardingRule(1, **given)])
def test_unknown_mesh_axes_are_an_error_when_the_rule_is_made(rule):
    with pytest.raises(ValueError, match=r"no mesh axis 'fspd' in \(dp: 2, fsdp: 4\); did you mean 'fsdp'\?"):
        rule(mesh=of_axes(dp=2, fsdp=4), axis_names=["fspd"])
    with pytest.raises(TypeError, match=r"`axis_names` is a list of names of mesh axes.*\('dp', 'fsdp'\)"):
        rule(mesh=of_axes(dp=2, fsdp=4), axis_names=[("dp", "fsdp")])


# CompositeShardingRule


def test_a_spec_of_nones_is_no_decision_and_an_explicit_empty_one_is():
    class Nones(nym.ShardingRule):
        def apply(self, pytree):
            return jax.tree.map(lambda _: P(None, None), pytree)

    columns = nym.ShapeBasedShardingRule({(None, None): P(None, "dp")})
    assert nym.CompositeShardingRule(Nones(), columns).apply(struct(8, 8)) == P(None, "dp")
    whole = nym.ShapeBasedShardingRule({(8, 8): P()})
    assert nym.CompositeShardingRule(whole, columns).apply([struct(8, 8), struct(4, 4)]) == [P(), P(None, "dp")]


def test_combining_no_rules_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="has no rule to ask; give it some"):
        nym.CompositeShardingRule()


def test_a_rule_that_answers_none_leaves_the_array_to_the_next():
    class Silent(nym.ShardingRule):
        def apply(self, pytree):
            return jax.tree.map(lambda _: None, pytree)

    columns = nym.ShapeBasedShardingRule({(None, None): P(None, "dp")})
    assert nym.CompositeShardingRule(Silent(), columns).apply({"w": struct(8, 8)}) == {"w": P(None, "dp")}


# create_monitored_function


def monitored(fn, specs=SPEC):
    analyzer = nym.ShardingAnalyzer(of_axes(data=4, model=2))
    return nym.create_monitored_function(fn, specs, analyzer)


def test_a_monitored_function_returns_its_result_and_the_bytes_on_each_device():
    result, metrics = monitored(lambda x: x + 1)(np.ones((8, 16), np.float32))
    np.testing.assert_array_equal(result, np.full((8, 16), 2.0))
    assert metrics["memory_usage"] == {"total_size": 512, "size_per_device": 64}
    assert metrics["validation_issues"] == []


def test_a_monitored_function_takes_its_first_argument_by_keyword():
    result, metrics = monitored(lambda x, scale: x * scale)(scale=3.0, x=np.ones((8, 16), np.float32))
    assert result[0, 0] == 3.0
    assert metrics["memory_usage"]["total_size"] == 512


def test_a_monitored_function_waits_for_its_result():
    def slow(x):
        time.sleep(0.1)
        return x

    wait = jax.jit(lambda x: jax.pure_callback(slow, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    _, metrics = monitored(wait)(jnp.ones((8, 16)))
    assert metrics["execution_time"] > 0.1
    assert metrics["compile_time"] > 0


def test_wrong_specs_are_a_warning_of_a_monitored_function_and_the_result_is_kept():
    for specs in (P("bad"), P("model", "model"), P("data", "model", "data"), 3):
        with pytest.warns(RuntimeWarning, match="first argument does not go with the specs"):
            result, metrics = monitored(lambda x: x.sum(), specs)(np.ones((8, 16)))
        assert result == 128.0
        assert metrics["validation_issues"]


# MeshPartitionHelper


def test_the_example_of_the_helper_divides_a_weight_over_two_kinds_of_axes():
    mesh = five(2, 4, 1, 2, 1)
    helper = nym.MeshPartitionHelper(mesh)
    methods = helper._suggest_methods((1024, 4096))  # as the example has it
    assert helper.analyze_pytree([struct(1024, 4096)]) == {(1024, 4096): methods}
    spec = helper.create_partition_spec((1024, 4096), methods)
    assert {"fsdp", "tp"} <= axes_used(spec)
    assert all(spec[dim] for dim in (0, 1))


@pytest.mark.parametrize("name", NAMES)
def test_the_helper_uses_whatever_mesh_axis_there_is(name):
    mesh = five(*(8 if one == name else 1 for one in NAMES))
    spec = nym.MeshPartitionHelper(mesh).partition_specs(struct(4096, 14336))
    assert axes_used(spec) == {name}
    assert parts(spec, (4096, 14336), mesh) == 8


@pytest.mark.parametrize("sizes", [(1, 4, 1, 1, 2), (1, 8, 1, 1, 1), (2, 4, 1, 1, 1), (1, 2, 2, 2, 1)])
def test_the_helper_gives_no_spec_that_jax_refuses(sizes):
    mesh = five(*sizes)
    helper = nym.MeshPartitionHelper(mesh)
    for shape in [*GPT2, *VIT, *AWKWARD]:
        for least in (0, 1, 1024):
            parts(helper.partition_specs(struct(*shape), least), shape, mesh)
            methods = helper.analyze_pytree([struct(*shape)])[shape]
            parts(helper.create_partition_spec(shape, methods, least), shape, mesh)


def test_the_helper_shards_arrays_of_any_sizes():
    mesh = nym.create_mesh((2, 4, 1, 1, 1), NAMES)
    shapes = [(3, 3, 3, 64), (12, 64), (1, 197, 32), (257, 24), (24,), ()]
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    sharded = nym.MeshPartitionHelper(mesh).auto_shard_pytree(arrays, min_shard_size=64)
    assert [array.shape for array in sharded] == shapes
    assert [array.addressable_shards[0].data.size * 8 // array.size for array in sharded[:4]] == [1, 1, 1, 1]


def test_the_helper_needs_no_certain_names_of_mesh_axes():
    for mesh in (of_axes(data=4, model=2), of_axes(dp=1, fsdp=4, tp=2)):
        for shape in [(4096, 14336), (768, 768), (1000, 1000), (1 << 20,)]:
            spec = nym.MeshPartitionHelper(mesh).partition_specs(struct(*shape))
            assert parts(spec, shape, mesh) == 8


def test_the_helper_leaves_arrays_whole_that_are_too_small_to_divide():
    helper = nym.MeshPartitionHelper(five(1, 4, 1, 1, 2))
    assert helper.partition_specs(struct(16, 16), min_shard_size=10**9) == P()
    methods = helper.analyze_pytree([struct(16, 16)])[16, 16]
    assert helper.create_partition_spec((16, 16), methods, min_shard_size=10**9) == P()


def test_the_helper_leaves_stacked_layers_together():
    mesh = five(1, 8, 1, 1, 1)
    for shape in [(30, 576, 1536), (4, 4096, 14336), (8, 576, 1536)]:
        spec = nym.MeshPartitionHelper(mesh).partition_specs(struct(*shape))
        assert spec[0] is None
        assert parts(spec, shape, mesh) == 8
    experts = five(1, 16, 1, 1, 1)
    assert parts(nym.MeshPartitionHelper(experts).partition_specs(struct(8, 64, 128)), (8, 64, 128), experts) == 16


def test_the_helper_refuses_mesh_axes_that_are_not_there_for_any_size():
    helper = nym.MeshPartitionHelper(of_axes(dp=2, tp=4))
    for shape in [(4096, 4096), (2, 2)]:
        with pytest.raises(ValueError, match=r"no mesh axis 'pp' in \(dp: 2, tp: 4\)"):
            helper.create_partition_spec(shape, [("pp",)])


def test_the_helper_takes_methods_of_any_length_for_arrays_of_any_rank():
    mesh = five(1, 4, 1, 1, 2)
    helper = nym.MeshPartitionHelper(mesh)
    assert parts(helper.create_partition_spec((65536,), [("fsdp", "sp")]), (65536,), mesh) == 8
    assert parts(helper.create_partition_spec((64, 1024), [("dp", "fsdp", "sp")]), (64, 1024), mesh) == 8
    assert helper.create_partition_spec((), [("fsdp", "sp")]) == P()
    alone, pair = (helper.create_partition_spec((64, 1024), [method]) for method in ("fsdp", ("fsdp",)))
    assert alone == pair == P(None, "fsdp")


def test_the_helper_uses_a_mesh_axis_once_however_often_it_is_asked_to():
    mesh = of_axes(dp=2, tp=4)
    spec = nym.MeshPartitionHelper(mesh).create_partition_spec((4096, 4096), [("tp",), ("tp",)])
    assert parts(spec, (4096, 4096), mesh) == 4


def test_the_helper_plans_without_arrays_and_without_devices():
    mesh = of_axes(dp=2, tp=4)
    helper = nym.MeshPartitionHelper(mesh)
    assert helper.axis_sizes == {"dp": 2, "tp": 4}
    planned = helper.auto_shard_pytree({"w": struct(64, 64)})["w"]
    assert planned.shape == (64, 64)
    assert parts(planned.sharding.spec, (64, 64), mesh) > 1


def test_the_helper_shards_inside_jit(mesh):
    helper = nym.MeshPartitionHelper(mesh)
    result = jax.jit(lambda x: helper.auto_shard_pytree(x * 2, min_shard_size=1))(jnp.ones((8, 16)))
    assert result.addressable_shards[0].data.size == 16


def test_the_helper_leaves_what_is_no_array_as_it_is():
    mesh = nym.create_mesh((2, 4), ("dp", "tp"))
    tree = {"name": "relu", "none": None, "key": jax.random.key(0), "empty": np.zeros((0, 4)), "rate": 0.5}
    sharded = nym.MeshPartitionHelper(mesh).auto_shard_pytree(tree)
    assert sharded["name"] == "relu" and sharded["none"] is None and sharded["rate"] == 0.5
    assert sharded["empty"].shape == (0, 4)


# MemoryConstrainedShardingRule


@pytest.mark.parametrize("shape", [(50257, 767), (4096, 4096), (1 << 24,)])
def test_a_limit_that_cannot_be_met_is_an_error_or_a_warning(shape):
    mesh = of_axes(dp=2, tp=4)
    with pytest.raises(
        ValueError, match=r"more than the 1,048,576 of `max_memory_per_device`; the largest shards are \['w'\]"
    ):
        nym.MemoryConstrainedShardingRule(2**20, mesh).apply({"w": struct(*shape)})
    with pytest.warns(RuntimeWarning, match="more than the 1,048,576"):
        specs = nym.MemoryConstrainedShardingRule(2**20, mesh, on_excess="warn").apply({"w": struct(*shape)})
    assert parts(specs["w"], shape, mesh) == (1 if shape == (50257, 767) else 8)


def test_the_limit_is_for_all_arrays_together():
    mesh = of_axes(dp=2, tp=4)
    arrays = [struct(1024, 1024)] * 8
    specs = nym.MemoryConstrainedShardingRule(2**22, mesh).apply(arrays)
    assert sum(2**22 // parts(spec, (1024, 1024), mesh) for spec in specs) == 2**22
    assert nym.MemoryConstrainedShardingRule(2**25, mesh).apply(arrays) == [P()] * 8


def test_several_mesh_axes_divide_one_dimension():
    mesh = of_axes(dp=2, tp=4)
    spec = nym.MemoryConstrainedShardingRule(2**23, mesh).apply(struct(1 << 24))
    assert parts(spec, (1 << 24,), mesh) == 8
    assert parts(nym.AutoShardingRule(mesh).apply(struct(1 << 24)), (1 << 24,), mesh) == 8
    assert parts(nym.AutoShardingRule(mesh).apply(struct(50257, 128)), (50257, 128), mesh) == 8


# ShapeBasedShardingRule


def test_an_exact_pattern_is_reached_after_one_with_wildcards():
    rule = nym.ShapeBasedShardingRule({(None, 1024): P("tp"), (1024, 1024): P(None, "tp")})
    assert rule.apply([struct(8, 1024), struct(1024, 1024)]) == [P("tp"), P(None, "tp")]


def test_a_pattern_whose_spec_does_not_fit_the_mesh_is_an_error():
    with pytest.raises(ValueError, match="2 entries"):
        nym.ShapeBasedShardingRule({(None,): P("tp", None)})
    rule = nym.ShapeBasedShardingRule({(None, 7): P("data")})
    with jax.sharding.use_abstract_mesh(of_axes(data=4)), pytest.raises(ValueError, match=r"\['w'\].*size 6"):
        rule.apply({"w": struct(6, 7)})


# ShardingAnalyzer


@pytest.mark.parametrize("spec", [P(("dp", "tp")), P(P.UNCONSTRAINED, "dp"), P(), P(None, "tp"), None], ids=str)
def test_the_analyzer_accepts_what_jax_accepts(spec):
    analyzer = nym.ShardingAnalyzer(of_axes(dp=2, tp=4))
    assert analyzer.validate_partition_specs([struct(8, 16)], [spec]) == []


REFUSED = {
    "too many entries": (P("dp", None, None), "3 entries"),
    "an unknown axis": (P("pp"), "no mesh axis 'pp'"),
    "an axis twice": (P("dp", "dp"), "mesh axis 'dp' shards both dimension 0 and dimension 1"),
    "an axis twice in one entry": (P(("dp", "dp")), "'dp'"),
    "a size not divided": (P(None, "tp"), "size 6, which is not divisible by mesh axis 'tp' of size 4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_analyzer_finds_what_jax_refuses_and_says_where(case):
    spec, says = REFUSED[case]
    analyzer = nym.ShardingAnalyzer(of_axes(dp=2, tp=4))
    (issue,) = analyzer.validate_partition_specs({"layers": [struct(8, 6)]}, {"layers": [spec]})
    assert issue.startswith("['layers'][0]: ") and says in issue


def test_the_analyzer_tells_equal_mistakes_of_two_arrays_apart():
    analyzer = nym.ShardingAnalyzer(of_axes(dp=2, tp=4))
    issues = analyzer.validate_partition_specs({"a": struct(6), "b": struct(6)}, {"a": P("tp"), "b": P("tp")})
    assert len(set(issues)) == 2


def test_the_analyzer_counts_the_bytes_that_jax_puts_on_a_device():
    mesh = nym.create_mesh((2, 4), ("dp", "tp"))
    analyzer = nym.ShardingAnalyzer(mesh)
    array = np.ones(64, np.float32)
    for spec in (P(), P("tp"), P("dp"), P(("dp", "tp"))):
        placed = jax.device_put(array, NamedSharding(mesh, spec))
        usage = analyzer.estimate_memory_usage([array], [spec])
        assert usage["total_size"] == 256
        assert usage["size_per_device"] == placed.addressable_shards[0].data.nbytes
    empty = analyzer.estimate_memory_usage({}, {})
    assert (empty["total_size"], empty["size_per_device"]) == (0, 0)


def test_the_analyzer_goes_by_the_mesh_that_jax_set_mesh_puts_in_force(mesh):
    analyzer = nym.ShardingAnalyzer()
    usage = analyzer.estimate_memory_usage([struct(8, 16)], [P("data", "model")])
    assert usage["size_per_device"] == 64
    inside = []
    jax.jit(lambda x: inside.append(analyzer.estimate_memory_usage([x], [P("data")])) or x)(jnp.ones((8, 16)))
    assert inside[0]["size_per_device"] == 128

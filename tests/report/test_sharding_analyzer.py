"""`ShardingAnalyzer`: its mesh, the memory it tells against real arrays, and the reports it makes."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import axonym as nym


SPECS = [
    P(),
    P("data"),
    P("model"),
    P(("data", "model")),
    P(None, "model"),
    P("model", "data"),
    P(None, ("model", "data")),
]


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def held(x: jax.Array) -> int:
    """The bytes of all parts of an array on all devices, elements of less than a byte by their bits."""
    bits = jax.dtypes.itemsize_bits(x.dtype)
    return sum(-(-math.prod(part.data.shape) * bits // 8) for part in x.addressable_shards)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_memory_is_what_the_parts_of_arrays_take(mesh, spec):
    tree = {"weight": jnp.ones((8, 16), jnp.bfloat16), "named": nym.ones({"batch": 16, "embed": 8})}
    specs = {"weight": spec, "named": spec}
    usage = nym.ShardingAnalyzer().estimate_memory_usage(tree, specs)
    placed = jax.device_put(tree, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs))
    parts = [part.data.nbytes for x in jax.tree.leaves(placed) for part in x.addressable_shards]
    assert usage == {"total_size": 8 * 16 * 2 + 16 * 8 * 4, "size_per_device": sum(parts) // 8}
    assert usage["size_per_device"] * mesh.size == sum(parts)


@pytest.mark.parametrize("dtype", ["int4", "uint2", "bool", "float8_e4m3fn", "complex64"])
@pytest.mark.parametrize("spec", [P(), P("data"), P(("data", "model"))], ids=str)
def test_memory_counts_elements_of_any_number_of_bits(auto_mesh, dtype, spec):
    tree = [np.zeros((8, 3), dtype), np.zeros((8,), dtype)]
    usage = nym.ShardingAnalyzer(auto_mesh).estimate_memory_usage(tree, spec)
    placed = jax.device_put(tree, NamedSharding(auto_mesh, spec))
    assert usage["size_per_device"] * auto_mesh.size == sum(map(held, placed))
    assert usage["total_size"] == sum(-(-x.size * jax.dtypes.itemsize_bits(x.dtype) // 8) for x in tree)


def test_memory_of_random_keys_is_that_of_their_data(auto_mesh):
    keys = jax.random.split(jax.random.key(0), 8)
    usage = nym.ShardingAnalyzer(auto_mesh).estimate_memory_usage({"keys": keys}, {"keys": P("data")})
    placed = jax.device_put(keys, NamedSharding(auto_mesh, P("data")))
    assert usage == {"total_size": keys.nbytes, "size_per_device": placed.addressable_shards[0].data.nbytes}


@pytest.mark.parametrize("tree", [{}, None, [], {"fn": len, "name": "relu"}], ids=str)
def test_a_tree_without_arrays_needs_no_memory(auto_mesh, tree):
    analyzer = nym.ShardingAnalyzer(auto_mesh)
    assert analyzer.estimate_memory_usage(tree, tree) == {"total_size": 0, "size_per_device": 0}
    assert analyzer.validate_partition_specs(tree, tree) == []
    report = analyzer.sharding_report(tree, P())
    assert (report.leaves, report.bytes, report.imbalance, report.share_whole) == ((), 0, 1.0, 0.0)
    assert report.unused_mesh_axes == {"data": "there are no arrays", "model": "there are no arrays"}
    assert "0 arrays" in str(report)


def test_memory_of_specs_with_problems_is_refused_with_all_of_them(auto_mesh):
    tree, specs = {"a": shape(6), "b": shape(8), "c": shape(6)}, {"a": P("data"), "b": P("data"), "c": P("modle")}
    match = r"for specs with 2 problems:\n\['a'\]: dimension 0 has size 6.*\n\['c'\]: dimension 0: no mesh axis 'modle'"
    with pytest.raises(ValueError, match=match):
        nym.ShardingAnalyzer(auto_mesh).estimate_memory_usage(tree, specs)


def test_memory_is_told_for_meshes_without_devices():
    mesh = AbstractMesh((1, 64, 8), ("data", "fsdp", "tensor"))
    usage = nym.ShardingAnalyzer(mesh).estimate_memory_usage(shape(4096, 14336), P("fsdp", "tensor"))
    assert usage == {"total_size": 4096 * 14336 * 4, "size_per_device": 4096 * 14336 * 4 // 512}


def test_the_mesh_is_the_one_given_or_the_one_in_force(auto_mesh):
    assert nym.ShardingAnalyzer().mesh is None
    analyzer, second = nym.ShardingAnalyzer(), nym.create_mesh((8,), ("data",))
    with jax.set_mesh(auto_mesh):
        assert analyzer.mesh == auto_mesh
        assert nym.ShardingAnalyzer(second).mesh == second
    with pytest.raises(TypeError, match=r"`mesh` is a mesh, such as `axonym\.create_mesh` returns, not \(4, 2\)\."):
        nym.ShardingAnalyzer((4, 2))
    assert repr(nym.ShardingAnalyzer()) == "ShardingAnalyzer()"
    assert repr(nym.ShardingAnalyzer(second)).startswith("ShardingAnalyzer(Mesh(")


@pytest.mark.parametrize("method", ["validate_partition_specs", "estimate_memory_usage", "sharding_report"])
def test_specs_need_a_mesh(method):
    with pytest.raises(ValueError, match=rf"`{method}`.* needs a mesh; set one with `jax.set_mesh\(mesh\)` or pass"):
        getattr(nym.ShardingAnalyzer(), method)(shape(8), P("data"))


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
    tree = {
        "weight": jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, P("data", None))),
        "whole": jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, P())),
        "shape": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, P("data", "model"))),
    }
    report = nym.ShardingAnalyzer().sharding_report(tree)
    by_path = {leaf.path: leaf for leaf in report.leaves}
    assert report.source == "shardings"
    assert {path: (leaf.spec, leaf.bytes_per_device) for path, leaf in by_path.items()} == {
        "['shape']": (P("data", "model"), 16),
        "['weight']": (P("data", None), 32),
        "['whole']": (P(None, None), 128),
    }
    assert by_path["['weight']"].axes[0].why == "its own sharding: 'data'"
    assert (report.bytes_per_device, report.imbalance) == (176, 1.0)


def test_arrays_on_one_device_make_an_imbalance(auto_mesh):
    with jax.set_mesh(None):
        report = nym.ShardingAnalyzer(auto_mesh).sharding_report({"a": jnp.ones((8, 4)), "b": np.ones(4, np.float32)})
    assert [leaf.axes[0].why for leaf in report.leaves] == [
        "on one device; 'data' or 'model' could shard it",
        "on the host; 'data' or 'model' could shard it",
    ]
    assert report.bytes_per_device == 128 + 16
    assert report.imbalance == pytest.approx((128 + 16) / (128 / 8 + 16))
    assert nym.ShardingAnalyzer().sharding_report(jnp.ones(4)).mesh == {}


def test_arrays_on_another_mesh_are_reported_as_they_lie(auto_mesh):
    second = nym.create_mesh((2, 4), ("x", "y"))
    tree = {"weight": jax.device_put(jnp.ones((8, 4)), NamedSharding(second, P("x", "y")))}
    (leaf,) = nym.ShardingAnalyzer(auto_mesh).sharding_report(tree).leaves
    assert (leaf.spec, leaf.bytes_per_device, leaf.unused, leaf.padding) == (P("x", "y"), 16, {}, ())
    assert nym.ShardingAnalyzer().sharding_report(tree).mesh == {"x": 2, "y": 4}


def test_a_report_says_where_arrays_lie_that_specs_would_move(auto_mesh):
    tree = [np.ones(8, np.float32), jax.device_put(jnp.ones(8), NamedSharding(auto_mesh, P("data")))]
    report = nym.ShardingAnalyzer(auto_mesh).sharding_report(tree, P("data"))
    assert [leaf.now for leaf in report.leaves] == ["on the host", None]


def test_traced_arrays_are_reported(mesh):
    reports = []

    def step(x, y):
        analyzer = nym.ShardingAnalyzer()
        reports.extend([analyzer.sharding_report({"x": x}, P("data")), analyzer.sharding_report({"x": x, "y": y})])
        return x

    jax.jit(step)(jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, P("model"))), nym.ones({"batch": 8}))
    assert reports[0].leaves[0].bytes_per_device == 32
    assert [leaf.bytes for leaf in reports[1].leaves] == [128, 32]


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
    assert analyzer.sharding_report(shape(7, 8), P(None, "data", unreduced={"model"})).leaves[0].padding == ()


def test_manual_mesh_axes_divide_nothing(auto_mesh):
    reports = []

    def inside(x):
        reports.append(nym.ShardingAnalyzer().sharding_report({"x": x}, P(None, "model")))
        return x

    with jax.set_mesh(auto_mesh):
        part = P("data")
        jax.jit(jax.shard_map(inside, in_specs=part, out_specs=part, axis_names={"data"}))(jnp.ones((8, 4)))
    assert reports[0].unused_mesh_axes == {"data": "it is Manual here"}
    assert reports[0].devices == 2
    assert "2 devices outside the Manual mesh axes" in str(reports[0])


def test_the_depth_of_groups_is_not_negative(auto_mesh):
    with pytest.raises(ValueError, match=r"`depth` is the number of keys of a path that make a group; it was -1\."):
        nym.ShardingAnalyzer(auto_mesh).sharding_report({}, depth=-1)


def test_a_mapping_is_no_tree_of_specs(auto_mesh):
    with pytest.raises(TypeError, match=r"`axonym.explain\(tree, mapping, mesh\)` explains what it does"):
        nym.ShardingAnalyzer(auto_mesh).sharding_report(shape(8), nym.AxisMapping({"embed": "data"}))

"""What goes wrong with sharding rules in eformer and is right here, as far as no other file tests it: one test each."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as nym


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


@pytest.mark.parametrize("sizes", [(1, 8, 1, 1, 1), (1, 1, 1, 8, 1), (1, 4, 1, 2, 1), (2, 2, 1, 1, 2)])
def test_mesh_axes_of_size_one_take_no_dimension_from_others(sizes):
    mesh = five(*sizes)
    for shape in [(4096, 4096), (1 << 20,), (4096, 14336)]:
        specs = [nym.AutoShardingRule(mesh).apply(struct(*shape))]
        specs.append(nym.MeshPartitionHelper(mesh).partition_specs(struct(*shape)))
        for spec in specs:
            assert parts(spec, shape, mesh) == 8
            assert axes_used(spec) == {name for name, size in mesh.shape.items() if size > 1}


def test_a_rule_that_shards_inside_jit_has_an_effect(mesh):
    with nym.axis_mapping(fallback=nym.AutoShardingRule()):
        result = jax.jit(lambda x: nym.shard(x * 2))(jnp.ones((8, 16)))
    assert result.addressable_shards[0].data.size == 16


# MeshPartitionHelper


def test_the_example_of_the_helper_shards_a_weight_over_two_axes():
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
            spec = helper.partition_specs(struct(*shape), least)
            assert mesh.size % parts(spec, shape, mesh) == 0
            methods = helper.analyze_pytree([struct(*shape)])[shape]
            spec = helper.create_partition_spec(shape, methods, least)
            assert mesh.size % parts(spec, shape, mesh) == 0


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


def test_the_helper_leaves_stacked_layers_together():
    mesh = five(1, 8, 1, 1, 1)
    for shape in [(30, 576, 1536), (4, 4096, 14336), (8, 576, 1536)]:
        spec = nym.MeshPartitionHelper(mesh).partition_specs(struct(*shape))
        assert spec[0] is None
        assert parts(spec, shape, mesh) == 8
    experts = five(1, 16, 1, 1, 1)
    assert parts(nym.MeshPartitionHelper(experts).partition_specs(struct(8, 64, 128)), (8, 64, 128), experts) == 16


def test_the_helper_takes_methods_of_any_length_for_arrays_of_any_rank():
    mesh = five(1, 4, 1, 1, 2)
    helper = nym.MeshPartitionHelper(mesh)
    assert parts(helper.create_partition_spec((65536,), [("fsdp", "sp")]), (65536,), mesh) == 8
    assert parts(helper.create_partition_spec((64, 1024), [("dp", "fsdp", "sp")]), (64, 1024), mesh) == 8
    assert helper.create_partition_spec((), [("fsdp", "sp")]) == P()
    alone, pair = (helper.create_partition_spec((64, 1024), [method]) for method in ("fsdp", ("fsdp",)))
    assert alone == pair == P(None, "fsdp")


# ShardingAnalyzer


def test_the_analyzer_goes_by_the_mesh_that_jax_set_mesh_puts_in_force(mesh):
    analyzer = nym.ShardingAnalyzer()
    usage = analyzer.estimate_memory_usage([struct(8, 16)], [P("data", "model")])
    assert usage["size_per_device"] == 64
    inside = []
    jax.jit(lambda x: inside.append(analyzer.estimate_memory_usage([x], [P("data")])) or x)(jnp.ones((8, 16)))
    assert inside[0]["size_per_device"] == 128

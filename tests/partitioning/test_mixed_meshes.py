"""Meshes with Auto and Explicit axes: each array axis is sharded over mesh axes of one type."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import axonym as nym


MIX = (
    r"axis 'batch' is sharded over mesh axes 'x' \(Auto\) and 'model' \(Explicit\), a mix that JAX does not keep in "
    r"compiled functions; use mesh axes of one type for it, or make both of the same type by `axis_types`"
)


@pytest.fixture(scope="module")
def mixed_mesh():
    types = AxisType.Auto, AxisType.Explicit, AxisType.Auto
    return jax.make_mesh((2, 2, 2), ("x", "model", "y"), axis_types=types)


@pytest.fixture(autouse=True)
def mesh(mixed_mesh):
    with jax.set_mesh(mixed_mesh):
        yield mixed_mesh


def x() -> nym.NamedArray:
    return nym.named(jnp.arange(32.0).reshape(8, 4), ("batch", "embed"))


CALLS = {
    "shard": lambda: nym.shard(x()),
    "create": lambda: nym.ones({"batch": 8, "embed": 4}),
    "named_jit": lambda: nym.named_jit(lambda: x() * 2)(),
    "traced": lambda: jax.jit(lambda: nym.shard(x()))(),
    "vmap": lambda: nym.vmap(lambda row: row * 2, "batch")(x()),
    "spec": lambda: nym.pspec_for_axis(("batch", "embed")),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("axes", [("x", "model"), ("model", "x")], ids=["auto first", "explicit first"])
def test_an_axis_over_auto_and_explicit_mesh_axes_is_an_error(call, axes):
    text = MIX if axes == ("x", "model") else r"'model' \(Explicit\) and 'x' \(Auto\), a mix that JAX does not keep"
    with nym.axis_mapping({"batch": axes}), pytest.raises(ValueError, match=text):
        call()


@pytest.mark.parametrize("batch", ["x", "model", ("x", "y"), None])
@pytest.mark.parametrize("embed", ["model", "y", None])
def test_results_keep_the_spec_of_their_names(mesh, batch, embed):
    if batch == embed or (embed == "y" and batch == ("x", "y")):
        return
    with nym.axis_mapping({"batch": batch, "embed": embed}):
        sharding = NamedSharding(mesh, P(batch, embed))
        sharded = nym.shard(x())
        assert sharded.sharding == sharding
        results = nym.named_jit(lambda x: (x * 2, nym.vmap(lambda row: row + 1, "batch")(x), x.sum("embed")))(sharded)
        specs = [result.sharding.is_equivalent_to(sharding, 2) for result in results[:2]]
        assert specs == [True, True]
        assert results[2].sharding.is_equivalent_to(NamedSharding(mesh, P(batch)), 1)


@pytest.mark.parametrize("rule", [nym.AutoShardingRule(), nym.ShapeBasedShardingRule({(8,): P(("x", "model"))})])
def test_a_rule_that_mixes_types_raises_where_the_mix_would_be_lost(rule):
    with nym.axis_mapping(fallback=rule), pytest.raises(ValueError, match=r"dimension 0 is sharded over mesh axes 'x'"):
        nym.named_jit(lambda: jnp.arange(8.0))()


@pytest.mark.parametrize("size", [3, 4])
def test_auto_sharded_has_gradients_outside_of_jit(size):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Explicit))
    with jax.set_mesh(mesh), nym.axis_mapping(nym.AxisMapping({"d": "y", "e": "x"}, uneven="replicate")):
        x = nym.shard(nym.ones({"d": size, "e": 2}))
        gradient = nym.grad(lambda x: (nym.auto_sharded(nym.concatenate("d", [x, x])) ** 2).sum())
        for compute in (gradient, nym.named_jit(gradient)):
            assert compute(x).array.tolist() == [[4.0] * 2] * size

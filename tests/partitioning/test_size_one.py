"""Axes of size 1, as the one key head of multi-query attention: replicated wherever others would be sharded."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym
from axonym import Axis


MAPPING = {"batch": "data", "heads": "model", "kv_heads": "model", "page": ("data", "model")}


def compute_attention(q, k, v):
    weights = nym.nn.softmax(nym.dot(q, k, axis="head_dim"), "key_pos")
    return nym.dot(weights, v, axis="key_pos")


def test_multi_query_attention_trains_with_sharded_heads(mesh, draw):
    q = draw(batch=8, pos=4, heads=2, head_dim=3)
    k, v = (draw(batch=8, key_pos=4, kv_heads=1, head_dim=3) for _ in range(2))

    def loss(q, k, v):
        k, v = k.squeeze("kv_heads"), v["kv_heads", 0]
        return (compute_attention(q, k, v) ** 2).sum().scalar()

    expected = jax.value_and_grad(loss, (0, 1, 2))(q, k, v)
    with nym.axis_mapping(MAPPING):
        operands = nym.shard((q, k, v))
        assert operands[1].sharding.spec == P("data", None, None, None)
        found = nym.named_jit(jax.value_and_grad(loss, (0, 1, 2)), in_axis_resources=MAPPING)(*operands)
        assert nym.ones({"kv_heads": 1, "heads": 2}).sharding.spec == P(None, "model")
        assert nym.random.normal(jax.random.key(0), Axis("kv_heads", 1)).sharding.is_fully_replicated
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_all_ways_to_shard_agree(mesh):
    x = nym.ones({"kv_heads": 1, "embed": 4})
    shardings = [
        nym.shard(x, MAPPING).sharding,
        nym.infer_resource_partitions(x, MAPPING),
        nym.named_jit(lambda: x, out_axis_resources=MAPPING)().sharding,
        nym.named_jit(lambda x: x, in_axis_resources=MAPPING, out_axis_resources=MAPPING)(x).sharding,
        jax.jit(lambda x: nym.shard(x, MAPPING))(x).sharding,
    ]
    assert all(one.is_equivalent_to(NamedSharding(mesh, P()), 2) for one in shardings)
    assert nym.pspec_for(x, MAPPING) == P(None, None)
    assert nym.shard(jax.eval_shape(lambda: x), MAPPING).array.sharding.spec == P(None, None)


def test_explain_and_reports_say_why(mesh):
    x = nym.ones({"page": 1, "kv_heads": 1, "batch": 8})
    first, second, third = nym.explain(x, MAPPING).leaves[0].axes
    assert (first.decision, second.decision, third.decision) == ("size 1", "size 1", "mapping")
    assert first.why == "'page': ('data', 'model'), but an axis of size 1 is replicated"
    assert (second.mesh_axes, second.parts, second.why) == (
        (),
        1,
        "'kv_heads': 'model', but an axis of size 1 is replicated",
    )
    with nym.axis_mapping(MAPPING):
        report = nym.ShardingAnalyzer(mesh).sharding_report({"x": nym.shard(x)})
    assert report.problems == ()


def test_rules_for_plain_arrays_replicate_a_dimension_of_size_1(mesh):
    tree = {"k": np.ones((1, 8), np.float32), "w": np.ones((2, 8), np.float32)}
    rule = nym.PathShardingRule({".*": P("model", "data")})
    assert nym.pspec_for(tree, nym.AxisMapping(fallback=rule)) == {"k": P(None, "data"), "w": P("model", "data")}
    shapes = nym.ShapeBasedShardingRule({(None, 8): P("model", "data")})
    assert shapes.apply(tree) == {"k": P(None, "data"), "w": P("model", "data")}
    explained = nym.explain(tree, nym.AxisMapping(fallback=rule)).leaves[0].axes[0]
    assert explained.decision == "size 1" and explained.why.endswith("'model', but an axis of size 1 is replicated")


def test_shard_map_takes_replicated_axes_of_size_1(mesh):
    x, one = nym.ones({"batch": 8, "heads": 2}), nym.ones({"batch": 8, "kv_heads": 1})

    @nym.shard_map
    def run(x, one):
        assert x.shape == {"batch": 2, "heads": 1} and one.shape == {"batch": 2, "kv_heads": 1}
        return x * one.squeeze(), one * 2

    with nym.axis_mapping(MAPPING):
        product, doubled = run(x, one)
        assert product.shape == x.shape and doubled.shape == one.shape
        text = "axis 'heads' has size 1 in one argument of `shard_map` and is sharded in another; `rename` it"
        with pytest.raises(ValueError, match=text):
            nym.shard_map(lambda x, y: x * y.squeeze())(x, nym.ones({"heads": 1}))


def test_other_sizes_that_do_not_divide_stay_errors(mesh):
    with pytest.raises(ValueError, match="axis 'kv_heads' has size 3, which is not divisible by mesh axis 'model'"):
        nym.shard(nym.ones({"kv_heads": 3}), MAPPING)

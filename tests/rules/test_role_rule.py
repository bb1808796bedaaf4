"""Roles are read from the names, sizes and neighbours of arrays, whatever library has named and stored them."""

import itertools
import pickle
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P
from jax.tree_util import keystr

import axonym as nym

from ..refusals import refusal


D, F, V = 64, 256, 1000


def of_axes(**sizes: int) -> AbstractMesh:
    """A mesh without devices."""
    return AbstractMesh(tuple(sizes.values()), tuple(sizes))


MESH = of_axes(fsdp=4, tp=2)
RULE = nym.RoleShardingRule(MESH)


def like(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def layer(leaf: str, *sizes: int, bias: int | None = None) -> dict[str, Any]:
    return {leaf: like(*sizes)} | ({} if bias is None else {"bias": like(bias)})


def by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a tree of roles or specs, by path."""
    pairs = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, P))
    return {keystr(path, simple=True, separator="/").removesuffix("/value"): leaf for path, leaf in pairs}


def planned(tree: Any, rule: nym.RoleShardingRule = RULE) -> dict[str, tuple[str, P]]:
    """The role and the spec of each array, by path."""
    specs = by_path(rule.apply(tree))
    return {path: (role, specs[path]) for path, role in by_path(rule.roles(tree)).items()}


def test_columns_are_sharded_along_outputs_and_rows_along_inputs():
    columns = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "fc1")
    rows = ("o_proj", "down_proj", "w2", "wo", "fc2")
    block = {name: layer("kernel", D, F) for name in columns} | {name: layer("kernel", F, D) for name in rows}
    assert planned(block) == {
        **{f"{name}/kernel": ("column", P("fsdp", "tp")) for name in columns},
        **{f"{name}/kernel": ("row", P("tp", "fsdp")) for name in rows},
    }


def test_layers_of_hugging_face_are_out_then_in():
    column, row, path = ("column", P("tp", "fsdp")), ("row", P("fsdp", "tp")), "model.layers.0"
    layers = {
        f"{path}.self_attn.q_proj.weight": (like(D, D), column),
        f"{path}.self_attn.k_proj.weight": (like(16, D), column),
        f"{path}.self_attn.o_proj.weight": (like(D, D), row),
        f"{path}.mlp.up_proj.weight": (like(F, D), column),
        f"{path}.mlp.down_proj.weight": (like(D, F), row),
        f"{path}.input_layernorm.weight": (like(D), ("norm", P())),
        "model.embed_tokens.weight": (like(V, D), ("embedding", P("tp", "fsdp"))),
        "lm_head.weight": (like(V, D), ("head", P("tp", "fsdp"))),
    }
    roles = planned({name: array for name, (array, _) in layers.items()})
    assert roles == {name: role for name, (_, role) in layers.items()}


def test_layers_of_gpt2_are_in_then_out():
    block = {
        "attn": {"c_attn": layer("weight", D, 3 * D, bias=3 * D), "c_proj": layer("weight", D, D, bias=D)},
        "mlp": {"c_fc": layer("weight", D, F, bias=F), "c_proj": layer("weight", F, D, bias=D)},
        "ln_1": layer("weight", D, bias=D),
    }
    plan = planned({"wte": layer("weight", 50257, D), "wpe": layer("weight", 1024, D), "h": [block]})
    assert plan["h/0/attn/c_attn/weight"] == plan["h/0/mlp/c_fc/weight"] == ("column", P("fsdp", "tp"))
    assert plan["h/0/attn/c_proj/weight"] == plan["h/0/mlp/c_proj/weight"] == ("row", P("tp", "fsdp"))
    assert plan["wte/weight"] == ("embedding", P(None, ("tp", "fsdp")))
    assert plan["wpe/weight"] == ("position", P(None, ("tp", "fsdp")))
    assert plan["h/0/ln_1/weight"][0] == "norm"
    assert plan["h/0/ln_1/bias"][0] == "bias"


def test_layers_of_bert_are_told_by_what_they_are_in():
    dense = {"dense": layer("weight", D, D, bias=D)}
    block = {
        "attention": {
            "self": {name: layer("weight", D, D, bias=D) for name in ("query", "key", "value")},
            "output": dense,
        },
        "intermediate": {"dense": layer("weight", F, D, bias=F)},
        "output": {"dense": layer("weight", D, F, bias=D)},
    }
    plan = planned({"encoder": {"layer": [block]}, "pooler": dense})
    layers = "encoder/layer/0"
    assert plan[f"{layers}/attention/self/query/weight"] == ("column", P("tp", "fsdp"))
    assert plan[f"{layers}/attention/output/dense/weight"] == ("row", P("fsdp", "tp"))
    assert plan[f"{layers}/intermediate/dense/weight"] == ("column", P("tp", "fsdp"))
    assert plan[f"{layers}/output/dense/weight"] == ("row", P("fsdp", "tp"))


class Block(nn.Module):
    """A block of Flax, with its own names for layers."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(V, D)(tokens)
        x = x + nn.MultiHeadDotProductAttention(num_heads=8)(x, x)
        x = x + nn.Dense(D)(nn.gelu(nn.Dense(F)(nn.LayerNorm()(x))))
        return nn.Dense(V, name="head")(x)


def test_modules_of_linen_and_nnx_are_read():
    plan = planned(jax.eval_shape(Block().init, jax.random.key(0), jnp.zeros((2, 8), int))["params"])
    attention = "MultiHeadDotProductAttention_0"
    assert plan[f"{attention}/query/kernel"] == ("column", P("fsdp", "tp", None))
    assert plan[f"{attention}/out/kernel"] == ("row", P("tp", None, "fsdp"))
    assert plan["Dense_0/kernel"] == ("column", P("fsdp", "tp"))
    assert plan["Dense_1/kernel"] == ("row", P("tp", "fsdp"))
    assert plan["head/kernel"] == ("head", P("fsdp", "tp"))
    assert plan["Embed_0/embedding"] == ("embedding", P("tp", "fsdp"))
    assert plan["LayerNorm_0/scale"][0] == "norm"
    attention = nnx.eval_shape(lambda: nnx.MultiHeadAttention(8, D, rngs=nnx.Rngs(0), decode=False))
    plan = planned(nnx.state(attention))
    assert plan["query/kernel"] == ("column", P("fsdp", "tp", None))
    assert plan["out/kernel"] == ("row", P("tp", None, "fsdp"))
    assert plan["query/bias"][0] == "bias"


def test_equinox_modules_are_read():
    key = jax.random.key(0)
    plan = planned(eqx.filter_eval_shape(eqx.nn.MultiheadAttention, 8, D, key=key))
    assert plan["query_proj/weight"] == ("column", P("tp", "fsdp"))
    assert plan["output_proj/weight"] == ("row", P("fsdp", "tp"))
    plan = planned(eqx.filter_eval_shape(eqx.nn.MLP, 16, 16, D, 3, key=key))
    roles = [plan[f"layers/{at}/weight"] for at in range(4)]
    assert roles == [("column", P("tp", "fsdp")), ("row", P("fsdp", "tp"))] * 2
    assert plan["activation"] == ("static", P())
    layers = RULE.roles([{"linear": layer("kernel", F, D)}, {"linear": layer("kernel", D, F)}])
    assert [layer["linear"]["kernel"] for layer in layers] == ["row", "column"], "alone it is a row if it narrows"
    chain = RULE.roles({"layers": [{"weight": like(D, D)} for _ in range(1000)]})
    assert [layer["weight"] for layer in chain["layers"]] == ["column", "row"] * 500


def test_stacked_layers_stay_whole():
    block = {
        "norm": {"scale": like(8, 2**16)},
        "attention": {"wq": like(8, D, 8, 8), "wk": like(8, D, 2, 8), "wo": like(8, 8, 8, D)},
        "mlp": {"up_proj": layer("kernel", 8, D, F), "down_proj": layer("kernel", 8, F, D)},
        "self_attn": {"q_proj": layer("kernel", 8, D, D), "o_proj": layer("kernel", 8, D, D)},
    }
    plan = planned({"layers": block})
    assert all(role.startswith("stacked ") and spec[0] is None for role, spec in plan.values())
    assert plan["layers/norm/scale"][1] == P(None, ("fsdp", "tp"))
    assert plan["layers/attention/wq"][1] == plan["layers/attention/wk"][1] == P(None, "fsdp", "tp", None)
    assert plan["layers/attention/wo"][1] == P(None, "tp", None, "fsdp")
    assert plan["layers/mlp/down_proj/kernel"] == ("stacked row", P(None, "tp", "fsdp"))
    assert plan["layers/self_attn/q_proj/kernel"] == ("stacked column", P(None, "fsdp", "tp"))


def test_experts_are_divided_by_their_own_axis():
    moe = {"router": like(D, 8), "experts": {"gate_proj": like(8, D, F), "down_proj": like(8, F, D)}}
    moe |= {"shared_expert": {"up_proj": like(3, D, F)}}
    plan = planned({"moe": moe}, nym.RoleShardingRule(of_axes(fsdp=2, ep=4, tp=2)))
    assert plan["moe/experts/gate_proj"] == ("expert column", P("ep", "fsdp", "tp"))
    assert plan["moe/experts/down_proj"] == ("expert row", P("ep", "tp", "fsdp"))
    assert plan["moe/router"] == ("router", P(("tp", "fsdp", "ep"), None))
    assert plan["moe/shared_expert/up_proj"] == ("column", P(None, ("fsdp", "ep"), "tp"))


def test_a_gate_is_a_router_only_beside_experts():
    inside = {"gate": layer("weight", 8, D), "experts": [{"w1": layer("weight", F, D)}]}
    roles = RULE.roles({"block_sparse_moe": inside, "mlp": {"gate": layer("weight", F, D)}})
    assert roles["block_sparse_moe"]["gate"]["weight"] == "router"
    assert roles["block_sparse_moe"]["experts"][0]["w1"]["weight"] == "column"
    assert roles["mlp"]["gate"]["weight"] == "column"
    mlp = {"gate": layer("weight", 8, D), "experts": [{"gate_proj": layer("weight", F, D)}]}
    assert RULE.roles({"mlp": mlp})["mlp"]["gate"]["weight"] == "router"


def test_filters_are_divided_by_channels():
    key = jax.random.key(0)
    conv = eqx.filter_eval_shape(eqx.nn.Conv2d, 16, D, 3, key=key)
    without_bias = eqx.filter_eval_shape(eqx.nn.Conv2d, 8, 16, 3, use_bias=False, key=key)
    tree = {"patch_embedding": layer("kernel", 16, 16, 4, D, bias=D), "first": conv, "second": without_bias}
    roles = planned(tree)
    assert roles["patch_embedding/kernel"] == ("conv", P(None, None, "fsdp", "tp"))
    assert roles["first/weight"] == roles["second/weight"] == ("conv", P("tp", "fsdp", None, None))


def test_the_width_of_a_table_has_more_parts_than_its_vocabulary():
    tree = {"embed_tokens": layer("embedding", V, D), "lm_head": layer("kernel", D, V)}
    for sizes, spec in [((2, 4), P("fsdp", "tp")), ((4, 4), P("fsdp", "tp")), ((8, 2), P("tp", "fsdp"))]:
        rule = nym.RoleShardingRule(AbstractMesh(sizes, ("fsdp", "tp")))
        assert rule.apply(tree)["embed_tokens"]["embedding"] == spec


def test_leading_dimensions_are_sharded_unless_they_are_layers():
    for path, shape, spec in [
        ("layer1.0.downsample.0.weight", (512, 256, 1, 1), P("tp", "fsdp", None, None)),
        ("features.3.0.weight", (512, 256, 3, 3), P("tp", "fsdp", None, None)),
        ("layers.q_proj", (8, 63, 65), P()),
        ("thing.q_proj", (8, 63, 65), P(("tp", "fsdp"), None, None)),
        ("fc1.kernel", (16, 64, 7, 9), P("fsdp", "tp", None, None)),
    ]:
        assert RULE.apply({path: like(*shape)}) == {path: spec}


def test_the_second_layer_of_a_stacked_mlp_is_no_attention():
    mlp = {"c_fc": layer("kernel", 12, D, F), "c_proj": layer("kernel", 12, F, D)}
    plan = planned({"h": {"mlp": mlp, "ln": layer("scale", 12, D)}})
    assert plan["h/mlp/c_proj/kernel"] == ("stacked row", P(None, "tp", "fsdp"))
    mlp = {"wi": layer("kernel", 8, D, F), "out": layer("kernel", 8, F, D)}
    plan = planned({"layers": {"mlp": mlp, "norm": like(8, D)}})
    assert plan["layers/mlp/out/kernel"] == ("stacked row", P(None, "tp", "fsdp"))


def test_einsums_of_gemma_are_read():
    attention = {
        "q_einsum": layer("w", 8, D, 32),
        "kv_einsum": layer("w", 2, 4, D, 32),
        "attn_vec_einsum": layer("w", 8, 32, D),
    }
    mlp = {"gating_einsum": like(2, D, F), "linear": like(F, D)}
    plan = planned({"layer_0": {"attn": attention, "mlp": mlp, "pre_attention_norm": layer("scale", D)}})
    assert plan["layer_0/attn/q_einsum/w"] == ("column", P("tp", "fsdp", None))
    assert plan["layer_0/attn/kv_einsum/w"] == ("column", P(None, "tp", "fsdp", None))
    assert plan["layer_0/attn/attn_vec_einsum/w"] == ("row", P("tp", None, "fsdp"))
    assert plan["layer_0/mlp/gating_einsum"] == ("column", P(None, "fsdp", "tp"))
    assert plan["layer_0/mlp/linear"] == ("row", P("tp", "fsdp"))


def test_layers_stacked_along_the_second_dimension_stay_whole():
    layers = {
        "mlp": {"wi_0": layer("kernel", D, 4, F), "wo": layer("kernel", F, 4, D)},
        "self_attention": {"query": layer("kernel", D, 4, 8, 16), "out": layer("kernel", 8, 4, 16, D)},
        "pre_self_attention_layer_norm": layer("scale", D, 4),
    }
    plan = planned({"layers": layers, "decoder_norm": layer("scale", D)})
    assert plan["layers/mlp/wi_0/kernel"] == ("stacked column", P("fsdp", None, "tp"))
    assert plan["layers/mlp/wo/kernel"] == ("stacked row", P("tp", None, "fsdp"))
    assert plan["layers/self_attention/query/kernel"] == ("stacked column", P("fsdp", None, "tp", None))
    assert plan["layers/self_attention/out/kernel"] == ("stacked row", P("tp", None, None, "fsdp"))


def test_fused_and_low_rank_matrices_are_matrices():
    tree = {"attn": {"qkv": layer("kernel", D, 3, 8, 8), "out": layer("kernel", 8, 8, D)}}
    assert planned(tree)["attn/qkv/kernel"] == ("column", P("fsdp", None, "tp", None))
    pair = planned({"lora": {"a": like(4096, 8), "b": like(8, 4096)}})
    assert pair == {"lora/a": ("row", P("tp", "fsdp")), "lora/b": ("column", P("fsdp", "tp"))}


def test_tables_and_heads_of_known_models_are_told():
    heads = ("decoder.logits_dense.kernel", "proj_out.weight", "lm_head.decoder.weight")
    roles = {"gpt_neox.embed_in.weight": "embedding", **dict.fromkeys(heads, "head")}
    for path, role in roles.items():
        assert RULE.roles({path: like(V, D)}) == {path: role}
    rule = nym.RoleShardingRule(of_axes(fsdp=2, tp=4))
    assert rule.apply({"wte": layer("weight", V, D)})["wte"]["weight"] == P("tp", "fsdp")


def test_parameters_and_the_state_of_an_optimizer_stay_where_they_are(auto_mesh: jax.sharding.Mesh):
    block = {"q_proj": np.ones((16, 16), np.float32), "norm": np.ones(16, np.float32)}
    optimizer = optax.adafactor(1e-3, min_dim_size_to_factor=8)
    traced = []
    with jax.set_mesh(auto_mesh), nym.axis_mapping({}, fallback=nym.RoleShardingRule()):

        @nym.named_jit
        def step(parameters: Any, state: Any) -> Any:
            traced.append(1)
            updates, state = optimizer.update(jax.tree.map(jnp.ones_like, parameters), state, parameters)
            return optax.apply_updates(parameters, updates), state

        before = nym.shard(block)
        before = before, nym.named_jit(optimizer.init)(before)
        after = step(*step(*before))
    placed = [jax.tree.map(lambda leaf: leaf.sharding.spec, tree) for tree in (before, after)]
    assert placed[0] == placed[1]
    assert len(traced) == 1


def test_vectors_are_replicated_unless_they_are_large():
    vectors = {"norm": layer("scale", D, bias=D), "stacked": {"norm": {"scale": like(128, D)}}}
    whole = {"norm": {"scale": P(), "bias": P()}, "stacked": {"norm": {"scale": P()}}}
    assert RULE.apply(vectors) == whole
    assert RULE.apply(vectors | {"head": layer("kernel", D, 2048)}) | {"head": None} == whole | {"head": None}
    assert RULE.apply({"norm": {"scale": like(2**15)}}) == {"norm": {"scale": P()}}
    assert RULE.apply({"norm": {"scale": like(2**15 + 8)}}) == {"norm": {"scale": P(("fsdp", "tp"))}}


def test_the_bias_of_a_column_is_divided_as_its_output():
    mlp = {"up_proj": layer("kernel", D, F, bias=F), "down_proj": layer("kernel", F, D, bias=D)}
    specs = RULE.apply({"mlp": mlp, "layers": {"fc1": {"kernel": like(3, D, F), "bias": like(3, F)}}})
    assert specs["mlp"]["up_proj"]["bias"] == P("tp")
    assert specs["mlp"]["down_proj"]["bias"] == P()
    assert specs["layers"]["fc1"]["bias"] == P(None, "tp")


def test_features_are_replicated_if_the_heads_are_not_divisible():
    attention = {"query": layer("kernel", D, 6, 8), "out": layer("kernel", 6, 8, D)}
    specs = nym.RoleShardingRule(of_axes(fsdp=2, tp=4)).apply(attention)
    assert specs == {
        "query": {"kernel": P(("tp", "fsdp"), None, None)},
        "out": {"kernel": P(None, None, ("tp", "fsdp"))},
    }


def test_no_name_and_shape_give_a_spec_that_jax_refuses():
    layers = ("wq", "out", "experts.w1", "router", "embed", "head", "norm", "Conv_0", "Dense_1", "patch_embed", "thing")
    leaves = ("kernel", "weight", "bias", "embedding", "scale", "")
    shapes = ((), (12,), (16, 0), (8, 16), (1, 7), (50257, 768), (4, 8, 16), (8, 1, 1), (3, 3, 8, 16), (2, 4, 6, 8, 10))
    for shape, mesh in itertools.product(shapes, (MESH, of_axes(dp=2, ep=3, tp=5), of_axes(model=8))):
        tree = {f"{name}.{leaf}".strip("."): like(*shape) for name, leaf in itertools.product(layers, leaves)}
        rule = nym.RoleShardingRule(mesh)
        specs, roles = rule.apply(tree), rule.roles(tree)
        assert [NamedSharding(mesh, spec).shard_shape(shape) for spec in specs.values()]
        decided = {name: None if roles[name] == "unknown" else spec for name, spec in specs.items()}
        assert rule.decide(tree) == decided


def test_mesh_axes_can_be_given():
    tree = {"up_proj": like(D, F)}
    mesh = of_axes(a=2, b=2, c=2, d=1)
    assert nym.RoleShardingRule(mesh, tensor="b", batch="a").apply(tree) == {"up_proj": P("c", "b")}
    assert nym.RoleShardingRule(mesh, tensor=["b", "c"], fsdp="a").apply(tree) == {"up_proj": P("a", ("b", "c"))}
    assert nym.RoleShardingRule(mesh, fsdp="a").apply(tree) == {"up_proj": P("a", None)}
    assert nym.RoleShardingRule(of_axes(d=1)).apply(tree) == {"up_proj": P()}
    mesh = of_axes(fsdp=1, x=8)
    assert nym.RoleShardingRule(mesh, fsdp="fsdp").apply(tree) == {"up_proj": P()}
    assert nym.RoleShardingRule(mesh, fsdp="fsdp", tensor="x").apply(tree) == {"up_proj": P(None, "x")}
    assert nym.RoleShardingRule(mesh, tensor="fsdp").apply(tree) == {"up_proj": P("x", None)}


def test_what_cannot_be_told_is_an_error():
    mesh = of_axes(x=4, y=2)
    with pytest.raises(ValueError, match=r"no axis of mesh \(x: 4, y: 2\) has a name from which .*pass `tensor=`"):
        nym.RoleShardingRule(mesh).apply(like(8))
    text = r"no axis of mesh \(fsdp: 1, x: 8\) has a .* follows, except 'fsdp' of size 1, such as 'tp' or"
    with pytest.raises(ValueError, match=text):
        nym.RoleShardingRule(of_axes(fsdp=1, x=8)).apply(like(8))
    with refusal("mesh axis 'x' is given as `tensor` and as `fsdp`; a mesh axis has one role"):
        nym.RoleShardingRule(mesh, tensor="x", fsdp=("x", "y"))
    with refusal("no mesh axis 'z' in (x: 4, y: 2)"):
        nym.RoleShardingRule(mesh, expert="z")
    with refusal("`tensor`", TypeError):
        nym.RoleShardingRule(tensor=3)  # pyright: ignore[reportArgumentType]
    with refusal("`mesh` is a mesh", TypeError):
        nym.RoleShardingRule("data")  # pyright: ignore[reportArgumentType]
    with refusal("`min_shard_size` is an integer of at least 0, not -1"):
        nym.RoleShardingRule(min_shard_size=-1)


def test_unknown_arrays_are_divided_by_memory_and_left_to_the_next_rule():
    tree = {"up_proj": like(D, F), "things": like(D, F), "name": "a", "nothing": None}
    assert RULE.roles(tree) == {"up_proj": "column", "things": "unknown", "name": "static", "nothing": None}
    assert RULE.apply(tree)["things"] == nym.AutoShardingRule(MESH).apply(tree)["things"]
    assert RULE.decide(tree) == {"up_proj": P("fsdp", "tp"), "things": None, "name": None, "nothing": None}
    both = nym.CompositeShardingRule(RULE, nym.ShapeBasedShardingRule({(D, F): P("tp")}))
    assert both.apply(tree) == {"up_proj": P("fsdp", "tp"), "things": P("tp"), "name": P(), "nothing": None}
    small = {"up_proj": like(D, F), "down_proj": like(8, 8)}
    assert RULE.apply(small) == {"up_proj": P("fsdp", "tp"), "down_proj": P("tp", "fsdp")}
    assert nym.RoleShardingRule(MESH, min_shard_size=65).apply(small) == {"up_proj": P("fsdp", "tp"), "down_proj": P()}


def test_arrays_of_all_kinds_are_leaves():
    tree = {
        "wq": np.ones((8, 16), np.float32),
        "wo": nym.named(like(16, 8), ("mlp", "embed")),
        "others": [jax.random.key(0), jax.random.split(jax.random.key(0), 8), np.ones((0, 4)), like(), 0.5],
        "w": layer("kernel", 0, 4),
    }
    rest = {"others": [P()] * 5, "w": {"kernel": P()}}
    assert RULE.apply(tree) == {"wq": P("fsdp", "tp"), "wo": P("tp", "fsdp")} | rest
    assert RULE.apply(like(8, 8)) == nym.AutoShardingRule(MESH).apply(like(8, 8))


def test_a_fallback_sees_whole_paths_and_whether_layers_are_stacked(mesh: jax.sharding.Mesh):
    mlp = {"up_proj": np.ones((8, 32), np.float32), "down_proj": np.ones((32, 8), np.float32)}
    stacked = {"up_proj": np.ones((2, 8, 32), np.float32), "down_proj": np.ones((2, 32, 8), np.float32)}
    tree = {"scale": nym.NamedArray(np.ones(8, np.float32), "embed"), "mlp": mlp, "layers": stacked}
    sharded = nym.shard(tree, nym.AxisMapping({"embed": "data"}, fallback=nym.RoleShardingRule()))
    assert by_path(jax.tree.map(lambda leaf: leaf.sharding.spec, sharded)) == {
        "layers/down_proj": P(None, "model", "data"),
        "layers/up_proj": P(None, "data", "model"),
        "mlp/down_proj": P("model", "data"),
        "mlp/up_proj": P("data", "model"),
        "scale/array": P("data"),
    }


def test_rules_are_values():
    rule, same = nym.RoleShardingRule(MESH, tensor="tp"), nym.RoleShardingRule(MESH, tensor=["tp"])
    assert (rule, hash(rule), repr(rule)) == (same, hash(same), repr(same))
    assert rule != nym.RoleShardingRule(MESH)
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert repr(nym.RoleShardingRule(tensor="tp", batch="dp")) == "RoleShardingRule(tensor=('tp',), batch=('dp',))"
    with pytest.raises(AttributeError, match="cannot assign to field 'tensor'"):
        rule.tensor = "dp"  # pyright: ignore[reportAttributeAccessIssue]

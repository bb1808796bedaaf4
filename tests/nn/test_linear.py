"""Linear layers and their initializers: parity with Equinox, what they compile to, and what they refuse."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Embed, Mlp, Batch, Heads, HeadDim, Copy = nym.make_axes(embed=16, mlp=8, batch=8, heads=2, head_dim=4, copy=3)
KEY = jax.random.key(0)
INITIALIZERS = jax.nn.initializers


def equinox_linear(layer, x):
    weight = layer.weight.rearrange(("mlp", "embed"))
    equinox_layer = eqx.nn.Linear(Embed.size, Mlp.size, use_bias=layer.bias is not None, key=KEY)
    equinox_layer = eqx.tree_at(lambda layer: layer.weight, equinox_layer, weight.array)
    if layer.bias is not None:
        equinox_layer = eqx.tree_at(lambda layer: layer.bias, equinox_layer, layer.bias.array)
    return nym.named(jax.vmap(equinox_layer)(x.array), ("batch", "mlp"))


@pytest.mark.parametrize(("use_bias", "out_first"), [(True, True), (False, False)])
def test_linear_is_that_of_equinox(check, draw, use_bias, out_first):
    layer = draw.layer(nym.nn.Linear.init, Embed, Mlp, use_bias=use_bias, out_first=out_first)
    assert layer.weight.names == (("mlp", "embed") if out_first else ("embed", "mlp"))
    check(lambda layer, x: layer(x), equinox_linear, layer, draw(Batch, Embed))


def test_several_axes_are_contracted_and_made_and_the_others_are_kept(check, draw):
    layer = draw.layer(nym.nn.Linear.init, (Heads, HeadDim), (Copy, Embed))
    x = draw(Heads, Batch, HeadDim, nym.Axis("pos", 3))

    def reference(layer, x):
        out = jnp.einsum("hbdp,cehd->bpce", x.array, layer.weight.array)
        return nym.named(out + layer.bias.array[None, None], ("batch", "pos", "copy", "embed"))

    check(lambda layer, x: layer(x), reference, layer, x)


def test_there_may_be_no_input_or_output_axes(draw):
    out = draw.layer(nym.nn.Linear.init, (), Mlp)
    x = draw(Batch)
    assert allclose(out(x).array, x.array[:, None] * out.weight.array[None] + out.bias.array[None], atol=1e-6)
    score = draw.layer(nym.nn.Linear.init, (Batch, Embed), ())
    y = draw(Embed, Batch)
    assert score(y).names == ()
    assert allclose(score(y).array, (y * score.weight).sum().array + score.bias.array, atol=1e-5)


def test_weights_are_scaled_by_the_number_of_inputs(getkey):
    key = getkey()
    layer = nym.nn.Linear.init((Heads, HeadDim), Mlp, key=key, init_scale=3.0)
    drawn = jax.random.truncated_normal(key, -3, 3, (8, 2, 4))
    assert allclose(layer.weight.array, drawn * 3 / 8**0.5)
    assert (layer.bias == 0).all()
    assert layer.In == (Heads, HeadDim) and layer.Out == (Mlp,)
    options = {"init_scale": nym.named([0.0, 1.0], "layers"), "initializer": INITIALIZERS.ones}
    stack = nym.nn.Stacked.init(nym.Axis("layers", 2), nym.nn.Linear)(Embed, Mlp, key=KEY, **options)
    assert stack.stacked.weight.sum((Embed, Mlp)).array.tolist() == [0, 128]


def test_element_types_are_those_of_a_product(draw):
    layer = draw.layer(nym.nn.Linear.init, Embed, Mlp)
    x = nym.ones((Batch, Embed), jnp.bfloat16)
    assert layer(x).dtype == jnp.float32
    low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), layer)
    assert low(x).dtype == jnp.bfloat16


@pytest.mark.parametrize("use_bias", [True, False])
def test_it_compiles_to_one_product_and_one_sum(draw, use_bias):
    layer = draw.layer(nym.nn.Linear.init, Embed, Mlp, use_bias=use_bias)
    program = str(jax.make_jaxpr(lambda layer, x: layer(x))(layer, draw(Batch, Embed)))
    steps = [step for step in re.findall(r" = (\w+)", program) if step != "jit"]
    assert steps == ["dot_general", *(["broadcast_in_dim", "add"] if use_bias else [])]


@pytest.mark.parametrize("out_first", [True, False])
def test_axes_are_merged_for_export_and_split_again(draw, out_first):
    layer = draw.layer(nym.nn.Linear.init, (Heads, HeadDim), (Copy, Embed), out_first=out_first)
    flat = layer.flatten_for_export()
    pair = {"__OUT__": 48, "__IN__": 8} if out_first else {"__IN__": 8, "__OUT__": 48}
    assert tuple(flat.weight.shape.items()) == tuple(pair.items()) and flat.bias.shape == {"__OUT__": 48}
    assert flat.out_first == layer.out_first == out_first
    x = draw(Heads, Batch, HeadDim)
    merged = flat(x.rearrange((Batch, Heads, HeadDim)).flatten_axes(("heads", "head_dim"), "__IN__"))
    assert allclose(merged.array, layer(x).flatten_axes(("copy", "embed"), "__OUT__").array, atol=1e-5)
    assert eqx.tree_equal(flat.unflatten_from_export(layer), layer)


def test_missing_axes_are_exported_as_axes_of_size_1(draw):
    for In, Out, shape in [((), Mlp, {"__IN__": 1, "mlp": 8}), (Mlp, (), {"__OUT__": 1, "mlp": 8})]:
        layer = draw.layer(nym.nn.Linear.init, In, Out)
        flat = layer.flatten_for_export()
        assert flat.weight.shape == shape and flat.bias.ndim == 1
        assert eqx.tree_equal(flat.unflatten_from_export(layer), layer)
    single = draw.layer(nym.nn.Linear.init, Embed, Mlp, use_bias=False)
    assert eqx.tree_equal(single.flatten_for_export(), single)


@pytest.mark.parametrize("init", [INITIALIZERS.he_normal(), INITIALIZERS.glorot_uniform(), INITIALIZERS.orthogonal()])
def test_values_are_those_of_merged_axes_in_any_order(init):
    expected = init(KEY, (16, 8), jnp.float32).reshape(16, 2, 4)
    weight = nym.nn.initialize_weight(init, KEY, Embed, (Heads, HeadDim))
    assert weight.names == ("heads", "head_dim", "embed")
    assert np.array_equal(weight.rearrange(("embed", "heads", "head_dim")).array, expected)
    target = nym.nn.initialize_weight(init, KEY, Embed, (Heads, HeadDim), (Heads, Embed, HeadDim))
    assert np.array_equal(target.rearrange(weight.names).array, weight.array)
    rounded = nym.nn.initialize_weight(init, KEY, Embed, (Heads, HeadDim), dtype=jnp.bfloat16)
    assert np.array_equal(rounded.array, weight.array.astype(jnp.bfloat16))


def test_layers_pass_their_axes_to_the_initializer():
    seen = []

    def init(key, shape, dtype):
        seen.append((shape, dtype))
        return jnp.ones(shape, dtype)

    make = functools.partial(nym.nn.Linear.init, (Heads, HeadDim), Embed, key=KEY)
    layer = make(initializer=init, bias_initializer=init, init_scale=0.5, dtype=jnp.bfloat16)
    assert (layer.weight == 0.5).all() and (layer.bias == 1).all()
    assert layer.weight.dtype == layer.bias.dtype == jnp.bfloat16
    assert sorted(seen) == [((8, 16), jnp.float32), ((16,), jnp.float32)]
    seen.clear()
    options = {"key": KEY, "initializer": init}
    biases = {"bias_initializer": init, "use_final_bias": False}
    eqx.filter_eval_shape(nym.nn.Embedding.init, Embed, (Heads, HeadDim), **options)
    eqx.filter_eval_shape(nym.nn.Conv.init, ("y", "x"), Embed, Heads, (3, 2), groups=2, use_bias=False, **options)
    eqx.filter_eval_shape(nym.nn.MLP.init, Embed, Heads, 32, 1, **options, **biases)
    assert [shape for shape, dtype in seen] == [(16, 8), (3, 2, 8, 2), (16, 32), (32,), (32, 2)]
    assert nym.nn.Linear.init((), Embed, key=KEY, initializer=init).weight.shape == {"embed": 16}


def test_windows_count_in_both_fans():
    axes = nym.make_axes(out=50, inputs=40, y=3, x=4)
    weight = nym.nn.initialize_weight(INITIALIZERS.lecun_normal(), KEY, axes[1], axes[0], axes)
    assert abs(np.var(weight.array) * 40 * 12 - 1) < 0.05
    fan_out = INITIALIZERS.variance_scaling(2.0, "fan_out", "normal")
    weight = nym.nn.initialize_weight(fan_out, KEY, axes[1], axes[0], axes)
    assert abs(np.var(weight.array) * 50 * 12 - 2) < 0.1


def test_weight_and_bias_have_keys_of_their_own():
    normal = INITIALIZERS.normal(1.0)
    layer = nym.nn.Linear.init((), Embed, key=KEY, initializer=normal, bias_initializer=normal)
    assert not np.isin(layer.weight.array, layer.bias.array).any()


def test_weights_are_sharded_as_they_are_drawn(mesh):
    Long, init = Embed.resize(64), INITIALIZERS.glorot_normal()
    with jax.set_mesh(None):
        expected = nym.nn.initialize_weight(init, KEY, Long, (Heads.resize(8), HeadDim))
    make = functools.partial(nym.nn.Linear.init, Long, (Heads.resize(8), HeadDim), initializer=init)
    with nym.axis_mapping({"heads": "data", "embed": "model"}):
        compiled = nym.named_jit(lambda key: make(key=key)).lower(KEY).compile()
        for layer in (make(key=KEY), compiled(KEY)):
            assert tuple(layer.weight.sharding.spec) == ("data", None, "model")
            assert tuple(layer.bias.sharding.spec)[:1] == ("data",)
            np.testing.assert_allclose(jax.device_get(layer.weight.array), expected.array, rtol=1e-5, atol=1e-7)
    text = compiled.as_text()
    assert "f32[64,32]" not in text and "all-gather" not in text  # each device draws its own shard


def test_errors_name_the_layer_and_the_axes(draw):
    layer = draw.layer(nym.nn.Linear.init, Embed, Mlp)
    with refusal("Linear (embed: 16 -> mlp: 8): no axis 'embed' in (batch: 8, embde: 16); did you mean 'embde'?"):
        layer(nym.ones({"batch": 8, "embde": 16}))
    with refusal("Linear (embed: 16 -> mlp: 8): axis 'embed' has size 4 here, 16 was asked for"):
        layer(nym.ones({"embed": 4}))
    with refusal("the input (embed: 16, mlp: 3) has the output axis 'mlp' already; `rename` it"):
        layer(nym.ones({"embed": 16, "mlp": 3}))
    with refusal("Linear (embed: 16 -> mlp: 8): the input must be a named array, not ", TypeError):
        layer(jnp.ones((8, 16)))
    with refusal("Linear (embed: 16 -> embed: 16): axis 'embed' is both input and output"):
        nym.nn.Linear.init(Embed, Embed, key=KEY)
    with refusal("A new axis needs a size: give `Axis('embed', size)`", TypeError):
        nym.nn.Linear.init("embed", Mlp, key=KEY)


def test_errors_name_the_initializer():
    with refusal("The initializer `he_normal` returned a function; call it first: `he_normal()`.", TypeError):
        nym.nn.Linear.init(Embed, Heads, key=KEY, initializer=INITIALIZERS.he_normal)
    with refusal("An initializer is a function of a key, a shape and a dtype, such as", TypeError):
        nym.nn.Linear.init(Embed, Heads, key=KEY, initializer=0.02)
    with refusal("The initializer `<lambda>` returned shape (), (16, 2) was asked for.", TypeError):
        nym.nn.Linear.init(Embed, Heads, key=KEY, initializer=lambda key, shape, dtype: 0.0)
    with refusal("the axes (embed: 16) of a weight lack its axis heads: 2"):
        nym.nn.initialize_weight(INITIALIZERS.ones, KEY, Embed, Heads, Embed)
    with refusal("`init_scale` must be a number, not '0.02'.", TypeError):
        nym.nn.Linear.init(Embed, Mlp, key=KEY, init_scale="0.02")
    with refusal("`dtype` must be an element type such as `jnp.float32` or 'bfloat16', not 'fp8'.", TypeError):
        nym.nn.Linear.init(Embed, Mlp, key=KEY, dtype="fp8")

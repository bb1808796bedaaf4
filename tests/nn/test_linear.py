"""Linear layers: parity with Equinox, what they compile to, and what they refuse."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Embed, Mlp, Batch, Heads, HeadDim, Copy = nym.make_axes(embed=16, mlp=8, batch=8, heads=2, head_dim=4, copy=3)
KEY = jax.random.key(0)


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


def test_it_is_sharded_as_it_is_made(mesh, getkey):
    with nym.axis_mapping({"mlp": "model", "embed": "data"}):
        layer = nym.nn.Linear.init(Embed, Mlp, key=getkey())
    assert tuple(layer.weight.sharding.spec) == ("model", "data")
    assert tuple(layer.bias.sharding.spec) == ("model",)


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


def test_axes_of_stacked_layers_stay_in_front_in_an_export(getkey):
    stack = nym.nn.Stacked.init(nym.Axis("layers", 2), nym.nn.Linear)((Heads, HeadDim), (Copy, Embed), key=getkey())
    flat = stack.stacked.flatten_for_export()
    assert flat.weight.names == ("layers", "__OUT__", "__IN__") and flat.bias.names == ("layers", "__OUT__")
    assert eqx.tree_equal(flat.unflatten_from_export(stack.stacked), stack.stacked)

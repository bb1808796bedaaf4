"""muP: the formulas of table 8, the learning rates as a tree for Optax, and the coordinate check."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Batch, Pos, Vocab = nym.make_axes(batch=8, pos=2, vocab=6)
Embed, Mlp, Heads, Label = nym.make_axes(embed=256, mlp=64, heads=4, label=6)
KEY = jax.random.key(0)


@pytest.mark.parametrize("base_width", [1, 64])
def test_variances_and_multipliers_are_those_of_table_8(base_width):
    inputs = nym.nn.InputLinear.init(Embed, Mlp, key=KEY)
    hidden = nym.nn.HiddenLinear.init(Embed, Mlp, key=KEY, base_width=base_width)
    output = nym.nn.OutputLinear.init(Embed, Mlp, key=KEY, base_width=base_width)
    table = nym.nn.MupEmbedding.init(Mlp, Embed, key=KEY, base_width=base_width)
    for layer, variance in ((inputs, 1 / 256), (hidden, 1 / 256), (output, 1 / base_width), (table, 1)):
        assert nym.var(layer.weight).item() == pytest.approx(variance, rel=0.05)
    assert output.multiplier == table.multiplier == base_width / 256
    assert nym.nn.mup_learning_rates(hidden).weight == base_width / 256
    assert {nym.nn.mup_learning_rates(layer).weight for layer in (inputs, output, table)} == {1.0}


def test_the_output_is_scaled_and_its_bias_is_not(check, draw):
    layer = draw.layer(nym.nn.OutputLinear.init, Embed.resize(8), Mlp.resize(4), base_width=2)

    def reference(layer, x):
        product = jnp.einsum("bpe,me->bpm", x.array * 0.25, layer.weight.array)
        return nym.named(product + layer.bias.array[None, None], ("batch", "pos", "mlp"))

    x = draw(Batch, Pos, Embed.resize(8))
    check(lambda layer, x: layer(x), reference, layer, x)
    low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (layer, x))
    assert jax.eval_shape(lambda layer, x: layer(x), *low).dtype == jnp.bfloat16


def test_scores_of_the_embedding_are_scaled_on_each_mesh(mesh, draw):
    layer = draw.layer(nym.nn.MupEmbedding.init, Vocab, Embed, base_width=64)
    x = draw(Batch, Embed)
    with nym.axis_mapping({"batch": "data", "vocab": "model"}):
        result = nym.named_jit(lambda layer, x: layer.unembed(x))(layer, x)
    assert tuple(result.sharding.spec) == ("data", "model")
    assert allclose(result.array, x.array @ layer.weight.array.T / 4, rtol=1e-4, atol=1e-4)


class Block(eqx.Module):
    up: nym.nn.HiddenLinear
    norm: nym.nn.RmsNorm
    scale: jax.Array
    name: str

    @staticmethod
    def init(key):
        up = nym.nn.HiddenLinear.init(Embed, Mlp, key=key, base_width=32, use_bias=False)
        return Block(up, nym.nn.RmsNorm.init(Embed), jnp.ones(2), "block")


def test_learning_rates_are_a_tree_of_factors_for_each_array():
    Layers = nym.Axis("layers", 3)
    model = {"blocks": nym.nn.Stacked.init(Layers, Block)(key=jax.random.split(KEY, 3)), "step": 0}
    for tree in (model, eqx.filter_eval_shape(lambda: model)):
        factors = nym.nn.mup_learning_rates(tree)
        block = factors["blocks"].stacked
        assert (block.up.weight, block.up.bias, block.norm.weight, block.scale) == (1 / 8, None, 1.0, 1.0)
        assert block.name is None and factors["step"] is None
    assert nym.nn.mup_learning_rates(nym.ones(Embed)) == 1.0
    assert nym.nn.mup_learning_rates(None) is None


def test_layers_take_the_options_of_the_layers_they_extend():
    options = {"key": KEY, "dtype": jnp.bfloat16, "initializer": jax.nn.initializers.ones}
    for kind in (nym.nn.InputLinear, nym.nn.HiddenLinear, nym.nn.MupEmbedding):
        layer = kind.init(Label, Mlp, **options)
        assert layer.weight.dtype == jnp.bfloat16 and (layer.weight == 1).all()
    options |= {"use_bias": False, "out_first": False, "init_scale": 0.0, "dot_general": jax.lax.dot_general}
    layer = nym.nn.OutputLinear.init(Embed, (Heads, Label), **options)
    assert isinstance(layer, nym.nn.Linear) and layer.bias is None and layer.weight.names == ("embed", "heads", "label")
    assert layer.dot_general is not None and not layer.weight.array.any()
    changed = dataclasses.replace(layer, base_width=2)
    assert type(changed) is nym.nn.OutputLinear and changed.multiplier == 2 / 256


def test_errors_name_the_layer_and_the_base_width():
    for kind in (nym.nn.HiddenLinear, nym.nn.OutputLinear, nym.nn.MupEmbedding):
        with refusal(f"{kind.__name__}: `base_width` must be at least 1, not 0"):
            kind.init(Mlp, Embed, key=KEY, base_width=0)
    with refusal("HiddenLinear: `base_width` must be an integer, not 2.5.", TypeError):
        nym.nn.HiddenLinear.init(Mlp, Embed, key=KEY, base_width=2.5)
    with refusal("Axes and keys are arguments of `HiddenLinear.init", TypeError):
        nym.nn.HiddenLinear(Embed, Mlp, key=KEY)

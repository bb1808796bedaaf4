"""Multi-layer perceptrons: parity with Equinox, the names of the axes between layers, and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


Embed, Label, Batch = nym.make_axes(embed=8, label=3, batch=8)


@pytest.mark.parametrize(("depth", "own", "theirs"), [(2, nym.tanh, jnp.tanh), (0, nym.nn.relu, jax.nn.relu)])
def test_it_is_that_of_equinox(check, draw, depth, own, theirs):
    def find_parameters(layer):
        return [parameter for linear in layer.layers for parameter in (linear.weight, linear.bias)]

    def reference(layer, x):
        parameters = [parameter.array for parameter in find_parameters(layer)]
        equinox_layer = eqx.nn.MLP(8, 3, 6, depth, theirs, key=jax.random.key(0))
        equinox_layer = eqx.tree_at(find_parameters, equinox_layer, parameters)
        return nym.named(jax.vmap(equinox_layer)(x.array), ("batch", "label"))

    layer = draw.layer(nym.nn.MLP.init, Embed, Label, 6, depth, own)
    check(lambda layer, x: layer(x), reference, layer, draw(Batch, Embed))


def names_between(layer):
    return [linear.Out for linear in layer.layers[:-1]]


def test_hidden_axes_take_turns(draw):
    layer = draw.layer(nym.nn.MLP.init, Embed, Label, 6, 3)
    assert names_between(layer) == [nym.make_axes(mlp=6), nym.make_axes(mlp2=6), nym.make_axes(mlp=6)]
    layer = draw.layer(nym.nn.MLP.init, Embed, Label, nym.Axis("hidden", 6), 2)
    assert names_between(layer) == [nym.make_axes(hidden=6), nym.make_axes(hidden2=6)]
    assert names_between(draw.layer(nym.nn.MLP.init, Embed, Label, np.int64(6), 1)) == [nym.make_axes(mlp=6)]


def test_options_reach_the_layers(getkey, draw):
    layer = nym.nn.MLP.init(
        Embed, Label, 6, 1, key=getkey(), use_bias=False, use_final_bias=True, out_first=False, init_scale=0.0
    )
    first, last = layer.layers
    assert first.bias is None and last.bias.shape == {"label": 3}
    assert first.weight.names == ("embed", "mlp") and (first.weight == 0).all()
    layer = draw.layer(nym.nn.MLP.init, (Embed, Batch), (Label, Batch.alias("other")), 6, 1, use_final_bias=False)
    assert layer.layers[-1].bias is None and layer.In == (Embed, Batch) and layer.Out == (Label, Batch.alias("other"))
    assert layer(draw(Batch, Embed)).shape == {"label": 3, "other": 8}


def test_every_layer_has_a_key_of_its_own(getkey):
    key, square = getkey(), nym.Axis("mlp2", 6)
    for given in (key, nym.named(key, ())):
        layer = nym.nn.MLP.init(square, square.alias("mlp3"), 6, 1, key=given)
        first, second = jax.random.split(key, 2)
        assert eqx.tree_equal(layer.layers[0], nym.nn.Linear.init(square, square.alias("mlp"), key=first))
        last = nym.nn.Linear.init(square.alias("mlp"), square.alias("mlp3"), key=second)
        assert eqx.tree_equal(layer.layers[1], last)


def test_errors_name_the_layer_and_the_axes():
    with refusal("MLP: `depth` must be at least 0, not -1"):
        nym.nn.MLP.init(Embed, Label, 6, -1, key=jax.random.key(0))
    with refusal("MLP: `width` must be at least 1, not 0"):
        nym.nn.MLP.init(Embed, Label, 0, 1, key=jax.random.key(0))
    with refusal("MLP: `activation` must be a function such as `axonym.nn.relu`, not 'relu'.", TypeError):
        nym.nn.MLP.init(Embed, Label, 8, 1, "relu", key=jax.random.key(0))

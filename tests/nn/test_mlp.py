"""Multi-layer perceptrons: parity with Equinox, the names of the axes between layers, and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


Embed, Label, Batch = nym.make_axes(embed=8, label=3, batch=8)


def reference(depth, activation):
    def computed(layer, x):
        equinox_layer = eqx.nn.MLP(8, 3, 6, depth, activation, key=jax.random.key(0))
        equinox_layer = eqx.tree_at(
            lambda layer: [linear.weight for linear in layer.layers], equinox_layer, weights(layer)
        )
        equinox_layer = eqx.tree_at(
            lambda layer: [linear.bias for linear in layer.layers], equinox_layer, biases(layer)
        )
        return nym.named(jax.vmap(equinox_layer)(x.array), ("batch", "label"))

    return computed


def weights(layer):
    return [linear.weight.array for linear in layer.layers]


def biases(layer):
    return [linear.bias.array for linear in layer.layers]


@pytest.mark.parametrize(("depth", "own", "theirs"), [(2, nym.tanh, jnp.tanh), (0, nym.nn.relu, jax.nn.relu)])
def test_it_is_that_of_equinox(check, draw, depth, own, theirs):
    layer = draw.layer(nym.nn.MLP.init, Embed, Label, 6, depth, own)
    check(lambda layer, x: layer(x), reference(depth, theirs), layer, draw(Batch, Embed))


def names_between(layer):
    return [linear.Out for linear in layer.layers[:-1]]


def test_hidden_axes_take_turns(draw):
    layer = draw.layer(nym.nn.MLP.init, Embed, Label, 6, 3)
    assert names_between(layer) == [nym.make_axes(mlp=6), nym.make_axes(mlp2=6), nym.make_axes(mlp=6)]
    layer = draw.layer(nym.nn.MLP.init, Embed, Label, nym.Axis("hidden", 6), 2)
    assert names_between(layer) == [nym.make_axes(hidden=6), nym.make_axes(hidden2=6)]
    assert names_between(draw.layer(nym.nn.MLP.init, Embed, Label, np.int64(6), 1)) == [nym.make_axes(mlp=6)]


def test_input_and_output_axes_are_those_of_the_first_and_the_last_layer(draw):
    layer = draw.layer(nym.nn.MLP.init, (Embed, Batch), Label, 6, 1)
    assert layer.In == (Embed, Batch) and layer.Out == (Label,)


def test_relu_comes_between_unless_told_otherwise(draw):
    layer = draw.layer(nym.nn.MLP.init, Embed, Label, 6, 1)
    first, last = layer.layers
    x = draw(Batch, Embed)
    assert np.array_equal(layer(x).array, last(nym.nn.relu(first(x))).array)


def test_options_reach_the_layers(getkey, draw):
    layer = nym.nn.MLP.init(
        Embed, Label, 6, 1, key=getkey(), use_bias=False, use_final_bias=True, out_first=False, init_scale=0.0
    )
    first, last = layer.layers
    assert first.bias is None and last.bias.shape == {"label": 3}
    assert first.weight.names == ("embed", "mlp") and (first.weight == 0).all()
    layer = draw.layer(nym.nn.MLP.init, (Embed, Batch), (Label, Batch.alias("other")), 6, 1, use_final_bias=False)
    assert layer.layers[-1].bias is None
    assert layer(draw(Batch, Embed)).shape == {"label": 3, "other": 8}


def test_every_layer_has_a_key_of_its_own(getkey):
    key, square = getkey(), nym.Axis("mlp2", 6)
    for one in (key, nym.named(key, ())):
        layer = nym.nn.MLP.init(square, square.alias("mlp3"), 6, 1, key=one)
        keys = jax.random.split(key, 2)
        expected = [
            nym.nn.Linear.init(square, square.alias("mlp"), key=keys[0]),
            nym.nn.Linear.init(square.alias("mlp"), square.alias("mlp3"), key=keys[1]),
        ]
        assert eqx.tree_equal(layer.layers, tuple(expected))


def test_errors_name_the_layer_and_the_axes(draw):
    layer = draw.layer(nym.nn.MLP.init, Embed, Label, 6, 1)
    with refusal("Linear (embed: 8 -> mlp: 6): no axis 'embed' in (embde: 8); did you mean 'embde'?"):
        layer(nym.ones({"embde": 8}))
    with refusal("MLP: `depth` must be at least 0, not -1"):
        nym.nn.MLP.init(Embed, Label, 6, -1, key=jax.random.key(0))
    with refusal("Linear (mlp: 8 -> mlp: 6): axis 'mlp' is both input and output; give one of them another name"):
        nym.nn.MLP.init(nym.Axis("mlp", 8), Label, 6, 1, key=jax.random.key(0))
    with refusal("MLP: `width` must be an integer, not 6.5", TypeError):
        nym.nn.MLP.init(Embed, Label, 6.5, 1, key=jax.random.key(0))

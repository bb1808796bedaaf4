"""Dropout: the layer of Equinox for the same key, decisions shared along axes, and when nothing is dropped."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


Batch, Embed = nym.make_axes(batch=8, embed=64)
KEY = jax.random.key(0)
x = nym.ones((Batch, Embed))


def test_it_is_that_of_equinox(check, draw, getkey):
    key = getkey()
    layer, equinox_layer = nym.nn.Dropout(0.25), eqx.nn.Dropout(0.25)

    def reference(_, x):
        return nym.named(equinox_layer(x.array, key=key), x.names)

    check(lambda _, x: layer(x, key=key), reference, None, draw(Batch, Embed))


def test_as_many_are_dropped_as_asked_and_the_mean_stays(getkey):
    dropped = nym.nn.Dropout(0.2)(nym.ones({"i": 20000}), key=getkey())
    assert abs(float((dropped == 0).mean()) - 0.2) < 0.02
    assert abs(float(dropped.mean()) - 1) < 0.03
    assert float(dropped.max()) == 1.25


@pytest.mark.parametrize("axes", ["embed", ["embed"], Embed, {"embed": None}])
def test_elements_along_shared_axes_have_the_same_fate(axes):
    layer = nym.nn.Dropout(0.5, axes)
    result = jax.jit(lambda layer, x: nym.nn.Dropout(0.5, layer.broadcast_axes)(x, key=KEY))(layer, x)
    kept = jax.random.bernoulli(KEY, 0.5, (8,))
    assert np.array_equal(result.array, jnp.where(kept, 2.0, 0.0)[:, None] * jnp.ones((1, 64)))


def test_nothing_is_dropped_where_nothing_should_be():
    layer = nym.nn.Dropout(0.5)
    assert layer(x, inference=True) is x
    assert nym.nn.Dropout(0.5, inference=True)(x) is x
    assert nym.nn.Dropout(0.0)(x) is x
    off = eqx.nn.inference_mode(layer)
    assert off.inference and off(x) is x
    assert (off(x, inference=False, key=KEY) == 0).any()
    assert not eqx.nn.inference_mode(off, False).inference


def test_everything_is_dropped_and_gradients_are_zero():
    layer = nym.nn.Dropout(1)
    assert (layer(x, key=KEY) == 0).all()
    assert (jax.grad(lambda x: layer(x, key=KEY).sum().scalar())(x) == 0).all()


def test_the_probability_is_static():
    layer = nym.nn.Dropout(0.25)
    assert jax.tree.leaves(eqx.filter(layer, lambda leaf: not isinstance(leaf, bool))) == []
    assert jax.tree.map(lambda leaf: leaf, layer).pdrop == 0.25
    traces = []
    run = nym.named_jit(lambda layer, x: traces.append(1) or layer(x, key=KEY))
    for pdrop in (0.25, 0.25, 0.5):
        assert np.array_equal(run(nym.nn.Dropout(pdrop), x).array, nym.nn.Dropout(pdrop)(x, key=KEY).array)
    assert len(traces) == 2
    for run in (jax.jit(nym.nn.Dropout), nym.nn.Dropout):
        with refusal("`pdrop` is a static Python number, not a JAX array", TypeError):
            run(jnp.float32(0.25))


class Block(eqx.Module):
    linear: nym.nn.Linear
    dropout: nym.nn.Dropout

    @staticmethod
    def init(Embed, *, key):
        return Block(nym.nn.Linear.init(Embed, Embed.alias("out"), key=key), nym.nn.Dropout(0.25))

    def __call__(self, x, *, key):
        return self.dropout(self.linear(x).rename({"out": "embed"}), key=key)


def test_stacked_layers_with_dropout_train(mesh):
    Layers = nym.Axis("layers", 3)
    stacked = nym.nn.Stacked.init(Layers, Block)(Embed, key=jax.random.split(KEY, 3))
    assert stacked.stacked.dropout.pdrop == 0.25
    keys = jax.random.split(jax.random.key(1), 3)

    @eqx.filter_jit
    @eqx.filter_grad
    def differentiate(stacked):
        return (stacked.fold(x, key=keys) ** 2).sum().scalar()

    gradient = jax.tree.leaves(differentiate(stacked))
    assert len(gradient) == 2 and all(jnp.isfinite(one).all() and (one != 0).any() for one in gradient)


def test_low_precision_is_kept():
    assert nym.nn.Dropout(0.3)(x.astype(jnp.bfloat16), key=KEY).dtype == jnp.bfloat16


def test_errors_say_what_is_missing():
    with refusal("`Dropout` needs a `key` when it drops elements; give one, or set `inference=True`"):
        nym.nn.Dropout(0.5)(x)
    with refusal("Dropout: no axis 'embde' in (batch: 8, embed: 64); did you mean 'embed'?"):
        nym.nn.Dropout(0.5, "embde")(x, key=KEY)
    with refusal("Dropout: no axis 'embde'"):
        nym.nn.Dropout(0.5, "embde")(x, inference=True)
    with refusal("Dropout: the input must be a named array, not ", TypeError):
        nym.nn.Dropout(0.5)(x.array, key=KEY)


@pytest.mark.parametrize("pdrop", [-0.1, 1.5, 2, float("nan")])
def test_a_probability_lies_between_0_and_1(pdrop):
    with refusal(f"Dropout: `pdrop` must be at least 0 and at most 1, not {pdrop}"):
        nym.nn.Dropout(pdrop)

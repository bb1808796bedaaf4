"""Dropout: the layer of Equinox for the same key, decisions shared along axes, and when nothing is dropped."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym

from ..refusals import refusal


Batch, Embed = nym.make_axes(batch=8, embed=64)
KEY = jax.random.key(0)
X = nym.named(np.ones((8, 64), np.float32), (Batch, Embed))


def test_it_is_that_of_equinox(check, draw, getkey):
    key = getkey()
    layer, equinox_layer = nym.nn.Dropout(0.25), eqx.nn.Dropout(0.25)
    reference = lambda _, x: nym.named(equinox_layer(x.array, key=key), x.names)  # noqa: E731
    check(lambda _, x: layer(x, key=key), reference, None, draw(Batch, Embed))


def test_elements_along_shared_axes_have_the_same_fate():
    layers = [nym.nn.Dropout(0.5, axes) for axes in ("embed", ["embed"], Embed, {"embed": None})]
    kept = np.asarray(jax.random.bernoulli(KEY, 0.5, (8,)))
    for result in jax.jit(lambda x: [layer(x, key=KEY) for layer in layers])(X):
        assert np.array_equal(result.array, np.tile(np.where(kept, 2, 0)[:, None], 64))


def test_nothing_is_dropped_where_nothing_should_be():
    layer = nym.nn.Dropout(0.5)
    assert layer(X, inference=True) is X
    assert nym.nn.Dropout(0.5, inference=True)(X) is X
    assert nym.nn.Dropout(0.0)(X) is X
    off = eqx.nn.inference_mode(layer)
    assert off.inference and off(X) is X
    assert (off(X, inference=False, key=KEY) == 0).any()
    assert not eqx.nn.inference_mode(off, False).inference
    assert jax.eval_shape(lambda x: layer(x, key=KEY), X.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_everything_is_dropped_and_gradients_are_zero():
    layer = nym.nn.Dropout(1)
    assert (layer(X, key=KEY) == 0).all()
    assert (jax.grad(lambda x: layer(x, key=KEY).sum().scalar())(X) == 0).all()


def test_the_probability_is_static():
    layer = nym.nn.Dropout(np.float64(0.25))
    assert jax.tree.leaves(eqx.filter(layer, lambda leaf: not isinstance(leaf, bool))) == []
    assert jax.tree.map(lambda leaf: leaf, layer).pdrop == 0.25
    traces = []
    run = nym.named_jit(lambda layer, x: traces.append(1) or layer(x, key=KEY))
    for pdrop in (0.25, 0.25, 0.5):
        assert np.array_equal(run(nym.nn.Dropout(pdrop), X).array, nym.nn.Dropout(pdrop)(X, key=KEY).array)
    assert len(traces) == 2
    for run in (jax.jit(nym.nn.Dropout), nym.nn.Dropout):
        with refusal("`pdrop` is a static Python number, not a JAX array", TypeError):
            run(jnp.float32(0.25))


def test_errors_say_what_is_missing():
    with refusal("`Dropout` needs a `key` when it drops elements; give one, or set `inference=True`"):
        nym.nn.Dropout(0.5)(X)
    with refusal("Dropout: no axis 'embde' in (batch: 8, embed: 64); did you mean 'embed'?"):
        nym.nn.Dropout(0.5, "embde")(X, inference=True)
    with refusal("Dropout: `pdrop` must be a number, not '0.5'.", TypeError):
        nym.nn.Dropout("0.5")
    with refusal("Dropout: `pdrop` must be at least 0 and at most 1, not nan"):
        nym.nn.Dropout(float("nan"))

"""Layers are Equinox modules and trees of named arrays: what Equinox, JAX and Optax do to such, they do to these."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as nym

from ..refusals import refusal
from .conftest import COMPUTE, PARAMETERS, assert_leaves_close, keyless


Embed, Mlp, Vocab, Layers, Batch = nym.make_axes(embed=8, mlp=6, vocab=10, layers=2, batch=8)


class Block(eqx.Module):
    norm: nym.nn.LayerNorm
    mlp: nym.nn.MLP
    dropout: nym.nn.Dropout

    @staticmethod
    def init(*, key):
        mlp = nym.nn.MLP.init(Embed, Embed, Mlp, 1, key=key)
        return Block(nym.nn.LayerNorm.init(Embed), mlp, nym.nn.Dropout(0.5, ["embed"]))

    def __call__(self, x, *, key=None):
        return x + self.dropout(self.mlp(self.norm(x)), key=key)


class Model(eqx.Module):
    embedding: nym.nn.Embedding
    blocks: nym.nn.Stacked[Block]

    @staticmethod
    def init(*, key):
        embedding = nym.nn.Embedding.init(Vocab, Embed, key=key)
        return Model(embedding, nym.nn.Stacked.init(Layers, Block)(key=key))

    def __call__(self, ids, *, key=None):
        keys = None if key is None else nym.random.split(key, Layers)
        blocks = self.blocks.fold_via(lambda block, x, key: block(x, key=key))
        return self.embedding.unembed(blocks(self.embedding(ids), keys))


ids = nym.named(np.arange(8) % 10, Batch)


@pytest.fixture
def model(draw):
    return draw.layer(Model.init)


def loss(model, key):
    return nym.nn.cross_entropy_loss(model(ids, key=key), Vocab, ids).scalar()


def test_dropout_anywhere_is_switched_off_for_inference(model):
    with refusal("`Dropout` needs a `key`"):
        jax.eval_shape(model, ids)
    off = eqx.nn.inference_mode(model)
    assert jax.eval_shape(off, ids).shape == {"batch": 8, "vocab": 10}
    assert off.blocks.stacked.dropout.inference and off.blocks.get_layer(0).dropout.inference


def test_an_optimizer_learns_keeps_the_names_and_is_the_same_on_every_mesh(auto_mesh, explicit_mesh, model):
    optimizer = optax.adamw(3e-2)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    def step(model, state, key):
        value, gradients = eqx.filter_value_and_grad(loss)(model, key)
        updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, value

    key, run = jax.random.key(7), nym.named_jit(step)
    expected = run(model, state, key)
    for mesh in (auto_mesh, explicit_mesh):
        with jax.set_mesh(mesh):
            result = nym.fsdp(step, PARAMETERS, COMPUTE)(model, state, key)
        weight = result[1][0].mu.blocks.stacked.mlp.layers[0].weight
        assert weight.names == ("layers", "mlp", "embed") and tuple(weight.sharding.spec) == (None, "model", "data")
        assert_leaves_close(result, expected, 1e-4)
    first_value = expected[2]
    for key in jax.random.split(jax.random.key(0), 9):
        model, state, value = run(model, state, key)
    assert value < 0.7 * first_value
    assert state[0].nu.embedding.weight.names == ("vocab", "embed")


def test_a_parameter_is_gathered_before_it_is_used(mesh, draw):
    cases = [
        (draw.layer(nym.nn.Linear.init, Embed, Mlp), lambda layer, x: layer(x)),
        (draw.layer(keyless(nym.nn.RmsNorm.init), Embed), lambda layer, x: layer(x)),
        (draw.layer(keyless(nym.nn.LayerNorm.init), Embed), lambda layer, x: layer(x)),
        (draw.layer(nym.nn.Embedding.init, Vocab, Embed), lambda layer, x: layer.unembed(x)),
        (draw.layer(nym.nn.Embedding.init, Vocab, Embed), lambda layer, x: layer(nym.zeros_like(x.sum("embed"), int))),
    ]
    with nym.axis_mapping(COMPUTE):
        for layer, call in cases:
            program = str(jax.make_jaxpr(call)(nym.shard(layer, PARAMETERS), nym.shard(draw(Batch, Embed))))
            shape = ",".join(rf"{size}(@\w+)?" for size in layer.weight.array.shape)
            assert re.search(rf":f32\[{shape}\] = (sharding_constraint|reshard)\b", program)


def test_values_and_gradients_in_bfloat16_are_close_to_those_in_float32(explicit_mesh, draw):
    nn, Height = nym.nn, nym.Axis("height", 4)
    layers = {
        "linear": draw.layer(nn.Linear.init, Embed, Mlp),
        "conv": draw.layer(nn.Conv.init, "height", Embed, Mlp, 3, padding="SAME"),
        "transposed": draw.layer(nn.ConvTranspose.init, "height", Embed, Mlp, 2, stride=2),
        "layer": draw.layer(keyless(nn.LayerNorm.init), (Embed, Height)),
        "group": draw.layer(keyless(nn.GroupNorm.init), Embed, 2, "height"),
        "pool": lambda x: nn.max_pool({"height": 2}, x) + nn.mean_pool({"height": 2}, x),
        "gate": lambda x: nn.swiglu(nn.standardize(x, "height", epsilon=0.1), "embed"),
    }

    def compute(layers, x):
        def loss(differentiated):
            layers, x = eqx.combine(differentiated, static)
            outs = {name: layer(x) for name, layer in layers.items()}
            return sum(nym.sin(out.astype(jnp.float32)).mean().scalar() for out in outs.values()), outs

        differentiated, static = eqx.partition((layers, x), eqx.is_inexact_array)
        return jax.grad(loss, has_aux=True)(differentiated)

    cast = lambda tree, dtype: jax.tree.map(lambda x: x.astype(dtype) if eqx.is_array(x) else x, tree)  # noqa: E731
    low = cast((layers, draw(Batch, Height, Embed)), jnp.bfloat16)
    expected = jax.device_get(jax.tree.leaves(nym.named_jit(compute)(*cast(low, jnp.float32))))
    with jax.set_mesh(explicit_mesh):
        results = jax.tree.leaves(nym.named_jit(compute, COMPUTE)(*nym.shard(low, COMPUTE)))
    for result, target in zip(results, expected, strict=True):
        assert result.dtype == jnp.bfloat16
        scale = 0.02 * max(1e-3, float(np.abs(target).max()))
        np.testing.assert_allclose(jax.device_get(result).astype(np.float32), target, rtol=0.1, atol=2 * scale)

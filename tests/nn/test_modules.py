"""Layers are Equinox modules and trees of named arrays: what Equinox, JAX and Optax do to such, they do to these."""

import io

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import axonym as nym

from ..comparing import allclose


Embed, Mlp, Vocab, Layers, Batch = nym.make_axes(embed=8, mlp=6, vocab=10, layers=2, batch=8)


class Block(eqx.Module):
    norm: nym.nn.LayerNorm
    mlp: nym.nn.MLP
    dropout: nym.nn.Dropout

    @staticmethod
    def init(*, key):
        return Block(
            nym.nn.LayerNorm.init(Embed), nym.nn.MLP.init(Embed, Embed, Mlp, 1, key=key), nym.nn.Dropout(0.5, ["embed"])
        )

    def __call__(self, x, *, key=None):
        return x + self.dropout(self.mlp(self.norm(x)), key=key)


class Model(eqx.Module):
    embedding: nym.nn.Embedding
    blocks: nym.nn.Stacked[Block]

    @staticmethod
    def init(*, key):
        k_embedding, k_blocks = jax.random.split(key)
        embedding = nym.nn.Embedding.init(Vocab, Embed, key=k_embedding)
        return Model(embedding, nym.nn.Stacked.init(Layers, Block)(key=k_blocks))

    def __call__(self, ids, *, key=None):
        keys = None if key is None else nym.random.split(key, Layers)
        blocks = self.blocks.fold_via(lambda block, x, key: block(x, key=key))
        return self.embedding.unembed(blocks(self.embedding(ids), keys))


ids = nym.named(jnp.arange(8) % 10, Batch)


@pytest.fixture
def model(draw):
    return draw.layer(Model.init)


def loss(model, key):
    return nym.nn.cross_entropy_loss(model(ids, key=key), Vocab, ids).scalar()


def test_a_module_can_be_taken_apart_and_put_together(model):
    arrays, static = eqx.partition(model, eqx.is_array)
    assert len(jax.tree.leaves(arrays)) == 7
    assert jax.tree.leaves(static) == [False]
    assert eqx.tree_equal(eqx.combine(arrays, static), model)


def test_a_parameter_can_be_replaced(model):
    weight = model.embedding.weight
    result = eqx.tree_at(lambda layer: layer.embedding.weight, model, 2 * weight)
    assert (result.embedding.weight == 2 * weight).all()
    result = eqx.tree_at(lambda layer: layer.embedding.weight.array, model, 2 * weight.array)
    assert (result.embedding.weight == 2 * weight).all()
    assert result.embedding.weight.names == ("vocab", "embed")


def test_parameters_survive_a_file(model):
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, model)
    file.seek(0)
    empty = eqx.filter_eval_shape(lambda: Model.init(key=jax.random.key(1)))
    assert eqx.tree_equal(eqx.tree_deserialise_leaves(file, empty), model)


def test_dropout_anywhere_is_switched_off_for_inference(model):
    with pytest.raises(ValueError, match="`Dropout` needs a `key`"):
        model(ids)
    off = eqx.nn.inference_mode(model)
    assert off(ids).shape == {"batch": 8, "vocab": 10}
    assert off.blocks.stacked.dropout.inference and off.blocks.get_layer(0).dropout.inference


def test_leaves_have_names_in_their_paths(model):
    low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if eqx.is_array(leaf) else leaf, model)
    assert low.blocks.stacked.mlp.layers[0].weight.dtype == jnp.bfloat16
    assert low.blocks.stacked.mlp.layers[0].weight.names == ("layers", "mlp", "embed")
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(model)]
    assert ".blocks.stacked.norm.weight.array" in paths


def test_a_layer_can_be_mapped_over_an_axis(mesh, draw):
    layer, x = draw.layer(nym.nn.Linear.init, Embed, Mlp), draw(Batch, Embed)
    with nym.axis_mapping({"batch": "data", "mlp": "model"}):
        result = nym.named_jit(lambda layer, x: nym.vmap(layer, "batch")(x))(layer, nym.shard(x))
    assert result.names == ("batch", "mlp") and tuple(result.sharding.spec) == ("data", "model")
    with jax.set_mesh(None):
        expected = layer(x)
    assert allclose(jax.device_get(result.array), expected.array, atol=1e-5)


def test_an_optimizer_keeps_the_names_and_learns(model):
    optimizer = optax.adamw(3e-2)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    moments = state[0].mu
    assert moments.blocks.stacked.mlp.layers[0].weight.shape == {"layers": 2, "mlp": 6, "embed": 8}

    @nym.named_jit
    def step(model, state, key):
        value, gradients = eqx.filter_value_and_grad(loss)(model, key)
        updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, value

    values = []
    for key in jax.random.split(jax.random.key(0), 10):
        model, state, value = step(model, state, key)
        values.append(float(value))
    assert values[-1] < 0.7 * values[0]
    assert state[0].nu.embedding.weight.names == ("vocab", "embed")


def test_a_step_is_the_same_on_every_mesh(auto_mesh, explicit_mesh, model):
    compute = {"batch": "data", "mlp": "model", "vocab": "model"}
    parameters = {**compute, "embed": "data"}
    optimizer = optax.adamw(1e-2)

    def step(model, key):
        gradients = eqx.filter_grad(loss)(model, key)
        old = eqx.filter(model, eqx.is_inexact_array)
        updates, state = optimizer.update(gradients, optimizer.init(old), old)
        return eqx.apply_updates(model, updates), state[0].mu

    key = jax.random.key(7)
    expected = nym.named_jit(step)(model, key)
    for mesh in (auto_mesh, explicit_mesh):
        with jax.set_mesh(mesh):
            result = nym.fsdp(step, parameters, compute)(model, key)
        weight = result[1].blocks.stacked.mlp.layers[0].weight
        assert tuple(weight.sharding.spec) == (None, "model", "data")
        for actual, target in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            assert allclose(jax.device_get(actual), jax.device_get(target), atol=1e-4)

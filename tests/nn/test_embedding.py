"""Embedding layers: parity with Equinox, and what they refuse."""

import equinox as eqx
import jax
import numpy as np
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Vocab, Embed, Batch, Pos = nym.make_axes(vocab=10, embed=8, batch=8, pos=3)


@pytest.fixture
def ids():
    return nym.named(np.arange(24).reshape(8, 3) * 7 % 10, (Batch, Pos))


def test_vectors_are_those_of_equinox(check, draw, ids):
    layer = draw.layer(nym.nn.Embedding.init, Vocab, Embed)

    def reference(layer, ids):
        equinox_layer = eqx.nn.Embedding(weight=layer.weight.array)
        return nym.named(jax.vmap(jax.vmap(equinox_layer))(ids.array), ("batch", "pos", "embed"))

    check(lambda layer, ids: layer(ids), reference, layer, ids)


def test_scores_are_products_with_the_table(check, draw):
    layer = draw.layer(nym.nn.Embedding.init, Vocab, Embed)
    x = draw(Batch, Pos, Embed)

    def reference(layer, x):
        return nym.named(x.array @ layer.weight.array.T, ("batch", "pos", "vocab"))

    check(lambda layer, x: layer.unembed(x), reference, layer, x)


def test_vectors_may_have_several_axes_and_ids_none(draw):
    layer = draw.layer(nym.nn.Embedding.init, Vocab, nym.make_axes(heads=2, head_dim=4))
    assert layer(nym.named(3, ())).shape == {"heads": 2, "head_dim": 4}
    assert np.array_equal(layer(nym.named(3, ())).array, layer.weight.array[3])
    assert layer.unembed(nym.ones({"heads": 2, "pos": 3, "head_dim": 4})).shape == {"pos": 3, "vocab": 10}


def test_the_table_is_drawn_from_a_cut_normal_distribution(getkey):
    key = getkey()
    layer = nym.nn.Embedding.init(Vocab, Embed, key=key, init_scale=0.5)
    assert allclose(layer.weight.array, 0.5 * jax.random.truncated_normal(key, -3, 3, (10, 8)))
    assert layer.Vocab == Vocab and layer.Embed == (Embed,)


def test_a_traced_id_past_the_end_of_a_divided_table_is_the_last(mesh, draw):
    layer = draw.layer(nym.nn.Embedding.init, Vocab, Embed)
    result = nym.named_jit(lambda layer, ids: layer(ids), {"vocab": "model"})(layer, nym.named([10, 99, 9, -1], "pos"))
    assert np.array_equal(jax.device_get(result.array), np.tile(layer.weight.array[-1], (4, 1)))


def test_a_known_id_out_of_range_is_refused(mesh, draw):
    layer = draw.layer(nym.nn.Embedding.init, Vocab, Embed)
    for wrong in (10, -11):
        message = f"Embedding (vocab: 10 -> embed: 8): id {wrong} in (pos: 2) is out of range for 10 elements"
        with refusal(message, IndexError):
            layer(nym.named([3, wrong], "pos"))
    assert layer(nym.named([-10, 9], "pos")).shape == {"pos": 2, "embed": 8}


def test_a_divided_table_stays_divided(mesh, draw, ids):
    mapping = {"batch": "data", "vocab": "model"}
    layer = nym.shard(draw.layer(nym.nn.Embedding.init, Vocab, Embed), mapping)
    step = nym.named_jit(jax.grad(lambda layer, ids: layer(ids).sum().scalar()), mapping)
    assert "all-gather" not in step.lower(layer, nym.shard(ids, mapping)).compile().as_text()


def test_errors_name_the_layer_and_the_axes(draw):
    layer = draw.layer(nym.nn.Embedding.init, Vocab, Embed)
    with refusal("Embedding (vocab: 10 -> embed: 8): the input (embed: 2) has the output axis 'embed' already"):
        layer(nym.zeros({"embed": 2}, int))
    with refusal("axis 'vocab' of (vocab: 10, embed: 8) is indexed by integers, not by float32", TypeError):
        layer(nym.zeros({"pos": 2}))


def test_the_vocabulary_can_be_resized(draw, getkey):
    layer = draw.layer(nym.nn.Embedding.init, Vocab, Embed)
    longer = layer.resize_vocab(12)
    assert longer.Vocab == Vocab.resize(12) and longer.weight.shape == {"vocab": 12, "embed": 8}
    assert np.array_equal(longer.weight.array[:10], layer.weight.array) and (longer.weight.array[10:] == 0).all()
    assert (layer.resize_vocab(12, key=getkey()).weight.array[10:] != 0).all()
    assert np.array_equal(layer.resize_vocab(4).weight.array, layer.weight.array[:4])
    with refusal("must not be negative"):
        layer.resize_vocab(-1)

"""Layers with `jax_enable_x64`: they keep the type of their inputs, and none fails for integers of two types."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym


Batch, Heads, Group, Pos, KeyPos, HeadDim = nym.make_axes(batch=2, heads=2, group=2, pos=7, key_pos=6, head_dim=4)
Embed, Vocab, Layers = nym.make_axes(embed=4, vocab=10, layers=3)
KEY = jax.random.key(0)


def draw(*axes):
    values = np.random.default_rng(len(axes)).normal(size=[axis.size for axis in axes])
    return nym.NamedArray(values, [axis.name for axis in axes])


def attend(implementation, **options):
    options.update(QPos=Pos, soft_cap=5.0, implementation=implementation, block_size=4)

    def compute(query, key, value, bias, sinks, lengths):
        mask = nym.nn.AttentionMask.causal() & nym.nn.AttentionMask.sliding_window(5)
        mask = mask | nym.nn.AttentionMask.prefix(lengths)
        return nym.nn.dot_product_attention(KeyPos, HeadDim, query, key, value, mask, bias, sinks=sinks, **options)

    key_axes = (Batch, Heads, KeyPos, HeadDim)
    axes = [(Batch, Heads, Group, Pos, HeadDim), key_axes, key_axes, (Heads, Pos, KeyPos), (Heads,)]
    return compute, [*(draw(*each) for each in axes), nym.NamedArray(np.array([1, 3]), ("batch",))]


def lose(loss, **options):
    labels = nym.NamedArray(np.arange(14).reshape(2, 7) % 10, ("batch", "pos"))
    inputs = [draw(Batch, Pos, Embed), draw(Vocab, Embed), labels]
    return lambda x, head, labels: loss(x, head, labels, **options), inputs


def lose_plainly(x, head, labels, *, label_smoothing):
    logits = nym.tanh(nym.dot(x, head, axis=Embed) / 30) * 30
    return nym.nn.cross_entropy_loss(logits, Vocab, labels, label_smoothing=label_smoothing)


def lose_in_blocks(x, head, labels, *, label_smoothing):
    options = {"block_size": 4, "logit_soft_cap": 30.0, "label_smoothing": label_smoothing}
    return nym.nn.fused_cross_entropy(x, head, labels, Embed, Vocab, **options)


def fold_layers(kind):
    def compute(weight, x):
        layers = nym.nn.Stacked(weight, Layers, "nested")
        layers = layers if kind == "Stacked" else nym.nn.BlockSeq(layers.unstacked(), Layers, "nested")
        drop = layers.fold_via(lambda weight, x, key: nym.nn.Dropout(0.3)(x * weight, key=key))
        return drop(x, KEY)

    return compute, [draw(Layers, Embed), draw(Batch, Embed)]


def decode(sliding_window):
    def compute(query, key, value, padding):
        cache = nym.nn.KVCache.init(
            KeyPos.resize(8), (Batch, Heads, HeadDim), key.dtype, padding=padding, sliding_window=sliding_window
        )
        for _ in range(2):
            keys, values, mask = cache.extend(key, value, Pos.resize(3))
            result = nym.nn.dot_product_attention(KeyPos.name, HeadDim, query, keys, values, mask)
            cache = cache.update(key, value, Pos.resize(3))
        return result

    axes = (Batch, Heads, Pos.resize(3), HeadDim)
    return compute, [*(draw(*axes) for _ in range(3)), nym.NamedArray(np.array([0, 1]), ("batch",))]


CASES = {
    "attention": (attend("blocked"), attend("plain")),
    "attention with dropout": (
        attend("blocked", dropout=0.3, dropout_key=KEY),
        attend("plain", dropout=0.3, dropout_key=KEY),
    ),
    "cross entropy": (lose(lose_in_blocks, label_smoothing=0.1), lose(lose_plainly, label_smoothing=0.1)),
    "layers": (fold_layers("Stacked"), fold_layers("BlockSeq")),
    "a cache": (decode(False), decode(True)),
}


def differentiate(compute, inputs):
    numbers, others = [], []
    for x in inputs:
        (numbers if jnp.issubdtype(x.dtype, jnp.inexact) else others).append(x)

    def compute_loss(numbers):
        result = compute(*numbers, *others)
        return (result * result).sum().scalar(), result

    return jax.grad(compute_loss, has_aux=True)(numbers)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_keep_the_type_of_their_inputs(case, dtype):
    result, expected = [], []
    with jax.enable_x64(True):
        for leaves, (compute, inputs) in zip((result, expected), CASES[case], strict=True):
            inputs = [x.astype(dtype) if x.dtype == np.float64 else x for x in map(jax.device_put, inputs)]
            leaves += jax.tree.leaves(jax.jit(lambda inputs, compute=compute: differentiate(compute, inputs))(inputs))
        assert {leaf.dtype for leaf in result} == {np.dtype(dtype)}
        for actual, target in zip(result, expected, strict=True):
            np.testing.assert_allclose(actual, target, rtol=1e-4 if dtype == np.float32 else 1e-10, atol=1e-5)


def test_blocks_of_logits_are_no_larger_than_their_inputs():
    with jax.enable_x64(True):
        compute, inputs = lose(lose_in_blocks, label_smoothing=0.1)
        inputs = [x.astype(np.float32) if x.dtype == np.float64 else x for x in map(jax.device_put, inputs)]
        program = str(jax.make_jaxpr(lambda inputs: differentiate(compute, inputs))(inputs))
    assert re.findall(r"f32\[4,2,7\]", program) and not re.findall(r"f64\[4,2,7\]", program)


def test_splash_attention_of_shared_keys_is_refused():
    shape = jax.ShapeDtypeStruct((2, 3, 128, 8), np.float32)
    query = nym.NamedArray(shape, ("heads", "group", "pos", "head_dim"))
    key = nym.NamedArray(jax.ShapeDtypeStruct((2, 128, 8), np.float32), ("heads", "key_pos", "head_dim"))

    def compute(query, key):
        return nym.nn.dot_product_attention("key_pos", "head_dim", query, key, key, QPos="pos", implementation="splash")

    assert jax.eval_shape(compute, query, key).shape == query.shape
    with (
        jax.enable_x64(True),
        pytest.raises(
            ValueError,
            match="'splash' cannot compute this: JAX's kernel fails for heads that share keys while `jax_enable",
        ),
    ):
        jax.eval_shape(compute, query, key)

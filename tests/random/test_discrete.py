"""Draws of positions along an axis, and what they refuse; the others are compared in `test_parity.py`."""

import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym

from ..refusals import refusal


Batch, Vocab, Embed = nym.make_axes(batch=8, vocab=6, embed=4)
KEY = jax.random.key(0)
random = nym.random

logits = nym.named(jnp.sin(jnp.arange(48.0)).reshape(6, 8), ("vocab", "batch"))


def test_positions_are_those_of_jax_wherever_the_axis_is():
    expected = jax.random.categorical(KEY, logits.array.T)
    for one in (logits, nym.rearrange(logits, ("batch", "vocab"))):
        found = random.categorical(KEY, one, "vocab")
        assert found.names == ("batch",) and found.dtype == expected.dtype
        assert np.array_equal(found.array, expected)


def test_positions_are_drawn_in_any_shape():
    expected = jax.random.categorical(KEY, logits.array.T[:, None], shape=(2, 8, 4))
    found = random.categorical(KEY, logits, Vocab, (Vocab.resize(2), Batch, Embed))
    assert found.names == ("vocab", "batch", "embed")
    assert np.array_equal(found.array, expected)


def test_probabilities_and_bounds_are_kept():
    assert set(random.rademacher(KEY, {"i": 64}).array.tolist()) == {-1, 1}
    assert set(random.randint(KEY, {"i": 64}, nym.named(-1, ()), 2).array.tolist()) == {-1, 0, 1}
    sure = nym.named([0.0, 1.0], "j")
    assert random.bernoulli(KEY, {"i": 2, "j": 2}, sure).array.tolist() == [[False, True]] * 2


def test_errors_of_categorical_say_what_does_not_fit():
    with refusal("no axis 'vocba' in (vocab: 6, batch: 8); did you mean 'vocab'?"):
        random.categorical(KEY, logits, "vocba")
    with refusal("`logits` (vocab: 6, batch: 8) has axes (batch), which `shape` (embed: 4) lacks"):
        random.categorical(KEY, logits, "vocab", Embed)
    with refusal("axis 'batch' has size 8 and size 3 in (batch: 8) and (batch: 3)"):
        random.categorical(KEY, logits, "vocab", Batch.resize(3))
    with refusal("`logits` must be a named array, not ", TypeError):
        random.categorical(KEY, logits.array, "vocab")


def test_a_size_of_the_axis_that_is_not_there_is_refused():
    with refusal("axis 'vocab' has size 6 here, 5 was asked for"):
        random.categorical(KEY, logits, Vocab.resize(5))
    with refusal("a parameter has axes (other), which the array to draw, (batch: 8), lacks"):
        random.binomial(KEY, Batch, 3, nym.ones({"other": 2}))

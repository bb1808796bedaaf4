"""Cross entropy: parity with Optax, what is left out and reduced, and label axes that are divided over a mesh."""

import jax
import jax.numpy as jnp
import optax
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Batch, Pos, Vocab = nym.make_axes(batch=8, pos=3, vocab=6)
loss = nym.nn.cross_entropy_loss


@pytest.fixture
def ids(draw):
    return nym.named(jnp.asarray(draw.random.integers(0, 6, (3, 8))), ("pos", "batch"))


@pytest.fixture
def seen(draw):
    return nym.named(jnp.asarray(draw.random.random(8) < 0.7).at[0].set(True), "batch")


def by_optax(logits, targets):
    logits = logits.rearrange(("batch", "pos", "vocab")).array.astype(jnp.float32)
    if "vocab" in targets.names:
        losses = optax.softmax_cross_entropy(logits, targets.rearrange(("batch", "pos", "vocab")).array)
    else:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets.rearrange(("batch", "pos")).array)
    return nym.named(losses, ("batch", "pos"))


def test_with_label_numbers_it_is_that_of_optax(check, draw, ids, seen):
    def reference(_, logits, ids, seen):
        losses, where = by_optax(logits, ids).array, jnp.repeat(seen.array[:, None], 3, 1)
        return nym.named(losses.mean(where=where), ())

    logits = 3 * draw(Batch, Vocab, Pos)
    check(lambda _, logits, ids, seen: loss(logits, Vocab, ids, where=seen), reference, None, logits, ids, seen)


def test_with_probabilities_it_is_that_of_optax(check, draw):
    probabilities = nym.softmax(draw(Pos, Vocab, Batch), "vocab")

    def reference(_, logits, probabilities):
        return by_optax(logits, probabilities)

    def losses(_, logits, probabilities):
        return loss(logits, "vocab", probabilities, None)

    assert losses(None, draw(Batch, Pos, Vocab), probabilities).names == ("batch", "pos")
    check(losses, reference, None, draw(Batch, Pos, Vocab), probabilities)


def test_probabilities_may_be_the_same_everywhere(draw):
    logits, uniform = draw(Batch, Pos, Vocab), nym.full(Vocab, 1 / 6)
    assert allclose(loss(logits, "vocab", uniform).array, -nym.log_softmax(logits, "vocab").mean().array)


def test_reductions(draw, ids, seen):
    logits = draw(Batch, Pos, Vocab)
    losses = by_optax(logits, ids)
    assert allclose(loss(logits, "vocab", ids).array, losses.array.mean(), atol=1e-6)
    assert allclose(loss(logits, "vocab", ids, nym.sum).array, losses.array.sum(), rtol=1e-5)
    assert allclose(loss(logits, "vocab", ids, reduction=None).array, losses.array, atol=1e-6)
    by_batch = loss(logits, "vocab", ids, nym.max, reduction_axis="pos")
    assert by_batch.names == ("batch",) and allclose(by_batch.array, losses.array.max(1), atol=1e-6)
    reduced = loss(logits, "vocab", ids, nym.sum, seen, ("batch", Pos))
    assert allclose(reduced.array, losses.array.sum(where=seen.array[:, None]), rtol=1e-5)
    reduced = loss(logits, "vocab", ids, None, seen)
    assert allclose(reduced.array, jnp.where(seen.array[:, None], losses.array, 0), atol=1e-6)


def test_what_is_left_out_may_be_infinite():
    logits = nym.named([[0.0, 0.0], [-jnp.inf, 0.0]], ("batch", "vocab"))
    seen = nym.named([True, False], "batch")
    for reduction in (None, nym.sum, nym.mean):
        result = loss(logits, "vocab", nym.zeros({"batch": 2}, int), reduction, seen)
        assert allclose(result.sum().array, jnp.log(2.0))


def test_a_label_of_probability_0_may_have_a_logit_of_minus_infinity(draw):
    logits, probabilities = draw(Batch, Vocab), nym.softmax(draw(Batch, Vocab.resize(5)), "vocab")
    hidden = nym.concatenate(Vocab, (logits["vocab", :5], nym.full({"batch": 8, "vocab": 1}, -jnp.inf)))
    targets = nym.pad(probabilities, {"vocab": (0, 1)})
    expected, gradient = jax.value_and_grad(lambda x: loss(x, "vocab", probabilities).scalar())(logits["vocab", :5])
    result, padded = jax.value_and_grad(lambda x: loss(x, "vocab", targets).scalar())(hidden)
    assert allclose(result, expected, rtol=1e-6)
    assert allclose(padded.array, jnp.pad(gradient.array, ((0, 0), (0, 1))), atol=1e-6)
    assert loss(hidden, "vocab", nym.roll(targets, 1, "vocab")).item() == jnp.inf


def test_a_label_out_of_range_counts_as_a_score_of_0(draw):
    logits = draw(Batch, Vocab)
    result = loss(logits, "vocab", nym.full(Batch, -1), None)
    assert allclose(result.array, jax.nn.logsumexp(logits.array, axis=1), atol=1e-6)


def test_low_precision_is_widened_and_its_gradient_is_not(draw, ids):
    logits = draw(Batch, Pos, Vocab).astype(jnp.bfloat16)
    result, gradient = jax.value_and_grad(lambda logits: loss(logits, "vocab", ids).scalar())(logits)
    assert result.dtype == jnp.float32 and gradient.dtype == jnp.bfloat16
    assert allclose(result, by_optax(logits, ids).array.mean(), rtol=1e-6)


def test_label_smoothing_is_that_of_optax(draw, ids):
    logits = draw(Batch, Pos, Vocab)
    one_hot = jax.nn.one_hot(ids.array.T, Vocab.size)
    expected = optax.softmax_cross_entropy(logits.array, optax.smooth_labels(one_hot, 0.2))
    for targets in (ids, nym.named(one_hot, (Batch, Pos, Vocab))):
        result = loss(logits, "vocab", targets, None, label_smoothing=0.2)
        assert allclose(result.array, expected, atol=1e-5)


def test_z_loss_and_weights_are_those_of_their_formulas(draw, ids):
    logits, weight = draw(Batch, Pos, Vocab), nym.exp(draw(Pos, Batch))
    normalizers = jax.nn.logsumexp(logits.array, axis=-1)
    expected = (by_optax(logits, ids).array + 0.1 * normalizers**2) * weight.array.T
    result = loss(logits, "vocab", ids, None, weight=weight, z_loss=0.1)
    assert allclose(result.array, expected, rtol=1e-5)
    mean = expected.sum() / weight.array.sum()
    assert allclose(loss(logits, "vocab", ids, weight=weight, z_loss=0.1).array, mean, rtol=1e-5)


def test_log_normalizers_come_with_the_losses(draw, ids):
    logits = draw(Batch, Pos, Vocab).astype(jnp.bfloat16)
    losses, normalizers = nym.nn.cross_entropy_loss_and_log_normalizers(logits, Vocab, ids)
    assert allclose(losses.array, by_optax(logits, ids).array, atol=1e-6)
    assert normalizers.dtype == jnp.float32 and normalizers.names == ("batch", "pos")
    assert allclose(normalizers.array, jax.nn.logsumexp(logits.array.astype(jnp.float32), axis=-1), atol=1e-6)


def test_a_divided_label_axis_is_never_gathered(mesh, draw, ids):
    mapping = {"batch": "data", "vocab": "model"}
    scores = draw(Batch, Pos, Vocab)
    logits = nym.shard(scores, mapping)
    step = nym.named_jit(jax.value_and_grad(lambda logits: loss(logits, "vocab", ids).scalar()), mapping)
    program = step.lower(logits).compile().as_text()
    assert "all-reduce" in program
    assert "all-gather" not in program and " gather(" not in program
    result, gradient = step(logits)
    with jax.set_mesh(None):
        assert allclose(jax.device_get(result), by_optax(scores, ids).array.mean(), rtol=1e-5)
    assert tuple(gradient.sharding.spec) == ("data", None, "model")


def test_errors_say_what_does_not_fit():
    logits, ids = nym.zeros((Batch, Vocab)), nym.zeros(Batch, int)
    with refusal("cross_entropy_loss: no axis 'vocba' in (batch: 8, vocab: 6); did you mean 'vocab'?"):
        loss(logits, "vocba", ids)
    with refusal("cross_entropy_loss: axis 'vocab' has size 6 here, 5 was asked for"):
        loss(logits, Vocab.resize(5), ids)
    with refusal("targets of float32 without axis 'vocab' are neither integer labels nor probabilities"):
        loss(logits, "vocab", nym.zeros(Batch))
    with refusal("targets (pos: 3, vocab: 6) have axes (pos), which the logits (batch: 8, vocab: 6) lack"):
        loss(logits, "vocab", nym.zeros((Pos, Vocab)))
    with refusal("targets (batch: 8, pos: 3) have axes (pos), which the logits (batch: 8, vocab: 6) lack"):
        loss(logits, "vocab", nym.zeros((Batch, Pos), int))
    with refusal("axis 'batch' has size 8 and size 4 in (batch: 8, vocab: 6) and (batch: 4)"):
        loss(logits, "vocab", nym.zeros({"batch": 4}, int))
    with refusal("cross_entropy_loss (targets): the input must be a named array", TypeError):
        loss(logits, "vocab", ids.array)
    with refusal("cross_entropy_loss: the input must be a named array", TypeError):
        loss(logits.array, "vocab", ids)
    with refusal("cross_entropy_loss: `label_smoothing` must be at least 0 and at most 1, not -0.1"):
        loss(logits, "vocab", ids, label_smoothing=-0.1)
    with refusal("reduce_loss: the weights (pos: 3) have axes (pos), which the losses (batch: 8) lack"):
        loss(logits, "vocab", ids, weight=nym.ones(Pos))
    with refusal("cross_entropy_loss_and_log_normalizers (targets): the input must be a named array", TypeError):
        nym.nn.cross_entropy_loss_and_log_normalizers(logits, "vocab", ids.array)
    with refusal("no axis 'vocab' in (batch: 8)"):
        loss(logits, "vocab", ids, reduction_axis="vocab")

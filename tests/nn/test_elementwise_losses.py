"""The binary cross entropy, the squared error and the reduction of losses: parity with Optax, sharded or not."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest

import axonym as nym

from ..comparing import allclose


Batch, Pos = nym.make_axes(batch=8, pos=3)


def refusal(message, error=ValueError):
    return pytest.raises(error, match=re.escape(message))


def by_position(fn):
    """A function of plain arrays whose operands are ordered (batch, pos), and whose results have these names."""

    def reference(_, *operands):
        return nym.named(fn(*(x.rearrange(("batch", "pos")).array for x in operands)), (Batch, Pos))

    return reference


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_binary_loss_is_that_of_optax(check, draw, dtype):
    logits, targets = (20 * draw(Batch, Pos)).astype(dtype), draw(Pos, Batch) > 0
    reference = by_position(lambda x, y: optax.sigmoid_binary_cross_entropy(x.astype(jnp.float32), y))
    check(lambda _, x, y: nym.nn.binary_cross_entropy_loss(x, y, None), reference, None, logits, targets)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_squared_error_is_that_of_optax(check, draw, dtype):
    predictions, targets = draw(Batch, Pos).astype(dtype), draw(Pos, Batch)
    reference = by_position(lambda x, y: optax.squared_error(x.astype(jnp.float32), y))
    check(lambda _, x, y: nym.nn.mean_squared_error(x, y, None), reference, None, predictions, targets)


def test_a_confident_and_right_prediction_has_an_exact_loss():
    result = nym.nn.binary_cross_entropy_loss(nym.named([50.0, -50.0], "batch"), nym.named([1, 0], "batch"), None)
    assert allclose(result.array, jnp.exp(-50.0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("loss", [nym.nn.binary_cross_entropy_loss, nym.nn.mean_squared_error])
def test_losses_reduce_over_named_axes_on_each_mesh(mesh, draw, loss):
    x, seen, weight = draw(Batch, Pos), nym.arange(Batch) > 2, nym.exp(draw(Pos))
    losses = loss(x, nym.ones(Pos), None)
    result = nym.named_jit(
        lambda x: loss(x, nym.ones(Pos), nym.sum, seen, "batch", weight=weight), {"batch": "data", "pos": None}
    )(x)
    expected = (losses.array * weight.array[None]).sum(0, where=seen.array[:, None])
    assert result.names == ("pos",) and allclose(result.array, expected, rtol=1e-5)


def test_a_reduction_of_none_keeps_all_losses():
    losses, seen = nym.named([1.0, jnp.inf], "batch"), nym.named([True, False], "batch")
    assert nym.nn.reduce_loss(losses, None, where=seen).array.tolist() == [1.0, 0.0]
    assert nym.nn.reduce_loss(losses, None) is losses
    assert nym.nn.reduce_loss(losses, where=seen, weight=nym.named([3.0, 1.0], "batch")).item() == 1.0


def test_a_mean_is_weighted_on_each_mesh(mesh, draw):
    losses, seen, weight = draw(Batch, Pos), nym.arange(Batch) > 2, nym.exp(draw(Pos))
    reduce = nym.named_jit(
        lambda x, axis: nym.nn.reduce_loss(x, reduction_axis=axis, where=seen, weight=weight),
        {"batch": "data", "pos": None},
    )
    weights = seen.array[:, None] * weight.array[None]
    assert allclose(reduce(losses, None).array, jnp.average(losses.array, weights=weights), rtol=1e-5)
    by_pos = jnp.average(losses.array[3:], axis=1, weights=weight.array)
    assert allclose(reduce(losses, "pos").array, jnp.pad(by_pos, (3, 0)), rtol=1e-5)


def test_a_mean_of_nothing_is_zero():
    losses, none = nym.named([[1.0, jnp.nan], [3.0, 5.0]], ("batch", "pos")), nym.named([False, True], "batch")
    reduce = nym.nn.reduce_loss
    assert reduce(losses, reduction_axis="pos", where=none).array.tolist() == [0.0, 4.0]
    assert reduce(losses, where=none & False).item() == 0.0
    x = nym.ones({"batch": 2})
    for options in ({"where": nym.named([False, False], "batch")}, {"weight": nym.zeros({"batch": 2})}):
        loss, gradient = jax.value_and_grad(lambda x, options=options: reduce(x, **options).scalar())(x)
        assert loss == 0.0 and gradient.array.tolist() == [0.0, 0.0]
    assert jnp.isnan(nym.mean(losses, where=none & False).array)


def test_errors_name_the_axes_that_do_not_fit():
    logits = nym.zeros(Batch)
    with refusal("binary_cross_entropy_loss: the targets (pos: 3) have axes (pos), which the logits (batch: 8) lack"):
        nym.nn.binary_cross_entropy_loss(logits, nym.zeros(Pos))
    with refusal("mean_squared_error: the targets (pos: 3) have axes (pos), which the predictions (batch: 8) lack"):
        nym.nn.mean_squared_error(logits, nym.zeros(Pos))
    with refusal("mean_squared_error (targets): the input must be a named array, not float", TypeError):
        nym.nn.mean_squared_error(logits, 0.0)
    with refusal("binary_cross_entropy_loss: the input must be a named array", TypeError):
        nym.nn.binary_cross_entropy_loss(jnp.zeros(3), logits)
    with refusal("reduce_loss: the weights (pos: 3) have axes (pos), which the losses (batch: 8) lack"):
        nym.nn.reduce_loss(logits, weight=nym.ones(Pos))
    with refusal("reduce_loss (weights): the input must be a named array", TypeError):
        nym.nn.reduce_loss(logits, weight=2.0)
    with refusal("reduce_loss: the input must be a named array", TypeError):
        nym.nn.reduce_loss(jnp.zeros(3))
    with refusal("no axis 'pos' in (batch: 8)"):
        nym.nn.reduce_loss(logits, nym.sum, "pos")

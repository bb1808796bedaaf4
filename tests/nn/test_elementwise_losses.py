"""The binary cross entropy, the squared error and the reduction of losses: parity with Optax, sharded or not."""

import jax
import jax.numpy as jnp
import optax
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Batch, Pos = nym.make_axes(batch=8, pos=3)


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


def test_an_infinite_score_is_right_or_infinitely_wrong():
    logits, targets = nym.named([-jnp.inf, jnp.inf, -jnp.inf, jnp.inf], "i"), nym.named([0.0, 1.0, 1.0, 0.0], "i")
    losses = nym.nn.binary_cross_entropy_loss(logits, targets, None)
    assert losses.array.tolist() == [0, 0, jnp.inf, jnp.inf]
    gradient = jax.grad(lambda x: nym.nn.binary_cross_entropy_loss(x, targets, nym.sum).scalar())(logits)
    assert gradient.array.tolist() == [0, 0, -1, 1]


def test_the_gradient_of_the_binary_loss_at_0_is_that_of_its_formula():
    logits, targets = nym.zeros({"i": 3}), nym.named([0.0, 0.3, 1.0], "i")
    gradient = jax.grad(lambda x: nym.nn.binary_cross_entropy_loss(x, targets, nym.sum).scalar())(logits)
    assert allclose(gradient.array, 0.5 - targets.array, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_losses_compute_where_jax_forbids_implicit_conversions(dtype):
    logits, flags = nym.ones((Batch, Pos)).astype(dtype), nym.arange(Pos) < 2
    one_hot = nym.nn.one_hot(nym.zeros(Batch, int), Pos)
    with jax.numpy_dtype_promotion("strict"):
        for targets in (flags, flags.astype(int), flags.astype(dtype), flags.astype("float32")):
            binary = nym.nn.binary_cross_entropy_loss(logits, targets, weight=flags)
            squared = nym.nn.mean_squared_error(logits, targets, weight=flags.astype(dtype))
            assert binary.dtype == squared.dtype == jnp.float32
            assert nym.nn.reduce_loss(binary, nym.sum, weight=nym.named(2, ())).dtype == jnp.float32
        for targets in (nym.zeros(Batch, int), one_hot, one_hot.astype(int)):
            assert nym.nn.cross_entropy_loss(logits, Pos, targets, label_smoothing=0.1, z_loss=0.1).dtype == jnp.float32


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
    no_rows = losses["batch", :0]
    assert reduce(no_rows).item() == 0.0 and reduce(no_rows, reduction_axis="batch").array.tolist() == [0.0, 0.0]
    assert nym.nn.mean_squared_error(no_rows, no_rows).item() == 0.0
    infinite, weight = nym.named([jnp.inf, 3.0], "batch"), nym.named([0.0, 2.0], "batch")
    assert reduce(infinite, weight=weight).item() == 3.0 and reduce(infinite, nym.sum, weight=weight).item() == 6.0
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

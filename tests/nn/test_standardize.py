"""Standardisation: parity with JAX."""

import jax
import jax.numpy as jnp
import pytest

import axonym as nym

from ..comparing import allclose


Embed, Batch, Pos = nym.make_axes(embed=16, batch=8, pos=3)


def test_it_is_that_of_jax(check, draw):
    def reference(_, x):
        return nym.named(jax.nn.standardize(x.array, (0, 2), epsilon=1e-3), x.names)

    fn = lambda _, x: nym.nn.standardize(x, ("pos", "embed"), epsilon=1e-3)  # noqa: E731
    check(fn, reference, None, 1 + 2 * draw(Embed, Batch, Pos), tolerance=1e-4)


def test_variances_may_be_too_large_for_float16_and_inputs_may_be_integers():
    x = nym.arange(nym.Axis("i", 1000))
    expected = jax.nn.standardize(x.array.astype(jnp.float32))
    assert allclose(nym.nn.standardize(x, "i").array, expected, atol=1e-5)
    result = nym.nn.standardize(x.astype(jnp.float16), "i")
    assert result.dtype == jnp.float16 and allclose(result.array, expected, atol=1e-3)


def test_mean_variance_and_mask_can_be_given(draw):
    x = draw(Batch, Pos, Embed)
    where = nym.arange(Embed) < 5
    result = nym.nn.standardize(x, "embed", where=where)
    mask = jnp.broadcast_to(where.array, (8, 3, 16))
    assert allclose(result.array, jax.nn.standardize(x.array, 2, where=mask), atol=1e-4)
    mean, variance = x.mean("embed"), x.var("embed")
    assert allclose(
        nym.nn.standardize(x, "embed", mean=mean, variance=variance).array, nym.nn.standardize(x, "embed").array
    )
    assert allclose(nym.nn.standardize(x, mean=0.0, variance=3.0, epsilon=1.0).array, x.array / 2, atol=1e-6)
    assert nym.nn.standardize(x.astype(jnp.bfloat16), "embed").dtype == jnp.bfloat16
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.nn.standardize(x.array, 0)

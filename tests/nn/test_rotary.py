"""Rotary position embedding: parity with Equinox, and errors."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as nym


Batch, Heads, Pos, HeadDim = nym.make_axes(batch=8, heads=2, pos=4, head_dim=8)
rotary = nym.nn.rotary_embedding


def refusal(message, error=ValueError):
    return pytest.raises(error, match=re.escape(message))


def test_rotary_embedding_is_that_of_equinox(check, draw):
    def reference(_, x):
        with jax.numpy_rank_promotion("allow"):
            rows = jax.vmap(eqx.nn.RotaryPositionalEmbedding(HeadDim.size, theta=100.0))
            found = rows(jnp.moveaxis(x.array, 0, 2).reshape(16, 4, 8))
        return nym.named(jnp.moveaxis(found.reshape(8, 2, 4, 8), 2, 0), ("pos", "batch", "heads", "head_dim"))

    check(lambda _, x: rotary(x, Pos, "head_dim", theta=100.0), reference, None, draw(Pos, Batch, Heads, HeadDim))


def test_positions_may_start_anywhere_and_differ(draw):
    x, long = draw(Batch, Pos, HeadDim), nym.Axis("pos", 12)
    start = jnp.arange(8) % 5
    positions = nym.named(start[:, None] + jnp.arange(4)[None], ("batch", "pos"))
    found = jax.jit(lambda x, positions: rotary(x, "pos", "head_dim", positions=positions))(x, positions)
    assert found.names == x.names
    for i in range(8):
        padded = jnp.zeros((long.size, HeadDim.size)).at[positions["batch", i].array].set(x["batch", i].array)
        entire = rotary(nym.named(padded, (long, HeadDim)), "pos", "head_dim")
        assert jnp.allclose(found["batch", i].array, entire["pos", positions["batch", i].array].array, atol=1e-5)


def test_products_depend_on_the_distance_alone(draw):
    query, key = draw(HeadDim), draw(HeadDim)

    def score(at, other):
        place = lambda i: nym.named([i], "pos")  # noqa: E731
        one, two = (
            rotary(x.broadcast_axis(nym.Axis("pos", 1)), "pos", HeadDim, positions=place(i))
            for x, i in ((query, at), (key, other))
        )
        return float((one * two).sum())

    assert score(7, 3) == pytest.approx(score(104, 100), abs=1e-3)
    assert score(0, 0) == pytest.approx(float((query * key).sum()), abs=1e-5)


def test_low_precision_is_kept_but_not_used_for_angles(draw):
    x = draw(nym.Axis("pos", 1000), HeadDim).astype(jnp.bfloat16)
    found = rotary(x, "pos", "head_dim")
    assert found.dtype == jnp.bfloat16
    exact = rotary(x.astype(jnp.float32), "pos", "head_dim").array
    assert jnp.allclose(found.array.astype(jnp.float32), exact, atol=0.06)


def test_errors_of_rotary_embedding_name_the_input_and_the_axes(draw):
    x = draw(Pos, HeadDim)
    with refusal("rotary_embedding: axis 'head_dim' has size 7, which is odd"):
        rotary(draw(Pos, HeadDim.resize(7)), "pos", "head_dim")
    with refusal("rotary_embedding: no axis 'pso' in (pos: 4, head_dim: 8); did you mean 'pos'?"):
        rotary(x, "pso", "head_dim")
    with refusal("rotary_embedding (positions): no axis 'pos' in ()"):
        rotary(x, "pos", "head_dim", positions=nym.named(3, ()))
    with refusal("`positions` (batch: 8, pos: 4) has axes (batch); allowed are the axes of (pos: 4, head_dim: 8)"):
        rotary(x, "pos", "head_dim", positions=nym.zeros((Batch, Pos), int))
    with refusal("rotary_embedding (positions): the input must be a named array", TypeError):
        rotary(x, "pos", "head_dim", positions=jnp.arange(4))
    with refusal("axis 'pos' has size 4 and size 3 in"):
        rotary(x, "pos", "head_dim", positions=nym.arange(Pos.resize(3)))

"""Rotary position embedding: parity with Equinox, and errors."""

import os
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Batch, Heads, Pos, HeadDim = nym.make_axes(batch=8, heads=2, pos=4, head_dim=8)
rotary = eqx.filter_jit(nym.nn.rotary_embedding)


def test_rotary_embedding_is_that_of_equinox(check, draw):
    def reference(_, x):
        with jax.numpy_rank_promotion("allow"):
            rows = jax.vmap(eqx.nn.RotaryPositionalEmbedding(HeadDim.size, theta=100.0))
            result = rows(jnp.moveaxis(x.array, 0, 2).reshape(16, 4, 8))
        return nym.named(jnp.moveaxis(result.reshape(8, 2, 4, 8), 2, 0), ("pos", "batch", "heads", "head_dim"))

    check(lambda _, x: rotary(x, Pos, "head_dim", theta=100.0), reference, None, draw(Pos, Batch, Heads, HeadDim))


def test_positions_may_start_anywhere_and_differ(draw):
    x, positions = draw(Batch, Pos, HeadDim), nym.arange(Batch) % 5 + nym.arange(Pos).broadcast_axis(Batch)
    result = jax.jit(lambda x, positions: rotary(x, "pos", "head_dim", positions=positions))(x, positions)
    assert result.names == x.names
    padded = np.zeros((8, 12, 8), np.float32)
    for row in range(8):
        padded[row, row % 5 : row % 5 + 4] = x.array[row]
    whole = rotary(nym.named(padded, ("batch", "pos", "head_dim")), "pos", "head_dim")
    for row in range(8):
        assert allclose(result.array[row], whole.array[row, row % 5 : row % 5 + 4], atol=1e-5)


RECORDED = {
    "default": None,
    "linear": nym.nn.LinearRotaryScaling(4.0),
    "dynamic": nym.nn.DynamicRotaryScaling(4.0, 20),
    "llama3": nym.nn.Llama3RotaryScaling(8.0, 300),
    "yarn": nym.nn.YarnRotaryScaling(4.0, 100),
    "yarn_exact": nym.nn.YarnRotaryScaling(8.0, 300, 16.0, 2.0, attention_factor=1.5, truncate=False),
}


def test_scaled_embeddings_are_those_of_transformers():
    folder = Path(__file__).parents[1] / "examples" / "models"
    recorded = load_file(Path(os.environ.get("AXONYM_RECORDED_MODELS", folder)) / "rotary.safetensors")
    assert recorded.keys() == RECORDED.keys()
    x = nym.named(np.repeat(np.float32([[1, 0]] * 40), 8, 1), ("pos", "head_dim"))
    for name, scaling in RECORDED.items():
        rotated = jax.jit(lambda x, scaling=scaling: rotary(x, "pos", "head_dim", scaling=scaling))(x)
        cosine, sine = nym.split(rotated, "head_dim", [HeadDim, HeadDim])
        np.testing.assert_allclose(np.stack([cosine.array, sine.array]), recorded[name], atol=1e-5, err_msg=name)


def test_dynamic_scaling_leaves_short_sequences_alone(draw):
    x, scaling = draw(Pos, HeadDim), nym.nn.DynamicRotaryScaling(4.0, 20)
    positions = nym.arange(Pos) + 16  # up to 19
    short = rotary(x, "pos", "head_dim", positions=positions, scaling=scaling)
    assert allclose(short.array, rotary(x, "pos", "head_dim", positions=positions).array, atol=1e-6)
    long = rotary(x, "pos", "head_dim", positions=positions + 1, scaling=scaling)
    assert not allclose(long.array, rotary(x, "pos", "head_dim", positions=positions + 1).array, atol=1e-3)


def test_interleaved_pairs_are_neighbours(check, draw):
    def reference(_, x):
        halves = nym.concatenate("head_dim", (x["head_dim", ::2], x["head_dim", 1::2]))
        first, second = nym.split(rotary(halves, Pos, "head_dim"), "head_dim", [HeadDim.resize(4)] * 2)
        pairs = nym.stack("pair", (first, second)).rearrange((..., "head_dim", "pair"))
        return pairs.flatten_axes(("head_dim", "pair"), "head_dim").rearrange(x.names)

    x = draw(Batch, HeadDim, Pos, Heads)
    check(lambda _, x: rotary(x, Pos, "head_dim", interleaved=True), reference, None, x)


@pytest.mark.parametrize("interleaved", [False, True])
def test_partial_embedding_rotates_the_first_elements(draw, interleaved):
    x = draw(Pos, HeadDim, Heads)
    result = rotary(x, "pos", "head_dim", rotary_size=6, interleaved=interleaved)
    rotated = rotary(x["head_dim", :6], "pos", "head_dim", interleaved=interleaved)
    assert result.names == x.names
    assert np.array_equal(result["head_dim", :6].array, rotated.array)
    assert np.array_equal(result["head_dim", 6:].array, x["head_dim", 6:].array)
    assert np.array_equal(rotary(x, "pos", "head_dim", rotary_size=8).array, rotary(x, "pos", "head_dim").array)


def test_low_precision_is_kept_but_not_used_for_angles(draw):
    x = draw(nym.Axis("pos", 1000), HeadDim).astype(jnp.bfloat16)
    result = rotary(x, "pos", "head_dim")
    assert result.dtype == jnp.bfloat16
    exact = rotary(x.astype(jnp.float32), "pos", "head_dim").array
    assert allclose(result.array.astype(jnp.float32), exact, atol=0.06)


def test_errors_of_rotary_embedding_name_the_input_and_the_axes(draw):
    x = draw(Pos, HeadDim)
    with refusal("rotary_embedding: axis 'head_dim' has size 7, which is odd"):
        rotary(draw(Pos, HeadDim.resize(7)), "pos", "head_dim")
    with refusal("`rotary_size` is 3, which is odd"):
        rotary(x, "pos", "head_dim", rotary_size=3)
    with refusal("`rotary_size` is 10, and axis 'head_dim' has size 8; give an even number of its elements"):
        rotary(x, "pos", "head_dim", rotary_size=10)
    with refusal("`positions` (pos: 4) are of bfloat16, which rounds large positions; pass integers", TypeError):
        rotary(x, "pos", "head_dim", positions=nym.arange(Pos).astype("bfloat16"))
    with refusal("`scaling` is made by `LinearRotaryScaling` and the like, it is not 2.0", TypeError):
        rotary(x, "pos", "head_dim", scaling=2.0)
    with refusal("rotary_embedding: no axis 'pso' in (pos: 4, head_dim: 8); did you mean 'pos'?"):
        rotary(x, "pso", "head_dim")
    with refusal("`positions` (batch: 8, pos: 4) has axes (batch); allowed are the axes of (pos: 4, head_dim: 8)"):
        rotary(x, "pos", "head_dim", positions=nym.zeros((Batch, Pos), int))
    with refusal("rotary_embedding: the input is of floating-point numbers, not int32; convert it first.", TypeError):
        rotary(x.astype(int), "pos", "head_dim")


def test_errors_of_scalings_name_the_numbers(draw):
    with refusal("LinearRotaryScaling: `factor`, the length over the one trained on, must be at least 1, not 0.5"):
        nym.nn.LinearRotaryScaling(0.5)
    with refusal("`high_frequency_factor` is 1.0, which is not larger than `low_frequency_factor`, 4.0"):
        nym.nn.Llama3RotaryScaling(8.0, 8192, 4.0, 1.0)
    with refusal("`beta_fast` is 1.0, which is not larger than `beta_slow`, 32.0"):
        nym.nn.YarnRotaryScaling(4.0, 8192, 1.0, 32.0)
    with refusal("DynamicRotaryScaling: there are 2 rotated elements; it needs at least 4"):
        rotary(draw(Pos, HeadDim), "pos", "head_dim", rotary_size=2, scaling=nym.nn.DynamicRotaryScaling(2.0, 20))

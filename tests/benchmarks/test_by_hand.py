"""Models by hand have the parameters of the examples and compute the same, so that compiling both compares like."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.performance.decoder import check_agreement
from benchmarks.performance.models import MODELS, make_forms


TINY = {
    **{"batch": 4, "pos": 32, "positions": 64, "vocab": 32, "embed": 16, "head_dim": 4, "mlp": 8},
    **{"layers": 1, "pairs": 1, "heads": 2, "experts": 4, "head_embed": 16, "hidden": 16, "source": 4, "frames": 8},
    **{"height": 4, "width": 4, "rows": 2, "columns": 2, "patch_rows": 2, "patch_columns": 2, "patches": 5},
}


@pytest.fixture(autouse=True)
def broadcasting():
    """By hand, arrays are broadcast by position."""
    with jax.numpy_rank_promotion("allow"):
        yield


OTHERS = ("Qwen 3", "Gemma 2", "BERT", "ViT")  # with variants of the layers of the three


def shrink(name: str) -> dict[str, int]:
    return {axis: min(size, TINY.get(axis, size)) for axis, size in MODELS[name].sizes.items()}


@pytest.mark.parametrize(
    "name",
    ["GPT-2", "Mixtral", "Whisper", *(pytest.param(name, marks=pytest.mark.thorough) for name in OTHERS)],
)
def test_losses_and_gradients_by_hand_are_those_of_the_example(name: str):
    check_agreement(make_forms(MODELS[name], shrink(name)))


def test_experts_by_hand_may_be_sharded():
    model, sizes = MODELS["Mixtral"], shrink("Mixtral")
    form = make_forms(model, sizes)["JAX"]
    compute = {"batch": "data", "heads": "model", "mlp": "model", "vocab": "model", "experts": "expert"}
    mesh = jax.make_mesh((2, 2, 2), ("data", "expert", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    sharded = model.by_hand(sizes, {**compute, "embed": "data"}, compute, jnp.float32, mesh, **model.options)
    arguments = (form.parameters, *form.tokens)
    expected = jax.jit(jax.value_and_grad(form.loss))(*arguments)
    found = jax.jit(jax.value_and_grad(sharded.compute_loss))(*arguments)
    for own, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-4)

"""Models by hand have the parameters of the examples and compute the same, so that compiling both compares like."""

import jax
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


@pytest.mark.parametrize(
    "name",
    [name if name == "GPT-2" else pytest.param(name, marks=pytest.mark.thorough) for name in MODELS],
)
def test_losses_and_gradients_by_hand_are_those_of_the_example(name: str):
    sizes = {axis: min(size, TINY.get(axis, size)) for axis, size in MODELS[name].sizes.items()}
    check_agreement(make_forms(MODELS[name], sizes))

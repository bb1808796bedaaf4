"""The programs by hand that pipelines and rings are compared with compute the same."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym
from benchmarks import compiled_parallelism


def draw_arguments(arguments: Any) -> Any:
    """Returns arrays in place of shapes."""
    leaves, treedef = jax.tree.flatten(arguments)
    draw = np.random.default_rng(0).normal
    # XLA for CPUs aborts when it compiles the pipeline by hand for bfloat16.
    arrays = [np.asarray(draw(size=leaf.shape) / np.sqrt(leaf.shape[-1]), np.float32) for leaf in leaves]
    return jax.tree.unflatten(treedef, arrays)


@pytest.fixture
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"Layers": 8, "Batch": 32, "Embed": 8, "Mlp": 16, "Pos": 64, "Heads": 2, "HeadDim": 8}
    for name, size in sizes.items():
        monkeypatch.setattr(compiled_parallelism, name, getattr(compiled_parallelism, name).resize(size))
    monkeypatch.setattr(compiled_parallelism, "BLOCK", 8)


@pytest.mark.parametrize("case", compiled_parallelism.CASES)
@pytest.mark.usefixtures("small_sizes")
def test_both_programs_compute_the_same(case: str):
    sizes, make, make_by_hand = compiled_parallelism.CASES[case]
    mesh = nym.create_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
    step, arguments = make(mesh)
    step_by_hand, shapes = make_by_hand(mesh)
    arrays = draw_arguments(arguments)
    with jax.set_mesh(mesh):
        result = step(*arrays)
        placed = [
            jax.device_put(array, shape.sharding)
            for array, shape in zip(jax.tree.leaves(arrays), jax.tree.leaves(shapes), strict=True)
        ]
        expected = step_by_hand(*jax.tree.unflatten(jax.tree.structure(shapes), placed))
    for array, value in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(array), np.asarray(value), rtol=1e-4, atol=1e-5)

"""Gradients of layers under `microbatch`, `vmap` over sharded axes, `diloco` and pipelines, on all kinds of meshes."""

import jax
import pytest

from .training import AUTO, EXPLICIT, WAYS, find_problems, list_problems


ERRORS = {
    "nn.Conv": "computes with the plain arrays in named ones on a mesh of Explicit axes",
    "nn.MixtureOfExperts": "some layers, such as experts, divide themselves",
}
"""What `docs/gradients.md` lists of `diloco` on Explicit meshes."""


COMBINATIONS = [(way, mesh_types) for way in WAYS for mesh_types in ("Auto", "Explicit", "mixed")]
FAST = [*((way, "Explicit") for way in WAYS), ("pipeline", "Auto"), ("microbatch", "mixed")]


@pytest.mark.parametrize(
    ("way", "mesh_types"),
    [pytest.param(*case, marks=() if case in FAST else pytest.mark.thorough) for case in COMBINATIONS],
)
def test_gradients_are_those_of_one_device_or_an_error_by_name(way: str, mesh_types: str) -> None:
    if jax.device_count() < 8:
        pytest.skip(f"This needs 8 devices, and there are {jax.device_count()}.")
    axis_types = {"Auto": (AUTO,) * 3, "Explicit": (EXPLICIT,) * 3, "mixed": WAYS[way].mixed_types}[mesh_types]
    problems: list[str] = []
    raised: set[str] = set()
    for layer, text in find_problems(way, axis_types, list_problems(way)):
        name = next((name for name, error in ERRORS.items() if layer.startswith(name) and error in text), None)
        if name is None:
            problems.append(f"{layer}: {text}")
        else:
            raised.add(name)
    assert not problems, "\n".join(problems)
    has_errors = way == "diloco" and mesh_types == "Explicit"
    assert raised == (set(ERRORS) if has_errors else set()), "Correct `docs/gradients.md`."

"""Gradients of layers under `microbatch`, `vmap` over sharded axes, `diloco` and pipelines, on all kinds of meshes."""

import jax
import pytest

from .training import AUTO, EXPLICIT, WAYS, find_problems, list_problems


ERRORS = {
    "nn.Conv": "computes with the plain arrays in named ones on a mesh of Explicit axes",
    "nn.MixtureOfExperts": "some layers, such as experts, divide themselves",
}
"""What `docs/gradients.md` lists of `diloco` on Explicit meshes."""


ALL = [(way, kind, True) for way in WAYS for kind in ("Auto", "Explicit", "mixed")]
OFTEN = [(way, WAYS[way].kind, False) for way in WAYS]


@pytest.mark.parametrize(
    ("way", "mesh_types", "is_thorough"), [*OFTEN, *(pytest.param(*case, marks=pytest.mark.thorough) for case in ALL)]
)
def test_gradients_are_those_of_one_device_or_an_error_by_name(way: str, mesh_types: str, is_thorough: bool) -> None:
    if jax.device_count() < 8:
        pytest.skip(f"This needs 8 devices, and there are {jax.device_count()}.")
    axis_types = {"Auto": (AUTO,) * 3, "Explicit": (EXPLICIT,) * 3, "mixed": WAYS[way].mixed_types}[mesh_types]
    problems: list[str] = []
    raised: set[str] = set()
    for layer, text in find_problems(way, axis_types, list_problems(way, is_thorough=is_thorough)):
        name = next((name for name, error in ERRORS.items() if layer.startswith(name) and error in text), None)
        if name is None:
            problems.append(f"{layer}: {text}")
        else:
            raised.add(name)
    assert not problems, "\n".join(problems)
    has_errors = way == "diloco" and mesh_types == "Explicit"
    assert raised == (set(ERRORS) if has_errors else set()), "Correct `docs/gradients.md`."

"""Gradients of layers under `microbatch`, `vmap` over sharded axes, `diloco` and pipelines, on all kinds of meshes."""

import jax
import pytest

from .training import WAYS, find_problems, list_problems


ERRORS = {
    ("diloco", "nn.Conv"): "computes with the plain arrays in named ones on a mesh of Explicit axes",
    ("diloco", "nn.MixtureOfExperts"): "some layers, such as experts, divide ",
}
"""What `docs/gradients.md` lists, where the mesh axis of replicas is Explicit."""


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_one_device_or_an_error_by_name(way: str) -> None:
    if jax.device_count() < 8:
        pytest.skip(f"This needs 8 devices, and there are {jax.device_count()}.")
    problems: list[str] = []
    errors = {text for (error_way, _), text in ERRORS.items() if error_way == way}
    raised: set[str] = set()
    for place, text in find_problems(way, list_problems(way)):
        expected = next((error for error in errors if error in text), None)
        layers = [layer for (_, layer), error in ERRORS.items() if error == expected]
        if expected is not None and place.startswith(tuple(layers)) and " on Explicit" in place:
            raised.add(expected)
        else:
            problems.append(f"{place}: {text}")
    assert not problems, "\n".join(problems)
    assert raised == errors, "Remove what works from `docs/gradients.md`."

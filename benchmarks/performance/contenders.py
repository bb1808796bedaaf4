"""Who is measured: JAX by hand, Equinox, Haliax if it can be imported, and Axonym."""

import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import axonym as nym


try:
    haliax: Any = importlib.import_module("haliax")
    __import__("haliax.nn")
    _reason = ""
except Exception as error:  # a release for another JAX fails in many ways
    haliax, _reason = None, f"{type(error).__name__}: {error}"

PARTS = ("jax", "jaxlib", "equinox", "numpy")


def versions() -> dict[str, str]:
    """Returns the version of everything that the figures depend on."""
    found = {"axonym": nym.__version__, **{name: importlib.metadata.version(name) for name in PARTS}}
    if haliax is not None:
        found["marin-haliax"] = importlib.metadata.version("marin-haliax")
    return found


def missing() -> list[str]:
    """Says of each contender that is left out why it is."""
    if haliax is not None:
        return []
    return [f"Haliax is left out: `import haliax` fails ({_reason}); the extra `bench` brings it."]


def agree(results: Mapping[str, Any], tolerance: float = 1e-5) -> None:
    """Raises an error if the results of the contenders have other elements or element types than those of JAX."""
    for who, result in results.items():
        for own, wanted in zip(jax.tree.leaves(result), jax.tree.leaves(results["JAX"]), strict=True):
            np.testing.assert_allclose(own, wanted, rtol=tolerance, atol=tolerance, err_msg=who)
            assert own.dtype == wanted.dtype, who

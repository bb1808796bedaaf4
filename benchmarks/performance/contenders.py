"""Who is measured: JAX by hand, Equinox, Haliax if it can be imported, and Axonym."""

import importlib
import importlib.metadata
from typing import Any

import axonym as nym


try:
    haliax: Any = importlib.import_module("haliax")
    __import__("haliax.nn")
except ImportError:
    haliax = None

# Both distributions are imported as `haliax`.
PEERS = ("marin-haliax", "haliax")
PARTS = ("jax", "jaxlib", "equinox", "numpy")


def versions() -> dict[str, str]:
    """Returns the version of everything that the figures depend on."""
    found = {"axonym": nym.__version__, **{name: importlib.metadata.version(name) for name in PARTS}}
    for name in PEERS if haliax is not None else ():
        try:
            return {**found, name: importlib.metadata.version(name)}
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def missing() -> list[str]:
    """Says of each contender that is left out why it is."""
    return [] if haliax is not None else ["Haliax is left out: `import haliax` fails; the extra `bench` brings it."]

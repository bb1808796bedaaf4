"""What tests of named arrays share: a mapping in force on each mesh, and a look into traced programs."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
from jax.sharding import Mesh

import axonym as nym


@pytest.fixture
def mapped(mesh: Mesh) -> Iterator[Mesh]:
    """Runs the test on both meshes, with a mapping in force that divides `batch` by 4 and `embed` by 2."""
    with nym.axis_mapping({"batch": "data", "embed": "model"}):
        yield mesh


Equations = Callable[..., list[tuple[str, tuple[int, ...]]]]


@pytest.fixture
def equations() -> Equations:
    """Returns a function that traces another and lists its equations, nested ones too: primitive and shape."""

    def traced(fn: Callable[..., Any], *args: Any) -> list[tuple[str, tuple[int, ...]]]:
        return [(eqn.primitive.name, eqn.outvars[0].aval.shape) for eqn in _nested(jax.make_jaxpr(fn)(*args).jaxpr)]

    return traced


def _nested(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        inner = [getattr(one, "jaxpr", one) for value in eqn.params.values() for one in jax.tree.leaves(value)]
        inner = [one for one in inner if hasattr(one, "eqns")]
        if eqn.primitive.name != "jit":
            yield eqn
        for one in inner:
            yield from _nested(one)

"""What tests of named arrays share: random arrays, a mapping in force on each mesh, and a look into traced programs."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import axonym as nym


class Draw:
    """Draws arrays with NumPy, which has nothing to compile."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)

    def __call__(self, low: float = -2.0, high: float = 2.0, /, **sizes: int) -> nym.NamedArray:
        """An array of these axes with values from `low` to `high`."""
        values = self.random.uniform(low, high, size=tuple(sizes.values()))
        return nym.named(jnp.asarray(values, jnp.float32), tuple(sizes))

    def integers(self, low: int, high: int, /, **sizes: int) -> nym.NamedArray:
        """An array of these axes with integers from `low` up to but not including `high`."""
        return nym.named(jnp.asarray(self.random.integers(low, high, size=tuple(sizes.values()))), tuple(sizes))


@pytest.fixture
def draw(getkey: Any) -> Draw:
    return Draw(getkey.seed)


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

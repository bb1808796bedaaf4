"""Arrays, mappings for them, where they lie, a block of layers, and rules: what the tests of this folder work on."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym


ROWS, COLUMNS = {"batch": "data"}, {"embed": "model"}
NAMES = ("batch", "embed")
VALUES = np.arange(32.0, dtype=np.float32).reshape(8, 4)

# For tests of what is the same on both kinds of mesh.
on_auto = pytest.mark.parametrize("mesh", ["auto"], indirect=True)
on_explicit = pytest.mark.parametrize("mesh", ["explicit"], indirect=True)


def array():
    return nym.NamedArray(VALUES, NAMES)


def lies(x, *spec) -> bool:
    return x.sharding.is_equivalent_to(NamedSharding(jax.sharding.get_mesh(), P(*spec)), x.ndim)


def assert_close(tree: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Compares the arrays of two trees, and says which one differs."""
    for (path, array), value in zip(jax.tree.leaves_with_path(tree), jax.tree.leaves(expected), strict=True):
        where = jax.tree_util.keystr(path)
        np.testing.assert_allclose(np.asarray(array), np.asarray(value), rtol=rtol, atol=atol, err_msg=where)


class Block(eqx.Module):
    """A block of a residual network."""

    norm: nym.nn.LayerNorm
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(Embed: nym.Axis, Mlp: nym.Axis, *, key: Any) -> "Block":
        up_key, down_key = jax.random.split(key)
        up = nym.nn.Linear.init(Embed, Mlp, key=up_key)
        return Block(nym.nn.LayerNorm.init(Embed), up, nym.nn.Linear.init(Mlp, Embed, key=down_key, use_bias=False))

    def __call__(self, x: nym.NamedArray) -> nym.NamedArray:
        return x + self.down(nym.nn.silu(self.up(self.norm(x))))


class Fails(nym.ShardingRule):
    """Raises an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def apply(self, pytree: Any) -> Any:
        raise self.error


class Given(nym.ShardingRule):
    """Gives one answer for each array, or for the whole tree."""

    def __init__(self, answer: Any, for_tree: bool = False) -> None:
        self.answer, self.for_tree = answer, for_tree

    def apply(self, pytree: Any) -> Any:
        return self.answer if self.for_tree else jax.tree.map(lambda _: self.answer, pytree)

"""Operands that lie elsewhere than the mapping in force says: results are right on either mesh."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import axonym as nym


def sharded() -> nym.NamedArray:
    values = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    return nym.shard(nym.named(values, ("batch", "embed")))


def whole(mesh: Mesh) -> nym.NamedArray:
    values = jnp.full((8, 4), 9.0)
    return nym.named(jax.device_put(values, NamedSharding(mesh, P())), ("batch", "embed"))


def window(x: nym.NamedArray, y: nym.NamedArray) -> nym.NamedArray:
    return x.at["batch", nym.dslice(0, 4)].set(nym.shard(y["batch", 0:4]))


def turned(x: nym.NamedArray, y: nym.NamedArray) -> nym.NamedArray:
    return x.rename({"batch": "embed", "embed": "batch"}).broadcast_to({"embed": 8, "batch": 4, "pos": 2})["pos", 1]


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "where": (lambda x, y: nym.where(x > 3, x, y), lambda x, y: np.where(x > 3, x, y)),
    "maximum": (nym.maximum, np.maximum),
    "window": (window, lambda x, y: np.concatenate([y[:4], x[4:]])),
    "broadcast": (turned, lambda x, y: x),
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_right_wherever_operands_lie(case: str, mapped: Mesh):
    named, plain = CASES[case]
    x, y = sharded(), whole(mapped)
    result = jax.jit(named)(x, y)
    np.testing.assert_array_equal(result.array, plain(np.asarray(x), np.asarray(y)))
    np.testing.assert_array_equal(named(x, y).array, result.array)

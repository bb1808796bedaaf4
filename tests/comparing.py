"""Comparisons of arrays in NumPy: those of JAX would compile a program for every shape."""

from typing import Any

import jax
import numpy as np


def allclose(x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """`jnp.allclose`, which does not line up arrays of several ranks either."""
    x, y = np.asarray(x), np.asarray(y)
    assert x.ndim == y.ndim or 0 in (x.ndim, y.ndim), f"{x.shape} and {y.shape}"
    return np.allclose(x, y, rtol=rtol, atol=atol)


def assert_same(first: Any, second: Any) -> None:
    """Asserts that two trees have the same structure, types and bits."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert isinstance(y, jax.Array) if isinstance(x, jax.Array) else type(x) is type(y)
        if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(x) == jax.random.key_impl(y)
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        if isinstance(x, jax.Array | np.ndarray | np.generic):
            assert x.dtype == y.dtype and x.shape == y.shape
            assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
        else:
            assert x == y

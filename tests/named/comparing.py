"""Comparisons of named arrays with what NumPy computes by position, and the updates of `x.at[...]` in NumPy."""

from collections.abc import Iterable
from typing import Any

import numpy as np

import axonym as nym


UPDATES = {
    "set": lambda old, new: np.broadcast_to(new, old.shape),
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "min": np.minimum,
    "max": np.maximum,
}


def assert_same(x: nym.NamedArray, names: Iterable[str], values: Any, rtol: float = 0, atol: float = 0) -> None:
    """Asserts that an array has these names, which a string may hold as letters, and these elements."""
    assert x.names == tuple(names)
    np.testing.assert_allclose(np.asarray(x.array), np.asarray(values), rtol, atol)


def assert_close(x: nym.NamedArray, names: Iterable[str], values: Any) -> None:
    """Asserts that an array has these names, and these elements up to rounding."""
    assert_same(x, names, values, rtol=1e-4, atol=1e-5)

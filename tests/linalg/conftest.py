"""Regular matrices, which these tests share."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

import axonym as nym


Matrices = Callable[..., nym.NamedArray]


@pytest.fixture
def matrices(draw: Callable[..., nym.NamedArray]) -> Matrices:
    """Draws matrices far from singular whose rows `i` and columns `j` lie around the batch axis."""

    def drawn(size: int = 4, symmetric: bool = False) -> nym.NamedArray:
        x = np.asarray(draw(i=size, batch=4, j=size).array)
        x = (x + x.transpose(2, 1, 0) if symmetric else x) + 8 * np.eye(size, dtype=np.float32)[:, None, :]
        return nym.named(jax.device_put(x), ("i", "batch", "j"))

    return drawn

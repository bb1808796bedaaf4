"""What these tests share: a mapping in force on each mesh, and regular matrices."""

from collections.abc import Callable, Iterator

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import axonym as nym


@pytest.fixture
def mapped(mesh: Mesh) -> Iterator[Mesh]:
    """Runs the test on both meshes, with a mapping in force that divides `batch` by 4 and `i` by 2."""
    with nym.axis_mapping({"batch": "data", "i": "model"}):
        yield mesh


Matrices = Callable[..., nym.NamedArray]


@pytest.fixture
def matrices(draw: Callable[..., nym.NamedArray]) -> Matrices:
    """Draws matrices far from singular whose rows `i` and columns `j` lie around the batch axis."""

    def drawn(size: int = 4, symmetric: bool = False) -> nym.NamedArray:
        x = np.asarray(draw(i=size, batch=4, j=size).array)
        x = (x + x.transpose(2, 1, 0) if symmetric else x) + 8 * np.eye(size, dtype=np.float32)[:, None, :]
        return nym.named(jax.device_put(x), ("i", "batch", "j"))

    return drawn

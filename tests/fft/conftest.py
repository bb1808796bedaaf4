"""What these tests share: a mapping in force on each mesh."""

from collections.abc import Iterator

import pytest
from jax.sharding import Mesh

import axonym as nym


@pytest.fixture
def mapped(mesh: Mesh) -> Iterator[Mesh]:
    """Runs the test on both meshes, with a mapping in force that divides `batch` by 4 and `i` by 2."""
    with nym.axis_mapping({"batch": "data", "i": "model"}):
        yield mesh

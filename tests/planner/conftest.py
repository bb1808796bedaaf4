"""The compiled programs that tests of plans share."""

import os

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """The compiled programs of all workers of a run, of which each would otherwise compile the same ones."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "planned"

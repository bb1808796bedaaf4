"""What tests of plans share."""

import os
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """The compiled programs of all workers of a run, of which each would otherwise compile the same ones."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "planned"


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Lets SIGINT interrupt the test also where a shell started the tests with that signal ignored."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)

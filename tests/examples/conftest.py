"""The programs of `examples/`, which import each other by their bare names."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session", autouse=True)
def examples_on_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield


@pytest.fixture(scope="session")
def train_lm(examples_on_path: None) -> Any:
    return importlib.import_module("train_lm")


@pytest.fixture(scope="session")
def generate(examples_on_path: None) -> Any:
    return importlib.import_module("generate")

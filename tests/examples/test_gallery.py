"""The programs of the gallery, each through its `main`: what it prints, and its picture."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .test_models import EXAMPLES


Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the `main` of an example, which must end well, and returns what it prints."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run_main(name: str, *options: object) -> str:
        code = importlib.import_module(name).main([str(option) for option in options])
        shown = capsys.readouterr()
        assert code == 0, shown.err
        return shown.out

    return run_main


def assert_is_picture(path: Path) -> None:
    picture = importlib.import_module("matplotlib.image").imread(path)
    assert picture.shape[0] > 300
    assert picture.std() > 0.01, "The picture is blank."


def test_vit_reads_digits(run: Run, tmp_path: Path):
    shown = run("train_vit", "--epochs", 5, "--layers", 1, "--embed", 32, "--batch", 128, "--out", tmp_path)
    accuracy = re.search(r"held-out accuracy: ([\d.]+)%", shown)
    assert accuracy and float(accuracy[1]) > 15, shown
    assert_is_picture(tmp_path / "vit.png")

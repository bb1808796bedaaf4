"""The smallest example trains, and shards its weights."""

import re
import runpy
from pathlib import Path

import pytest


PROGRAM = Path(__file__).parents[2] / "examples" / "quickstart.py"


def test_quickstart_reads_digits(capsys: pytest.CaptureFixture[str]):
    assert len(PROGRAM.read_text().splitlines()) <= 40
    runpy.run_path(str(PROGRAM))
    output = capsys.readouterr().out
    accuracy = re.search(r"test accuracy: ([\d.]+)%", output)
    assert accuracy, output
    assert float(accuracy[1]) > 95
    assert "f32[mlp: 128@model, pixel: 64]" in output, "The weight is not sharded."

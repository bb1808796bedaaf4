"""The smallest example trains, and shards its weights."""

import re
import subprocess
import sys
from pathlib import Path


PROGRAM = Path(__file__).parents[2] / "examples" / "quickstart.py"


def test_quickstart_reads_digits():
    done = subprocess.run([sys.executable, "-W", "error", PROGRAM], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"test accuracy: ([\d.]+)%", done.stdout)
    assert accuracy, done.stdout
    assert float(accuracy[1]) > 95
    assert "f32[mlp: 128@model, pixel: 64]" in done.stdout, "The weight is not sharded."


def test_quickstart_is_short():
    assert len(PROGRAM.read_text().splitlines()) <= 40

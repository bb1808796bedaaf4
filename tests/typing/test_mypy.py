"""What mypy infers: what the typing tests assert, which pyright checks as well, and annotations with its plugin."""

import subprocess
import sys
from pathlib import Path

import pytest


FOLDER = Path(__file__).parent
ALONE = ["--no-site-packages", "--ignore-missing-imports"]  # a quarter of the time


@pytest.mark.parametrize("options", [ALONE, pytest.param([], marks=pytest.mark.thorough)], ids=["alone", "with JAX"])
def test_mypy_infers_what_pyright_does_and_finds_what_is_wrong(tmp_path, options):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import axonym as nym\n\nn: int = nym.exp(nym.ones({'a': 2})) + 1.0\n")
    files = [FOLDER / "test_types.py", FOLDER / "annotated.py", wrong]
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--no-error-summary", *options, *files]
    run = subprocess.run(command, cwd=FOLDER.parents[1], capture_output=True, text=True)
    assert run.returncode == 1, run.stdout + run.stderr
    lines = [line for line in run.stdout.splitlines() if not line.startswith(f"{wrong}:3: ")]
    # Without other packages, an annotation of jaxtyping and a field of a module of Equinox are `Any`.
    assert [line for line in lines if not (options and 'Expression is of type "Any"' in line)] == []
    assert len(lines) == (2 if options else 0)
    assert "NamedArray" in run.stdout
    assert not run.stderr

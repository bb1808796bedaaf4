"""What mypy infers: what the typing tests assert, which pyright checks as well, and annotations with its plugin."""

import subprocess
import sys
from pathlib import Path


FOLDER = Path(__file__).parent


def mypy(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--no-error-summary", *arguments]
    run = subprocess.run(command, cwd=FOLDER.parents[1], capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


def test_mypy_infers_what_pyright_does():
    code, said = mypy(str(FOLDER / "test_types.py"), str(FOLDER / "annotated.py"))
    assert not code, said


def test_mypy_finds_what_is_wrong(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import axonym as nym\n\nn: int = nym.exp(nym.ones({'a': 2})) + 1.0\n")
    code, said = mypy(str(wrong))
    assert code and "NamedArray" in said

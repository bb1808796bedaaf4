"""The traceback of a mistyped axis ends in the line with the mistake."""

import os
import subprocess
import sys
import traceback
from pathlib import Path

import jax
import pytest

import axonym as nym


x = nym.ones({"batch": 2, "embed": 3})
PACKAGE = str(Path(nym.__file__).parent)
MISTAKES = {
    "method": lambda: x.sum("bach"),
    "function": lambda: nym.softmax(x, "bach"),
    "dot": lambda: nym.dot(x, x, axis="bach"),
    "index": lambda: x["bach", 0],
    "rearrange": lambda: nym.rearrange(x, "{(bach: a b)} -> a b"),
    "order": lambda: x.rearrange(("bach", "embed")),
    "einsum": lambda: nym.einsum("{bach} -> bach", x),
    "size": lambda: x.sum(nym.Axis("batch", 3)),
    "jit": lambda: jax.jit(lambda x: x.sum("bach"))(x),
    "named_jit": lambda: nym.named_jit(lambda x: x.sum("bach"))(x),
    "map": lambda: nym.map(lambda row: row.sum("bach"), "batch")(x),
}


def raise_from(mistake):
    with pytest.raises(ValueError, match=r"bach|batch") as raised:
        mistake()
    return raised.value


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_it_ends_in_the_frame_of_the_caller(mistake, mesh):
    error = raise_from(mistake)
    assert traceback.extract_tb(error.__traceback__)[-1].filename == __file__
    for frame, _ in traceback.walk_tb(error.__traceback__):
        ours = frame.f_code.co_filename.startswith(PACKAGE)
        assert not ours or frame.f_locals["__tracebackhide__"]
        assert frame.f_code.co_filename != __file__ or "__tracebackhide__" not in frame.f_locals


def test_filtering_can_be_turned_off():
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        error = raise_from(MISTAKES["method"])
    finally:
        jax.config.update("jax_traceback_filtering", before)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert frames[-1].f_code.co_filename.startswith(PACKAGE)
    assert not any("__tracebackhide__" in frame.f_locals for frame in frames)


@pytest.mark.parametrize("filtering", ["auto", "off"])
def test_pytest_shows_the_lines_of_the_user_alone(tmp_path, filtering):
    file = tmp_path / "test_mine.py"
    file.write_text("import axonym as nym\n\ndef test_mine():\n    x = nym.ones({'batch': 2})\n    x.sum('bach')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)]
    path = os.pathsep.join([str(Path(PACKAGE).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "JAX_TRACEBACK_FILTERING": filtering, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert "no axis 'bach' in (batch: 2); did you mean 'batch'?" in done.stdout
    assert ("axonym/named" in done.stdout) == (filtering == "off")

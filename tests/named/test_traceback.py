"""The traceback of a mistyped axis ends in the line with the mistake."""

import os
import subprocess
import sys
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import axonym as nym
from tests.refusals import refusal


x = nym.ones({"batch": 2, "embed": 3})
PACKAGE = str(Path(nym.__file__).parent)
LINEAR = nym.nn.Linear.init(nym.Axis("embed", 3), nym.Axis("mlp", 4), key=jax.random.key(0))
MISTAKES = {
    "method": lambda: x.sum("bach"),
    "size": lambda: x.sum(nym.Axis("batch", 3)),
    "dot": lambda: nym.dot(x, x, axis="bach"),
    "rearrange": lambda: nym.rearrange(x, "{(bach: a b)} -> a b"),
    "order": lambda: x.rearrange(("bach", "embed")),
    "einsum": lambda: nym.einsum("{bach} -> bach", x),
    "layer": lambda: LINEAR(x.rename({"embed": "embd"})),
    "broadcasting": lambda: x + nym.ones({"mlp": 4}),
    "plain array": lambda: x + jnp.ones((2, 3)),
    "out of range": lambda: x["batch", 7],
    "position": lambda: x[:, 0],
    "attribute": lambda: x.reshape((3, 2)),
    "function": lambda: nym.vmap(x, "batch"),
    "carry": lambda: nym.fold(lambda carry, row: row, "batch")(x.sum(), x),
    "mapping": lambda: nym.shard(x, {"batch": "dta"}),
    "twice": lambda: nym.shard(x, {"batch": "data", "embed": "data"}),
    "rule": lambda: nym.shard(x, ["batch"]),
    "jit": lambda: jax.jit(lambda x: x.sum("bach"))(x),
    "named_jit": lambda: nym.named_jit(lambda x: x.sum("bach"))(x),
    "map": lambda: nym.map(lambda row: row.sum("bach"), "batch")(x),
    "jax": lambda: jnp.ones(3) @ jnp.ones(4),
    "own": lambda: {}["key"],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_shown_in_frames_of_the_user(name, mesh):
    mistake = MISTAKES[name]
    compiled = nym.named_jit(lambda: mistake())
    whole = [compiled, lambda: nym.named_jit(lambda: compiled())()]
    eager = [] if name in ("jax", "own") else [mistake]
    for call in (*whole, lambda: compiled.lower(), *eager):
        with pytest.raises(Exception, match=r".") as raised:
            call()
        trace = raised.value.__traceback__
        assert traceback.extract_tb(trace)[-1].name == "<lambda>"
        assert trace.tb_frame.f_code.co_filename == __file__
        shown = "".join(traceback.format_exception(raised.value))
        assert shown.count("Traceback (most recent call last)") == 1
        assert "JAX_TRACEBACK_FILTERING" not in shown or name == "jit"
        if call in whole:
            assert PACKAGE not in shown and "site-packages" not in shown
        for frame, _ in traceback.walk_tb(trace) if call is mistake else ():
            is_own = frame.f_code.co_filename.startswith(PACKAGE)
            assert not is_own or frame.f_locals["__tracebackhide__"]
            assert frame.f_code.co_filename != __file__ or "__tracebackhide__" not in frame.f_locals


def test_an_argument_on_other_devices_is_one_error(explicit_mesh):
    first, second = (jax.device_put(jnp.ones(2), jax.devices()[at]) for at in (0, 1))
    add = nym.named_jit(lambda first, second: first + second)
    for call in (add, add.lower):
        with pytest.raises(ValueError, match=r"first, float32\[2\]|second, float32\[2\]") as raised:
            call(first, second)
        shown = "".join(traceback.format_exception(raised.value))
        assert shown.count("Traceback (most recent call last)") == 1
        assert traceback.extract_tb(raised.value.__traceback__)[-1].filename == __file__


def test_causes_and_notes_of_the_user_stay():
    def fail():
        try:
            raise KeyError("first")
        except KeyError as error:
            raised = ValueError("second")
            raised.add_note("mine")
            raise raised from error

    with refusal("second") as raised:
        nym.named_jit(fail)()
    assert isinstance(raised.value.__cause__, KeyError) and raised.value.__notes__ == ["mine"]


def test_filtering_can_be_turned_off():
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        with refusal("no axis 'bach'") as eager:
            MISTAKES["method"]()
        with refusal("no axis 'bach'") as compiled:
            MISTAKES["named_jit"]()
    finally:
        jax.config.update("jax_traceback_filtering", before)
    frames = [frame for frame, _ in traceback.walk_tb(eager.value.__traceback__)]
    assert frames[-1].f_code.co_filename.startswith(PACKAGE)
    assert not any("__tracebackhide__" in frame.f_locals for frame in frames)
    files = [frame.filename for frame in traceback.extract_tb(compiled.value.__traceback__)]
    assert any("pjit" in file for file in files) and files[-1].startswith(PACKAGE)


def test_pytest_shows_the_lines_of_the_user_alone(tmp_path):
    file = tmp_path / "test_mine.py"
    file.write_text("import axonym as nym\n\ndef test_mine():\n    x = nym.ones({'batch': 2})\n    x.sum('bach')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)]
    path = os.pathsep.join([str(Path(PACKAGE).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "JAX_TRACEBACK_FILTERING": "auto", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert "no axis 'bach' in (batch: 2); did you mean 'batch'?" in done.stdout
    assert "axonym/named" not in done.stdout

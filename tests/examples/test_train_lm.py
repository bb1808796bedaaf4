"""The training program: equal losses on every mesh, axis type and number of processes; checkpoints; clear errors."""

import contextlib
import importlib
import io
import json
import math
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from .conftest import EXAMPLES


SMALL = ["--steps", "6", "--batch", "8", "--seq", "32", "--layers", "2", "--embed", "128"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes((EXAMPLES.parent / "LICENSE").read_bytes())
    return path


def read_rows(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def read_losses(out: Path) -> list[float]:
    return [row["loss"] for row in read_rows(out) if "loss" in row]


class Run:
    """Runs of the program with the same options and text into one folder, with what they printed and their states."""

    def __init__(self, train_lm: Any, text: Path, out: Path) -> None:
        self.program, self.out, self.options = train_lm, out, [*SMALL, "--text", str(text), "--out", str(out)]
        self.printed, self.errors, self.state = "", "", None

    def __call__(self, *options: str, samples_text: bool = False) -> int:
        """Returns the exit code; a text, which is a program of its own, is sampled on request."""
        train = self.program.train

        def keep_state(*args: Any) -> Any:
            self.state = train(*args)
            return self.state

        output, errors = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.program, "train", keep_state)
            if not samples_text:
                patch.setattr(self.program, "sample_text", lambda *_: ("beginning", "continuation"))
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
                code = self.program.main([*self.options, *options])
        self.printed, self.errors = output.getvalue(), errors.getvalue()
        return code


@pytest.fixture(scope="module")
def reference(train_lm: Any, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Returns a run on the mesh data:4,model:2 with Auto axes."""
    run = Run(train_lm, text, tmp_path_factory.mktemp("reference"))
    assert run(samples_text=True) == 0, run.errors
    return run


@pytest.fixture
def run(train_lm: Any, text: Path, reference: Run, tmp_path: Path) -> Run:
    """Returns a copy of a run with the checkpoints of steps 5 and 6."""
    return Run(train_lm, text, Path(shutil.copytree(reference.out, tmp_path / "run")))


def check_state_is_divided(state: Any) -> None:
    """Checks that each of eight devices holds an eighth of the parameters, and of the optimizer state."""
    for tree in (state["model"], state["optimizer"]):
        arrays = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf)]
        per_device = [0] * 8
        for array in arrays:
            for shard in array.addressable_shards:
                per_device[shard.device.id] += shard.data.nbytes
        assert max(per_device) == pytest.approx(sum(array.nbytes for array in arrays) / 8, rel=0.02)


def test_run_shards_its_state_and_writes_metrics_plot_and_checkpoint(reference: Run):
    check_state_is_divided(reference.state)
    assert "mesh (data: 4, model: 2) of 8 cpu devices" in reference.printed and "goes on as" in reference.printed
    assert re.search(r"12 arrays, 1\d\.\d% on each device", reference.printed), "The table of `explain` is missing."
    steps = [row for row in read_rows(reference.out) if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert all(row["tokens_per_second"] > 0 for row in steps)
    assert math.log(256) - 0.5 < steps[0]["loss"] < math.log(256) + 0.5, "The first loss is not near log(256)."
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.5, "The loss does not fall."
    evaluated = [row for row in read_rows(reference.out) if "eval_bits_per_byte" in row]
    assert evaluated[-1]["step"] == 6
    assert 2 < evaluated[-1]["eval_bits_per_byte"] < 8
    picture = importlib.import_module("matplotlib.image").imread(reference.out / "loss.png")
    assert picture.shape[0] > 300
    assert picture.std() > 0.01, "The plot is blank."
    assert (reference.out / "checkpoints" / "6").is_dir()


def test_a_second_run_is_interrupted_and_goes_on_with_another_mesh_and_kind_of_axes(
    train_lm: Any, reference: Run, run: Run, monkeypatch: pytest.MonkeyPatch
):
    losses = read_losses(reference.out)

    def interrupt(loss: float, what: str) -> float:
        if what == "loss of step 2":
            signal.raise_signal(signal.SIGINT)
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(train_lm, "check_finite", interrupt)
        assert run("--mesh", "data:8") == 0
    assert "stopped and saved at step 2; go on with --resume" in run.printed
    assert read_losses(run.out.with_name("run-1")) == losses, "The results of the first run are not moved aside."
    before = read_losses(run.out)
    assert run("--mesh", "data:2,model:4", "--axis-types", "explicit", "--resume") == 0, run.errors
    check_state_is_divided(run.state)
    assert [row["step"] for row in read_rows(run.out) if "loss" in row] == [1, 2, 3, 4, 5, 6]
    assert read_losses(run.out)[:2] == before
    np.testing.assert_allclose(read_losses(run.out), losses, atol=1e-3)
    assert run("--resume") == 0 and "nothing left to do" in run.printed
    assert run("--resume", "--layers", "1") == 2 and "has --layers 2, not 1" in run.errors


def flip_byte(step: Path) -> None:
    largest = max((file for file in step.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)


def test_resume_falls_back_to_the_newest_good_checkpoint(reference: Run, run: Run):
    flip_byte(run.out / "checkpoints" / "6")
    with pytest.warns(UserWarning, match="skipped the checkpoint of step 6: .* is damaged"):
        assert run("--resume") == 0
    assert read_losses(run.out) == read_losses(reference.out), "The curve after resuming is another one."
    assert sorted(path.name for path in (run.out / "checkpoints").iterdir()) == ["5", "6", "damaged-6"]


def test_resume_without_a_good_checkpoint_names_the_folder(run: Run):
    for step in ("5", "6"):
        shutil.rmtree(run.out / "checkpoints" / step)
        (run.out / "checkpoints" / step / "default").mkdir(parents=True)  # what makes the folder one of a step
    with pytest.warns(UserWarning, match="skipped the checkpoint of step 6: "):
        assert run("--resume") == 2
    assert f"the checkpoint of step 5 is damaged: {run.out}/checkpoints/5" in run.errors
    assert (run.out / "checkpoints" / "6").is_dir()
    (run.out / "options.json").write_text("")
    assert run("--resume") == 2
    assert f'{run.out}/options.json is damaged; write the options of the run into it: {{"layers": 2' in run.errors


def test_training_stops_on_a_loss_that_is_not_finite(train_lm: Any, run: Run, monkeypatch: pytest.MonkeyPatch):
    shutil.rmtree(run.out / "checkpoints" / "6")
    monkeypatch.setattr(train_lm, "make_train_step", lambda *_: lambda model, state, *batch: (model, state, math.nan))
    assert run("--resume") == 2
    message = r"the loss of step 6 is nan; lower --lr, or delete the newest checkpoint if .* damaged"
    assert re.search(message, run.errors), run.errors
    assert len(read_losses(run.out)) == 5 and not (run.out / "checkpoints" / "6").exists()


def test_metrics_survive_a_kill_at_any_time(train_lm: Any, run: Run, tmp_path: Path):
    file, held = run.out / "metrics.jsonl", tmp_path / "held.jsonl"
    file.write_text(file.read_text() + '{"step": 7, "lo')
    os.link(file, held)  # keeps what a program that is killed while it rewrites the file would leave
    metrics = train_lm.Metrics(file, 6)
    assert held.read_text().endswith('"lo'), "The file was emptied before it was written again."
    assert [row["step"] for row in metrics.rows if "loss" in row] == [1, 2, 3, 4, 5, 6]
    metrics.add(step=7, loss=1.0)
    assert read_rows(run.out)[-1] == {"step": 7, "loss": 1.0}
    file.write_text('{"st\n' + file.read_text())
    with pytest.raises(ValueError, match=rf"line 1 of {re.escape(str(file))} is damaged; delete it to resume"):
        train_lm.Metrics(file, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mesh", "data:3,model:2"], r"mesh \(data: 3, model: 2\) needs 6 devices"),
        (["--embed", "96"], "axis 'heads' has size 3, which is not divisible by mesh axis 'model' of size 2"),
        (["--text", "nowhere.txt"], "No such file.*nowhere.txt"),
        (["--text", os.devnull], f"the text is empty: {os.devnull}"),
        (["--seq", "2000"], r"the text has \d+ bytes; sequences of 2000 need 20010"),
        (["--resume"], "no run to resume in"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_one_clear_line(train_lm: Any, text: Path, tmp_path: Path, options: list[str], message: str):
    run = Run(train_lm, text, tmp_path)
    assert run(*options) == 2
    assert run.errors.count("\n") == 1
    assert re.search(message, run.errors), run.errors

"""The training program: equal losses on every mesh, axis type and number of processes; checkpoints; clear errors."""

import importlib
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.processes import run as run_processes


EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["--steps", "6", "--batch", "8", "--seq", "32", "--layers", "2", "--embed", "128"]
COMMAND = [sys.executable, "-W", "error", EXAMPLES / "train_lm.py"]
# Another process may be writing a compiled program; JAX compiles it again.
CACHED = [*COMMAND[:3], "-W", "ignore:Error reading persistent compilation cache entry", COMMAND[3]]


@pytest.fixture(scope="module")
def train_lm() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module("train_lm")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes((EXAMPLES.parent / "LICENSE").read_bytes())
    return path


def read_rows(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def read_losses(out: Path) -> list[float]:
    return [row["loss"] for row in read_rows(out) if "loss" in row]


@pytest.fixture(scope="module")
def reference(train_lm: Any, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a run on the mesh data:4,model:2 with Auto axes."""
    out = tmp_path_factory.mktemp("reference")
    assert train_lm.main([*SMALL, "--text", str(text), "--out", str(out)]) == 0
    return out


def test_run_writes_metrics_plot_and_checkpoint(reference: Path):
    steps = [row for row in read_rows(reference) if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert all(row["tokens_per_second"] > 0 for row in steps)
    assert math.log(256) - 0.5 < steps[0]["loss"] < math.log(256) + 0.5, "The first loss is not near log(256)."
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.5, "The loss does not fall."
    evaluated = [row for row in read_rows(reference) if "eval_bits_per_byte" in row]
    assert evaluated[-1]["step"] == 6
    assert 2 < evaluated[-1]["eval_bits_per_byte"] < 8
    picture = importlib.import_module("matplotlib.image").imread(reference / "loss.png")
    assert picture.shape[0] > 300
    assert picture.std() > 0.01, "The plot is blank."
    assert (reference / "checkpoints" / "6").is_dir()


def test_layers_compute_in_fewer_bits(train_lm: Any, reference: Path, text: Path, tmp_path: Path):
    options = ["--compute-dtype", "bfloat16", "--axis-types", "explicit"]
    assert train_lm.main([*SMALL, "--text", str(text), "--out", str(tmp_path), *options]) == 0
    losses, expected = read_losses(tmp_path), read_losses(reference)
    np.testing.assert_allclose(losses, expected, atol=0.05)
    assert losses != expected


@pytest.fixture(scope="module")
def saved_on_eight(train_lm: Any, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a run on the mesh data:8."""
    out = tmp_path_factory.mktemp("eight")
    assert train_lm.main([*SMALL, "--text", str(text), "--out", str(out), "--mesh", "data:8"]) == 0
    return out


def test_losses_do_not_depend_on_the_mesh(
    train_lm: Any, reference: Path, saved_on_eight: Path, text: Path, tmp_path: Path
):
    np.testing.assert_allclose(read_losses(saved_on_eight), read_losses(reference), atol=1e-3)
    options = ["--mesh", "data:2,model:4", "--axis-types", "explicit"]
    assert train_lm.main([*SMALL, "--text", str(text), "--out", str(tmp_path), *options]) == 0
    np.testing.assert_allclose(read_losses(tmp_path), read_losses(reference), atol=1e-3)


def test_a_run_goes_on_with_another_mesh_and_kind_of_axes(
    train_lm: Any, saved_on_eight: Path, reference: Path, text: Path, tmp_path: Path
):
    out = Path(shutil.copytree(saved_on_eight, tmp_path / "run"))
    shutil.rmtree(out / "checkpoints" / "6")
    options = ["--mesh", "data:2,model:4", "--axis-types", "explicit", "--resume"]
    assert train_lm.main([*SMALL, "--text", str(text), "--out", str(out), *options]) == 0
    assert read_losses(out)[:5] == read_losses(saved_on_eight)[:5]
    np.testing.assert_allclose(read_losses(out), read_losses(reference), atol=1e-3)


@pytest.mark.thorough
def test_losses_do_not_depend_on_the_number_of_devices(reference: Path, text: Path, tmp_path: Path):
    options = ["--text", text, "--out", tmp_path, "--devices", "1", "--mesh", "data:1,model:1"]
    done = subprocess.run([*COMMAND, *SMALL, *options], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "mesh (data: 1, model: 1) of 1 cpu devices" in done.stdout
    assert "goes on as" in done.stdout
    assert "12 arrays, 100.0% on each device" in done.stdout, "The table of `explain` is missing."
    np.testing.assert_allclose(read_losses(tmp_path), read_losses(reference), atol=1e-3)


RESTORE = """
import numpy as np

class Data:
    def set_state(self, state):
        assert state["batches"] == 6

start()
with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"), axis_types="explicit")):
    state = nym.checkpoint.restore({folder!r}, mapping={mapping!r}, data=Data())
assert state["model"]["head"]["weight"].sharding.spec == jax.P("model", "data")
leaves = jax.tree.leaves(state)
with np.load({expected!r}) as expected:
    for at, leaf in enumerate(leaves):
        for shard in getattr(leaf, "addressable_shards", ()):
            assert (np.asarray(shard.data) == expected[f"arr_{{at}}"][shard.index]).all()
print("restored", len(leaves))
"""


def test_a_checkpoint_restores_bit_for_bit_anywhere(train_lm: Any, saved_on_eight: Path, tmp_path: Path):
    folder, like, mapping = saved_on_eight / "checkpoints", make_like(train_lm), train_lm.PARAMETERS
    plain = nym.checkpoint.restore(folder)
    saved = nym.checkpoint.restore(folder, like)
    assert saved["step"] == 6 and all(len(x.sharding.device_set) == 1 for x in jax.tree.leaves(saved["model"]))
    for axis_types in ("auto", "explicit"):
        with jax.set_mesh(nym.create_mesh((2, 4), ("data", "model"), axis_types=axis_types)):
            restored = nym.checkpoint.restore(folder, like, mapping=mapping)
        assert restored["model"].head.weight.sharding.spec == jax.P("model", "data")
        for one, other in zip(jax.tree.leaves(restored), jax.tree.leaves(saved), strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    expected = [np.asarray(x) for x in jax.tree.leaves(plain)]
    np.savez(tmp_path / "expected.npz", *expected)
    program = RESTORE.format(folder=str(folder), mapping=mapping, expected=f"{tmp_path}/expected.npz")
    outputs = run_processes(program, processes=2, devices=4)
    assert all(f"restored {len(expected)}" in output for output in outputs)


def test_two_processes_give_the_losses_of_one(reference: Path, text: Path, tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--text", text, "--out", tmp_path, "--distributed", "--devices", "4", "--mesh", "data:4,model:2"]
    environment = {**os.environ, "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    processes = [
        subprocess.Popen(
            [*COMMAND, *SMALL, *options],
            env={**environment, "JAX_PROCESS_ID": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    printed = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(printed)
    np.testing.assert_allclose(read_losses(tmp_path), read_losses(reference), atol=1e-3)
    assert "final held-out loss" in printed[0]
    assert "held-out loss" not in printed[1], "Both processes print."


def test_second_run_moves_the_first_aside(
    train_lm: Any, text: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    options = [*SMALL, "--text", str(text), "--out", str(run)]
    first = read_losses(run)
    assert train_lm.main([*options, "--seed", "1"]) == 0
    assert read_losses(tmp_path / "run-1") == first and read_losses(run) != first
    assert (run / "checkpoints" / "6").is_dir()
    capsys.readouterr()
    assert train_lm.main([*options, "--resume"]) == 0
    assert "nothing left to do" in capsys.readouterr().out
    assert train_lm.main([*options, "--resume", "--layers", "1"]) == 2
    assert "has --layers 2, not 1" in capsys.readouterr().err


def test_interrupted_run_resumes_to_the_same_losses(train_lm: Any, reference: Path, text: Path, tmp_path: Path):
    options = [*SMALL, "--text", str(text), "--out", str(tmp_path)]
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": os.environ["AXONYM_TESTS_CACHE"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    process = subprocess.Popen(
        [*CACHED, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    metrics = tmp_path / "metrics.jsonl"
    for _ in range(2400):
        if process.poll() is not None or (metrics.exists() and "loss" in metrics.read_text()):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 0, printed
    done = len(read_losses(tmp_path))
    assert 0 < done < 6, printed
    assert f"stopped and saved at step {done}; go on with --resume" in printed
    assert train_lm.main([*options, "--resume"]) == 0
    assert [row["step"] for row in read_rows(tmp_path) if "loss" in row] == [1, 2, 3, 4, 5, 6]
    assert read_losses(tmp_path) == read_losses(reference), "The curve after resuming is another one."


def empty_checkpoint(step: Path) -> None:
    shutil.rmtree(step)
    (step / "default").mkdir(parents=True)  # what makes the folder one of a step


def flip_byte(step: Path) -> None:
    largest = max((file for file in step.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)


class Kept:
    """The state of an iterator that a checkpoint gives back and gets again."""

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


def make_like(train_lm: Any) -> Any:
    optimizer = train_lm.make_optimizer(train_lm.parse_args(SMALL))
    return eqx.filter_eval_shape(train_lm.init_state, train_lm.make_axes(8, 32, 128, 2), optimizer, 0)


def spoil_checkpoint(train_lm: Any, step: Path, value: float) -> None:
    """Writes the checkpoint again, with one number in place of all parameters."""
    kept = Kept()
    state = nym.checkpoint.restore(step.parent, make_like(train_lm), step=int(step.name), data=kept)
    state = jax.tree.map(lambda x: jnp.full_like(x, value) if getattr(x, "ndim", 0) else x, state)
    shutil.rmtree(step)
    nym.checkpoint.save(step.parent, state, int(step.name), data=kept)


@pytest.fixture
def run(reference: Path, tmp_path: Path) -> Path:
    """Returns a copy of a run with the checkpoints of steps 5 and 6."""
    return Path(shutil.copytree(reference, tmp_path / "run"))


def test_resume_falls_back_to_the_newest_good_checkpoint(train_lm: Any, reference: Path, text: Path, run: Path):
    flip_byte(run / "checkpoints" / "6")
    with pytest.warns(UserWarning, match="skipped the checkpoint of step 6: .* is damaged"):
        assert train_lm.main([*SMALL, "--text", str(text), "--out", str(run), "--resume"]) == 0
    assert read_losses(run) == read_losses(reference), "The curve after resuming is another one."
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["5", "6", "damaged-6"]


def test_resume_without_a_good_checkpoint_names_the_folder(
    train_lm: Any, text: Path, run: Path, capsys: pytest.CaptureFixture[str]
):
    for step in (5, 6):
        empty_checkpoint(run / "checkpoints" / str(step))
    with pytest.warns(UserWarning, match="skipped the checkpoint of step 6: "):
        assert train_lm.main([*SMALL, "--text", str(text), "--out", str(run), "--resume"]) == 2
    assert f"the checkpoint of step 5 is damaged: {run}/checkpoints/5" in capsys.readouterr().err
    assert (run / "checkpoints" / "6").is_dir()
    (run / "options.json").write_text("")
    assert train_lm.main([*SMALL, "--text", str(text), "--out", str(run), "--resume"]) == 2
    error = capsys.readouterr().err
    assert f'{run}/options.json is damaged; write the options of the run into it: {{"layers": 2' in error


def test_training_stops_on_a_loss_that_is_not_finite(
    train_lm: Any, text: Path, run: Path, capsys: pytest.CaptureFixture[str]
):
    options = [*SMALL, "--text", str(text), "--out", str(run)]
    spoil_checkpoint(train_lm, run / "checkpoints" / "6", 3e38)
    options += ["--steps", "8", "--lr", "1e30"]
    assert train_lm.main([*options, "--resume"]) == 2
    error = capsys.readouterr().err
    assert re.search(r"the loss of step [78] is nan; lower --lr, or delete the newest checkpoint if .* damaged", error)
    assert all(map(math.isfinite, read_losses(run)))
    assert train_lm.main(options) == 2
    assert re.search(r"the (held-out )?loss of step [2-4] is (nan|inf)", capsys.readouterr().err)
    assert not (run / "checkpoints" / "6").exists()


def test_metrics_survive_a_kill_at_any_time(train_lm: Any, run: Path, tmp_path: Path):
    file, held = run / "metrics.jsonl", tmp_path / "held.jsonl"
    file.write_text(file.read_text() + '{"step": 7, "lo')
    os.link(file, held)  # keeps what a program that is killed while it rewrites the file would leave
    metrics = train_lm.Metrics(file, 6)
    assert held.read_text().endswith('"lo'), "The file was emptied before it was written again."
    assert [row["step"] for row in metrics.rows if "loss" in row] == [1, 2, 3, 4, 5, 6]
    metrics.add(step=7, loss=1.0)
    assert read_rows(run)[-1] == {"step": 7, "loss": 1.0}
    file.write_text('{"st\n' + file.read_text())
    with pytest.raises(ValueError, match=rf"line 1 of {re.escape(str(file))} is damaged; delete it to resume"):
        train_lm.Metrics(file, 6)


@pytest.mark.parametrize(("sizes", "axis_types"), [((4, 2), "auto"), ((2, 4), "explicit")])
def test_parameters_and_optimizer_state_are_sharded_eight_ways(train_lm: Any, sizes: tuple[int, int], axis_types: str):
    """With the programs that the runs above have compiled."""
    with jax.set_mesh(nym.create_mesh(sizes, ("data", "model"), axis_types=axis_types)):
        axes = train_lm.make_axes(8, 32, 128, 2)
        optimizer = train_lm.make_optimizer(train_lm.parse_args(SMALL))
        state = nym.named_jit(train_lm.init_state, train_lm.PARAMETERS)(axes, optimizer, 0)
        batch = nym.shard(nym.zeros((axes.batch, axes.pos), jnp.int32), train_lm.COMPUTE)
        model, state, _ = train_lm.make_train_step(optimizer)(state["model"], state["optimizer"], batch, batch)
    for tree in (model, state, (model, state)):
        arrays = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf)]
        replicated = sum(array.nbytes for array in arrays)
        per_device = [0] * 8
        for array in arrays:
            for shard in array.addressable_shards:
                per_device[shard.device.id] += shard.data.nbytes
        assert max(per_device) == pytest.approx(replicated / 8, rel=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mesh", "data:3,model:2"], r"mesh \(data: 3, model: 2\) needs 6 devices"),
        (["--mesh", "dta:4"], r"'dta'.*did you mean 'data'"),
        (["--batch", "6"], "axis 'batch' has size 6, which is not divisible by mesh axis 'data' of size 4; .* 8"),
        (["--embed", "96"], "axis 'heads' has size 3, which is not divisible by mesh axis 'model' of size 2"),
        (["--text", "nowhere.txt"], "No such file.*nowhere.txt"),
        (["--text", os.devnull], f"the text is empty: {os.devnull}"),
        (["--seq", "2000"], r"the text has \d+ bytes; sequences of 2000 need 20010"),
        (["--resume"], "no run to resume in"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_one_clear_line(
    train_lm: Any, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
):
    assert train_lm.main([*SMALL, "--text", str(text), "--out", str(tmp_path), *options]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error

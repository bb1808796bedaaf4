"""Saving while the training goes on, which checkpoints stay, the command, and real kills."""

from pathlib import Path

import jax
import numpy as np
import pytest

import axonym as nym
from axonym.checkpoint.__main__ import main

from .kill import run_kills


@pytest.mark.parametrize("devices", [1, 8])
def test_donated_arrays_may_be_overwritten_while_saving(devices: int, tmp_path: Path) -> None:
    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
    numpy = np.ones(1 << 20, np.float32)
    with jax.set_mesh(mesh), nym.axis_mapping({"embed": "data"}), nym.checkpoint.Checkpointer(tmp_path) as checkpointer:
        step = nym.named_jit(lambda x: x * 2.0 + 1.0, donate_args=(True,))
        state = step(nym.shard(nym.ones({"embed": 1 << 21})))
        for number in range(3):
            checkpointer.save({"state": state, "numpy": numpy}, number)
            numpy[:] = number + 2
            for _ in range(4):
                state = step(state)
        checkpointer.wait()
    value, old = 3.0, 1.0
    for number in range(3):
        found = nym.checkpoint.restore(tmp_path, step=number)
        assert np.unique(found["state"].array).tolist() == [value]
        assert np.unique(found["numpy"]).tolist() == [old]
        value, old = value * 16 + 15, number + 2.0


def test_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    with nym.checkpoint.Checkpointer(tmp_path / "new" / "run", max_to_keep=2) as checkpointer:
        assert checkpointer.steps == [] and checkpointer.folder == tmp_path / "new" / "run"
        for step in (0, 5, 10):
            checkpointer.save({"step": step}, step)
        assert checkpointer.restore() == {"step": 10}
        assert checkpointer.steps == [5, 10]
    with nym.checkpoint.Checkpointer(checkpointer.folder, max_to_keep=1) as another:
        (checkpointer.folder / "30.orbax-checkpoint-tmp").mkdir()
        assert another.restore(step=5) == {"step": 5}
        another.save({"step": 20}, 20)
    assert nym.checkpoint.list_steps(checkpointer.folder) == [20]


def test_orbax_reads_the_arrays_by_path(tmp_path: Path) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    nym.checkpoint.save(tmp_path, {"weight": nym.arange(nym.Axis("embed", 4)), "step": 3}, 1)
    with ocp.CheckpointManager(tmp_path) as manager:
        found = manager.restore(1, args=ocp.args.StandardRestore())
    assert list(found) == ["state['weight']"]
    assert found["state['weight']"].tolist() == [0, 1, 2, 3]


def test_inspect_prints_the_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    linear = nym.nn.Linear.init(nym.Axis("embed", 4), nym.Axis("mlp", 2), key=jax.random.key(0))
    state = {"model": [linear], "key": jax.random.key(1), "rate": np.float64(0.5), "act": jax.nn.relu, "name": "x"}
    nym.checkpoint.save(tmp_path, state, 3)
    nym.checkpoint.save(tmp_path, {"step": 4}, 4)
    assert main([str(tmp_path), "--step", "3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"step 3 in {tmp_path}: 4 arrays, 56 B",
        "act              relu",
        "key              random keys threefry2x32 ()   8 B",
        "model            list",
        "  0              Linear",
        "    weight       float32 (mlp: 2, embed: 4)   32 B",
        "    bias         float32 (mlp: 2)              8 B",
        "    dot_general  None",
        "name             str 'x'",
        "rate             NumPy scalar float64 ()       8 B",
        "steps in the folder: 3, 4",
    ]
    summary = nym.checkpoint.inspect(tmp_path, 3)
    assert summary.nbytes == 56 and summary.leaves["['model'][0].weight"].names == ("mlp", "embed")
    assert repr(nym.checkpoint.inspect(tmp_path)).endswith("step  int 4")
    assert main([str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err == f"no checkpoint in {tmp_path / 'none'}\n"


def test_kills_lose_nothing_and_leave_nothing_corrupt() -> None:
    *kills, summary = run_kills(kills=2, processes=1, seed=0, steps=30)
    assert len(kills) == 2 and "none was lost" in summary

"""Saving while the training goes on, which checkpoints stay, the command, and real kills."""

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
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
        restored = nym.checkpoint.restore(tmp_path, step=number)
        assert np.unique(restored["state"].array).tolist() == [value]
        assert np.unique(restored["numpy"]).tolist() == [old]
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


def test_only_folders_of_steps_with_files_are_checkpoints(tmp_path: Path) -> None:
    for name in ("007", "8", "9/default", "-1", "1e3", "10.orbax-checkpoint-tmp/default"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "11").touch()
    nym.checkpoint.save(tmp_path, {"step": 8}, 8)  # an empty folder is in nobody's way
    assert nym.checkpoint.list_steps(tmp_path) == [8, 9]
    assert nym.checkpoint.restore(tmp_path, step=8) == {"step": 8}
    with pytest.raises(ValueError, match=rf"{tmp_path / '11'} is there and is no checkpoint; remove it, or save"):
        nym.checkpoint.save(tmp_path, {"step": 11}, 11)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 7 in .*, only of 8, 9"):
        nym.checkpoint.restore(tmp_path, step=7)


def test_old_steps_may_be_links_and_the_new_one_stays(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "run"
    nym.checkpoint.save(elsewhere, {"step": 5}, 5)
    folder.mkdir()
    (folder / "5").symlink_to(elsewhere / "5")
    (folder / "20").symlink_to(elsewhere / "5")
    with nym.checkpoint.Checkpointer(folder, max_to_keep=2) as checkpointer:
        for step, remaining in ((6, [6, 20]), (7, [6, 7]), (8, [7, 8])):  # 6 is saved after 20
            checkpointer.save({"step": step}, step)
            checkpointer.wait()
            assert checkpointer.steps == remaining
    assert nym.checkpoint.restore(elsewhere) == {"step": 5}


def test_a_checkpoint_that_cannot_be_deleted_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    with nym.checkpoint.Checkpointer(tmp_path, max_to_keep=1) as checkpointer:
        checkpointer.save({"step": 1}, 1)
        checkpointer.wait()
        checkpointer.save({"step": 2}, 2)
        monkeypatch.setattr("axonym.checkpoint._steps.shutil.rmtree", refuse)
        with pytest.warns(UserWarning, match=r"step 1 could not be deleted: .*Permission denied"):
            checkpointer.wait()
        monkeypatch.undo()
        assert checkpointer.steps == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_a_deep_tree_comes_back_or_is_refused(tmp_path: Path) -> None:
    def nest(levels: int) -> Any:
        tree: Any = np.ones(2, np.float32)
        for _ in range(levels):
            tree = {"inner": tree}
        return tree

    nym.checkpoint.save(tmp_path, nest(200), 1)
    assert jax.tree.leaves(nym.checkpoint.restore(tmp_path, nest(200)))[0].tolist() == [1, 1]
    assert jax.tree.leaves(nym.checkpoint.restore(tmp_path))[0].tolist() == [1, 1]
    assert str(nym.checkpoint.inspect(tmp_path)).count("inner") == 200
    for levels in (201, 400, 5000):
        with pytest.raises(ValueError, match=r"more than 200 levels at \['inner'\].*; put its arrays into a flat dict"):
            nym.checkpoint.save(tmp_path, nest(levels), 2)
        with pytest.raises(ValueError, match=r"more than 200 levels at \['inner'\]"):
            nym.checkpoint.restore(tmp_path, nest(levels))


def test_a_reader_goes_on_if_its_step_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from axonym.checkpoint import _restore

    read_metadata = _restore.read_metadata

    def save_and_read(folder: Path, checksums: Any) -> Any:
        monkeypatch.undo()
        nym.checkpoint.save(tmp_path, {"step": 2}, 2, max_to_keep=1)
        return read_metadata(folder, checksums)

    nym.checkpoint.save(tmp_path, {"step": 1}, 1)
    monkeypatch.setattr(_restore, "read_metadata", save_and_read)
    assert nym.checkpoint.restore(tmp_path) == {"step": 2}
    shutil.rmtree(tmp_path / "2")
    nym.checkpoint.save(tmp_path, {"step": 1}, 1)
    monkeypatch.setattr(_restore, "read_metadata", save_and_read)
    with pytest.raises(FileNotFoundError, match=r"step 1 in .* was deleted while it was read; restore a newer one"):
        nym.checkpoint.restore(tmp_path, step=1)


def test_orbax_reads_the_arrays_by_path(tmp_path: Path) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    nym.checkpoint.save(tmp_path, {"weight": nym.arange(nym.Axis("embed", 4)), "step": 3}, 1)
    with ocp.CheckpointManager(tmp_path) as manager:
        restored = manager.restore(1, args=ocp.args.StandardRestore())
    assert list(restored) == ["state['weight']"]
    assert restored["state['weight']"].tolist() == [0, 1, 2, 3]


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


def test_a_step_that_is_saved_again_is_kept(tmp_path: Path) -> None:
    with nym.checkpoint.Checkpointer(tmp_path, max_to_keep=1) as checkpointer:
        for value in (1.0, 2.0):
            checkpointer.save({"x": np.full(2, value, "f")}, 20)
            checkpointer.wait()
            if value == 1.0:
                shutil.rmtree(tmp_path / "20")
        assert list(checkpointer.steps) == [20]
    assert nym.checkpoint.restore(tmp_path)["x"].tolist() == [2.0, 2.0]


def test_a_save_that_was_given_up_writes_nothing_into_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    is_next_written, is_late_written = threading.Event(), threading.Event()
    save = ocp.PyTreeCheckpointHandler.async_save

    async def save_late(handler: Any, *arguments: Any, **options: Any) -> list[Any]:
        attempts.append(len(attempts))
        is_late = len(attempts) == 1
        if is_late:
            is_next_written.wait(60)
        parts = await save(handler, *arguments, **options) or []
        for part in parts:
            part.result(60)
        if is_late:
            is_late_written.set()
        else:
            is_next_written.set()
            is_late_written.wait(60)
        return parts

    monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "async_save", save_late)
    with nym.checkpoint.Checkpointer(tmp_path, timeout=3) as checkpointer:
        checkpointer.save({"weight": np.zeros(3)}, 5)
        with pytest.raises(OSError, match=r"step 5 could not be saved .*: the arrays were not on the host"):
            checkpointer.wait()
        checkpointer.save({"weight": np.ones(3)}, 5)
        checkpointer.wait()
        assert checkpointer.restore()["weight"].tolist() == [1, 1, 1]


def test_all_parts_of_a_save_have_one_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float] = []
    save = ocp.PyTreeCheckpointHandler.async_save

    class Part:
        def result(self, timeout: float) -> None:
            timeouts.append(timeout)
            time.sleep(0.01)

    async def save_in_parts(handler: Any, *arguments: Any, **options: Any) -> list[Any]:
        return [*(await save(handler, *arguments, **options) or []), Part(), Part()]

    monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "async_save", save_in_parts)
    nym.checkpoint.save(tmp_path, {"weight": np.zeros(3)}, 5)
    first, second = timeouts
    assert second < first <= 1800

"""Saving while the training goes on, which checkpoints stay, the command, and wrong arguments."""

import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import axonym as nym
from axonym.checkpoint.__main__ import main

from ..refusals import refusal
from .fail import Data


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
    with nym.checkpoint.Checkpointer(tmp_path, timeout=1) as checkpointer:
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


MESH = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
NO_STEP = "`step` is an integer from 0 on, not "
NO_INTEGER = "`max_to_keep` must be an integer, not "
NO_DATA = "has no state of the data; restore it without `data`"
WRONG_CALLS = {
    NO_STEP + "-1": (ValueError, lambda ck, folder: ck.save(folder, {}, -1)),
    NO_STEP + "True": (ValueError, lambda ck, folder: ck.restore(folder, step=True)),
    "convert it with `int(step)`": (ValueError, lambda ck, folder: ck.save(folder, {}, jnp.array(8))),
    "`like` is a tree": (ValueError, lambda ck, folder: ck.restore(folder, 7)),
    "`fallback` chooses among the newest": (ValueError, lambda ck, folder: ck.restore(folder, step=7, fallback=True)),
    "`fallback` must be True or False, not 7": (TypeError, lambda ck, folder: ck.restore(folder, fallback=7)),
    "`strict` must be True or False, not 'no'": (TypeError, lambda ck, folder: ck.restore(folder, strict="no")),
    "`axis_order` is 'transpose' or 'error', not": (ValueError, lambda ck, folder: ck.restore(folder, axis_order="x")),
    "`mesh` is a mesh with devices, not 'data'": (TypeError, lambda ck, folder: ck.restore(folder, mesh="data")),
    "not 'data'": (TypeError, lambda ck, folder: ck.restore(folder, mapping="data", mesh=MESH)),
    NO_DATA: (ValueError, lambda ck, folder: ck.restore(folder, data=iter(()))),
    "tuple_iterator without `get_state`; pass": (
        TypeError,
        lambda ck, folder: ck.save(folder, {}, 8, data=iter(())),
    ),
    NO_INTEGER + "'2'": (TypeError, lambda ck, folder: ck.save(folder, {}, 9, max_to_keep="2")),
    "`max_to_keep` must be at least 1, not 0": (ValueError, lambda ck, folder: ck.Checkpointer(folder, max_to_keep=0)),
    "`timeout` is a number of seconds, not 'x'": (TypeError, lambda ck, folder: ck.Checkpointer(folder, timeout="x")),
    "not nan": (ValueError, lambda ck, folder: ck.Checkpointer(folder, timeout=float("nan"))),
    "`timeout` is at least a second, not 0.1": (ValueError, lambda ck, folder: ck.Checkpointer(folder, timeout=0.1)),
    "`read_only` must be True or False, not 1": (TypeError, lambda ck, folder: ck.Checkpointer(folder, read_only=1)),
    "`folder` is a path, not the URL 'gs://run'": (ValueError, lambda ck, folder: ck.Checkpointer("gs://run")),
    "`folder` is a path, not a int": (TypeError, lambda ck, folder: ck.Checkpointer(2, folder)),
    "`folder` is an empty path; give the name of a folder, or '.'": (ValueError, lambda ck, folder: ck.save("", {}, 9)),
    "is a file; pass the folder": (NotADirectoryError, lambda ck, folder: ck.restore(folder / "7/checksums.json")),
    "the order of arguments is `save(folder, state, step)`": (TypeError, lambda ck, folder: ck.save({}, folder, 8)),
    "the order of arguments is `restore(folder, like)`": (TypeError, lambda ck, folder: ck.restore({}, folder)),
    "is `list_steps(folder)`": (TypeError, lambda ck, folder: ck.list_steps(7)),
    "a path, not a int; the order of arguments is `inspect": (TypeError, lambda ck, folder: ck.inspect(7, folder)),
    "outside of `jit`; call this": (ValueError, lambda ck, folder: jax.jit(lambda: ck.save(folder, {}, 9))()),
    "has a checkpoint of step 7 already; save later": (ValueError, lambda ck, folder: ck.save(folder, {}, 7)),
    "of step 5 in": (FileNotFoundError, lambda ck, folder: ck.inspect(folder, 5)),
    "no checkpoint in": (FileNotFoundError, lambda ck, folder: ck.restore(folder / "none")),
}


def test_wrong_arguments_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    checkpoint: Any = nym.checkpoint  # without types, because every call here is wrong
    checkpoint.save(tmp_path, {"step": 3}, 7)
    for message, (error, call) in WRONG_CALLS.items():
        with refusal(message, error):
            call(checkpoint, tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"no checkpoint in .*; .*: pass {tmp_path} and `step=7`"):
        checkpoint.restore(tmp_path / "7")
    assert checkpoint.list_steps(tmp_path) == [7] and not [*tmp_path.glob(".axonym*")]


def test_states_that_cannot_be_saved(tmp_path: Path) -> None:
    array = jnp.ones(3)
    array.delete()
    texts = np.array(["text"])
    for state, kind, message in (
        ({"a": array}, ValueError, r"\['a'\] was donated to a compiled function"),
        ({"a": jax.ShapeDtypeStruct((3,), "float32")}, ValueError, r"\['a'\] is a shape without data; save arrays"),
        ({"a": texts}, TypeError, r"\['a'\] is a NumPy array of dtype <U4; only numbers can be saved"),
        ({"a": jnp.ones(2, "uint4")}, TypeError, r"\['a'\] has elements of type uint4, which Orbax cannot store"),
    ):
        with pytest.raises(kind, match=message):
            nym.checkpoint.save(tmp_path, state, 1)
    with pytest.raises(ValueError, match=r"\['x'\] is traced; checkpoints are saved and restored outside of `jit`"):
        jax.jit(lambda x: nym.checkpoint.save(tmp_path, {"x": x}, 1))(jnp.ones(2))
    assert nym.checkpoint.list_steps(tmp_path) == []


@pytest.mark.parametrize("state", [{"epoch": 2, "at": [1, 2.5, None]}, b"\x00\xff"])
def test_state_of_the_data_is_given_back(state: Any, tmp_path: Path) -> None:
    nym.checkpoint.save(tmp_path, {"step": 1}, 1, data=Data(state))
    data = Data(None)
    assert nym.checkpoint.restore(tmp_path, data=data) == {"step": 1}
    assert data.state == state
    with pytest.raises(TypeError, match="it must be bytes or writable as JSON"):
        nym.checkpoint.save(tmp_path, {"step": 1}, 2, data=Data({1j: 2}))


def test_without_orbax_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    monkeypatch.delitem(sys.modules, "axonym.checkpoint._orbax_handler", raising=False)
    with pytest.raises(ImportError, match=r"install `axonym\[io\]`"):
        nym.checkpoint.save(tmp_path, {}, 1)


def test_a_closed_checkpointer_reads_and_does_not_save(tmp_path: Path) -> None:
    checkpointer = nym.checkpoint.Checkpointer(tmp_path)
    checkpointer.save({"step": 1}, 1)
    for _ in range(2):
        checkpointer.close()
    assert checkpointer.steps == [1] and checkpointer.restore() == {"step": 1}
    with pytest.raises(ValueError, match=f"the `Checkpointer` of {tmp_path} is closed; make another one to save"):
        checkpointer.save({"step": 2}, 2)

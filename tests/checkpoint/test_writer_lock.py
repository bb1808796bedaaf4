"""One program at a time saves to a folder, any number restore, and a save from which something is taken away fails."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax.numpy as jnp
import pytest

import axonym as nym


STATE = {"weight": nym.arange(nym.Axis("embed", 64), dtype=jnp.float32), "noise": jnp.ones((4, 512)), "step": 3}
LOCK = ".axonym-lock"
HOLDER = """
import multiprocessing, sys, time
import axonym as nym

if __name__ == "__main__":
    checkpointer = nym.checkpoint.Checkpointer(sys.argv[1])
    checkpointer.save({"step": 1}, 1)
    checkpointer.wait()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    print(child.pid, flush=True)
    time.sleep(600)
"""


@contextmanager
def hold(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Has another program open the folder; returns it and the process that it has forked."""
    command = [sys.executable, "-W", "ignore", "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        child = int(program.stdout.readline())
        try:
            yield program, child
        finally:
            program.kill()
            os.kill(child, signal.SIGKILL)


def test_a_second_writer_is_refused_until_the_first_one_ends(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with hold(folder) as (program, _):
        hidden = next(folder.glob(".axonym-saving-*")) / "alive"
        hidden.touch()
        who = f"process {program.pid} on host {socket.gethostname()} has had {folder} open to save since 20"
        for call in (lambda: nym.checkpoint.Checkpointer(folder), lambda: nym.checkpoint.save(folder, STATE, 9)):
            with pytest.raises(OSError, match=f"{who}.*; end that program, .* to restore only, pass `read_only=True`"):
                call()
        with nym.checkpoint.Checkpointer(folder, read_only=True) as reader:
            assert reader.steps == [1] and reader.restore() == {"step": 1} and hidden.exists()
        program.kill()
        program.wait()
        started = time.monotonic()
        with nym.checkpoint.Checkpointer(folder) as checkpointer:  # the forked process is still there
            assert time.monotonic() - started < 5
            checkpointer.save({"step": 2}, 2)
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]


def test_a_second_checkpointer_of_one_program_is_refused(tmp_path: Path) -> None:
    with nym.checkpoint.Checkpointer(tmp_path) as checkpointer:
        message = f"this program has had {tmp_path} open to save since 20.*; close that `Checkpointer`, or"
        with pytest.raises(OSError, match=message):
            nym.checkpoint.Checkpointer(tmp_path)
        checkpointer.save(STATE, 1)
    nym.checkpoint.save(tmp_path, STATE, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def test_reading_writes_nothing(tmp_path: Path) -> None:
    with nym.checkpoint.Checkpointer(tmp_path / "new", read_only=True) as reader:
        assert reader.steps == [] and not reader.folder.exists()
        with pytest.raises(ValueError, match=r"was opened with `read_only=True`; open it without that to save"):
            reader.save(STATE, 1)
    folder = tmp_path / "run"
    for step in (1, 2):
        nym.checkpoint.save(folder, {"step": step}, step)
    (folder / "2" / "default" / "axonym.json").unlink()
    before = sorted(folder.rglob("*"))
    with nym.checkpoint.Checkpointer(folder, read_only=True) as reader:
        with pytest.warns(UserWarning, match="skipped the checkpoint of step 2"):
            assert reader.restore(fallback=True) == {"step": 1}
    assert sorted(folder.rglob("*")) == before


def test_another_host_that_is_alive_keeps_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("axonym.checkpoint._writer_lock._BEAT", 0.1)
    monkeypatch.setattr("axonym.checkpoint._writer_lock._PATIENCE", 0.5)
    lock = tmp_path / LOCK
    lock.write_text(json.dumps({"host": "elsewhere", "process": 7, "since": "2030-01-01 00:00:00"}))
    ended = threading.Event()

    def show_life() -> None:
        while not ended.wait(0.05):
            lock.touch()

    thread = threading.Thread(target=show_life)
    thread.start()
    waiting = pytest.warns(UserWarning, match=f"process 7 on host elsewhere has not closed {tmp_path}; waiting 0.5 s")
    try:
        with waiting, pytest.raises(OSError, match=r"process 7 on host elsewhere has had .* since 2030-01-01 00:00"):
            nym.checkpoint.Checkpointer(tmp_path)
    finally:
        ended.set()
        thread.join()
    with pytest.warns(UserWarning, match="process 7 on host elsewhere has not closed"):
        nym.checkpoint.save(tmp_path, STATE, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_a_file_system_without_locks_has_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("axonym.checkpoint._writer_lock.fcntl", None)
    monkeypatch.setattr("axonym.checkpoint._writer_lock._BEAT", 0.1)
    monkeypatch.setattr("axonym.checkpoint._writer_lock._PATIENCE", 1.0)
    with nym.checkpoint.Checkpointer(tmp_path) as checkpointer:
        with pytest.warns(UserWarning, match="waiting"), pytest.raises(OSError, match="this program has had"):
            nym.checkpoint.Checkpointer(tmp_path)
        checkpointer.save(STATE, 1)
    nym.checkpoint.save(tmp_path, STATE, 2)


def find_elements(hidden: Path) -> Path:
    return max(hidden.glob("1-1/default/ocdbt.process_0/d/*"), key=lambda path: path.stat().st_size)


INTERFERENCES = {
    f"{LOCK} was removed, so another program may have saved there": lambda folder, hidden: (folder / LOCK).unlink(),
    "process 7 on host elsewhere has taken over": lambda folder, hidden: (folder / LOCK).write_text(
        json.dumps({"host": "elsewhere", "process": 7})
    ),
    "ocdbt.process_0/d/": lambda folder, hidden: find_elements(hidden).unlink(),
    "has changed since it was written": lambda folder, hidden: os.truncate(find_elements(hidden), 1),
    r"axonym\.json was removed or cut off while the checkpoint was written": lambda folder, hidden: (
        hidden / "1-1/default/axonym.json"
    ).unlink(),
    r"manifest\.ocdbt was removed or cut off": lambda folder, hidden: (hidden / "1-1/default/manifest.ocdbt").unlink(),
    "No such file": lambda folder, hidden: shutil.rmtree(hidden),
}


@pytest.mark.parametrize(("cause", "interfere"), INTERFERENCES.items(), ids=range(len(INTERFERENCES)))
def test_a_save_fails_if_something_is_taken_away(
    cause: str, interfere: Callable[[Path, Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from axonym.checkpoint import _steps

    write_checksums = _steps.write_checksums

    def interfere_and_write(content: Path, process_count: int) -> object:
        monkeypatch.undo()
        interfere(tmp_path, content.parent)
        return write_checksums(content, process_count)

    nym.checkpoint.save(tmp_path, STATE, 0)
    monkeypatch.setattr(_steps, "write_checksums", interfere_and_write)
    with nym.checkpoint.Checkpointer(tmp_path, max_to_keep=1) as checkpointer:
        checkpointer.save(STATE, 1)
        with pytest.raises(OSError, match=rf"step 1 could not be saved in .* \(complete: 0\): .*{cause}"):
            checkpointer.wait()
    if "taken over" in cause:  # the other program's lock stays
        assert "elsewhere" in (tmp_path / LOCK).read_text()
        assert checkpointer.steps == [0]
    assert nym.checkpoint.restore(tmp_path)["step"] == 3

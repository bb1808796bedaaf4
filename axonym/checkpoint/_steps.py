"""The folder of checkpoints: the steps in it, and how one is written and deleted.

A step is written to a hidden folder of this program. When all of it is there with its checksums, one rename makes it
a checkpoint; to delete one, it is renamed first, too. So a program that is killed leaves nothing incomplete except in
hidden folders, which the next writer removes, and two programs never write to the same files.
"""

import contextlib
import functools
import os
import shutil
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import jax

from .._ground.atomic_file import check_folder_path
from .._ground.formats import format_value
from ..multihost._rendezvous import call_in_thread
from ..multihost._shared_values import broadcast_from_host_zero
from ._checksums import write_checksums, write_checksums_of_process
from ._errors import agree_on_result, import_orbax_handler
from ._tree_metadata import TreeMetadata
from ._writer_lock import WriterLock


_DAMAGED_PREFIX = "damaged-"  # of the folders of damaged steps
_HIDDEN_PREFIX = ".axonym-saving-"  # of the folders in which steps are written
_SHOWN = 10  # steps in an error


def list_steps(folder: str | os.PathLike[str]) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder, in order.

    A checkpoint that is being written, or was when the program ended, is not in the list. Folders without files of a
    checkpoint, or with another name than that of a step, are not either.

    Args:
        folder: The folder of the checkpoints; it need not exist.

    Returns:
        The steps, the newest last.

    Raises:
        TypeError: If `folder` is no path.
        NotADirectoryError: If it is a file.

    Example:
        >>> import axonym as nym
        >>> nym.checkpoint.list_steps("runs/new")
        []
    """
    check_is_path(folder, "`list_steps(folder)`")
    path = Path(folder)
    if path.is_file():
        raise NotADirectoryError(f"{path} is a file; pass the folder of the checkpoints")
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    steps = [int(name) for name in names if name.isascii() and name.isdigit() and name == str(int(name))]
    return sorted(step for step in steps if get_step_folder(path, step).is_dir())


def get_step_folder(folder: Path, step: int) -> Path:
    """Returns the folder of the files of a step."""
    return folder / str(step) / "default"


def find_steps(folder: Path, step: int | None) -> list[int]:
    """Returns the steps up to and including `step`, or all steps if it is None, newest first.

    Raises:
        ValueError: If `step` is not an integer from 0 on.
        FileNotFoundError: If there is no checkpoint of it, or none at all.
    """
    if step is not None:
        check_step(step)
    steps = list_steps(folder)
    if not steps:
        remedy = ""
        if (folder / "default").is_dir():
            remedy = f"; it is the folder of a step: pass {folder.parent} and `step={folder.name}`"
        raise FileNotFoundError(f"no checkpoint in {folder}{remedy}")
    if step is None:
        return steps[::-1]
    if step not in steps:
        raise FileNotFoundError(
            f"no checkpoint of step {format_value(step)} in {folder}, only of {format_steps(steps)}"
        )
    return [saved_step for saved_step in steps[::-1] if saved_step <= step]


def format_steps(steps: list[int]) -> str:
    """Formats the newest of some steps, and how many are older."""
    older = f"{len(steps) - _SHOWN} older ones, " if len(steps) > _SHOWN else ""
    return older + ", ".join(map(str, steps[-_SHOWN:]))


def check_is_path(folder: object, order: str) -> None:
    """Checks that a folder is a path that is not empty; the error for another argument has the order of arguments."""
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"`folder` is a path, not a {type(folder).__name__}; the order of arguments is {order}")
    check_folder_path(folder, "`folder`")


def check_step(step: object) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        remedy = "; convert it with `int(step)`" if hasattr(step, "__index__") and not isinstance(step, int) else ""
        raise ValueError(f"`step` is an integer from 0 on, not {format_value(step)}{remedy}")


def move_damaged(folder: Path, step: int) -> Path:
    """Renames the checkpoint of a step, so that the step can be saved again; returns its new path."""
    number, target = 0, folder / f"{_DAMAGED_PREFIX}{step}"
    while target.exists():
        number += 1
        target = folder / f"{_DAMAGED_PREFIX}{step}-{number}"
    return (folder / str(step)).rename(target)


class StepWriter:
    """Writes one step at a time to a folder, in other threads. All processes create their writers together.

    Raises:
        OSError: If another program has the folder open to save, or it cannot be written.
    """

    def __init__(self, folder: Path, max_to_keep: int | None, seconds: int) -> None:
        """Opens the folder; see the class."""
        self._folder, self._max_to_keep, self._seconds = folder, max_to_keep, seconds
        self._lock: WriterLock | None = None  # only in process 0, for all processes
        self._saved: list[int] = []  # in this order, by this program
        self._pending: Future[list[str]] | None = None
        self._step_folder: Path  # the hidden folder of the save that started last
        subject = f"opening {folder} to save"
        try:
            hidden_name = agree_on_result(
                subject,
                self._open_folder,
                name="open",
                kind=OSError,
                seconds=seconds,
                purpose=f"opens {folder} to save",
            )
            self._hidden = folder / broadcast_from_host_zero(hidden_name, timeout=seconds)
        except BaseException:
            self._release_lock()
            raise
        self._threads = ThreadPoolExecutor(1, "axonym")
        if self._lock is not None:
            for path in folder.glob(f"{_HIDDEN_PREFIX}*"):
                if path != self._hidden:
                    self._threads.submit(shutil.rmtree, path, ignore_errors=True)

    def _open_folder(self) -> str:
        """Locks the folder in process 0, and returns the name of a hidden folder in it."""
        import_orbax_handler()
        if jax.process_index() > 0:
            return ""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = WriterLock(self._folder)
            return Path(tempfile.mkdtemp(prefix=_HIDDEN_PREFIX, dir=self._folder)).name
        except OSError as error:
            if error.errno is None:  # another program has it
                raise
            raise OSError(
                f"{self._folder} cannot be opened to save: {error}; choose a folder that can be written, or, to "
                "restore only, pass `read_only=True`"
            ) from error

    def save(self, step: int, attempt: int, state: Any) -> None:
        """Starts to save a step; returns when its arrays are on the host, or after the timeout. `wait` raises errors.

        Each attempt has a folder of its own, since the thread of one that was given up may still write.
        """
        self._step_folder = self._hidden / f"{step}-{attempt}"
        folder = self._step_folder / "default"
        # In a thread, because that of a notebook runs an event loop already.
        writes = call_in_thread(functools.partial(import_orbax_handler().start_save, folder, state))
        wait([writes], self._seconds)
        self._pending = self._threads.submit(self._complete, step, state.metadata, writes)

    def wait(self) -> list[str]:
        """Waits until the step that is being saved is complete; returns warnings."""
        if self._pending is None:
            return []
        messages = self._pending.result()
        self._pending = None
        return messages

    def give_up(self) -> None:
        """Removes the files of a step that could not be saved."""
        self._pending = None
        if jax.process_index() == 0:
            shutil.rmtree(self._step_folder, ignore_errors=True)

    def close(self) -> None:
        """Ends the threads that write, and lets other programs save."""
        try:
            self._threads.shutdown()
        finally:
            if self._lock is not None:
                shutil.rmtree(self._hidden, ignore_errors=True)
            self._release_lock()

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _complete(self, step: int, metadata: TreeMetadata, writes: Future[list[Any]]) -> list[str]:
        """Waits until all processes have written a step, makes it a checkpoint and deletes the oldest ones."""
        subject = f"the checkpoint of step {step} in {self._folder}"
        folder = self._step_folder / "default"

        def write() -> None:
            if not writes.done():
                raise TimeoutError(
                    f"the arrays were not on the host after {self._seconds} s, since the devices still compute or wait "
                    "for a process; pass a longer `timeout` if that is not enough"
                )
            deadline = time.monotonic() + self._seconds
            for part in writes.result():
                part.result(max(0.0, deadline - time.monotonic()))
            write_checksums_of_process(folder, jax.process_index())

        def complete() -> list[str]:
            if self._lock is None:
                return []
            import_orbax_handler().finish_save(folder)
            self._commit(step, metadata)
            return self._delete_oldest()

        agree = functools.partial(agree_on_result, kind=OSError, seconds=self._seconds)
        agree(subject, write, name=f"write {self._folder}")
        return agree(subject, complete, name=f"complete {self._folder}")

    def _commit(self, step: int, metadata: TreeMetadata) -> None:
        """Checks that no file of a step is missing, and makes it a checkpoint.

        Raises:
            OSError: If something is missing, or another program has taken over the folder.
        """
        step_folder = self._step_folder
        checksums = write_checksums(step_folder, jax.process_count())
        import_orbax_handler().check_written(step_folder / "default", checksums, metadata)
        if self._lock is not None:
            self._lock.check()
        # What is in the folders has to be on disk before their new name is, and that before an older step is deleted.
        for folder in (step_folder, step_folder / "default"):
            _flush_folder(folder)
        step_folder.rename(self._folder / str(step))
        _flush_folder(self._folder)
        self._saved = [*(saved for saved in self._saved if saved != step), step]

    def _delete_oldest(self) -> list[str]:
        """Deletes the oldest checkpoints, so that `max_to_keep` remain; returns warnings."""
        if not self._max_to_keep:
            return []
        steps = list_steps(self._folder)
        # Steps of earlier programs are older than those of this one, which may have gone back to an earlier step.
        order = [step for step in steps if step not in self._saved] + [step for step in self._saved if step in steps]
        messages = []
        for step in order[: -self._max_to_keep]:
            try:
                path = (self._folder / str(step)).rename(self._hidden / f"deleted-{step}")
                if path.is_symlink():  # to another disk, perhaps; what it leads to is not removed
                    path.unlink()
                else:
                    shutil.rmtree(path)
            except OSError as error:
                messages.append(f"the checkpoint of step {step} could not be deleted: {error}")
        return messages


def _flush_folder(path: Path) -> None:
    """Waits until renamed files in a folder are on disk, so that an older checkpoint may be deleted after that."""
    with contextlib.suppress(OSError):  # Windows cannot open folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

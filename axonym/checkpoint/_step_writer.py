"""The writer of a folder of checkpoints: it alone saves steps there and deletes them.

Orbax writes a step to a hidden folder of this program. When all of it is there with its checksums, one rename makes it
a checkpoint; a checkpoint that is deleted leaves by one rename too. So a program that is killed leaves nothing that is
half done but hidden folders, which the next writer removes, and two programs never write to the same files.
"""

import contextlib
import os
import shutil
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from ..multihost._broadcast import broadcast_from_host_zero
from ._agreement import agree_on_result
from ._checksums import write_checksums
from ._restore import import_orbax_handler
from ._steps import get_step_folder, list_steps
from ._writer_lock import WriterLock


_HIDDEN = ".axonym-saving-"


class StepWriter:
    """Writes one step at a time to a folder, in other threads. All processes make one together.

    Raises:
        OSError: If another program has the folder open to save, or it cannot be written.
    """

    def __init__(self, folder: Path, max_to_keep: int | None, seconds: int) -> None:
        """Opens the folder; see the class."""
        self._folder, self._max_to_keep, self._seconds = folder, max_to_keep, seconds
        self._lock: WriterLock | None = None
        self._saved: list[int] = []
        self._pending: Future[list[str]] | None = None
        orbax = import_orbax_handler()
        what = f"opening {folder} to save"
        try:
            name = agree_on_result(what, self._open_folder, name=what, kind=OSError, seconds=seconds)
            self._hidden = folder / broadcast_from_host_zero(name)
            self._handler = orbax.StateHandler()
            self._orbax = orbax.make_checkpointer(self._handler, seconds)
        except BaseException:
            self._release_lock()
            raise
        self._threads = ThreadPoolExecutor(1, "axonym")
        if self._lock is not None:
            for path in folder.glob(f"{_HIDDEN}*"):
                if path != self._hidden:
                    self._threads.submit(shutil.rmtree, path, ignore_errors=True)

    def _open_folder(self) -> str:
        """Locks the folder in process 0, and returns the name of a hidden folder in it."""
        if jax.process_index() > 0:
            return ""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = WriterLock(self._folder)
            return Path(tempfile.mkdtemp(prefix=_HIDDEN, dir=self._folder)).name
        except OSError as error:
            if error.errno is None:  # another program has it
                raise
            raise OSError(
                f"{self._folder} cannot be opened to save: {error}; choose a folder that can be written, or, to "
                "restore only, pass `read_only=True`"
            ) from error

    def save(self, step: int, arguments: Any) -> None:
        """Starts to save a step; returns when its arrays are on the host."""
        import_orbax_handler().save(self._orbax, self._hidden / str(step), arguments)
        self._pending = self._threads.submit(self._complete, step, arguments)

    def wait(self) -> list[str]:
        """Waits until the step that is being saved is complete; returns what to warn of."""
        if self._pending is None:
            return []
        messages = self._pending.result()
        self._pending = None
        return messages

    def give_up(self, step: int) -> None:
        """Removes what was written of a step that could not be saved."""
        self._pending = None
        if jax.process_index() == 0:
            for path in self._hidden.glob(f"{step}*"):
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Ends the threads that write, and lets other programs save."""
        try:
            self._threads.shutdown()
            self._orbax.close()
        finally:
            if self._lock is not None:
                shutil.rmtree(self._hidden, ignore_errors=True)
            self._release_lock()

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _complete(self, step: int, arguments: Any) -> list[str]:
        """Waits for Orbax, makes the step a checkpoint and deletes the oldest ones."""

        def complete() -> list[str]:
            self._orbax.wait_until_finished()
            if self._lock is None:
                return []
            self._commit(step, arguments)
            return self._delete_oldest()

        name = f"complete {arguments.what}"
        return agree_on_result(arguments.what, complete, name=name, kind=OSError, seconds=self._seconds)

    def _commit(self, step: int, arguments: Any) -> None:
        """Checks that nothing is missing of what was written, and makes it a checkpoint.

        Raises:
            OSError: If something is missing, or another program has taken over the folder.
        """
        self._handler.raise_failure()
        written = self._hidden / str(step)
        checksums = write_checksums(written, jax.process_count())
        import_orbax_handler().check_written(get_step_folder(self._hidden, step), checksums, arguments)
        if self._lock is not None:
            self._lock.check()
        for folder in (written, get_step_folder(self._hidden, step)):
            _flush_folder(folder)
        written.rename(self._folder / str(step))
        _flush_folder(self._folder)
        self._saved = [*(saved for saved in self._saved if saved != step), step]

    def _delete_oldest(self) -> list[str]:
        """Deletes checkpoints until as many are left as are kept; returns what to warn of."""
        steps = list_steps(self._folder)
        order = [step for step in steps if step not in self._saved] + [step for step in self._saved if step in steps]
        messages = []
        for step in order[: -self._max_to_keep] if self._max_to_keep else []:
            try:
                _remove((self._folder / str(step)).rename(self._hidden / f"deleted-{step}"))
            except OSError as error:
                messages.append(f"the checkpoint of step {step} could not be deleted: {error}")
        return messages


def _flush_folder(path: Path) -> None:
    """Waits until the names in a folder are on disk, so that an older checkpoint may be deleted after that."""
    with contextlib.suppress(OSError):  # Windows cannot open folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    """Removes a folder with all in it, of a symbolic link the link alone."""
    if path.is_symlink():
        os.unlink(path)
    else:
        shutil.rmtree(path)

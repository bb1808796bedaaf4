"""`WriterLock`: the one program that may save to a folder of checkpoints, found dead by missing signs of life.

The kernel keeps the lock of a folder and drops it when the program ends, however it does. Some file systems of networks
keep locks for each host alone, or have none, so the program also touches the file every few seconds as a sign of life.
A program on another host, or on a file system without locks, waits for that sign before it takes over a lock that was
not released.
"""

import contextlib
import json
import os
import socket
import threading
import time
import warnings
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

from .._ground.errors import find_stacklevel


try:
    import fcntl as _fcntl
except ModuleNotFoundError:  # on Windows
    _fcntl = None
fcntl: ModuleType | None = _fcntl

_LOCK = ".axonym-lock"
_BEAT = 5.0  # seconds between signs of life
_PATIENCE = 30.0  # seconds without one after which a program on another host counts as dead
_locks: "weakref.WeakSet[WriterLock]" = weakref.WeakSet()


class WriterLock:
    """Holds the lock of a folder until it is released, or the program ends.

    Raises:
        OSError: If another program holds it, with its host and process, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        """Takes the lock; see the class."""
        self._folder, self._path = folder, folder / _LOCK
        self._descriptor, ended = _take_lock(folder, self._path), threading.Event()
        holder = {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        self._content = json.dumps({**holder, "token": os.urandom(8).hex()}).encode()
        self.release = weakref.finalize(self, _release_lock, self._path, self._descriptor, self._content, ended)
        try:
            self._path.write_bytes(self._content)
        except OSError:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self.release()
            raise
        arguments = (self._path, self._content, ended)
        threading.Thread(target=_show_life, args=arguments, daemon=True, name="axonym").start()
        _locks.add(self)

    def check(self) -> None:
        """Raises an OSError if another program has taken the folder over, or removed the lock."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            raise OSError(f"{self._path} was removed, so another program may have saved there meanwhile") from None
        if content != self._content:
            raise OSError(f"{_describe_holder(content)} has taken over {self._folder}")

    def close_in_child(self) -> None:
        """Closes the lock in a process that was forked, which would hold it longer than this program."""
        if self.release.detach() is not None:
            os.close(self._descriptor)


def _close_in_child() -> None:
    for lock in list(_locks):
        lock.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _take_lock(folder: Path, path: Path) -> int:
    """Opens and locks the file; returns its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            is_locked = _lock_descriptor(descriptor)
            content = path.read_bytes()
            if is_locked is False:
                raise _make_refusal(folder, content)
            # The kernel drops the locks of dead programs of this host; what another host has locked it may not know.
            if content and (is_locked is None or _read_holder(content).get("host") != socket.gethostname()):
                _wait_for_life(folder, path, content)
            # Its holder may have removed the file after it was opened here, and others make another one.
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        except FileNotFoundError:  # its holder has released it, and removed the file, since it was opened here
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock_descriptor(descriptor: int) -> bool | None:
    """Returns whether this program holds the lock now, or None if the file system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _wait_for_life(folder: Path, path: Path, content: bytes) -> None:
    """Waits until a program that has not closed its lock counts as dead; raises an OSError if it is alive."""
    warnings.warn(
        f"{_describe_holder(content)} has not closed {folder}; waiting {_PATIENCE:g} s for a sign of life of it",
        stacklevel=find_stacklevel(),
    )
    first_touched, end = None, time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with path.open("rb") as file:  # opened again, because file systems of networks remember times
            touched = os.fstat(file.fileno()).st_mtime_ns
        first_touched = first_touched or touched
        if touched != first_touched:
            raise _make_refusal(folder, content)
        time.sleep(_BEAT / 5)


def _read_holder(content: bytes) -> dict[str, Any]:
    try:
        holder = json.loads(content)
    except ValueError:  # being written
        return {}
    return holder if isinstance(holder, dict) else {}


def _describe_holder(content: bytes) -> str:
    holder = _read_holder(content)
    if (holder.get("host"), holder.get("process")) == (socket.gethostname(), os.getpid()):
        return "this program"
    return f"process {holder.get('process', 'unknown')} on host {holder.get('host', 'unknown')}"


def _make_refusal(folder: Path, content: bytes) -> OSError:
    holder, start = _describe_holder(content), _read_holder(content).get("since", "a moment ago")
    remedy = "close that `Checkpointer`" if holder == "this program" else "end that program, save to another folder"
    return OSError(
        f"{holder} has had {folder} open to save since {start}; {remedy}, or, to restore only, pass `read_only=True`"
    )


def _show_life(path: Path, content: bytes, ended: threading.Event) -> None:
    """Touches the lock every few seconds, as long as this program holds it."""
    while not ended.wait(_BEAT):
        with contextlib.suppress(OSError):
            if path.read_bytes() != content:  # another program has taken it over
                return
            os.utime(path)


def _release_lock(path: Path, descriptor: int, content: bytes, ended: threading.Event) -> None:
    ended.set()
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(path), os.fstat(descriptor)) and path.read_bytes() == content:
            os.ftruncate(descriptor, 0)  # Windows keeps open files; an empty one is no lock of anybody
            path.unlink()
    os.close(descriptor)

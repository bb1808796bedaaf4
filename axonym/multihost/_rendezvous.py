"""JAX's coordination service, reached in one place: a small store of texts that all processes share.

JAX has no public interface to the service that `jax.distributed.initialize` starts. The public module
`jax.experimental.multihost_utils` holds it as an attribute, and nothing else here knows where it is. Meetings are built
on the store alone and not on the service's own barriers: those keep a record of each name for ever, count calls in a
way that breaks once one of them has timed out, and look at the clock about once a second.
"""

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import jax

from .._jax_compat import (
    find_coordination_client,
    is_deadline_error,
    is_existing_key_error,
    is_missing_key_error,
)


_MET = "met"
_SLICE = 1.0  # seconds; a wait is cut into pieces so that Ctrl-C is noticed
_MOMENT = 0.05  # seconds between two looks at a meeting, while JAX looks for devices
_PIECE = 1 << 22  # bytes that go into the store at once
_TRANSFER = 60.0  # seconds that one such piece may take


class Task:
    """A call that JAX may not return from, in a thread that can be given up.

    Args:
        call: What to call.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        """Starts the thread."""
        self._call = call
        self._ended: list[Any] = []
        self._thread = threading.Thread(target=self._make, daemon=True, name="axonym")
        self._thread.start()

    def _make(self) -> None:
        try:
            self._ended[:] = (self._call(), None)
        except BaseException as error:
            self._ended[:] = (None, error)

    def result(self, seconds: float) -> tuple[Any, ...] | None:
        """Returns the result, in a tuple of one; None if it is not there in time. What the call raises is raised."""
        self._thread.join(seconds)
        if not self._ended:
            return None
        result, error = self._ended
        if error is not None:
            raise error
        return (result,)


class Coordination:
    """The store of one cluster, and how often this process has called each meeting of it.

    Args:
        client: JAX's client of the coordination service.
        process: The number of this process.
        count: How many processes there are.
    """

    def __init__(self, client: Any, process: int, count: int) -> None:
        """Starts to count; see the class."""
        self.client, self.process, self.count = client, process, count
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()
        self._devices: Task | None = None

    def calls(self, kind: str) -> int:
        """Counts a call of this kind, and returns how many there were before it."""
        with self._lock:
            before = self._calls.get(kind, 0)
            self._calls[kind] = before + 1
        return before

    def meeting(self, kind: str, name: str, seconds: float, label: str, hint: str = "") -> "Meeting":
        """Returns the meeting of the processes that have called this with the same kind and name as often as this one.

        It is counted here and now: a process whose call fails later still meets the right call of the others next time.

        Args:
            kind: What sort of meeting it is; names of different kinds do not mix.
            name: The name, any text.
            seconds: How long it waits for the others.
            label: What the error calls the meeting.
            hint: How the error ends.
        """
        key = f"axonym/{kind}/{quote(name, safe='', errors='surrogatepass')}"
        return Meeting(self, f"{key}/{self.calls(key)}", seconds, label, hint)

    def meet(self, kind: str, name: str, seconds: float, label: str, hint: str = "", value: str = "") -> "Meeting":
        """Waits until each process has called this with the same kind and name as often as this one.

        Args:
            kind: As in `meeting`, and so are the name, the seconds, the label and the hint.
            name: The name, any text.
            seconds: How long to wait.
            label: What the error calls the meeting.
            hint: How the error ends.
            value: A text for the others.

        Returns:
            The meeting, in which the values of all can be read; leave it when that is done.

        Raises:
            TimeoutError: If a process does not come in time, or another one has given up before this one came.
        """
        return self.meeting(kind, name, seconds, label, hint).attend(value)

    def has_devices(self, seconds: float) -> bool:
        """Lets JAX find the devices of all processes, for which it needs all of them, and says whether it has.

        Without this a process that waits here would wait for one that is about to make its first array, and that one
        for the devices of this one.
        """
        with self._lock:
            task = self._devices = self._devices or Task(jax.process_count)
        try:
            return task.result(seconds) is not None
        except BaseException:
            self._devices = None  # the next call tries again
            raise


class Meeting:
    """One meeting of all processes: a folder in the store, removed by the last one to leave.

    Args:
        service: The store.
        folder: Where in the store.
        seconds: How long to wait, from the first call of a method on.
        label: What the error calls the meeting.
        hint: How the error ends.
    """

    def __init__(self, service: Coordination, folder: str, seconds: float, label: str, hint: str = "") -> None:
        """Keeps all of them."""
        self._service, self._client, self._folder = service, service.client, folder
        self._seconds, self._label, self._hint = seconds, label, hint
        self._sent = False

    @functools.cached_property
    def deadline(self) -> float:
        """When the waiting ends, on the clock of `time.monotonic`."""
        return time.monotonic() + self._seconds

    def until(self, deadline: float) -> "Meeting":
        """Goes on in the time that another meeting has left, a second at least: what is in the store can be read."""
        self.deadline = max(deadline, time.monotonic() + _SLICE)
        return self

    def attend(self, value: str = "") -> "Meeting":
        """Comes with a value and waits for the others.

        Raises:
            TimeoutError: If a process does not come in time, or another one has given up before this one came.
        """
        _ = self.deadline
        try:
            self._client.key_value_set(f"{self._folder}/at/{self._service.process}", value)
            outcome = self._outcome()
        except BaseException:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self.leave()
            raise
        if outcome == _MET:
            return self
        if self._sent:  # the folder stays if a process never comes
            self._client.key_value_delete(f"{self._folder}/data")
        self.leave()
        raise TimeoutError(f"{self._label} {_told(json.loads(outcome), self._service.process)}{self._hint}")

    def send(self, data: bytes) -> None:
        """Puts bytes for all into the store, before this process attends.

        Raises:
            TimeoutError: If that takes longer than the meeting waits.
        """
        self._sent = True
        for start in range(0, len(data), _PIECE):
            if self.deadline < time.monotonic():
                raise TimeoutError(
                    f"{self._label} has sent {start} of {len(data)} bytes in {self._seconds:g} s; pass a longer timeout"
                )
            self._client.key_value_set_bytes(f"{self._folder}/data/{start}", data[start : start + _PIECE])

    def receive(self, size: int) -> bytes:
        """Returns what one process has sent, so many bytes, after all have come.

        Raises:
            TimeoutError: If that takes longer than the meeting waits, or than a second if that is over.
        """
        self.until(self.deadline)
        pieces: list[bytes] = []
        for start in range(0, size, _PIECE):
            key = f"{self._folder}/data/{start}"
            piece = self._got(self._client.blocking_key_value_get_bytes, key, _TRANSFER)
            if piece is None:
                raise TimeoutError(
                    f"{self._label} has received {start} of {size} bytes in {self._seconds:g} s; pass a longer timeout"
                )
            pieces.append(piece)
        return b"".join(pieces)

    def values(self) -> list[str]:
        """Returns what each process came with, in order."""
        found = self._arrived()
        return [found[process] for process in range(self._service.count)]

    def value_of(self, process: int) -> str:
        """Returns what one process came with."""
        return self._client.key_value_try_get(f"{self._folder}/at/{process}")

    def leave(self) -> None:
        """Leaves; the last process to leave clears up."""
        if self._client.key_value_increment(f"{self._folder}/left", 1) == self._service.count:
            self._client.key_value_delete(self._folder)

    def _arrived(self) -> dict[int, str]:
        pairs = self._client.key_value_dir_get(f"{self._folder}/at")
        return {int(key.rpartition("/")[2]): value for key, value in pairs}

    def _outcome(self) -> str:
        """Waits for the end of the meeting, and returns how it ended."""
        while not self._service.has_devices(min(_MOMENT, max(0, self.deadline - time.monotonic()))):
            told = self._already()
            if told is not None:
                return told  # the others have given up before this process came
            if self.deadline < time.monotonic():
                return self._given_up()
        if self._client.key_value_increment(f"{self._folder}/count", 1) == self._service.count:
            return self._settled(_MET)
        return self._got(self._client.blocking_key_value_get, f"{self._folder}/outcome", _SLICE) or self._given_up()

    def _got(self, get: Callable[[str, int], Any], key: str, longest: float) -> Any:
        """Waits for a key of the store, `longest` seconds at a time; returns None if it is not there in time."""
        while (left := self.deadline - time.monotonic()) > 0:
            try:
                return get(key, max(1, round(min(left, longest) * 1000)))
            except jax.errors.JaxRuntimeError as error:
                if not is_deadline_error(error):
                    raise
        return None

    def _already(self) -> str | None:
        """Returns how the meeting has ended, None if it has not."""
        try:
            return self._client.key_value_try_get(f"{self._folder}/outcome")
        except jax.errors.JaxRuntimeError as error:
            if not is_missing_key_error(error):
                raise
        return None

    def _settled(self, outcome: str) -> str:
        """Says how the meeting ended, and returns how it did: the first process to say so is right."""
        try:
            self._client.key_value_set(f"{self._folder}/outcome", outcome)
        except jax.errors.JaxRuntimeError as error:
            if not is_existing_key_error(error):
                raise
            return self._client.key_value_try_get(f"{self._folder}/outcome")
        return outcome

    def _given_up(self) -> str:
        """Ends the meeting because the time is over, and returns how it ended."""
        absent = sorted(set(range(self._service.count)) - set(self._arrived()))
        if not absent and self._client.key_value_increment(f"{self._folder}/count", 0) == self._service.count:
            return self._settled(_MET)
        report = {"by": self._service.process, "seconds": self._seconds, "absent": absent, "of": self._service.count}
        return self._settled(json.dumps(report))


def _told(failure: dict[str, Any], process: int) -> str:
    """Says who did not come to a meeting, to one that waited or to one that came too late."""
    by, absent, seconds = failure["by"], failure["absent"], f"{failure['seconds']:g} s"
    if process in absent:
        return f"is over: process {by} gave up after {seconds}, before this process, {process}, came"
    if not absent:
        return (
            f"waited {seconds} for JAX to find the devices of all {failure['of']} processes; all of them have come, so "
            "one has no devices yet, or an error in its output"
        )
    return (
        f"waited {seconds} for {listed_processes(absent)} of {failure['of']}, which did not come: slow, stuck or dead"
    )


def listed_processes(processes: list[int]) -> str:
    """Writes numbers of processes, as in `processes 1 and 3`, or `processes 1, 2, 3, ... (97 in all)` for many."""
    if len(processes) == 1:
        return f"process {processes[0]}"
    if len(processes) > 12:
        return f"processes {', '.join(map(str, processes[:12]))}, ... ({len(processes)} in all)"
    return f"processes {', '.join(map(str, processes[:-1]))} and {processes[-1]}"


_reached: Coordination | None = None


def coordination() -> Coordination | None:
    """Returns the cluster's store; None if this process is the only one.

    Raises:
        RuntimeError: If there are several processes that JAX's coordination service does not connect, or this JAX keeps
            it elsewhere.
    """
    global _reached
    if not jax.distributed.is_initialized():
        if jax.process_count() == 1:
            return None
        raise RuntimeError(
            f"{jax.process_count()} processes share the devices, but nothing connects them; call `initialize` first"
        )
    client, process, count = find_coordination_client()
    if count == 1:
        return None
    if _reached is None or _reached.client is not client:
        _reached = Coordination(client, process, count)
    return _reached

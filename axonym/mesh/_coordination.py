"""JAX's coordination service, reached in one place: a small store of texts that all processes share.

JAX has no public interface to the service that `jax.distributed.initialize` starts. The public module
`jax.experimental.multihost_utils` holds it as an attribute, and nothing else here knows where it is. Meetings are built
on the store alone and not on the service's own barriers: those keep a record of each name for ever, count calls in a
way that breaks once one of them has timed out, and look at the clock about once a second.
"""

import json
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import jax
from jax.experimental import multihost_utils


_METHODS = (
    "blocking_key_value_get",
    "key_value_delete",
    "key_value_dir_get",
    "key_value_increment",
    "key_value_set",
    "key_value_try_get",
)
_MET = "met"
_SLICE = 1.0  # seconds; a wait is cut into pieces so that Ctrl-C is noticed


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
        self._has_devices = False

    def calls(self, kind: str) -> int:
        """Counts a call of this kind, and returns how many there were before it."""
        with self._lock:
            before = self._calls.get(kind, 0)
            self._calls[kind] = before + 1
        return before

    def meet(self, kind: str, name: str, seconds: float, label: str, hint: str = "", value: str = "") -> "Meeting":
        """Waits until each process has called this with the same kind and name as often as this one.

        Args:
            kind: What sort of meeting it is; names of different kinds do not mix.
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
        key = f"axonym/{kind}/{quote(name, safe='')}"
        self._await_devices(seconds, label)
        meeting = Meeting(self, f"{key}/{self.calls(key)}")
        failure = meeting.attend(value, seconds)
        if failure is not None:
            meeting.leave()
            raise TimeoutError(f"{label} {_told(failure, self.process)}{hint}")
        return meeting

    def _await_devices(self, seconds: float, label: str) -> None:
        """Lets JAX find the devices of all processes, for which it needs all of them, as it does for the first array.

        Without this a process that waits here would wait for one that is about to make its first array, and that one
        for the devices of this one.
        """
        if self._has_devices:
            return
        if in_time(jax.process_count, seconds) is None:
            raise TimeoutError(
                f"{label} waited {seconds:g} s for the devices of the {self.count} processes: some process has not "
                "used JAX since it was connected, so it is slow, stuck or dead"
            )
        self._has_devices = True


class Meeting:
    """One meeting of all processes: a folder in the store, removed by the last one to leave."""

    def __init__(self, service: Coordination, folder: str) -> None:
        """Keeps both."""
        self._service, self._client, self._folder = service, service.client, folder

    def attend(self, value: str, seconds: float) -> dict[str, Any] | None:
        """Comes with a value and waits for the others; returns who gave up and why, None if all have come."""
        deadline = time.monotonic() + seconds
        self._client.key_value_set(f"{self._folder}/at/{self._service.process}", value)
        if self._client.key_value_increment(f"{self._folder}/count", 1) == self._service.count:
            outcome = self._settled(_MET)
        else:
            outcome = self._awaited(seconds, deadline)
        return None if outcome == _MET else json.loads(outcome)

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

    def _settled(self, outcome: str) -> str:
        """Says how the meeting ended, and returns how it did: the first process to say so is right."""
        try:
            self._client.key_value_set(f"{self._folder}/outcome", outcome)
        except jax.errors.JaxRuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
            return self._client.key_value_try_get(f"{self._folder}/outcome")
        return outcome

    def _awaited(self, seconds: float, deadline: float) -> str:
        while (left := deadline - time.monotonic()) > 0:
            try:
                milliseconds = max(1, round(min(left, _SLICE) * 1000))
                return self._client.blocking_key_value_get(f"{self._folder}/outcome", milliseconds)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
        absent = sorted(set(range(self._service.count)) - set(self._arrived()))
        report = {"by": self._service.process, "seconds": seconds, "absent": absent, "of": self._service.count}
        return self._settled(json.dumps(report) if absent else _MET)


def _told(failure: dict[str, Any], process: int) -> str:
    """Says who did not come to a meeting, to one that waited or to one that came too late."""
    by, absent, seconds = failure["by"], failure["absent"], f"{failure['seconds']:g} s"
    if process in absent:
        return f"is over: process {by} gave up after {seconds}, before this process, {process}, came"
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


def in_time(call: Callable[[], Any], seconds: float) -> tuple[Any, ...] | None:
    """Makes a call that JAX may not return from, in a thread that can be given up.

    Returns:
        The result, in a tuple of one; None if it is not there in time. What the call raises is raised.
    """
    ended: list[Any] = []

    def make() -> None:
        try:
            ended[:] = (call(), None)
        except BaseException as error:
            ended[:] = (None, error)

    thread = threading.Thread(target=make, daemon=True, name="axonym")
    thread.start()
    thread.join(seconds)
    if not ended:
        return None
    result, error = ended
    if error is not None:
        raise error
    return (result,)


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
    state = getattr(getattr(multihost_utils, "distributed", None), "global_state", None)
    client, process, count = (getattr(state, name, None) for name in ("client", "process_id", "num_processes"))
    lacking = [name for name in _METHODS if not hasattr(client, name)]
    if process is None or count is None or lacking:
        raise RuntimeError(
            f"JAX {jax.__version__} keeps its coordination service where Axonym does not find it "
            f"({', '.join(lacking) or 'the number of processes'} is missing); use another version of either"
        )
    if count == 1:
        return None
    if _reached is None or _reached.client is not client:
        _reached = Coordination(client, process, count)
    return _reached

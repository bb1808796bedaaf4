"""A rendezvous of all processes, each with a value for the others: what barriers and comparisons are built on.

It uses the store of JAX's coordination service, not the service's own barriers: these keep a record of each name
forever, lose count after a timeout, and check the time only about once a second.
"""

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any
from urllib.parse import quote

import jax
import numpy as np

from .._ground.formats import format_value
from .._ground.jax_compat import (
    find_coordination_client,
    is_deadline_error,
    is_existing_key_error,
    is_missing_key_error,
)


_MET = "met"
_SLICE = 1.0  # seconds; waits are split so that Ctrl-C is noticed
_MOMENT = 0.05  # seconds between two checks while JAX looks for devices
_LONGEST = 365 * 24 * 3600  # seconds; more is a mistake, and more than some clocks can count


def call_in_thread(call: Callable[[], Any]) -> Future[Any]:
    """Calls a function that may never return, in a thread that does not keep the process from ending."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="axonym").start()
    return future


class CoordinationStore:
    """The store of a cluster of `count` processes, and how often this process has called something under each key."""

    def __init__(self, client: Any, process: int, count: int) -> None:
        self.client, self.process, self.count = client, process, count
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()
        self._device_search: Future[Any] | None = None

    def count_call(self, key: str) -> int:
        """Counts a call under a key, and returns the number of calls before it."""
        with self._lock:
            before = self._calls.get(key, 0)
            self._calls[key] = before + 1
        return before

    def has_devices(self, seconds: float) -> bool:
        """Lets JAX find the devices of all processes, and returns whether it has within this time.

        JAX needs all processes for that. Otherwise a process that waits here would wait for one that makes its first
        array, which in turn waits for the devices of this process.
        """
        with self._lock:
            search = self._device_search = self._device_search or call_in_thread(jax.process_count)
        wait([search], seconds)
        if search.done() and search.exception() is not None:
            self._device_search = None  # the next call tries again
            search.result()
        return search.done()


_store: CoordinationStore | None = None


def get_coordination_store() -> CoordinationStore | None:
    """Returns the store of this cluster, or None if there is only one process.

    Raises:
        RuntimeError: If there are several processes without a coordination service, or this JAX keeps it elsewhere.
    """
    global _store
    if not jax.distributed.is_initialized():
        if jax.process_count() == 1:
            return None
        raise RuntimeError(
            f"{jax.process_count()} processes share the devices, but are not connected; call `initialize` first"
        )
    client, process, count = find_coordination_client()
    if count == 1:
        return None
    if _store is None or _store.client is not client:
        _store = CoordinationStore(client, process, count)
    return _store


class Rendezvous:
    """A rendezvous of the processes that have made one of the same kind and name as often as this process.

    It is counted when it is made, so a call that fails later stays in step with the other processes. It is a folder in
    the store, which the last process to leave removes.

    Args:
        store: The store.
        kind: What it is for; names of different kinds do not clash.
        name: The name, any string.
        seconds: How long to wait for the others, from the first call of a method.
        label: The subject of a timeout error.
        hint: The end of a timeout error.
        needs_devices: Whether JAX must have found the devices of all processes before they meet.
    """

    def __init__(
        self,
        store: CoordinationStore,
        kind: str,
        name: str,
        seconds: float,
        label: str,
        hint: str = "",
        *,
        needs_devices: bool = True,
    ) -> None:
        # Slashes separate folders of the store, so they are quoted in names.
        key = f"axonym/{kind}/{quote(name, safe='', errors='surrogatepass')}"
        self._store, self._client, self._folder = store, store.client, f"{key}/{store.count_call(key)}"
        self._seconds, self._label, self._hint = seconds, label, hint
        self._needs_devices = needs_devices

    @functools.cached_property
    def deadline(self) -> float:
        """When waiting ends, on the clock of `time.monotonic`."""
        return time.monotonic() + self._seconds

    def extend_deadline(self, deadline: float) -> None:
        """Sets the deadline, at least a second from now, so that data already in the store can be read."""
        self.deadline = max(deadline, time.monotonic() + _SLICE)

    def exchange_values(self, value: str, error: Exception | None = None) -> list[str]:
        """Returns the value of each process, in order; see `wait_for_all`."""
        self.wait_for_all(value, error)
        try:
            values = self._read_values()
            return [values[process] for process in range(self._store.count)]
        finally:
            self.leave()

    def wait_for_all(self, value: str = "", error: Exception | None = None) -> None:
        """Arrives with a value and waits for the others; call `leave` afterwards.

        Args:
            value: A text for the others.
            error: An error of this process, raised in place of a TimeoutError, because it matters more.

        Raises:
            TimeoutError: If a process does not arrive in time, or another one has given up before this one arrived.
        """
        _ = self.deadline  # which starts to run when it is first read
        try:
            self._client.key_value_set(f"{self._folder}/at/{self._store.process}", value)
            outcome = self._wait_for_outcome()
        except BaseException:  # Ctrl-C too
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self.leave()
            raise
        if outcome == _MET:
            return
        self.leave()
        message = f"{self._label} {_format_failure(json.loads(outcome), self._store.process)}{self._hint}"
        if error is None:
            raise TimeoutError(message)
        error.add_note(message)
        raise error

    def read_value(self, process: int) -> str:
        return self._client.key_value_try_get(f"{self._folder}/at/{process}")

    def leave(self) -> None:
        """Leaves; the last process to leave removes everything."""
        if self._client.key_value_increment(f"{self._folder}/left", 1) == self._store.count:
            self._client.key_value_delete(self._folder)

    def _read_values(self) -> dict[int, str]:
        pairs = self._client.key_value_dir_get(f"{self._folder}/at")
        return {int(key.rpartition("/")[2]): value for key, value in pairs}

    def _wait_for_outcome(self) -> str:
        """Waits for the end of the rendezvous, and returns how it ended."""
        while self._needs_devices:
            if self._store.has_devices(min(_MOMENT, max(0, self.deadline - time.monotonic()))):
                break
            outcome = self._read_outcome()
            if outcome is not None:
                return outcome  # the others have given up before this process arrived
            if self.deadline < time.monotonic():
                return self._give_up()
        if self._client.key_value_increment(f"{self._folder}/count", 1) == self._store.count:
            return self._settle_outcome(_MET)
        key = f"{self._folder}/outcome"
        while (seconds_left := self.deadline - time.monotonic()) > 0:
            try:
                return self._client.blocking_key_value_get(key, max(1, round(min(seconds_left, _SLICE) * 1000)))
            except jax.errors.JaxRuntimeError as error:
                if not is_deadline_error(error):
                    raise
        return self._give_up()

    def _read_outcome(self) -> str | None:
        """Returns how the rendezvous has ended, or None if it has not."""
        try:
            return self._client.key_value_try_get(f"{self._folder}/outcome")
        except jax.errors.JaxRuntimeError as error:
            if not is_missing_key_error(error):
                raise
        return None

    def _settle_outcome(self, outcome: str) -> str:
        """Ends the rendezvous, and returns how it ended: the first process to do this decides."""
        try:
            self._client.key_value_set(f"{self._folder}/outcome", outcome)
        except jax.errors.JaxRuntimeError as error:
            if not is_existing_key_error(error):
                raise
        return self._client.key_value_try_get(f"{self._folder}/outcome")

    def _give_up(self) -> str:
        """Ends the rendezvous because the time is over, and returns how it ended."""
        missing = sorted(set(range(self._store.count)) - set(self._read_values()))
        # Incremented by 0, a counter is read: all may have been counted since the last look at the outcome.
        if not missing and self._client.key_value_increment(f"{self._folder}/count", 0) == self._store.count:
            return self._settle_outcome(_MET)
        failure = {"by": self._store.process, "seconds": self._seconds, "missing": missing, "of": self._store.count}
        return self._settle_outcome(json.dumps(failure))


def _format_failure(failure: dict[str, Any], process: int) -> str:
    """Describes which processes did not arrive, to one that waited or one that arrived too late."""
    by, missing, seconds = failure["by"], failure["missing"], f"{failure['seconds']:g} s"
    if process in missing:
        return f"is over: process {by} gave up after {seconds}, before this process, {process}, arrived"
    if not missing:
        return (
            f"waited {seconds} for JAX to find the devices of all {failure['of']} processes; all of them have arrived, "
            "so one has no devices yet, or an error in its output"
        )
    missing_processes = f"{format_processes(missing)} of {failure['of']}"
    return f"waited {seconds} for {missing_processes}, which did not arrive: slow, stuck or dead"


def format_processes(processes: Sequence[int]) -> str:
    """Writes indices of processes, as in `processes 1 and 3`, or `processes 1, 2, ... (97 in all)` for many."""
    if len(processes) == 1:
        return f"process {processes[0]}"
    if len(processes) > 12:
        return f"processes {', '.join(map(str, processes[:12]))}, ... ({len(processes)} in all)"
    return f"processes {', '.join(map(str, processes[:-1]))} and {processes[-1]}"


def barrier_sync(timeout: float = 200, name: str | None = None) -> None:
    """Waits until every process has arrived here.

    With one process it returns at once. Barriers match by name: the second call of a process with a name matches the
    second call of the others with that name. Barriers without a name match in the order of calls.

    Args:
        timeout: How long to wait, in seconds, at least a millisecond.
        name: The name of this barrier.

    Raises:
        TypeError: If the timeout is not a number or the name not a string.
        ValueError: If the timeout is shorter than a millisecond or longer than a year, or the name is empty.
        TimeoutError: If a process does not arrive in time. The message names it. Every process that waits raises it; a
            process that arrives later raises it immediately.

    Example:
        >>> import axonym as nym
        >>> nym.barrier_sync(timeout=60, name="checkpoint written")
    """
    seconds = as_seconds(timeout)
    check_rendezvous_name(name)
    store = get_coordination_store()
    if store is None:
        return
    if name is None:
        label = f"an unnamed barrier (call {store.count_call('unnamed barriers') + 1} of this process)"
        hint = "; unnamed barriers match in the order of calls, so name them if processes may make different calls"
        rendezvous = Rendezvous(store, "unnamed", "barrier", seconds, label, hint)
    else:
        rendezvous = Rendezvous(store, "barrier", name, seconds, f"barrier {name!r}")
    rendezvous.wait_for_all()
    rendezvous.leave()


def as_seconds(timeout: Any, argument: str = "timeout") -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, np.integer, np.floating)):
        raise TypeError(f"`{argument}` is a number of seconds, not {format_value(timeout)}")
    if not 0.001 <= timeout <= _LONGEST:
        raise ValueError(f"`{argument}` is a number of seconds from 0.001 to {_LONGEST}, a year, not {timeout!r}")
    return float(timeout)


def check_rendezvous_name(name: Any) -> None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"`name` is a string or None, not {name!r}")
    if name == "":
        raise ValueError("`name` is empty; pass a name, or None")

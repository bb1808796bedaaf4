"""The key-value store of JAX's coordination service, which all processes share."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import jax

from .._jax_compat import find_coordination_client


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

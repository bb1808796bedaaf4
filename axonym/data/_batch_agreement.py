"""Whether the batches of all processes belong together: a rendezvous per batch, so that differences are errors."""

import json
from typing import Any

from ..multihost._coordination_store import get_coordination_store
from ..multihost._rendezvous import Rendezvous, format_processes


class BatchAgreement:
    """Compares each batch, or every so many of them, with those of the other processes.

    Loaders of different processes belong together if they are made in the same order.

    Args:
        every: How often, 0 for never.
        timeout: How long to wait for the other processes, in seconds.
        drop_remainder: Whether the end of one process ends all.
    """

    def __init__(self, every: int, timeout: float, *, drop_remainder: bool) -> None:
        self._store = get_coordination_store() if every else None
        self._every, self._timeout, self._drop_remainder = every, timeout, drop_remainder
        self._name = "" if self._store is None else f"loader {self._store.count_call('loaders')}"

    def agree(self, number: int, summary: dict[str, str] | None, error: Exception | None) -> bool:
        """Returns whether all processes have batch `number`; False if they have ended.

        Args:
            number: The number of the batch, from 0.
            summary: What the arrays of this process are, by path; None if it has no further batch.
            error: What this process raises in place of the batch.

        Raises:
            ValueError: If the batches of other processes differ, or some have ended.
            TimeoutError: If a process does not arrive in time.
        """
        if self._store is None or number % self._every:
            return self._raise_or_end(summary, error)
        message = None if error is None else f"{type(error).__name__}: {error}"
        label = f"batch {number} of `ShardedLoader`"
        rendezvous = Rendezvous(self._store, "batches", self._name, self._timeout, label)
        received = rendezvous.exchange_values(json.dumps([number, summary, message]), error)
        others = [json.loads(value) for value in received]
        if error is not None:
            raise error
        for process, (_, _, problem) in enumerate(others):
            if problem is not None:
                raise ValueError(f"process {process} cannot provide batch {number}; it raises {problem}")
        self._compare_values(number, "the number of the batch", [number for number, _, _ in others])
        has_ended = [summary is None for _, summary, _ in others]
        if all(has_ended) or (any(has_ended) and self._drop_remainder):
            return False
        if any(has_ended):
            raise ValueError(_describe_ends(number, has_ended))
        for path in sorted({path for _, one, _ in others for path in one}):
            self._compare_values(
                number, path or "the array", [summary.get(path, "missing") for _, summary, _ in others]
            )
        return True

    @staticmethod
    def _raise_or_end(summary: dict[str, str] | None, error: Exception | None) -> bool:
        if error is not None:
            raise error
        return summary is not None

    @staticmethod
    def _compare_values(number: int, what: str, values: list[Any]) -> None:
        groups: dict[Any, list[int]] = {}
        for process, value in enumerate(values):
            groups.setdefault(value, []).append(process)
        if len(groups) > 1:
            shown = " and ".join(f"{value} in {format_processes(processes)}" for value, processes in groups.items())
            raise ValueError(
                f"batch {number} differs between processes: {what} is {shown}; the sources of all processes must yield "
                "batches of the same structure, names, sizes and dtypes"
            )


def _describe_ends(number: int, has_ended: list[bool]) -> str:
    ended = [process for process, end in enumerate(has_ended) if end]
    going = [process for process, end in enumerate(has_ended) if not end]
    return (
        f"the source of {format_processes(ended)} ends after {number} batches, and that of {format_processes(going)} "
        "does not; give all processes the same number of batches, or end with the shortest by `drop_remainder=True`"
    )

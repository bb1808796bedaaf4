"""`ShardedLoader`: batches of all devices from a source of host batches, read ahead and compared between processes."""

import functools
import json
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import jax

from .._ground.arguments import check_flag, check_integer
from ..multihost._host_local import resolve_mapping_and_mesh
from ..multihost._rendezvous import Rendezvous, as_seconds, format_processes, get_coordination_store
from ..named._array import NamedArray
from ..partitioning._active_mesh import MeshLike
from ..partitioning._mapping import ResourceMapping
from ._batch_reader import BatchAxes, BatchReader, LoadedBatch, place_global_rows, place_local_rows
from ._position_order import PositionOrder
from ._source_iterator import SourceIterator


class BatchAgreement:
    """Compares one in `interval` batches with those of the other processes.

    Loaders of different processes belong together if they are made in the same order.

    Args:
        interval: How many batches there are from one comparison to the next; 0 for none.
        timeout: How long to wait for the other processes, in seconds.
        drop_remainder: Whether all processes end as soon as the source of one does.
    """

    def __init__(self, interval: int, timeout: float, *, drop_remainder: bool) -> None:
        self._store = get_coordination_store() if interval else None
        self._interval, self._timeout, self._drop_remainder = interval, timeout, drop_remainder
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
        if self._store is None or number % self._interval:  # not compared
            if error is not None:
                raise error
            return summary is not None
        message = None if error is None else f"{type(error).__name__}: {error}"
        label = f"batch {number} of `ShardedLoader`"
        rendezvous = Rendezvous(self._store, "batches", self._name, self._timeout, label)
        values = rendezvous.exchange_values(json.dumps([number, summary, message]), error)
        if error is not None:
            raise error
        numbers, summaries, messages = zip(*map(json.loads, values), strict=True)
        for process, message in enumerate(messages):
            if message is not None:
                raise ValueError(f"process {process} cannot provide batch {number}; it raises {message}")
        # These differ after `set_state` with different states.
        _compare_values(number, "the number of the batch", numbers)
        has_ended = [summary is None for summary in summaries]
        if all(has_ended) or (any(has_ended) and self._drop_remainder):
            return False
        if any(has_ended):
            ended = [process for process, end in enumerate(has_ended) if end]
            others = [process for process, end in enumerate(has_ended) if not end]
            raise ValueError(
                f"the source of {format_processes(ended)} ends after {number} batches, and that of "
                f"{format_processes(others)} does not; give all processes the same number of batches, or end with the "
                "shortest by `drop_remainder=True`"
            )
        for path in sorted({path for summary in summaries for path in summary}):
            _compare_values(number, path or "the array", [summary.get(path, "missing") for summary in summaries])
        return True


def _compare_values(number: int, subject: str, values: Sequence[Any]) -> None:
    """Raises a ValueError if a batch has different values in different processes."""
    groups: dict[Any, list[int]] = {}
    for process, value in enumerate(values):
        groups.setdefault(value, []).append(process)
    if len(groups) > 1:
        difference = " and ".join(f"{value} in {format_processes(processes)}" for value, processes in groups.items())
        raise ValueError(
            f"batch {number} differs between processes: {subject} is {difference}; the sources of all processes "
            "must yield batches of the same structure, names, sizes and dtypes"
        )


class ShardedLoader(Iterator[Any]):
    """An iterator over the batches of a source, as named arrays sharded over all devices.

    Each process reads its own rows of a batch; the arrays have the rows of all processes. A thread reads the source
    and puts the next batches on the devices while the program computes. The state is exact: it is that after the batch
    handed out last, not that of the batches read ahead. Several threads may use one loader: each batch is handed out
    once.

    Without `jax_enable_x64`, JAX has 32 bits for the 64 of NumPy: floats are rounded, and integers that do not fit are
    an error.

    Args:
        source: Anything that yields batches when iterated over: a `DataLoader` or a dataset of grain, a generator, a
            list. A batch is a tree of named arrays with NumPy arrays in them, or of plain arrays with `axes`. Leaves
            that are not arrays stay as they are.
        mapping: From names to mesh axes; the active mapping if None.
        mesh: The mesh, with devices; the active mesh if None.
        prefetch: How many batches are read ahead, at least 1. They take memory on the devices.
        axes: The names of the axes of plain arrays: one name, `Axis` or tuple of these for all arrays of a batch, or a
            tree of them with the structure of the batch or of its upper part, such as
            `{"tokens": ("batch", "pos"), "label": "batch"}`, where None leaves a part as it is. The size of an `Axis`
            is that in all processes together, and is checked.
        positions: The position that comes to each place of a sequence, as `nn.zigzag_positions` returns: a named array
            of integers with one axis. Arrays with that axis are selected by it, and each batch, which is a dict, gets
            it as "positions". Each process yields whole sequences, even if several share one.
        process_local: Whether a batch of the source has only the rows of this process, as `find_local_rows` says. If
            False, the sources of all processes yield the same batches with all rows, and each process reads from them
            what its devices hold, which suits arrays in memory-mapped files.
        drop_remainder: Whether the iteration ends, in all processes, before the first batch with an axis that is
            shorter than in the first batch, and as soon as the source of one process ends. If False, a shorter batch
            must fit the mesh as well, and sources that end after different numbers of batches are an error.
        check_every: The interval at which batches are compared between processes: structure, names, sizes, dtypes,
            shardings, and whether all have one. At 1, no process waits in vain for one that has ended or failed; 0
            compares none. A single process has nothing to compare.
        timeout: How long a comparison waits for the other processes, in seconds.

    Raises:
        TypeError: If the source cannot be iterated over, or an option has another type.
        ValueError: If there is no mapping or no mesh, this process has no device of the mesh, or options do not fit.

    Example:
        >>> import axonym as nym
        >>> import numpy as np
        >>> source = [np.full((8, 3), step) for step in range(4)]
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> with nym.data.ShardedLoader(source, {"batch": "data"}, mesh, axes=("batch", "pos")) as loader:
        ...     first = next(loader)
        ...     state = loader.get_state()
        >>> first.shape, first.sharding.spec, state
        ((batch: 8, pos: 3), P('data', None), {'batches': 1})
        >>> with nym.data.ShardedLoader(source, {"batch": "data"}, mesh, axes=("batch", "pos")) as loader:
        ...     loader.set_state(state)
        ...     [int(batch.max().item()) for batch in loader]
        [1, 2, 3]
    """

    def __init__(
        self,
        source: Any,
        mapping: ResourceMapping | None = None,
        mesh: MeshLike | None = None,
        prefetch: int = 2,
        *,
        axes: Any = None,
        positions: NamedArray | None = None,
        process_local: bool = True,
        drop_remainder: bool = False,
        check_every: int = 1,
        timeout: float = 600,
    ) -> None:
        """Checks the options; reading starts with the first batch."""
        axis_mapping, device_mesh = resolve_mapping_and_mesh(mapping, mesh, "`ShardedLoader`")
        self._prefetch = check_integer("`prefetch`", prefetch, 1)
        interval = check_integer("`check_every`", check_every, 0)
        check_flag("`process_local`", process_local)
        check_flag("`drop_remainder`", drop_remainder)
        if drop_remainder and interval != 1 and jax.process_count() > 1:
            raise ValueError(f"`drop_remainder` compares every batch, so `check_every` must be 1, not {interval}")
        order = None
        if positions is not None:
            order = PositionOrder(positions, axis_mapping, device_mesh, process_local=process_local)
        place = place_local_rows if process_local else place_global_rows
        self._source = SourceIterator(source)
        self._reader = BatchReader(
            self._source,
            None if axes is None else BatchAxes(axes),
            order,
            functools.partial(place, mapping=axis_mapping, mesh=device_mesh),
            drop_remainder=drop_remainder,
        )
        self._agreement = BatchAgreement(interval, as_seconds(timeout), drop_remainder=drop_remainder)
        self._state = self._reader.get_state()
        self._has_ended = False
        self._error: Exception | None = None
        self._pending: deque[Future[LoadedBatch | None]] = deque()
        self._lock = threading.RLock()  # which a signal handler may take again
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="axonym-data")
        # Ends the thread when the program drops a loader without closing it.
        self._finalizer = weakref.finalize(self, self._executor.shutdown, wait=False, cancel_futures=True)

    def __iter__(self) -> Self:
        """Returns itself."""
        return self

    def __next__(self) -> Any:
        """Returns the next batch.

        Raises:
            StopIteration: If there are no further batches.
            ValueError: If a batch does not fit the mesh or its axes, or differs between processes, or if the loader is
                closed.
            TimeoutError: If a process does not arrive at the comparison in time.
            Exception: Whatever the source raises, with its traceback.
        """
        with self._lock:
            self._check_open()
            if self._error is not None:
                raise self._error
            if self._has_ended:
                raise StopIteration
            self._fill_pending()
            batch, error = None, None
            try:
                batch = self._pending[0].result()
            except Exception as raised:  # which the other processes are told first
                error = raised
            try:
                summary = None if batch is None else batch.summary
                all_have_batch = self._agreement.agree(self._state["batches"], summary, error)
            except Exception as raised:
                self._error = raised
                raise
            if batch is None or not all_have_batch:
                self._has_ended = True
                raise StopIteration
            self._pending.popleft()
            self._fill_pending()
            self._state = batch.state
            return batch.tree

    def get_state(self) -> dict[str, Any]:
        """Returns the state after the batch handed out last, which can be written as JSON.

        It has the number of batches and, if the source has `get_state` and `set_state`, the state of the source.
        """
        return dict(self._state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues after the batch at which `get_state` returned this state.

        A source with `set_state`, as grain's, continues there by itself. Any other is iterated over again, and its
        batches before that point are dropped; an iterator goes on from where it is.

        Args:
            state: What `get_state` returned, of a loader with a source like this one.

        Raises:
            ValueError: If the state is something else, the source ends before that point, or it is an iterator that
                is past it.
        """
        with self._lock:
            self._check_open()
            self._cancel_pending()
            self._reader.set_state(state)
            self._state, self._has_ended, self._error = self._reader.get_state(), False, None

    def close(self) -> None:
        """Waits for the batch that is being read, ends the thread, and closes the iterator over the source.

        An iterator that was passed as source stays open.
        """
        with self._lock:
            self._cancel_pending()
            if self._finalizer.detach() is not None:
                self._executor.shutdown()
                self._source.close()

    def __enter__(self) -> Self:
        """Returns itself; the loader is closed at the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the loader."""
        self.close()

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise ValueError("the `ShardedLoader` is closed; make a new one")

    def _fill_pending(self) -> None:
        while len(self._pending) < self._prefetch:
            self._pending.append(self._executor.submit(self._reader.read_batch))

    def _cancel_pending(self) -> None:
        """Drops the batches read ahead; waits for the one that is being read."""
        for future in self._pending:
            if not future.cancel():
                future.exception()  # waits, without raising
        self._pending.clear()

"""`Checkpointer`, which saves while the training goes on, and `save`, which waits."""

import os
import warnings
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from .._ground.arguments import check_flag, check_integer
from .._ground.errors import find_stacklevel
from .._ground.formats import format_value
from ..multihost._rendezvous import as_seconds
from ..multihost._shared_values import assert_same_on_all_hosts
from ..named._axis_layout import MeshLike
from ..named._base import get_plain_array
from ..partitioning._mapping import ResourceMapping
from ..state_dict._keys import check_can_be_saved
from ..state_dict._safetensors import AxisOrder
from ._data_state import Resumable, encode_data_state
from ._errors import agree_on_result, check_is_not_traced, import_orbax_handler
from ._restore import RestoreOptions, enter_mesh_of, restore_step
from ._steps import StepWriter, check_is_path, check_step, format_steps, list_steps, move_damaged
from ._tree_metadata import LeafMetadata, TreeMetadata, describe_tree, flatten_leaves


class Checkpointer:
    """Saves the state of a program to a folder, step by step, and restores it.

    A context manager: it waits for the last save when it is left. All processes make one for the same folder, on a
    file system that they share, and call its methods together.

    A save returns when the arrays are on the host, and writes in other threads. A step that is compiled with donated
    arguments may follow immediately. A checkpoint appears under its final name when all of it is written, with the
    checksums of its files. One program at a time can have a folder open to save, and opening it removes the
    incomplete files of a program that was killed. Any number of programs can have it open with `read_only=True`.

    Args:
        folder: The folder, which is created.
        max_to_keep: How many checkpoints to keep: when a new one is complete, the oldest are deleted. All if None.
        timeout: How many seconds the processes wait for one another in each part of a save or restore, such as for one
            that has died.
        read_only: Whether to restore only. Nothing is created, written, moved or deleted then.

    Raises:
        ImportError: If Orbax is not installed.
        TypeError: If `folder` is no path, or another argument has the wrong type.
        ValueError: If `max_to_keep` is less than 1, the folder is a URL, or the timeout is shorter than a second.
        OSError: If another program has the folder open to save, or it cannot be written.

    Example:
        >>> import axonym as nym
        >>> import tempfile
        >>> state = {"weight": nym.ones({"embed": 3})}
        >>> with nym.checkpoint.Checkpointer(tempfile.mkdtemp(), max_to_keep=2) as checkpointer:
        ...     for step in (10, 20, 30):
        ...         checkpointer.save(state, step)
        ...     checkpointer.wait()
        ...     checkpointer.steps
        [20, 30]
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        max_to_keep: int | None = None,
        *,
        timeout: float = 1800,
        read_only: bool = False,
    ) -> None:
        """Opens the folder; see the class."""
        check_is_path(folder, "`save(folder, state, step)`, and `Checkpointer(folder)`")
        if "://" in os.fspath(folder):
            raise ValueError(f"`folder` is a path, not the URL {os.fspath(folder)!r}; mount the bucket as a folder")
        if max_to_keep is not None:
            max_to_keep = check_integer("`max_to_keep`", max_to_keep, 1)
        check_flag("`read_only`", read_only)
        if as_seconds(timeout) < 1:
            raise ValueError(f"`timeout` is at least a second, not {timeout}")
        self._folder = Path(folder).absolute()
        if self._folder.is_file():
            raise NotADirectoryError(f"{self._folder} is a file; pass the folder of the checkpoints")
        self._timeout = round(timeout)
        self._is_read_only = read_only
        self._writer = None if read_only else StepWriter(self._folder, max_to_keep, self._timeout)
        self._saving: int | None = None  # the step that is being written in other threads
        self._attempts = 0  # to save; the same number in all processes, also if one of them fails

    def __enter__(self) -> Self:
        """Returns the checkpointer."""
        return self

    def __exit__(self, *error: object) -> None:
        """Waits for the last save."""
        self.close()

    @property
    def folder(self) -> Path:
        """The folder of the checkpoints."""
        return self._folder

    @property
    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, in order."""
        return list_steps(self._folder)

    def save(self, state: Any, step: int, data: Resumable | None = None) -> None:
        """Starts to save a state; first waits for the previous save.

        Args:
            state: Any tree of arrays, random keys, Python numbers, strings and None. Static fields of modules and
                leaves such as functions are described, to be compared when the state is restored. All processes
                pass the same tree, except for the elements of arrays that are not on devices of several processes, of
                which those of process 0 are saved.
            step: The step, from 0 on.
            data: Iterator over the data, whose `get_state` is saved for each process.

        Raises:
            ValueError: If there is a checkpoint of this step, an array was donated or is traced, the state is nested
                too deeply, the checkpointer is closed or only reads, or processes save different steps or trees.
            TypeError: If an array has elements that are no numbers, or the state of the data is not JSON.
            OSError: If an earlier save has failed, as on a full disk, or another process raises an error here. Both
                name the process and the cause.
            TimeoutError: If another process does not arrive in time. The message names it.
        """
        self.wait()
        self._attempts += 1
        shown_step = format_value(step)
        prepared = agree_on_result(
            f"the checkpoint of step {shown_step} in {self._folder}",
            lambda: self._prepare(state, step, data),
            name=f"save {self._folder}",
            kind=lambda cause: self._make_failure(step, cause),
            seconds=self._timeout,
            purpose=f"saves step {shown_step} in {self._folder}",
        )
        if jax.process_count() > 1:
            leaves = {path: leaf.describe_kind() for path, leaf in prepared.metadata.get_leaves().items()}
            described = {"data": prepared.metadata.has_data_state, "leaves": leaves}
            try:
                assert_same_on_all_hosts(described, f"the state of step {step}", timeout=self._timeout)
            except ValueError as error:
                raise ValueError(f"{error}; save one tree in all processes, and leave out what differs") from None
        self._saving = step
        self._require_writer().save(step, self._attempts, prepared)

    def _require_writer(self) -> StepWriter:
        if self._writer is not None:
            return self._writer
        if self._is_read_only:
            raise ValueError(f"{self._folder} was opened with `read_only=True`; open it without that to save")
        raise ValueError(f"the `Checkpointer` of {self._folder} is closed; make another one to save")

    def _prepare(self, state: Any, step: int, data: Resumable | None) -> Any:
        """Returns what to save; raises an error if it cannot be saved."""
        check_step(step)
        self._require_writer()
        metadata = TreeMetadata(step, describe_tree(state), jax.process_count(), data is not None)
        leaves, _ = flatten_leaves(state)
        stored_leaves = metadata.get_stored_leaves()
        for leaf in stored_leaves:
            check_can_be_saved(leaf.path or "the state", get_plain_array(leaves[leaf.path]))
        check_is_not_traced()  # after the error for a traced leaf, which names that leaf
        orbax = import_orbax_handler()
        orbax.check_dtypes(stored_leaves)
        encoded = None if data is None else encode_data_state(data)
        if step in self.steps:
            raise ValueError(
                f"{self._folder} has a checkpoint of step {step} already; save later steps, or remove it first"
            )
        target = self._folder / str(step)
        # A program may have made the folder of its step already; the rename at the end replaces an empty one.
        is_empty_folder = target.is_dir() and not target.is_symlink() and not any(target.iterdir())
        if os.path.lexists(target) and not is_empty_folder:
            raise ValueError(f"{target} is there and is no checkpoint; remove it, or save another step")
        return orbax.PreparedState(
            metadata, lambda: {leaf.path: _get_stored_array(leaf, leaves[leaf.path]) for leaf in stored_leaves}, encoded
        )

    def wait(self) -> None:
        """Waits until the checkpoint that is being saved is complete.

        Raises:
            OSError: If it could not be written, or something else has removed a part of it. Checkpoints that were
                complete before stay.
        """
        if self._writer is not None and self._saving is not None:
            try:
                messages = self._writer.wait()
            except Exception as error:
                step, self._saving = self._saving, None
                self._writer.give_up()
                raise self._make_failure(step, f"{type(error).__name__}: {error}") from error
            self._saving = None
            for message in messages:
                warnings.warn(message, stacklevel=find_stacklevel())

    def restore(
        self,
        like: Any = None,
        *,
        step: int | None = None,
        mapping: ResourceMapping | None = None,
        mesh: MeshLike | None = None,
        data: Resumable | None = None,
        axis_order: AxisOrder = "transpose",
        strict: bool = True,
        fallback: bool = False,
    ) -> Any:
        """Returns the state of a step, after waiting for a save; see `axonym.checkpoint.restore`.

        Damaged checkpoints that `fallback` skips are moved to `damaged-<step>`, so that their steps can be saved again,
        unless the checkpointer only reads.
        """
        self.wait()
        steps = self.steps if step is None else []  # listed first, because process 0 may move some before others look
        options = RestoreOptions(mapping, mesh, axis_order, strict, self._timeout)
        state, restored_step = restore_step(self._folder, like, options, step=step, data=data, fallback=fallback)
        damaged_steps = [newer_step for newer_step in steps if newer_step > restored_step]
        if damaged_steps and self._writer is not None:

            def move() -> None:
                if jax.process_index() == 0:
                    for damaged_step in damaged_steps:
                        move_damaged(self._folder, damaged_step)

            agree_on_result("moving damaged checkpoints", move, name="move", kind=OSError, seconds=self._timeout)
        return state

    def close(self) -> None:
        """Waits for the last save, ends the threads that write, and lets other programs save to the folder."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _make_failure(self, step: int, cause: str) -> OSError:
        """Returns the error for a step that could not be saved."""
        complete = f"complete: {format_steps(self.steps)}" if self.steps else "none is complete"
        cause = cause.splitlines()[0]
        return OSError(f"the checkpoint of step {step} could not be saved in {self._folder} ({complete}): {cause}")


def save(
    folder: str | os.PathLike[str],
    state: Any,
    step: int,
    *,
    data: Resumable | None = None,
    max_to_keep: int | None = None,
) -> None:
    """Saves a state to a folder, and returns when the checkpoint is complete; see `Checkpointer`.

    Args:
        folder: The folder of the checkpoints, which is created.
        state: Any tree of arrays, random keys, Python numbers, strings and None.
        step: The step, from 0 on.
        data: Iterator over the data, whose `get_state` is saved for each process.
        max_to_keep: How many checkpoints to keep; all if None.

    Raises:
        ImportError: If Orbax is not installed.
        ValueError: If there is a checkpoint of this step, an array was donated or is traced, or the state is nested too
            deeply.
        TypeError: If `folder` is no path, an array has elements that are no numbers, or the state of the data is not
            JSON.
        OSError: If it cannot be written, as on a full disk, or another program has the folder open to save.
            Checkpoints that were complete before stay.

    Example:
        >>> import axonym as nym
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> nym.checkpoint.save(folder, {"weight": nym.ones({"embed": 3})}, step=10)
        >>> nym.checkpoint.restore(folder)
        {'weight': NamedArray(float32, embed: 3, [1., 1., 1.])}
    """
    with Checkpointer(folder, max_to_keep) as checkpointer:
        checkpointer.save(state, step, data)


def _get_stored_array(leaf: LeafMetadata, x: Any) -> Any:
    """Returns the array of a leaf as Orbax writes it: without names, and the data of random keys."""
    array = get_plain_array(x)
    if leaf.kind == "key":
        with enter_mesh_of(array.sharding):
            array = jax.random.key_data(array)
    if leaf.kind == "numpy scalar":
        return np.asarray(array)
    if isinstance(array, jax.Array) and array.is_fully_addressable and jax.process_count() > 1:
        return np.asarray(array)  # each process has its own, and of NumPy arrays that of process 0 is saved
    return array

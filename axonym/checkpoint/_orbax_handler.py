"""Orbax does the writing and reading of arrays: its handler of trees, which also writes metadata and checksums.

Imported where it is used, because Orbax is an extra.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath
from orbax.checkpoint import future

from ._agreement import agree_on_result
from ._checksums import write_checksums, write_checksums_of_process
from ._data_state import write_data_state
from ._leaf import Leaf
from ._tree_metadata import TreeMetadata


_NAME = "state"  # what the names of arrays in the files begin with
_EMPTY = {_NAME: np.zeros(1, np.uint8)}  # Orbax refuses trees without arrays


class StateHandler(ocp.PyTreeCheckpointHandler):
    """Saves a flat tree of arrays with the metadata of the tree that they come from."""

    async def async_save(self, directory: Any, args: "StateSave") -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Starts to save, when the arrays are on the host; returns what to wait for."""
        folder, process, arrays, error = Path(directory), jax.process_index(), None, None
        try:
            if args.metadata is not None and process == 0:
                args.metadata.write(folder)
            if args.data is not None:
                write_data_state(folder, process, args.data)
            arrays = await super().async_save(directory, args=args)
        except Exception as raised:  # other processes wait for this one
            error = raised
        write = functools.partial(write_checksums_of_process, folder, process)
        return [WrittenByAll(args.what, args.seconds, future.ChainedFuture(arrays or (), write), error)]

    def finalize(self, directory: Any) -> None:
        """Ends a checkpoint that all processes have written; it is renamed to its final name after this."""
        super().finalize(directory)
        write_checksums(Path(directory))


class WrittenByAll(future.Future):
    """Waits until all processes have written their parts; raises in all of them once one has failed."""

    def __init__(self, what: str, seconds: float, own: future.ChainedFuture, error: Exception | None) -> None:
        """Takes the subject of errors, the seconds to wait, and the part of this process or why it has none."""
        self._what, self._seconds, self._own, self._error = what, seconds, own, error

    def result(self, timeout: float | None = None) -> Any:
        def wait_for_own() -> None:
            if self._error is not None:
                raise self._error
            self._own.result(timeout)

        name = f"write {self._what}"
        agree_on_result(self._what, wait_for_own, name=name, kind=OSError, seconds=self._seconds)


@ocp.args.register_with_handler(StateHandler, for_save=True)
@dataclasses.dataclass
class StateSave(ocp.args.PyTreeSave):
    """Arguments of a save: the arrays by name, the metadata, and the state of the data in JSON.

    `what` describes the checkpoint in errors, and `seconds` is how long processes wait for one another.
    """

    metadata: TreeMetadata | None = None
    data: str | None = None
    what: str = ""
    seconds: float = 0.0


@ocp.args.register_with_handler(StateHandler, for_restore=True)
@dataclasses.dataclass
class StateRestore(ocp.args.PyTreeRestore):
    """Arguments of a restore, as for any tree."""


def make_save_arguments(arrays: dict[str, Any], **options: Any) -> StateSave:
    """Returns the arguments of Orbax to save arrays by path; raises a TypeError for elements that it cannot store.

    The options are the other fields of `StateSave`.
    """
    for path, x in arrays.items():
        try:
            ts.dtype(str(x.dtype))
        except (TypeError, ValueError):
            raise TypeError(
                f"{path or 'the state'} has elements of type {x.dtype}, which Orbax cannot store; convert it first"
            ) from None
    return StateSave({f"{_NAME}{path}": x for path, x in arrays.items()} or _EMPTY, **options)


def read_arrays(folder: Path, leaves: dict[str, tuple[Leaf, Any]]) -> dict[str, Any]:
    """Returns arrays by path, each with a sharding, or as a NumPy array if that is None."""
    if not leaves:
        return {}
    shapes = {
        f"{_NAME}{path}": jax.ShapeDtypeStruct(leaf.stored_shape, leaf.stored_dtype)
        for path, (leaf, _) in leaves.items()
    }
    how = {f"{_NAME}{path}": _make_restore_arguments(*one) for path, one in leaves.items()}
    arguments = ocp.args.PyTreeRestore(shapes, restore_args=how, partial_restore=True)
    found = ocp.PyTreeCheckpointHandler().restore(epath.Path(folder), args=arguments)
    return {path: found[f"{_NAME}{path}"] for path in leaves}


def _make_restore_arguments(leaf: Leaf, sharding: Any) -> ocp.RestoreArgs:
    if sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=sharding, global_shape=leaf.stored_shape)


def make_manager(folder: Path, max_to_keep: int | None, seconds: int) -> ocp.CheckpointManager:
    """Returns the manager of Orbax for a folder, which it creates."""
    # A folder that cannot be made is an error at once; made later, other threads would wait for it for minutes.
    how = ocp.AsyncOptions(timeout_secs=seconds, create_directories_asynchronously=False)
    options = ocp.CheckpointManagerOptions(max_to_keep=max_to_keep, cleanup_tmp_directories=True, async_options=how)
    return ocp.CheckpointManager(folder, options=options, item_handlers=StateHandler())

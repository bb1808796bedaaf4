"""Writing and reading of arrays by Orbax: its handler of trees, which also writes metadata and checksums.

This module is imported when it is used, because Orbax is an extra.
"""

import collections
import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath
from orbax.checkpoint import future

from ._checksums import Checksums, write_checksums_of_process
from ._data_state import make_data_file_name
from ._errors import DamagedCheckpointError, agree_on_result
from ._tree_metadata import METADATA, LeafMetadata, TreeMetadata


_NAME = "state"  # what the names of arrays in the files begin with
_MANIFEST = "manifest.ocdbt"
_EMPTY = {_NAME: np.zeros(1, np.uint8)}  # Orbax refuses trees without arrays
_NOT_DAMAGE = ("CANCELLED", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE")


class StateHandler(ocp.PyTreeCheckpointHandler):
    """Saves a flat tree of arrays with the metadata of the tree that they come from."""

    _failure: Exception | None = None

    async def async_save(self, directory: Any, args: "StateSave") -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Starts to save, when the arrays are on the host; returns what to wait for."""
        folder, process, arrays, error = Path(directory), jax.process_index(), None, None
        self._failure = None
        try:
            if args.metadata is not None and process == 0:
                args.metadata.write(folder)
            if args.data is not None:
                (folder / make_data_file_name(process)).write_text(args.data)
            arrays = await super().async_save(directory, args=args)
        except Exception as raised:  # other processes wait for this one
            error = raised
        write = functools.partial(write_checksums_of_process, folder, process)
        return [WrittenByAll(args.subject, args.seconds, future.ChainedFuture(arrays or (), write), error)]

    def finalize(self, directory: Any) -> None:
        """Ends a checkpoint that all processes have written.

        An error is raised later, by `raise_failure`, since the other processes wait for this one here.
        """
        try:
            super().finalize(directory)
        except Exception as raised:
            self._failure = raised

    def raise_failure(self) -> None:
        """Raises the error with which the last checkpoint ended, if there was one."""
        if self._failure is not None:
            raise self._failure


class WrittenByAll(future.Future):
    """Waits until all processes have written their parts; raises in all of them once one has failed."""

    def __init__(self, subject: str, seconds: float, part: future.ChainedFuture, error: Exception | None) -> None:
        """Takes the subject of errors, the seconds to wait, and the part of this process or why it has none."""
        self._subject, self._seconds, self._part, self._error = subject, seconds, part, error

    def result(self, timeout: float | None = None) -> Any:
        def wait_for_part() -> None:
            if self._error is not None:
                raise self._error
            self._part.result(timeout)

        name = f"write {self._subject}"
        agree_on_result(self._subject, wait_for_part, name=name, kind=OSError, seconds=self._seconds)


@ocp.args.register_with_handler(StateHandler, for_save=True)
@dataclasses.dataclass
class StateSave(ocp.args.PyTreeSave):
    """Arguments of a save: the arrays by name, the metadata, and the state of the data in JSON.

    `subject` describes the checkpoint in errors, and `seconds` is how long processes wait for one another.
    """

    metadata: TreeMetadata | None = None
    data: str | None = None
    subject: str = ""
    seconds: float = 0.0


@ocp.args.register_with_handler(StateHandler, for_restore=True)
@dataclasses.dataclass
class StateRestore(ocp.args.PyTreeRestore):
    """Arguments of a restore, as for any tree; Orbax wants a handler to have some for both."""


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


def read_arrays(folder: Path, leaves: dict[str, tuple[LeafMetadata, Any]]) -> dict[str, Any]:
    """Returns arrays by path, each with a sharding, or as a NumPy array if that is None."""
    if not leaves:
        return {}
    shapes: dict[str, Any] = {}
    restore_arguments: dict[str, ocp.RestoreArgs] = {}
    for path, (leaf, sharding) in leaves.items():
        name = f"{_NAME}{path}"
        shapes[name] = jax.ShapeDtypeStruct(leaf.stored_shape, leaf.stored_dtype)
        if sharding is None:
            restore_arguments[name] = ocp.RestoreArgs(restore_type=np.ndarray)
        else:
            restore_arguments[name] = ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=sharding)
    arguments = ocp.args.PyTreeRestore(shapes, restore_args=restore_arguments, partial_restore=True)
    try:
        read_items = ocp.PyTreeCheckpointHandler().restore(epath.Path(folder), args=arguments)
    except (ValueError, LookupError, FileNotFoundError) as error:
        if any(code in str(error) for code in _NOT_DAMAGE):
            raise
        message = f"the arrays in {folder} cannot be read: {str(error).splitlines()[0]}"
        raise DamagedCheckpointError(message) from error
    arrays = {path: read_items[f"{_NAME}{path}"] for path in leaves}
    for path, (leaf, _) in leaves.items():
        if (shape := arrays[path].shape) != leaf.stored_shape:
            message = f"{path or 'the state'} has shape {shape}, and {METADATA} says {leaf.stored_shape}"
            raise DamagedCheckpointError(f"the arrays in {folder} are others: {message}")
    return arrays


def make_checkpointer(handler: StateHandler, seconds: int) -> ocp.AsyncCheckpointer:
    """Returns the checkpointer of Orbax, which writes steps with a handler."""
    # A folder that cannot be made is an error at once; made later, other threads would wait for it for minutes.
    async_options = ocp.AsyncOptions(timeout_secs=seconds, create_directories_asynchronously=False)
    items = ocp.CompositeCheckpointHandler(
        composite_options=ocp.CompositeOptions(async_options=async_options), default=handler
    )
    return ocp.AsyncCheckpointer(items, async_options=async_options)


def save(checkpointer: ocp.AsyncCheckpointer, folder: Path, arguments: StateSave) -> None:
    """Starts to save to the folder of a step."""
    checkpointer.save(folder, args=ocp.args.Composite(default=arguments))


def check_written(folder: Path, checksums: Checksums, arguments: StateSave) -> None:
    """Checks that nothing is missing in the folder of a step; the index of TensorStore lists the parts of arrays.

    Raises:
        OSError: If something else has removed a part of it.
    """
    has_data_state = arguments.data is not None
    data_files = [make_data_file_name(process) for process in range(jax.process_count()) if has_data_state]
    sizes = {name.removeprefix("default/"): entry[0] for name, entry in checksums.files.items()}
    base = ts.KvStore.open({"driver": "file", "path": f"{folder}/"}).result()
    _check_sizes(folder, sizes, dict.fromkeys([METADATA, _MANIFEST, *data_files], 0))
    _check_sizes(folder, sizes, _list_data_files(base))
    arrays, chunks = _count_chunks(base)
    if (missing_count := len(arguments.item) - len(arrays)) or arrays != chunks:
        incomplete = [name for name in arrays if arrays[name] != chunks.get(name)]
        description = f"{missing_count} arrays" if missing_count else f"parts of {', '.join(incomplete[:3])}"
        raise OSError(f"{description} were removed from {folder} while the checkpoint was written")


def _check_sizes(folder: Path, sizes: dict[str, int], least: dict[str, int]) -> None:
    for name, size in least.items():
        if sizes.get(name, -1) < size:
            raise OSError(f"{folder / name} was removed or cut off while the checkpoint was written")


def _list_data_files(base: ts.KvStore) -> dict[str, int]:
    """Returns the files with nodes and elements of arrays, each with the least size that the index implies."""
    locations = [version["root"]["location"] for version in ts.ocdbt.dump(base).result()["versions"][-1:]]
    ends: dict[str, int] = {}
    while locations:
        # A location is what is there, the folder of a process, the file, and the place in it: its start and its size.
        location = locations.pop()
        kind, process, file, start, size = location.split(":")
        ends[process + file] = max(ends.get(process + file, 0), int(start) + int(size))
        if kind != "value":
            for entry in ts.ocdbt.dump(base, location).result()["entries"]:
                locations += [entry[key] for key in ("location", "indirect_value") if key in entry]
    return ends


def _count_chunks(base: ts.KvStore) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the number of chunks that each array should have, and the number that it has in the index."""
    store = ts.KvStore.open({"driver": "ocdbt", "base": base.spec().to_json()}).result()
    keys = [key.decode() for key in store.list().result()]
    # Each array has a file of its layout; all other keys are chunks. The layouts are read at the same time.
    reads = {key: store.read(key) for key in keys if key.endswith("/.zarray")}
    arrays = {}
    for key, read in reads.items():
        layout = json.loads(read.result().value)
        grid = [-(-size // chunk) for size, chunk in zip(layout["shape"], layout["chunks"], strict=True)]
        arrays[key.removesuffix("/.zarray")] = math.prod(grid)
    return arrays, dict(collections.Counter(key.rpartition("/")[0] for key in keys if key not in reads))

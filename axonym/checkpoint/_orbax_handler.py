"""Writing and reading of arrays by Orbax, by its handler of trees.

Its `AsyncCheckpointer` lets processes wait for one another on the devices, without a limit, so it is not used.

This module is imported when it is used, because Orbax is an extra.
"""

import asyncio
import collections
import dataclasses
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath
from orbax.checkpoint import future

from ._checksums import Checksums
from ._data_state import make_data_file_name
from ._errors import DamagedCheckpointError
from ._tree_metadata import METADATA, LeafMetadata, TreeMetadata


_NAME = "state"  # what the names of arrays in the files begin with
_MANIFEST = "manifest.ocdbt"
_EMPTY = {_NAME: np.zeros(1, np.uint8)}  # Orbax refuses trees without arrays
_NOT_DAMAGE = ("CANCELLED", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE")


@dataclasses.dataclass
class PreparedState:
    """A state to save: the metadata of its tree, what makes its arrays by path, and the state of the data in JSON."""

    metadata: TreeMetadata
    make_arrays: Callable[[], dict[str, Any]]
    data: str | None


def check_dtypes(leaves: Iterable[LeafMetadata]) -> None:
    """Raises a TypeError for elements that Orbax cannot store."""
    for leaf in leaves:
        try:
            ts.dtype(leaf.stored_dtype)
        except (TypeError, ValueError):
            raise TypeError(
                f"{leaf.path or 'the state'} has elements of type {leaf.dtype}, which Orbax cannot store; convert it "
                "first"
            ) from None


def start_save(folder: Path, state: PreparedState) -> list[future.Future]:
    """Starts to write a state to the folder of a step, when its arrays are on the host; returns what to wait for."""
    folder.mkdir(parents=True, exist_ok=True)
    if jax.process_index() == 0:
        state.metadata.write(folder)
    if state.data is not None:
        (folder / make_data_file_name(jax.process_index())).write_text(state.data)
    arrays = {f"{_NAME}{path}": x for path, x in state.make_arrays().items()}
    arguments = ocp.args.PyTreeSave(arrays or _EMPTY)
    return asyncio.run(ocp.PyTreeCheckpointHandler().async_save(epath.Path(folder), args=arguments)) or []


def finish_save(folder: Path) -> None:
    """Merges what all processes have written, in one of them."""
    ocp.PyTreeCheckpointHandler().finalize(epath.Path(folder))


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


def check_written(folder: Path, checksums: Checksums, metadata: TreeMetadata) -> None:
    """Checks that nothing is missing in the folder of a step; the index of TensorStore lists the parts of arrays.

    Raises:
        OSError: If something else has removed a part of it.
    """
    data_files = [make_data_file_name(process) for process in range(jax.process_count()) if metadata.has_data_state]
    sizes = {name.removeprefix("default/"): entry[0] for name, entry in checksums.files.items()}
    base = ts.KvStore.open({"driver": "file", "path": f"{folder}/"}).result()
    _check_sizes(folder, sizes, dict.fromkeys([METADATA, _MANIFEST, *data_files], 0))
    _check_sizes(folder, sizes, _list_data_files(base))
    arrays, chunks = _count_chunks(base)
    stored_count = len(metadata.get_stored_leaves()) or len(_EMPTY)
    if (missing_count := stored_count - len(arrays)) or arrays != chunks:
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

"""`save_safetensors`: the arrays of a tree in files that Hugging Face's libraries read, written by all processes."""

import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from .._atomic_file import flush_to_disk, name_file_in_errors, open_new_file, open_replacement
from ..multihost._barrier import as_seconds
from ..multihost._broadcast import broadcast_from_host_zero
from ..multihost._coordination_store import get_coordination_store
from ..multihost._rendezvous import Rendezvous
from ..named._arguments import check_flag
from ..named._format import format_value
from ._array_slices import write_array
from ._keys import check_has_data, describe_random_keys, is_random_key, parse_folder
from ._safetensors_file import ArrayInfo, check_dtype, make_header
from ._state_dict_writer import DeferredArray, StateDictWriter, use_writer
from ._to_state_dict import to_state_dict


try:
    import fcntl
except ImportError:  # not on all systems
    fcntl = None

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors")
_INCOMPLETE = re.compile(r"\.(model|axonym)[-.].*\.incomplete")
_ABANDONED = 24 * 3600  # seconds without a change, after which an incomplete file is that of a save that was killed
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def save_safetensors(
    tree: Any,
    folder: str | os.PathLike[str],
    max_shard_size: int | str = "5GB",
    *,
    prefix: str | None = None,
    flatten: bool = True,
    timeout: float = 600,
) -> None:
    """Writes the arrays of a tree to a folder, in the files and with the names that Hugging Face's libraries read.

    The keys are those of `to_state_dict`, the layout is that of `to_torch_compatible_state_dict`. Small trees become
    one file, `model.safetensors`; larger ones `model-00001-of-00003.safetensors` and so on, and an index. The names and
    sizes of all axes are in the metadata of each file, so that `load_safetensors` never confuses them.

    Each process writes the slices that its devices hold, in pieces of a few megabytes, and stacked layers are sliced
    one at a time, so no array is ever assembled. With several processes all of them call this, and the folder is one
    that all of them see. The files get their names once all are complete and on disk: a save that is killed leaves the
    older files, or a folder that cannot be loaded, never a mixture. If several programs save to one folder, the last
    one to end has it. Files are as large as their arrays and have no checksums, which the format lacks, except of
    headers.

    Bits are kept for booleans, integers, floats of 8 to 64 bits and `complex64`. Random keys are written as their data.
    Numbers, None, functions and static fields are not written.

    Args:
        tree: A module or any other tree of arrays.
        folder: The folder, which is made if necessary; other files in it stay.
        max_shard_size: How large a file may become, in bytes or as in `"5GB"` and `"500MiB"`; a larger array is in a
            file of its own.
        prefix: First part of all keys.
        flatten: Whether to merge the axes of layers, as by `flatten_modules`.
        timeout: How long a process waits for the others at the beginning and at the end, in seconds.

    Raises:
        TypeError: If the folder is not a path, or the prefix is not a string.
        ValueError: As `to_state_dict`, or if the format lacks the dtype of an array, an array is a shape, traced or
            donated, or the size cannot be read.
        OSError: If a file cannot be written in this or another process.
        TimeoutError: If another process does not arrive in time.

    Example:
        >>> import axonym as nym
        >>> import jax, os, tempfile
        >>> layer = nym.nn.Linear.init(nym.Axis("embed", 8), nym.Axis("mlp", 4), key=jax.random.key(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nym.state_dict.save_safetensors(layer, folder)
        ...     print(os.listdir(folder))
        ...     loaded = nym.state_dict.load_safetensors(layer, folder)
        ['model.safetensors']
        >>> bool((loaded.weight == layer.weight).array.all())
        True
    """
    seconds, limit = as_seconds(timeout), parse_size(max_shard_size)
    target = parse_folder("save_safetensors", folder)
    check_flag("`flatten`", flatten)
    with use_writer(flattens=flatten, defers=True) as writer:
        arrays = to_state_dict(tree, prefix)
    with _exchange_errors("begins", target, seconds):
        infos = {key: _describe_entry(key, array, writer) for key, array in arrays.items()}
        shards = _split_shards(infos, limit)
        if jax.process_index() == 0:
            if target.exists() and not target.is_dir():
                raise NotADirectoryError(f"`save_safetensors` writes to a folder, and {str(target)!r} is a file")
            target.mkdir(parents=True, exist_ok=True)
    # One name in all processes: headers with other names, and so with other checksums, may differ in length.
    save = broadcast_from_host_zero(uuid.uuid4().hex, timeout=seconds)
    headers = {name: make_header(shard, save) for name, shard in shards.items()}
    starts = {key: (name, start) for name, (_, offsets) in headers.items() for key, start in offsets.items()}
    try:
        with _exchange_errors("prepares its files", target, seconds):
            if jax.process_index() == 0:
                for name, shard in shards.items():
                    size = len(headers[name][0]) + sum(info.nbytes for info in shard.values())
                    _reserve_file(target / name, save, headers[name][0], size)
        with _exchange_errors("writes its files", target, seconds):
            _write_arrays(arrays, starts, target, save)
        with _exchange_errors("ends", target, seconds):
            if jax.process_index() == 0:
                with _lock_folder(target):
                    _publish_files(target, shards, save)
    except BaseException:
        if jax.process_index() == 0:
            for name in shards:
                _hide(target / name, save).unlink(missing_ok=True)
        raise


def parse_size(size: Any) -> int:
    """Returns a number of bytes."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]I?)?B?", size.upper()) if isinstance(size, str) else None
    if found is None or not float(found[1]):
        raise ValueError(
            f"`max_shard_size` is a number of bytes or a text as '5GB' or '500MiB', not {format_value(size)}"
        )
    return max(1, int(float(found[1]) * _UNITS[found[2] or ""]))


def _describe_entry(key: str, array: Any, writer: StateDictWriter) -> ArrayInfo:
    check_has_data(repr(key), array)
    axes, generator, shape = writer.find_axes(array), None, array
    if is_random_key(array):
        generator, shape = describe_random_keys(array)
        axes = None if axes is None else (*axes, (("", shape.shape[-1]),))
    check_dtype(key, shape.dtype)
    return ArrayInfo(np.dtype(shape.dtype), tuple(shape.shape), axes, generator)


def _split_shards(infos: Mapping[str, ArrayInfo], limit: int) -> dict[str, dict[str, ArrayInfo]]:
    """Returns the arrays of each file by its name."""
    shards: list[dict[str, ArrayInfo]] = [{}]
    size = 0
    for key, info in infos.items():
        if shards[-1] and size + info.nbytes > limit:
            shards.append({})
            size = 0
        shards[-1][key] = info
        size += info.nbytes
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    count = len(shards)
    return {f"model-{at:05}-of-{count:05}.safetensors": shard for at, shard in enumerate(shards, start=1)}


def _hide(path: Path, save: str) -> Path:
    """Returns the name of a file of a save while it is not complete."""
    return path.with_name(f".{path.name}.{save}.incomplete")


def _open_hidden(path: Path, save: str) -> BinaryIO:
    hidden = _hide(path, save)
    with name_file_in_errors(path, hidden):
        return hidden.open("r+b")


def _reserve_file(path: Path, save: str, header: bytes, size: int) -> None:
    """Makes a file with its header and room for its arrays, so that a full disk is noticed first."""
    hidden = _hide(path, save)
    with name_file_in_errors(path, hidden), open_new_file(hidden) as file:
        if hasattr(os, "posix_fallocate"):  # not on all systems
            os.posix_fallocate(file.fileno(), 0, size)
        file.truncate(size)
        file.write(header)


def _write_arrays(arrays: dict[str, Any], starts: Mapping[str, tuple[str, int]], target: Path, save: str) -> None:
    """Writes the slices of this process, and lets each array go once it is written."""
    with contextlib.ExitStack() as stack:
        names = {name for name, _ in starts.values()}
        files = {name: stack.enter_context(_open_hidden(target / name, save)) for name in names}
        for key in [*arrays]:
            array = arrays.pop(key)
            array = array.make() if isinstance(array, DeferredArray) else array
            if is_random_key(array):
                array = jax.random.key_data(array)
            name, start = starts[key]
            with name_file_in_errors(target / name):
                write_array(files[name].fileno(), start, array)
        for name, file in files.items():
            with name_file_in_errors(target / name):
                flush_to_disk(file)


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Keeps other programs from publishing their files in a folder, where its file system has locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _publish_files(target: Path, shards: Mapping[str, Mapping[str, ArrayInfo]], save: str) -> None:
    """Gives complete files their names, and removes those of an older save.

    A folder is read by `model.safetensors` or else by the index, so at each moment these are of one save.
    """
    if SINGLE not in shards:
        (target / INDEX).unlink(missing_ok=True)
    for name in shards:
        _hide(target / name, save).replace(target / name)
    if SINGLE in shards:
        (target / INDEX).unlink(missing_ok=True)
    else:
        weights = {key: name for name, shard in shards.items() for key in shard}
        total = sum(info.nbytes for shard in shards.values() for info in shard.values())
        index = {"metadata": {"total_size": total}, "weight_map": weights}
        with open_replacement(target / INDEX) as file:
            file.write(json.dumps(index, indent=2).encode())
        (target / SINGLE).unlink(missing_ok=True)
    for path in target.iterdir():
        if (_SHARD.fullmatch(path.name) and path.name not in shards) or _is_abandoned(path):
            path.unlink(missing_ok=True)


def _is_abandoned(path: Path) -> bool:
    """Returns whether a file is that of a save that was killed, not of one that goes on."""
    if not _INCOMPLETE.fullmatch(path.name):
        return False
    try:
        return time.time() - path.lstat().st_mtime > _ABANDONED
    except FileNotFoundError:  # that save has ended meanwhile
        return False


@contextlib.contextmanager
def _exchange_errors(step: str, target: Path, seconds: float) -> Iterator[None]:
    """Waits for all processes at the end of a block, and raises in each of them if one has an error."""
    store = get_coordination_store()
    label = f"`save_safetensors` to {str(target)!r}"
    meeting = store and Rendezvous(store, "safetensors", f"{target.name} {step}", seconds, f"{label} {step} and")
    error: Exception | None = None
    try:
        yield
    except Exception as found:
        error = found
    if meeting is not None:
        texts = meeting.exchange_values("" if error is None else f"{type(error).__name__}: {error}", error)
        failed = [(process, text) for process, text in enumerate(texts) if text]
        if failed and error is None:
            raise OSError(f"{label} failed in process {failed[0][0]}: {failed[0][1]}")
    if error is not None:
        raise error

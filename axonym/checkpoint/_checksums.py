"""Checksums of all files of a checkpoint, in a file that is written last.

TensorStore checks its indices, but not the elements of arrays. A checksum is the CRC-32C of a block of a file, so that
threads share the work on large files. `google_crc32c` has the processor compute it: with reading, it takes half of the
CPU time that the CRC-32 of `zlib` takes.
"""

import importlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias


CHECKSUMS = "checksums.json"
_BLOCK = 1 << 24  # bytes
_BUFFER = 1 << 18  # stays in the cache of the processor
_THREADS = min(8, os.cpu_count() or 1)
_THREADS_BESIDE = max(1, _THREADS // 2)  # of checks, while Orbax reads arrays on all processors

Blocks: TypeAlias = dict[str, list[int]]
"""The size of each file and the checksums of its blocks, by its path in the folder."""


class DamagedCheckpointError(ValueError):
    """A file of a checkpoint is missing or is not what was written. The message names the file.

    Example:
        >>> import axonym as nym
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> nym.checkpoint.save(folder, {"weight": nym.ones({"embed": 3})}, step=10)
        >>> (folder / "10" / "default" / "axonym.json").unlink()
        >>> try:
        ...     nym.checkpoint.restore(folder)
        ... except nym.checkpoint.DamagedCheckpointError as error:
        ...     print(str(error).replace(str(folder), "..."))
        the checkpoint of step 10 is damaged: .../10/default/axonym.json is missing
    """


def list_files(folder: Path) -> list[str]:
    """Returns the paths of the files in a folder, those of checksums left out."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("checksums"))
    return [path.relative_to(folder).as_posix() for path in files]


def compute_checksums(folder: Path, files: Iterable[str]) -> Blocks:
    """Returns the sizes and checksums of some files."""
    sizes = {name: (folder / name).stat().st_size for name in files}
    blocks = [(name, start) for name, size in sizes.items() for start in range(0, size, _BLOCK)]
    with ThreadPoolExecutor(_THREADS) as threads:
        found = threads.map(lambda block: _read_checksum(folder / block[0], block[1]), blocks)
    checksums = {name: [size] for name, size in sizes.items()}
    for (name, _), checksum in zip(blocks, found, strict=True):
        checksums[name].append(checksum)
    return checksums


def _read_checksum(path: Path, start: int) -> int:
    """Returns the CRC-32C of one block of a file."""
    extend = _import_crc32c().extend
    checksum, left = 0, _BLOCK
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while left and (data := file.read(min(left, _BUFFER))):
            checksum, left = extend(checksum, data), left - len(data)
    return checksum


def _import_crc32c() -> Any:
    """Returns the module that computes checksums, which is an extra."""
    try:
        return importlib.import_module("google_crc32c")
    except ModuleNotFoundError as error:
        raise ImportError("checkpoints need checksums; install `axonym[io]`, or google-crc32c") from error


def write_checksums_of_process(folder: Path, process: int) -> None:
    """Writes the checksums of the files that a process has written by itself: the elements of arrays."""
    own = [name for name in list_files(folder) if name.startswith(f"ocdbt.process_{process}/")]
    (folder / f"checksums-{process}.json").write_text(json.dumps(compute_checksums(folder, own)))


def write_checksums(folder: Path) -> None:
    """Writes the checksums of all files; those that processes have written are taken over."""
    parts = [*folder.glob("checksums-*.json")]
    known: Blocks = {}
    for part in parts:
        known |= json.loads(part.read_text())
    others = [name for name in list_files(folder) if name not in known]
    files = known | compute_checksums(folder, others)
    (folder / CHECKSUMS).write_text(json.dumps({"files": files, "crc32": _compute_own_checksum(files)}))
    for part in parts:
        part.unlink()


def read_checksums(folder: Path) -> Blocks:
    """Returns the checksums that were written with a checkpoint."""
    path = folder / CHECKSUMS
    try:
        found = json.loads(path.read_bytes())
        files, own = found["files"], found["crc32"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DamagedCheckpointError(f"{path} cannot be read: {error}") from None
    if own != _compute_own_checksum(files):
        raise DamagedCheckpointError(f"{path} is damaged: its checksum is not the one written")
    return files


def _compute_own_checksum(files: Blocks) -> int:
    return zlib.crc32(json.dumps(files).encode())


def check_sizes(folder: Path, checksums: Blocks) -> None:
    """Checks that all files are there in full; raises a DamagedCheckpointError that names the first that is not."""
    for name, (size, *_) in checksums.items():
        path = folder / name
        if not path.is_file():
            raise DamagedCheckpointError(f"{path} is missing")
        if (found := path.stat().st_size) != size:
            raise DamagedCheckpointError(f"{path} has {found} bytes, and {size} were written")


def check_blocks(folder: Path, checksums: Blocks, blocks: Sequence[tuple[str, int]]) -> Callable[[], None]:
    """Starts to check blocks of files in other threads; returns a function that waits for it.

    That function raises a DamagedCheckpointError that names the first file with another content.
    """
    threads = ThreadPoolExecutor(_THREADS_BESIDE)
    pending: list[Future[int]] = [threads.submit(_read_checksum, folder / name, at * _BLOCK) for name, at in blocks]
    threads.shutdown(wait=False)

    def wait_for_checks() -> None:
        for (name, at), one in zip(blocks, pending, strict=True):
            try:
                found = one.result()
            except OSError as error:
                raise DamagedCheckpointError(f"{folder / name} cannot be read: {error}") from None
            if found != checksums[name][1 + at]:
                where = f"between bytes {at * _BLOCK} and {min((at + 1) * _BLOCK, checksums[name][0])}"
                raise DamagedCheckpointError(f"{folder / name} is damaged {where}: its checksum is not the one written")

    return wait_for_checks


def list_blocks(checksums: Blocks) -> list[tuple[str, int]]:
    """Returns all blocks, each with its file and its number there."""
    return [(name, at) for name, (_, *blocks) in checksums.items() for at in range(len(blocks))]


def is_array_data(name: str) -> bool:
    """Returns whether a file holds elements of arrays, of which there are many bytes."""
    return name.startswith("ocdbt.process_")

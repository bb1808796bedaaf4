"""Checksums of all files of a checkpoint, in a file that is written last.

TensorStore checks its indices, but not the elements of arrays. Each block of a file has a checksum, so that threads
share the work on large files. It consists of the CRC-32C, for which `google_crc32c` uses instructions of the processor,
and the sum of the 64-bit words, which takes a sixth of that time. The sum is necessary because manifests and nodes of
OCDBT end in their own CRC-32C: the CRC-32C of any text followed by its CRC-32C is the same constant.
"""

import importlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .._ground.atomic_file import flush_to_disk
from ._errors import DamagedCheckpointError, report_damage


CHECKSUMS = "checksums.json"
_ALGORITHM = "crc32c+sum64"
_BLOCK = 1 << 24  # bytes
_BUFFER = 1 << 18  # stays in the cache of the processor
_THREADS = min(8, os.cpu_count() or 1)
_THREADS_BESIDE = max(1, _THREADS // 2)  # of checks, while Orbax reads arrays on all processors

Blocks: TypeAlias = dict[str, list[Any]]
"""The size of each file and the checksums of its blocks, by its path in the folder.

A checksum is 8 hexadecimal digits of the CRC-32C and 16 of the sum. Earlier versions wrote the CRC-32C alone, as an
integer.
"""


class Checksums(NamedTuple):
    """The checksums of the files of a checkpoint, by their paths in the folder."""

    folder: Path
    files: Blocks


def list_files(folder: Path) -> list[str]:
    """Returns the paths of the files in a folder, except for files of checksums."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("checksums"))
    return [path.relative_to(folder).as_posix() for path in files]


def compute_checksums(folder: Path, files: Iterable[str]) -> Blocks:
    """Returns the sizes and checksums of some files."""
    sizes = {name: (folder / name).stat().st_size for name in files}
    blocks = [(name, start) for name, size in sizes.items() for start in range(0, size, _BLOCK)]
    with ThreadPoolExecutor(_THREADS) as threads:
        digests = threads.map(lambda block: _read_checksum(folder / block[0], block[1]), blocks)
    checksums: Blocks = {name: [size] for name, size in sizes.items()}
    for (name, _), digest in zip(blocks, digests, strict=True):
        checksums[name].append(digest)
    return checksums


def _read_checksum(path: Path, start: int) -> str:
    """Returns the checksum of one block of a file."""
    extend = _import_crc32c().extend
    crc, total, remaining = 0, 0, _BLOCK
    with path.open("rb") as file:
        file.seek(start)
        # Both checksums of a piece while it is in the cache, which a block is too large for.
        while remaining and (data := file.read(min(remaining, _BUFFER))):
            crc, remaining = extend(crc, data), remaining - len(data)
            words = np.frombuffer(data, "<u8", len(data) // 8)
            # Of the last piece some bytes may be left, fewer than a word.
            total += int(words.sum()) + int.from_bytes(data[words.nbytes :], "little")
    return f"{crc:08x}{total % 2**64:016x}"


def _import_crc32c() -> Any:
    """Returns the module that computes checksums, which is an extra."""
    try:
        return importlib.import_module("google_crc32c")
    except ModuleNotFoundError as error:
        raise ImportError("checkpoints need checksums; install `axonym[io]`, or google-crc32c") from error


def write_checksums_of_process(folder: Path, process: int) -> None:
    """Writes the checksums of the files that only this process writes: the elements of its arrays."""
    names = [name for name in list_files(folder) if name.startswith(f"ocdbt.process_{process}/")]
    (folder / f"checksums-{process}.json").write_text(json.dumps(compute_checksums(folder, names)))


def write_checksums(folder: Path, process_count: int) -> Checksums:
    """Writes the checksums of all files of a step, including the checksums that processes have written of their files.

    Raises:
        OSError: If a file of a process has changed since.
    """
    process_files: Blocks = {}
    parts = [folder / "default" / f"checksums-{process}.json" for process in range(process_count)]
    for part in parts:
        process_files |= {f"default/{name}": blocks for name, blocks in json.loads(part.read_bytes()).items()}
        part.unlink()
    for name, (size, *_) in process_files.items():
        if (folder / name).stat().st_size != size:
            raise OSError(f"{folder / name} has changed since it was written")
    files = process_files | compute_checksums(
        folder, [name for name in list_files(folder) if name not in process_files]
    )
    content = {"algorithm": _ALGORITHM, "files": files}
    with (folder / CHECKSUMS).open("wb") as file:
        file.write(json.dumps({**content, "crc32": _compute_own_checksum(content)}).encode())
        flush_to_disk(file)
    return Checksums(folder, files)


def read_checksums(folder: Path) -> Checksums:
    """Returns the checksums that were written with a checkpoint, in the folder of its step.

    Earlier versions wrote them one folder below, without those of the files that Orbax writes at the very end.
    """
    path = folder / CHECKSUMS
    is_old = not path.exists() and (folder / "default" / CHECKSUMS).exists()
    path = folder / "default" / CHECKSUMS if is_old else path
    with report_damage(path, "cannot be read"):
        content = json.loads(path.read_bytes())
        stored_crc = content.pop("crc32")
        files = content["files"]
        is_intact = stored_crc == _compute_own_checksum(files if is_old else content)
    if not is_intact:
        raise DamagedCheckpointError(f"{path} is damaged: its checksum is not the one written")
    if not is_old and content.get("algorithm") != _ALGORITHM:
        raise ValueError(f"{path} has checksums {content.get('algorithm')!r}; install a newer Axonym to read it")
    if not isinstance(files, dict) or not all(map(_is_entry, files.values())):
        raise DamagedCheckpointError(f"{path} is damaged: it does not list sizes and checksums of files")
    return Checksums(path.parent, files)


def _is_entry(entry: Any) -> bool:
    """Returns whether this is the size of a file and the checksums of its blocks."""
    if not isinstance(entry, list) or not entry or type(entry[0]) is not int or entry[0] < 0:
        return False
    return len(entry) == 1 + -(-entry[0] // _BLOCK) and {type(digest) for digest in entry[1:]} <= {int, str}


def _compute_own_checksum(content: Any) -> int:
    return zlib.crc32(json.dumps(content).encode())


def check_sizes(checksums: Checksums) -> None:
    """Raises a DamagedCheckpointError for the first file that is missing or has another size."""
    for name, (size_written, *_) in checksums.files.items():
        path = checksums.folder / name
        if not path.is_file():
            raise DamagedCheckpointError(f"{path} is missing")
        if (size_on_disk := path.stat().st_size) != size_written:
            raise DamagedCheckpointError(f"{path} has {size_on_disk} bytes, and {size_written} were written")


def check_blocks(checksums: Checksums, blocks: Sequence[tuple[str, int]]) -> Callable[[], None]:
    """Starts to check blocks of files in other threads; returns a function that waits for it.

    The function raises a DamagedCheckpointError for the first block whose checksum differs.
    """
    folder, files = checksums
    threads = ThreadPoolExecutor(_THREADS_BESIDE)
    pending: list[Future[str]] = [
        threads.submit(_read_checksum, folder / name, number * _BLOCK) for name, number in blocks
    ]
    threads.shutdown(wait=False)  # the threads end when they have checked all blocks

    def wait_for_checks() -> None:
        for (name, number), future in zip(blocks, pending, strict=True):
            with report_damage(folder / name, "cannot be read"):
                digest = future.result()
            expected = files[name][1 + number]
            # Earlier versions wrote the CRC-32C alone.
            if expected != (digest if isinstance(expected, str) else int(digest[:8], 16)):
                byte_range = f"between bytes {number * _BLOCK} and {min((number + 1) * _BLOCK, files[name][0])}"
                raise DamagedCheckpointError(
                    f"{folder / name} is damaged {byte_range}: its checksum is not the one written"
                )

    return wait_for_checks


def list_blocks(checksums: Checksums) -> list[tuple[str, int]]:
    """Returns all blocks: the name of the file, and the number of the block in it."""
    return [(name, number) for name, (_, *blocks) in checksums.files.items() for number in range(len(blocks))]


def is_array_data(name: str) -> bool:
    """Returns whether a file holds elements of arrays; these are the large files."""
    return name.removeprefix("default/").startswith("ocdbt.process_")

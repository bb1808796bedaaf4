"""The format of safetensors: headers, and how the arrays of a state dict are laid out in files.

A file is the length of its header in 8 bytes, the header in JSON, and the arrays one after the other in row-major
order; see https://huggingface.co/docs/safetensors. The library of that name writes entire arrays in one process. Slices
are written by several processes here, and read with other axes than those of the file, so headers are read here, too.
"""

import json
import math
import mmap
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np


SavedAxes: TypeAlias = tuple[tuple[tuple[str, int], ...], ...]
"""Names and sizes of the axes of an array in a file, of which each of its dimensions has one or several, merged."""

METADATA = "axonym"
_CHECKSUM = "crc32"
_LENGTH = 8  # bytes of the length of the header, and what it is padded to
_LONGEST_HEADER = 100_000_000  # bytes, as in the library

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
_CODES = {name: code for code, name in _DTYPES.items()}


class SavedArray(NamedTuple):
    """Where an array is in a file, and what was said about it when it was saved."""

    file: "SafetensorsFile"
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    axes: SavedAxes | None = None
    generator: str | None = None  # of random keys, whose data is saved

    def map(self) -> np.ndarray:
        """Returns the array mapped into memory: what is used of it is read when it is used."""
        size = math.prod(self.shape)
        return np.frombuffer(self.file.memory, self.dtype, size, self.start).reshape(self.shape)


class ArrayInfo(NamedTuple):
    """What the header says about an array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    axes: SavedAxes | None = None
    generator: str | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class SafetensorsFile:
    """A file that is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:  # a ValueError if it is empty
            raise make_file_error(path, f"cannot be read: {error}") from None
        try:
            self.arrays, self.save = self._read_header()
        except KeyError as error:
            raise make_file_error(path, f"is damaged or truncated: its header lacks {error}") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise make_file_error(path, f"is damaged or truncated: {error}") from None

    def release(self) -> None:
        """Gives back the memory of what was read."""
        if hasattr(mmap, "MADV_DONTNEED"):  # not on all systems
            self.memory.madvise(mmap.MADV_DONTNEED)

    def _read_header(self) -> tuple[dict[str, SavedArray], str | None]:
        """Returns the arrays by key, and the name of the save that wrote the file."""
        total, length = len(self.memory), int.from_bytes(self.memory[:_LENGTH], "little")
        if total < _LENGTH or length > min(total - _LENGTH, _LONGEST_HEADER):
            raise ValueError(f"its header has {length} bytes, the file {total}")
        header = check_object("its header", parse_json(self.memory[_LENGTH : _LENGTH + length]))
        metadata = check_object("its metadata", header.pop("__metadata__", None) or {})
        own = check_object("its metadata", parse_json(metadata.pop(METADATA, "{}")))
        if own.pop(_CHECKSUM, None) != (compute_checksum(header, metadata, own) if own else None):
            raise ValueError("the checksum of its header differs")
        if not own and any(_CHECKSUM in text for text in metadata.values()):
            raise ValueError("its metadata has another name")
        arrays: dict[str, SavedArray] = {}
        start = end = _LENGTH + length
        entries = [_parse_entry(key, entry) for key, entry in header.items()]
        for key, dtype, shape, first, last in sorted(entries, key=lambda entry: entry[3:]):
            axes = own.get("axes", {}).get(key)
            saved = None if axes is None else tuple(tuple((name, size) for name, size in dim) for dim in axes)
            if saved is not None and [math.prod(size for _, size in dim) for dim in saved] != [*shape]:
                raise ValueError(f"the axes of {key!r} do not fit its shape")
            if start + first != end or last - first != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"the offsets of {key!r} do not fit its shape, or overlap others")
            arrays[key] = SavedArray(self, dtype, shape, end, saved, own.get("keys", {}).get(key))
            end = start + last
        if end != total:
            raise ValueError(f"its arrays end at byte {end}, the file has {total}")
        save = own.get("save")
        if save is not None and not isinstance(save, str):
            raise ValueError("the name of its save is not a string")
        return arrays, save


def _parse_entry(key: str, entry: Any) -> tuple[str, np.dtype[Any], tuple[int, ...], int, int]:
    """Returns key, dtype, shape, first byte and last one of an array, of which the header says everything else."""
    check_object(f"the entry of {key!r}", entry)
    offsets, shape = entry["data_offsets"], entry["shape"]
    for name, numbers in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"the {name!r} of {key!r} is not a list of integers from 0")
    if len(offsets) != 2:
        raise ValueError(f"{key!r} has {len(offsets)} offsets, not 2")
    return key, parse_dtype(entry["dtype"]), tuple(shape), *offsets


def parse_json(text: str | bytes) -> Any:
    """Returns what a text in JSON says; raises a ValueError if a key occurs twice, of which readers choose either."""

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
            raise ValueError(f"it has the key {twice!r} twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=make_object)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def check_object(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no object in JSON")
    return value


def make_file_error(path: Path, reason: str) -> ValueError:
    return ValueError(f"{str(path)!r} {reason}")


def parse_dtype(code: str) -> np.dtype[Any]:
    if not isinstance(code, str) or code not in _DTYPES:
        raise ValueError(f"it has arrays of dtype {code!r}, which JAX lacks")
    return np.dtype(jnp.dtype(_DTYPES[code]))


def check_dtype(key: str, dtype: Any) -> None:
    """Raises a ValueError if the format has no arrays of a dtype."""
    if str(dtype) not in _CODES:
        raise ValueError(f"{key!r} is {dtype}, which safetensors cannot hold; convert it with `astype`")


def compute_checksum(*parts: Mapping[str, Any]) -> int:
    """Returns a checksum of the parts of a header, because the format has none."""
    return zlib.crc32(json.dumps(parts, sort_keys=True).encode())


def make_header(arrays: Mapping[str, ArrayInfo], save: str) -> tuple[bytes, dict[str, int]]:
    """Returns the first bytes of a file, and where in it each array begins."""
    entries: dict[str, Any] = {}
    end = 0
    # The largest elements come first, so that all are aligned, as the library does it.
    for key, info in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize):
        offsets = [end, end + info.nbytes]
        entries[key] = {"dtype": _CODES[str(info.dtype)], "shape": [*info.shape], "data_offsets": offsets}
        end += info.nbytes
    own: dict[str, Any] = {
        "save": save,
        "axes": {key: info.axes for key, info in arrays.items() if info.axes is not None},
        "keys": {key: info.generator for key, info in arrays.items() if info.generator is not None},
    }
    metadata = {"format": "pt"}  # which `transformers` asks for
    own[_CHECKSUM] = compute_checksum(entries, metadata, own)
    text = json.dumps({"__metadata__": {**metadata, METADATA: json.dumps(own)}, **entries}).encode()
    text += b" " * (-len(text) % _LENGTH)
    start = _LENGTH + len(text)
    return len(text).to_bytes(_LENGTH, "little") + text, {
        key: start + entry["data_offsets"][0] for key, entry in entries.items()
    }

"""Files in the format of safetensors: their headers, and reading and writing slices of their arrays.

A file is the length of its header in 8 bytes, the header in JSON, and the arrays one after the other in row-major
order; see https://huggingface.co/docs/safetensors. The library of that name writes entire arrays in one process, and
cannot slice arrays of 8-bit floats (version 0.8). Here, several processes write slices, and read slices along axes that
are merged or in another order in the file. Reading needs no library.
"""

import itertools
import json
import math
import mmap
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..named._numpy_input import find_range_problem


SavedAxes: TypeAlias = tuple[tuple[tuple[str, int], ...], ...]
"""Names and sizes of the axes of an array in a file: for each dimension there, the axes that it merges."""

Box: TypeAlias = tuple[tuple[int, int], ...]
"""Where a slice of an array begins and ends in each dimension."""

METADATA = "axonym"
_CHECKSUM = "crc32"
_HEADER_START = 8  # bytes that hold the size of the header, which is padded to a multiple of this number
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

_CHUNK = 1 << 23  # bytes that are copied at once
_ALIGNMENT = 64  # bytes; a CPU device of JAX uses memory so aligned without copying it


class SavedArray(NamedTuple):
    """The place of an array in a file, and its axes or generator of random keys if the file has them."""

    file: "SafetensorsFile"
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    axes: SavedAxes | None = None
    generator: str | None = None  # of random keys, whose data is saved

    def map(self) -> np.ndarray:
        """Maps the array into memory: elements are read when they are used."""
        size = math.prod(self.shape)
        return np.frombuffer(self.file.memory, self.dtype, size, self.start).reshape(self.shape)


class ArrayInfo(NamedTuple):
    """The entry of an array in a header."""

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
        file_size, header_size = len(self.memory), int.from_bytes(self.memory[:_HEADER_START], "little")
        data_start = _HEADER_START + header_size
        if file_size < data_start or header_size > _LONGEST_HEADER:
            raise ValueError(f"its header has {header_size} bytes, the file {file_size}")
        header = check_object("its header", parse_json(self.memory[_HEADER_START:data_start]))
        metadata = check_object("its metadata", header.pop("__metadata__", None) or {})
        axonym_metadata = check_object("its metadata", parse_json(metadata.pop(METADATA, "{}")))
        checksum = axonym_metadata.pop(_CHECKSUM, None)
        expected = compute_checksum(header, metadata, axonym_metadata) if axonym_metadata else None
        if checksum != expected:
            raise ValueError("the checksum of its header differs")
        # A damaged byte in the name `METADATA` would turn off all checks of what is in it.
        if not axonym_metadata and any(_CHECKSUM in text for text in metadata.values()):
            raise ValueError("its metadata has another name")
        arrays: dict[str, SavedArray] = {}
        end = data_start
        entries = [_parse_entry(key, entry) for key, entry in header.items()]
        # The arrays have to follow one another without gaps, in whatever order the header lists them.
        for key, dtype, shape, first_byte, end_byte in sorted(entries, key=lambda entry: entry[3:]):
            axes = axonym_metadata.get("axes", {}).get(key)
            saved_axes = None if axes is None else tuple(tuple((name, size) for name, size in dim) for dim in axes)
            if saved_axes is not None and [math.prod(size for _, size in dim) for dim in saved_axes] != [*shape]:
                raise ValueError(f"the axes of {key!r} do not fit its shape")
            if data_start + first_byte != end or end_byte - first_byte != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"the offsets of {key!r} do not fit its shape, or overlap others")
            arrays[key] = SavedArray(self, dtype, shape, end, saved_axes, axonym_metadata.get("keys", {}).get(key))
            end = data_start + end_byte
        if end != file_size:
            raise ValueError(f"its arrays end at byte {end}, the file has {file_size}")
        save = axonym_metadata.get("save")
        if save is not None and not isinstance(save, str):
            raise ValueError("the name of its save is not a string")
        return arrays, save


def _parse_entry(key: str, entry: Any) -> tuple[str, np.dtype[Any], tuple[int, ...], int, int]:
    """Returns key, dtype, shape, first byte and end of an array from its entry in the header."""
    check_object(f"the entry of {key!r}", entry)
    offsets, shape = entry["data_offsets"], entry["shape"]
    for name, numbers in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"the {name!r} of {key!r} is not a list of integers from 0")
    if len(offsets) != 2:
        raise ValueError(f"{key!r} has {len(offsets)} offsets, not 2")
    return key, parse_dtype(entry["dtype"]), tuple(shape), *offsets


def parse_json(text: str | bytes) -> Any:
    """Parses JSON; raises a ValueError if a key occurs twice, since readers may differ in which one they take."""

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) != len(pairs):
            [(repeated_key, _)] = Counter(key for key, _ in pairs).most_common(1)
            raise ValueError(f"it has the key {repeated_key!r} twice")
        return content

    try:
        return json.loads(text, object_pairs_hook=make_object)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def check_object(subject: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{subject} is no object in JSON")
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
    """Returns the header of a file, and the byte at which each array begins."""
    entries: dict[str, Any] = {}
    end = 0
    # The largest elements come first, so that all are aligned, as the library does it.
    for key, info in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize):
        offsets = [end, end + info.nbytes]
        entries[key] = {"dtype": _CODES[str(info.dtype)], "shape": [*info.shape], "data_offsets": offsets}
        end += info.nbytes
    axonym_metadata: dict[str, Any] = {
        "save": save,
        "axes": {key: info.axes for key, info in arrays.items() if info.axes is not None},
        "keys": {key: info.generator for key, info in arrays.items() if info.generator is not None},
    }
    metadata = {"format": "pt"}  # which `transformers` asks for
    axonym_metadata[_CHECKSUM] = compute_checksum(entries, metadata, axonym_metadata)
    text = json.dumps({"__metadata__": {**metadata, METADATA: json.dumps(axonym_metadata)}, **entries}).encode()
    text += b" " * (-len(text) % _HEADER_START)  # so that the arrays are aligned, too
    data_start = _HEADER_START + len(text)
    array_starts = {key: data_start + entry["data_offsets"][0] for key, entry in entries.items()}
    return len(text).to_bytes(_HEADER_START, "little") + text, array_starts


class _Slice(NamedTuple):
    """A slice of an array that is in memory."""

    box: Box
    data: np.ndarray


def write_array(file: int, start: int, array: Any) -> None:
    """Writes the slices of an array for which this process is responsible into a file."""
    slices = sorted(_list_slices(array), key=lambda part: part.box)
    for _, group in itertools.groupby(slices, key=lambda part: part.box[:1]):  # slices of the same rows
        for members in _join_slices([*group]):
            box = _bound_boxes([member.box for member in members])
            for part in _split_box(box, array.dtype.itemsize):
                _write_box(file, start, array.shape, part, _assemble(part, members))


def _list_slices(array: Any) -> list[_Slice]:
    is_same_in_each_process = not isinstance(array, jax.Array) or array.is_fully_addressable
    if is_same_in_each_process and jax.process_index() > 0:
        return []
    if not isinstance(array, jax.Array):
        return [_Slice(tuple((0, size) for size in array.shape), array)]
    return [
        _Slice(_make_box(shard.index, array.shape), np.asarray(shard.data))
        for shard in array.addressable_shards
        if shard.replica_id == 0
    ]


def _make_box(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    return tuple(interval.indices(size)[:2] for interval, size in zip(index, shape, strict=True))


def _bound_boxes(boxes: Sequence[Box]) -> Box:
    """Returns the smallest box that contains all boxes."""
    return tuple(
        (min(start for start, _ in intervals), max(stop for _, stop in intervals))
        for intervals in zip(*boxes, strict=True)
    )


def _measure_box(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def _join_slices(slices: list[_Slice]) -> list[list[_Slice]]:
    """Groups slices of the same rows if they form a box: longer rows need fewer writes."""
    boxes = [part.box for part in slices]
    if _measure_box(_bound_boxes(boxes)) == sum(map(_measure_box, boxes)):
        return [slices]
    return [[part] for part in slices]


def _split_box(box: Box, itemsize: int) -> Iterator[Box]:
    """Splits a box into parts of at most `_CHUNK` bytes, in order."""
    long_dims = (dim for dim, (start, stop) in enumerate(box) if stop - start > 1)
    dim = next(long_dims, None)
    if dim is None or _measure_box(box) * itemsize <= _CHUNK:
        yield box
        return
    start, stop = box[dim]
    middle = (start + stop) // 2
    for part in ((start, middle), (middle, stop)):
        yield from _split_box((*box[:dim], part, *box[dim + 1 :]), itemsize)


def _index_box(part: Box, whole: Box) -> tuple[slice, ...]:
    """Returns the index of one box within another."""
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(part, whole, strict=True))


def _assemble(part: Box, slices: list[_Slice]) -> np.ndarray:
    """Assembles the elements of a box from slices."""
    if len(slices) == 1:
        return slices[0].data[_index_box(part, slices[0].box)]
    elements = np.empty([stop - start for start, stop in part], slices[0].data.dtype)
    for box, data in slices:
        common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(part, box, strict=True))
        if all(start < stop for start, stop in common):
            elements[_index_box(common, part)] = data[_index_box(common, box)]
    return elements


def _write_box(file: int, start: int, shape: tuple[int, ...], box: Box, data: np.ndarray) -> None:
    """Writes a box of an array that begins at byte `start` of a file; adjacent elements are written at once."""
    if data.size == 0:
        return
    partial_dims = [dim for dim, (first, stop) in enumerate(box) if shape[dim] != stop - first]
    outer = max(partial_dims, default=0)  # the dimensions after this one are whole, so their elements are adjacent
    strides = [math.prod(shape[dim + 1 :]) * data.dtype.itemsize for dim in range(len(shape))]
    first_byte = start + sum(first * stride for (first, _), stride in zip(box, strides, strict=True))
    rows = np.ascontiguousarray(data).view(np.uint8)
    for index in np.ndindex(data.shape[:outer]):
        offset = sum(position * stride for position, stride in zip(index, strides[:outer], strict=True))
        _write_bytes(file, rows[index], first_byte + offset)


def _write_bytes(file: int, data: np.ndarray, start: int) -> None:
    remaining = memoryview(cast(Any, data)).cast("B")
    while remaining:
        done = os.pwrite(file, remaining, start)
        remaining, start = remaining[done:], start + done


def read_array(saved_array: SavedArray, view: np.ndarray, dtype: Any, sharding: Any) -> jax.Array:
    """Reads an array, of which each process reads the slices that its devices hold, one at a time.

    Args:
        saved_array: The array in a file.
        view: The same array mapped into memory, with the axes of its field.
        dtype: The dtype to convert to.
        sharding: The sharding; None for the default device.

    Raises:
        OverflowError: If elements do not fit the dtype.
    """
    if sharding is None:
        return jax.device_put(copy_box(saved_array, view, dtype))
    devices: dict[Box, list[Any]] = {}
    for device, index in sharding.addressable_devices_indices_map(view.shape).items():
        devices.setdefault(_make_box(index, view.shape), []).append(device)
    arrays: list[jax.Array] = []
    for box, replica_devices in devices.items():
        data = copy_box(saved_array, view, dtype, box)
        # Waits until the devices have the slice, so that the host holds one at a time.
        arrays += jax.block_until_ready([jax.device_put(data, device) for device in replica_devices])
    return jax.make_array_from_single_device_arrays(view.shape, sharding, arrays, dtype=dtype)


def copy_box(saved_array: SavedArray, view: np.ndarray, dtype: Any, box: Box | None = None) -> np.ndarray:
    """Returns a copy of a slice, or of the entire array, in memory that is aligned for JAX.

    Raises:
        OverflowError: If elements do not fit the dtype.
    """
    box = tuple((0, size) for size in view.shape) if box is None else box
    shape = [stop - start for start, stop in box]
    buffer = np.empty(math.prod(shape) * dtype.itemsize + _ALIGNMENT, np.uint8)
    padding = -buffer.ctypes.data % _ALIGNMENT
    copy = buffer[padding : padding + len(buffer) - _ALIGNMENT].view(dtype).reshape(shape)
    # In parts, each of which is in memory twice until it is released: as a copy, and as pages of the file.
    for part in _split_box(box, view.dtype.itemsize):
        elements = view[tuple(slice(start, stop) for start, stop in part)]
        if (problem := find_range_problem(elements, dtype)) is not None:
            raise OverflowError(problem)
        copy[_index_box(part, box)] = elements
        saved_array.file.release()
    return copy

"""Slices of sharded arrays, written to and read from their places in files, a few megabytes at a time."""

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import numpy as np

from ..named._numpy_input import find_range_problem
from ._safetensors_file import SavedArray


Box: TypeAlias = tuple[tuple[int, int], ...]
"""Where a slice of an array begins and ends in each dimension."""

_CHUNK = 1 << 23  # bytes that are copied at once
_ALIGNMENT = 64  # bytes; JAX takes such memory for a CPU device as it is


class _Slice(NamedTuple):
    """A slice of an array that is in memory."""

    box: Box
    data: np.ndarray


def write_array(file: int, start: int, array: Any) -> None:
    """Writes the slices of an array that this process has to write into a file; other processes write the others."""
    slices = _list_slices(array)
    for _, group in itertools.groupby(sorted(slices, key=lambda one: one.box), key=lambda one: one.box[:1]):
        for members in _join_slices([*group]):
            box = _bound_boxes([one.box for one in members])
            for part in _split_box(box, array.dtype.itemsize):
                _write_box(file, start, array.shape, part, _assemble(part, members))


def _list_slices(array: Any) -> list[_Slice]:
    if not isinstance(array, jax.Array) or array.is_fully_addressable:  # the same in each process
        if jax.process_index() != 0:
            return []
    if not isinstance(array, jax.Array):
        return [_Slice(tuple((0, size) for size in array.shape), array)]
    return [
        _Slice(_make_box(shard.index, array.shape), np.asarray(shard.data))
        for shard in array.addressable_shards
        if shard.replica_id == 0
    ]


def _make_box(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    return tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))


def _bound_boxes(boxes: Sequence[Box]) -> Box:
    """Returns the smallest box that contains others."""
    return tuple((min(a for a, _ in each), max(b for _, b in each)) for each in zip(*boxes, strict=True))


def _measure_box(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def _join_slices(slices: list[_Slice]) -> list[list[_Slice]]:
    """Returns slices of the same rows together if they form a box: its rows are longer, so fewer writes are needed."""
    boxes = [one.box for one in slices]
    if _measure_box(_bound_boxes(boxes)) == sum(map(_measure_box, boxes)):
        return [slices]
    return [[one] for one in slices]


def _split_box(box: Box, itemsize: int) -> Iterator[Box]:
    """Yields the parts of a box, in order, none of which is large."""
    at = next((at for at, (start, stop) in enumerate(box) if stop - start > 1), None)
    if at is None or _measure_box(box) * itemsize <= _CHUNK:
        yield box
        return
    start, stop = box[at]
    middle = (start + stop) // 2
    for part in ((start, middle), (middle, stop)):
        yield from _split_box((*box[:at], part, *box[at + 1 :]), itemsize)


def _index_box(part: Box, whole: Box) -> tuple[slice, ...]:
    """Returns the index of one box within another."""
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(part, whole, strict=True))


def _assemble(part: Box, slices: list[_Slice]) -> np.ndarray:
    """Returns the elements of a box from the slices that have them."""
    if len(slices) == 1:
        return slices[0].data[_index_box(part, slices[0].box)]
    found = np.empty([stop - start for start, stop in part], slices[0].data.dtype)
    for box, data in slices:
        common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(part, box, strict=True))
        if all(start < stop for start, stop in common):
            found[_index_box(common, part)] = data[_index_box(common, box)]
    return found


def _write_box(file: int, start: int, shape: tuple[int, ...], box: Box, data: np.ndarray) -> None:
    """Writes a box of an array of a shape that begins at a byte of a file, each run of adjacent elements at once."""
    full = [size == stop - first for size, (first, stop) in zip(shape, box, strict=True)]
    outer = max((at for at, is_full in enumerate(full) if not is_full), default=0)  # inner axes are written entirely
    strides = [math.prod(shape[at + 1 :]) * data.dtype.itemsize for at in range(len(shape))]
    first = start + sum(at * stride for (at, _), stride in zip(box, strides, strict=True))
    if data.size == 0:
        return
    rows = np.ascontiguousarray(data).view(np.uint8) if data.ndim else data.reshape(1).view(np.uint8)
    for index in np.ndindex(data.shape[:outer]):
        _write_bytes(file, rows[index], first + sum(map(math.prod, zip(index, strides, strict=False))))


def _write_bytes(file: int, data: np.ndarray, start: int) -> None:
    left = memoryview(cast(Any, data)).cast("B")
    while left:
        done = os.pwrite(file, left, start)
        left, start = left[done:], start + done


def read_array(saved: SavedArray, view: np.ndarray, dtype: Any, sharding: Any) -> jax.Array:
    """Returns an array of which this process reads what its devices hold, one slice at a time.

    Args:
        saved: The array in a file.
        view: The array mapped into memory, possibly with other axes.
        dtype: The dtype to convert to.
        sharding: The sharding; None for the default device.

    Raises:
        OverflowError: If elements do not fit a dtype of integers.
    """
    whole = tuple((0, size) for size in view.shape)
    if sharding is None:
        return jax.device_put(copy_box(saved, view, dtype, whole))
    devices: dict[Box, list[Any]] = {}
    for device, index in sharding.addressable_devices_indices_map(view.shape).items():
        devices.setdefault(_make_box(index, view.shape), []).append(device)
    arrays: list[jax.Array] = []
    for box, same in devices.items():
        data = copy_box(saved, view, dtype, box)
        # Until they have it, so that there is one slice at a time in the memory of the host.
        arrays += jax.block_until_ready([jax.device_put(data, device) for device in same])
    return jax.make_array_from_single_device_arrays(view.shape, sharding, arrays, dtype=dtype)


def copy_box(saved: SavedArray, view: np.ndarray, dtype: Any, box: Box) -> np.ndarray:
    """Returns a copy of a slice in memory that is aligned for JAX.

    Raises:
        OverflowError: If elements do not fit a dtype of integers.
    """
    shape = [stop - start for start, stop in box]
    buffer = np.empty(math.prod(shape) * dtype.itemsize + _ALIGNMENT, np.uint8)
    at = -buffer.ctypes.data % _ALIGNMENT
    found = buffer[at : at + len(buffer) - _ALIGNMENT].view(dtype).reshape(shape)
    for part in _split_box(box, view.dtype.itemsize):
        elements = view[tuple(slice(*each) for each in part)]
        if (problem := find_range_problem(elements, dtype)) is not None:
            raise OverflowError(problem)
        found[_index_box(part, box)] = elements
        saved.file.release()
    return found

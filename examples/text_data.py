"""The bytes of a text as batches of windows, each byte with the one that follows it."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import axonym as nym
from axonym import Axis, NamedArray


def read_text(paths: Sequence[Path], Pos: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bytes to train on and the last tenth, which is held out."""
    if paths:
        data = b"\n".join(path.read_bytes() for path in paths)
    else:
        data = "\n".join(importlib.import_module("pydoc_data.topics").topics.values()).encode()
    if not data:
        raise ValueError(f"the text is empty: {', '.join(map(str, paths))}")
    if len(data) // 10 <= Pos.size:
        raise ValueError(f"the text has {len(data)} bytes; sequences of {Pos.size} need {10 * Pos.size + 10}")
    text = np.frombuffer(data, np.uint8)
    return text[: -(len(text) // 10)], text[-(len(text) // 10) :]


def load_batches(text: np.ndarray, Batch: Axis, Pos: Axis, mapping: Any, seed: int) -> nym.data.ShardedLoader:
    """Returns batches of windows of a text in random order, of which each process reads its own rows."""
    rows = nym.data.find_local_rows(Batch, mapping)
    windows = sliding_window_view(text, Pos.size + 1)
    starts = grain.MapDataset.range(len(windows)).shuffle(seed).repeat()
    local_starts = starts.batch(rows.size)[rows.index :: rows.count]
    batches = local_starts.map(lambda starts: split_windows(windows[starts]))
    return nym.data.ShardedLoader(batches, mapping, axes=(Batch, Pos))


def load_held_out_batches(
    text: np.ndarray, Batch: Axis, Pos: Axis, mapping: Any
) -> list[tuple[NamedArray, NamedArray]]:
    """Returns all of a text in consecutive windows, which all processes read; a short text is repeated."""
    windows = sliding_window_view(text, Pos.size + 1)[:: Pos.size]
    rows = np.resize(windows, (max(1, len(windows) // Batch.size), Batch.size, Pos.size + 1))
    return [*nym.data.ShardedLoader(map(split_windows, rows), mapping, axes=(Batch, Pos), process_local=False)]


def split_windows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and targets: each byte and the next one."""
    return rows[:, :-1].astype(np.int32), rows[:, 1:].astype(np.int32)

"""Reads the elements that a summary of an array shows, from the shards that hold them.

Shards are read as they are, without a program, so that arrays can be shown on any mesh, inside traces and in callbacks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


def find_edge_items(size: int, edge_items: int | None) -> np.ndarray:
    """Returns the positions of the first and the last elements of an axis; all positions if there is no limit.

    Position 0 stands once for all elements between them, which a summary leaves out.
    """
    if edge_items is None or size <= 2 * edge_items:
        return np.arange(size)
    return np.r_[0:edge_items, 0, size - edge_items : size]


def read_items(array: Any, positions: Sequence[np.ndarray]) -> np.ndarray | None:
    """Returns the elements at all combinations of positions; None if some of them are on other processes only."""
    if isinstance(array, np.ndarray):
        return np.asarray(array[np.ix_(*positions)], array.dtype)
    items = np.empty(tuple(map(len, positions)), array.dtype)
    is_read = np.zeros(items.shape, bool)
    for shard in array.addressable_shards:
        bounds = [entry.indices(size)[:2] for entry, size in zip(shard.index, array.shape, strict=True)]
        inside = [(start <= at) & (at < stop) for at, (start, stop) in zip(positions, bounds, strict=True)]
        target = np.ix_(*inside)
        if not is_read[target].all():
            local = [at[held] - start for at, held, (start, _) in zip(positions, inside, bounds, strict=True)]
            items[target] = np.asarray(shard.data)[np.ix_(*local)]
            is_read[target] = True
    return items if is_read.all() else None

"""The order in which a loader places the positions of sequences on devices."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import keystr

from .._ground.formats import format_value
from ..named._array import NamedArray, is_named_array
from ..named._base import format_shape
from ..partitioning._leaves import format_prefix
from ..partitioning._mapping import AxisMapping
from ._local_rows import find_local_rows


class PositionOrder:
    """Selects the positions of whole sequences in an order, and adds them to batches.

    Args:
        positions: The position that comes to each place, an integer array with the axis of positions.
        mapping: From names to mesh axes.
        mesh: The mesh, with devices.
        process_local: Whether this process places what its devices hold alone.

    Raises:
        TypeError: If `positions` is not a named array of integers with one axis.
        ValueError: If it does not have each position once.
    """

    def __init__(self, positions: Any, mapping: AxisMapping, mesh: Mesh, *, process_local: bool) -> None:
        if not is_named_array(positions) or positions.ndim != 1 or not np.issubdtype(positions.dtype, np.integer):
            raise TypeError(
                "`positions` is a named array of integers with one axis, as `axonym.nn.zigzag_positions` returns, not "
                f"{format_value(positions)}."
            )
        [axis] = positions.axes
        self._name, self._size = axis.name, axis.size
        order = np.asarray(positions.array).astype(np.int32)
        if not np.array_equal(np.sort(order), np.arange(self._size)):
            raise ValueError(f"`positions` must have each position from 0 to {self._size - 1} once, in any order")
        if process_local:
            order = order[find_local_rows(axis, mapping, mesh).positions]
        self._order = order

    def select_positions(self, batch: Any) -> dict[str, Any]:
        """Returns a batch of named arrays in the order, with the entry `positions`.

        Raises:
            ValueError: If the batch is not a dict or has that entry, or no array has the axis, or one another size.
        """
        if not isinstance(batch, dict) or "positions" in batch:
            description = "one that has it" if isinstance(batch, dict) else format_value(batch)
            raise ValueError(
                f"the loader adds 'positions' to each batch, a dict without that key, and got {description}"
            )
        leaves, treedef = jax.tree_util.tree_flatten_with_path(batch, is_leaf=is_named_array)
        if not any(is_named_array(leaf) and self._name in leaf.names for _, leaf in leaves):
            raise ValueError(f"no array of the batch has the axis {self._name!r} of `positions`")
        selected = treedef.unflatten([self._select(keystr(path), leaf) for path, leaf in leaves])
        return {**selected, "positions": NamedArray(self._order, (self._name,))}

    def _select(self, path: str, leaf: Any) -> Any:
        if not is_named_array(leaf) or self._name not in leaf.names:
            return leaf
        dim = leaf.names.index(self._name)
        if leaf.array.shape[dim] != self._size:
            raise ValueError(
                f"{format_prefix(path)}the array {format_shape(leaf)} has another size than `positions`, "
                f"({self._name}: {self._size}); each process yields whole sequences"
            )
        return NamedArray(leaf.array[(slice(None),) * dim + (self._order,)], leaf.names)

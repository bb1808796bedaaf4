"""`find_local_rows`: which rows of a batch a process reads."""

from dataclasses import dataclass

import numpy as np

from .._ground.formats import format_value
from ..multihost._host_local import find_axis_parts, resolve_mapping_and_mesh
from ..named._axis import Axis
from ..named._axis_layout import get_entry_axes
from ..partitioning._active_mesh import MeshLike
from ..partitioning._mapping import ResourceMapping
from ..partitioning._resolve_spec import resolve_spec


@dataclass(frozen=True)
class LocalRows:
    """The rows of a batch that a process reads.

    Args:
        index: The place of this process among those with different rows, from 0. Processes that read the same rows, as
            under model parallelism across processes, have the same index.
        count: How many different parts the rows are split into: 1 if every process reads all rows.
        positions: The positions in the batch of the rows of this process, in order: an integer array.

    Example:
        >>> import axonym as nym
        >>> import numpy as np
        >>> nym.data.LocalRows(index=1, count=4, positions=np.arange(2, 4)).size
        2
    """

    index: int
    count: int
    positions: np.ndarray

    @property
    def size(self) -> int:
        """The number of rows of this process."""
        return len(self.positions)


def find_local_rows(Batch: Axis, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None) -> LocalRows:
    """Returns which rows of a batch this process reads, as the mapping and the mesh determine it.

    Sources of data need this to read in each process what its devices hold: `index` and `count` are the first two
    arguments of grain's `ShardOptions`.

    Args:
        Batch: The axis of the rows, with its size in all processes together.
        mapping: From names to mesh axes; the active mapping if None.
        mesh: The mesh, with devices; the active mesh if None.

    Returns:
        The index of this process, the number of different parts, and the positions of its rows in the batch.

    Raises:
        TypeError: If `Batch` is not an `Axis`.
        ValueError: If there is no mapping or no mesh, this process has no device of the mesh, the size is not divisible
            by the mesh axes, or processes share some of their rows but not others.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     rows = nym.data.find_local_rows(nym.Axis("batch", 8), {"batch": "data"})
        >>> rows.index, rows.count, rows.positions  # this is the only process
        (0, 1, array([0, 1, 2, 3, 4, 5, 6, 7]))
    """
    if not isinstance(Batch, Axis):
        raise TypeError(f"`find_local_rows` takes an `Axis` with the size of the batch, not {format_value(Batch)}.")
    axis_mapping, devices_mesh = resolve_mapping_and_mesh(mapping, mesh, "`find_local_rows`")
    [entry] = resolve_spec((Batch.name,), (Batch.size,), axis_mapping, devices_mesh)
    axes = get_entry_axes(entry)
    parts = find_axis_parts(axes, devices_mesh, Batch.name)
    rows = np.arange(Batch.size).reshape(parts.groups * len(parts.local), -1)
    return LocalRows(parts.group, parts.groups, rows[list(parts.local)].ravel())

"""Reading batches: from what a source yields to named arrays on the devices, with the state after each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import keystr

from ..multihost import host_local_to_global
from ..named._axis import Names
from ..named._numpy_input import find_array_problem
from ..partitioning.mapping._mapping import AxisMapping
from ..partitioning.sharding._partition_specs import infer_resource_partitions
from ..partitioning.specs._active_mesh import format_mesh
from ..partitioning.specs._leaves import describe_leaves, get_array_shape
from ..state_dict._keys import has_key_dtype
from ._batch_axes import BatchAxes, format_array_axes, list_batch_arrays
from ._source_iterator import SourceIterator, make_state_error


_END = object()


class LoadedBatch(NamedTuple):
    """A batch on the devices, what its arrays are, by path, and the state of the source after it."""

    tree: Any
    summary: dict[str, str]
    state: dict[str, Any]


class BatchReader:
    """Reads the batches of a source, gives them names and puts them on the devices.

    It belongs to one thread at a time.
    """

    def __init__(
        self,
        source: SourceIterator,
        axes: BatchAxes | None,
        place: Callable[[Any], Any],
        *,
        drop_remainder: bool,
    ) -> None:
        self._source, self._axes, self._place, self._drop_remainder = source, axes, place, drop_remainder
        self._full_sizes: list[list[int]] | None = None
        self._has_ended = False

    def read_batch(self) -> LoadedBatch | None:
        """Returns the next batch, or None after the last one and after an error."""
        if self._has_ended:
            return None
        self._has_ended = True  # unless a batch is returned
        batch = next(self._source, _END)
        if batch is _END:
            return None
        named = batch if self._axes is None else self._axes.name_arrays(batch)
        arrays = list_batch_arrays(named)
        is_remainder = self._is_remainder([list(array.shape) for _, _, array in arrays])
        if self._drop_remainder and is_remainder:
            return None
        try:
            placed = jax.block_until_ready(self._place(named))
        except ValueError as error:
            remedy = "; drop a short last batch with `drop_remainder=True`, or pad it" if is_remainder else ""
            raise ValueError(f"{error}{remedy}") from error.__cause__
        summary = self._summarize_arrays(arrays, placed)
        self._has_ended = False
        return LoadedBatch(placed, summary, self.get_state())

    def get_state(self) -> dict[str, Any]:
        """Returns the state of the source, with the sizes of the first batch if a shorter one ends the iteration."""
        state = self._source.get_state()
        return {**state, "sizes": self._full_sizes} if self._drop_remainder and self._full_sizes else state

    def set_state(self, state: dict[str, Any]) -> None:
        sizes = state.get("sizes") if isinstance(state, dict) else None
        if sizes is not None and not (isinstance(sizes, list) and all(isinstance(shape, list) for shape in sizes)):
            raise make_state_error(state)
        self._source.set_state(state)
        self._full_sizes = sizes
        self._has_ended = False

    def _is_remainder(self, sizes: list[list[int]]) -> bool:
        """Returns whether a batch is shorter than the first one."""
        self._full_sizes = self._full_sizes or sizes
        return any(
            size < full
            for shape, full_shape in zip(sizes, self._full_sizes, strict=False)
            for size, full in zip(shape, full_shape, strict=False)
        )

    def _summarize_arrays(self, arrays: list[tuple[str, Names, Any]], placed: Any) -> dict[str, str]:
        """Returns what processes compare; raises a ValueError if an axis has another size than `axes` says."""
        expected = {} if self._axes is None else self._axes.sizes
        summary: dict[str, str] = {}
        for (path, names, local), (_, _, whole) in zip(arrays, list_batch_arrays(placed), strict=True):
            for name, size, here in zip(names, whole.shape, local.shape, strict=True):
                if expected.get(name, size) != size:
                    raise ValueError(
                        f"batch{path}: axis {name!r} has size {size} in all processes together, and {expected[name]} "
                        f"in `axes`; this process has read {here}"
                    )
            where = f"{whole.sharding.spec} on mesh {format_mesh(whole.sharding.mesh)}"
            summary[path] = f"{format_array_axes(names, local)} for {where}"
        return summary


def place_local_rows(batch: Any, mapping: AxisMapping, mesh: Mesh) -> Any:
    """Returns the arrays of which each process has read a part."""
    if mesh.devices.flat[0].platform == "cpu":
        # There JAX may use the memory of NumPy arrays, which the source may reuse, or map from a file.
        batch = jax.tree.map(lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf, batch)
    return host_local_to_global(batch, mapping, mesh)


def place_global_rows(batch: Any, mapping: AxisMapping, mesh: Mesh) -> Any:
    """Returns the arrays that all processes have in full; each reads what its devices hold."""
    shardings = infer_resource_partitions(batch, mapping, mesh=mesh)
    leaf_paths = [keystr(description.path) for description in describe_leaves(batch)]
    paths = jax.tree.unflatten(jax.tree.structure(batch), leaf_paths)

    def place_leaf(leaf: Any, sharding: Any, path: str) -> Any:
        if get_array_shape(leaf) is None:
            return leaf
        if not has_key_dtype(leaf):
            return jax.make_array_from_callback(
                tuple(leaf.shape), sharding, lambda index: _copy_rows(leaf, index, path)
            )
        places = sharding.addressable_devices_indices_map(tuple(leaf.shape))
        parts = [jax.device_put(leaf[index], device) for device, index in places.items()]
        return jax.make_array_from_single_device_arrays(tuple(leaf.shape), sharding, parts)

    return jax.tree.map(
        lambda sharding, part, part_paths: jax.tree.map(
            lambda leaf, path: place_leaf(leaf, sharding, path), part, part_paths
        ),
        shardings,
        batch,
        paths,
        is_leaf=lambda node: node is None,
    )


def _copy_rows(array: Any, index: Any, path: str) -> np.ndarray:
    """Returns a copy of the rows of a device; raises a ValueError if JAX would change their values."""
    rows = np.array(array[index])
    if (problem := find_array_problem(rows)) is not None:
        raise ValueError(f"{path + ': ' if path else ''}an array of shape {tuple(array.shape)} {problem}")
    return rows

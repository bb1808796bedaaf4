"""Reading batches: from what a source yields to named arrays on the devices, with the state after each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import keystr
from numpy.ma import MaskedArray

from .._ground.formats import format_axes, format_value
from ..multihost import host_local_to_global
from ..named._array import NamedArray
from ..named._axis import Axis, Names, axis_name
from ..named._numpy_input import MASK_PROBLEM, find_array_problem
from ..partitioning._active_mesh import format_mesh
from ..partitioning._leaves import describe_leaves, format_prefix, get_array_shape
from ..partitioning._mapping import AxisMapping
from ..partitioning._shard import infer_resource_partitions
from ..state_dict._keys import has_key_dtype
from ._position_order import PositionOrder
from ._source_iterator import SourceIterator, make_state_error


_END = object()


class BatchAxes:
    """The axes that a user gives for the arrays of each batch: a tree of names and axes, a prefix of the batches."""

    def __init__(self, axes: Any) -> None:
        paths, self._treedef = jax.tree_util.tree_flatten_with_path(axes, is_leaf=_is_axes)
        self._parts = [(keystr(path), axes) for path, axes in paths]
        self.sizes: dict[str, int] = {}
        """The sizes of the axes that have one, in all processes together."""
        for path, part in self._parts:
            if not _is_axes(part):
                raise TypeError(f"`axes{path}` is a name, an `Axis`, or a tuple of these, not {format_value(part)}.")
            for axis in _list_axes(part):
                if isinstance(axis, Axis) and self.sizes.setdefault(axis.name, axis.size) != axis.size:
                    raise ValueError(
                        f"`axes` has axis {axis.name!r} of size {self.sizes[axis.name]} and of size {axis.size}; an "
                        "axis has one size, that in all processes together"
                    )

    def name_arrays(self, batch: Any) -> Any:
        """Returns a batch of named arrays."""
        try:
            parts = self._treedef.flatten_up_to(batch)
        except ValueError as error:
            raise ValueError(f"`axes` does not fit the batch: {str(error).splitlines()[0]}") from None
        named = [_name_part(path, axes, part) for (path, axes), part in zip(self._parts, parts, strict=True)]
        return self._treedef.unflatten(named)


def _list_batch_arrays(batch: Any) -> list[tuple[str, Names, Any]]:
    """Returns path, names and array of each leaf of a batch that is an array.

    Raises:
        ValueError: If an array has no names or is a masked one, or there is no array.
    """
    arrays: list[tuple[str, Names, Any]] = []
    for leaf, leaf_info in zip(jax.tree.leaves(batch), describe_leaves(batch), strict=True):
        shape, path = get_array_shape(leaf), keystr(leaf_info.path)
        if shape is None:
            continue
        if isinstance(leaf, MaskedArray):
            raise ValueError(f"{format_prefix(path)}an array of shape {shape} {MASK_PROBLEM}")
        names = leaf_info.names_of(shape) if shape else ()
        if names is None:
            raise ValueError(
                f"{format_prefix(path)}an array of shape {shape} has no names; yield named arrays, or pass "
                "`axes` to `ShardedLoader`, as in `axes=('batch', 'pos')`"
            )
        arrays.append((path, names, leaf))
    if not arrays:
        raise ValueError(f"a batch has no arrays: {format_value(batch)}")
    return arrays


def _is_axes(x: Any) -> bool:
    return x is None or isinstance(x, str | Axis) or (type(x) is tuple and all(isinstance(y, str | Axis) for y in x))


def _list_axes(axes: Any) -> tuple[Any, ...]:
    if axes is None:
        return ()
    return axes if isinstance(axes, tuple) else (axes,)


def _name_part(path: str, axes: Any, part: Any) -> Any:
    """Returns a part of a batch whose arrays all have these axes; without axes, as it is."""
    if axes is None:
        return part
    names = tuple(axis_name(axis) for axis in _list_axes(axes))
    try:
        return jax.tree.map(
            lambda leaf: NamedArray(leaf, names), part, is_leaf=lambda node: isinstance(node, NamedArray)
        )
    except (TypeError, ValueError) as error:
        raise type(error)(f"batch{path}: {error}") from None


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
        order: PositionOrder | None,
        place: Callable[[Any], Any],
        *,
        drop_remainder: bool,
    ) -> None:
        self._source, self._axes, self._order, self._place = source, axes, order, place
        self._drop_remainder = drop_remainder
        self._full_sizes: list[list[int]] | None = None  # of the arrays of the first batch
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
        arrays = _list_batch_arrays(named)
        if self._order is not None:
            named = self._order.select_positions(named)
            arrays = _list_batch_arrays(named)
        sizes = [list(array.shape) for _, _, array in arrays]
        self._full_sizes = self._full_sizes or sizes
        is_remainder = any(
            size < full
            for shape, full_shape in zip(sizes, self._full_sizes, strict=False)
            for size, full in zip(shape, full_shape, strict=False)
        )
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

    def _summarize_arrays(self, arrays: list[tuple[str, Names, Any]], placed: Any) -> dict[str, str]:
        """Returns what processes compare; raises a ValueError if an axis has another size than `axes` says."""
        expected = {} if self._axes is None else self._axes.sizes
        summary: dict[str, str] = {}
        for (path, names, local), (_, _, whole) in zip(arrays, _list_batch_arrays(placed), strict=True):
            for name, size, local_size in zip(names, whole.shape, local.shape, strict=True):
                if expected.get(name, size) != size:
                    raise ValueError(
                        f"batch{path}: axis {name!r} has size {size} in all processes together, and {expected[name]} "
                        f"in `axes`; this process has read {local_size}"
                    )
            sharding = f"{whole.sharding.spec} on mesh {format_mesh(whole.sharding.mesh)}"
            summary[path] = f"{local.dtype} {format_axes(names, local.shape)} for {sharding}"
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
        # Callbacks return NumPy arrays, which random keys are not.
        places = sharding.addressable_devices_indices_map(tuple(leaf.shape))
        parts = [jax.device_put(leaf[index], device) for device, index in places.items()]
        return jax.make_array_from_single_device_arrays(tuple(leaf.shape), sharding, parts)

    # A sharding stands in place of a named array, and None in place of what is no array.
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
        raise ValueError(f"{format_prefix(path)}an array of shape {tuple(array.shape)} {problem}")
    return rows

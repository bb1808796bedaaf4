"""`load_safetensors`: a tree with the arrays of files of safetensors, each slice read by the process that needs it."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from ..mesh._set_mesh import set_mesh
from ..named._arguments import check_flag
from ..named._array import is_named_array
from ..named._axis import Names
from ..named._base import get_plain_array, with_array
from ..named._format import format_axes, format_value
from ..partitioning._axis_mapping import axis_mapping
from ..partitioning.mapping._mapping import ResourceMapping, current_mapping
from ..partitioning.sharding._shard import shard
from ..partitioning.specs._active_mesh import MeshLike, get_active_mesh
from ..partitioning.specs._resolve_spec import resolve_sharding
from ._array_slices import copy_box, read_array
from ._from_state_dict import from_state_dict
from ._keys import describe_random_keys, is_random_key, parse_folder
from ._safetensors_file import SafetensorsFile, SavedArray, SavedAxes, make_file_error, parse_json
from ._save_safetensors import INDEX, SINGLE
from ._state_dict_reader import DtypeRule, Misfits, StateDictReader, check_dtype_rule, format_field, report_misfits
from ._state_dict_writer import list_named_sizes


T = TypeVar("T")

AxisOrder: TypeAlias = Literal["transpose", "error"]
"""What happens to an array whose axes were saved in another order: they are transposed back, or it is an error."""


def load_safetensors(
    like: T,
    folder: str | os.PathLike[str],
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    *,
    prefix: str | None = None,
    flatten: bool = True,
    strict: bool = True,
    dtypes: DtypeRule = "check",
    axis_order: AxisOrder = "transpose",
) -> T:
    """Returns a tree with the arrays of a folder, as `save_safetensors` or a library of Hugging Face has written it.

    Each process reads the slices that its devices hold, one at a time, and stacked layers one at a time.

    The axes that `save_safetensors` has written down are compared with those of the tree: an array in another order of
    axes is transposed back, other names or sizes are an error. Arrays of other libraries are read by their shapes, as
    by `from_torch_compatible_state_dict`. What 64 bits become is as for `from_state_dict`.

    Args:
        like: A module or any other tree of arrays, or its shapes as `equinox.filter_eval_shape` returns them.
        folder: The folder, or one file.
        mapping: From names to mesh axes; the active mapping if None. Without either, arrays are sharded as those of
            `like`, and not at all if these are shapes.
        mesh: The mesh; the active mesh if None.
        prefix: First part of the keys to read; all others are ignored.
        flatten: Whether to split the axes that `save_safetensors` merges.
        strict: Whether a key that no field has is an error.
        dtypes: What happens to an array of another dtype than its field: `"check"` is an error, `"cast"` converts it,
            and `"keep"` leaves it.
        axis_order: What happens to an array whose axes were saved in another order: `"transpose"` restores the order
            of `like`, `"error"` raises an error.

    Returns:
        A tree of the same structure. What is not an array is that of `like`.

    Raises:
        FileNotFoundError: If there is no such folder, or a file is missing.
        TypeError: If the folder is not a path, or the prefix is not a string.
        ValueError: If a file is damaged or truncated, an index lists files outside of the folder, or keys, axes,
            shapes, dtypes or values do not fit. The error names the file, or all keys that do not fit. If there is a
            mapping and no mesh.

    Example:
        >>> import axonym as nym
        >>> import tempfile
        >>> saved = {"weight": nym.zeros({"mlp": 4, "embed": 8})}
        >>> like = {"weight": nym.ones({"embed": 8, "mlp": 4})}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nym.state_dict.save_safetensors(saved, folder)
        ...     print(nym.state_dict.load_safetensors(like, folder)["weight"].shape)
        ...     nym.state_dict.load_safetensors({"weight": nym.ones({"embed": 4, "mlp": 8})}, folder)
        Traceback (most recent call last):
        ValueError: the state dict does not fit:
          'weight' was saved as (mlp: 4, embed: 8), its field is (embed: 4, mlp: 8)
    """
    check_axis_order(axis_order)
    check_dtype_rule(dtypes)
    check_flag("`flatten`", flatten)
    check_flag("`strict`", strict)
    arrays = open_folder(parse_folder("load_safetensors", folder))
    with contextlib.ExitStack() as stack:
        if mesh is not None:
            stack.enter_context(set_mesh(mesh))
        if mapping is not None:
            if get_active_mesh() is None:
                raise ValueError(
                    "`mapping` needs a mesh to load onto; set one with `jax.set_mesh(mesh)` or pass `mesh=`"
                )
            stack.enter_context(axis_mapping(mapping))
        active = current_mapping()
        shapes = jax.tree.map(lambda x: _keep_shape(x, active is None), like)
        shapes = shapes if active is None else shard(shapes, active)
        reader = SafetensorsReader(arrays, dtypes, axis_order, flatten)
        stack.enter_context(report_misfits(reader, prefix, strict))
        loaded = from_state_dict(shapes, reader, prefix)
        return jax.tree.map(_place_leaf, shapes, loaded)


def check_axis_order(axis_order: Any) -> None:
    if axis_order not in ("transpose", "error"):
        raise ValueError(f"`axis_order` is 'transpose' or 'error', not {format_value(axis_order)}")


def _keep_shape(x: Any, keep_sharding: bool) -> Any:
    """Returns the shape of a JAX array in its place; a NumPy array stays, because it is read as one."""
    if not isinstance(x, jax.Array | jax.ShapeDtypeStruct):
        return x
    sharding = x.sharding if keep_sharding and isinstance(x.sharding, NamedSharding) else None
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _place_leaf(shape: Any, leaf: Any) -> Any:
    """Returns an array in the sharding that its field has, if modules have not chosen the same."""
    sharding = get_shape_sharding(shape)
    if sharding is None or leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    return jax.device_put(leaf, sharding)


def open_folder(folder: Path) -> dict[str, SavedArray]:
    """Returns the arrays of a folder, or of a single file, by their keys."""
    if folder.is_file() or (folder / SINGLE).is_file():
        return SafetensorsFile(folder if folder.is_file() else folder / SINGLE).arrays
    index = folder / INDEX
    if not index.is_file():
        raise FileNotFoundError(f"{str(folder)!r} has neither {SINGLE!r} nor {INDEX!r}")
    weights = read_index(index)
    names = sorted({*weights.values()})
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise FileNotFoundError(f"{str(index)!r} lists {', '.join(map(repr, missing))}, which is not there")
    files = {name: SafetensorsFile(folder / name) for name in names}
    if len({file.save for file in files.values()}) > 1:
        raise make_file_error(index, f"lists files of different saves: {', '.join(map(repr, names))}")
    holders: dict[str, str] = {}
    for name, file in files.items():
        for key in file.arrays:
            if holders.setdefault(key, name) != name:
                raise make_file_error(index, f"lists two files that have {key!r}, {holders[key]!r} and {name!r}")
    for key, name in weights.items():
        if key not in files[name].arrays:
            raise make_file_error(folder / name, f"lacks {key!r}, which the index lists")
    return {key: files[name].arrays[key] for key, name in weights.items()}


def read_index(index: Path) -> dict[str, str]:
    """Returns the name of the file that has each array, by the key of the array."""
    try:
        content = parse_json(index.read_bytes())
    except ValueError as error:
        raise make_file_error(index, f"is damaged or truncated: {error}") from None
    weights = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(name, str) and name for name in weights.values()):
        raise make_file_error(index, "is damaged or no index: it has no 'weight_map' from keys to names of files")
    for key, name in weights.items():
        path = PurePath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise make_file_error(
                index, f"lists {key!r} in {name!r}, which is outside of its folder, so it is not read"
            )
    return weights


class SafetensorsReader(StateDictReader):
    """The arrays of a folder, mapped into memory until a field reads its part of them."""

    def __init__(
        self, arrays: Mapping[str, SavedArray], dtypes: DtypeRule, axis_order: AxisOrder, flattens: bool
    ) -> None:
        super().__init__(arrays, dtypes, flattens)
        self.axis_order = axis_order

    def __getitem__(self, key: str) -> np.ndarray:
        return super().__getitem__(key).map()

    def load(self, like: Any, key: str) -> Any:
        saved: SavedArray = super().__getitem__(key)
        own = get_plain_array(like)
        if saved.generator is not None or is_random_key(own):
            return self._load_keys(saved, like, key)
        view = self._arrange(saved, like, key)
        dtype = np.dtype(self.choose_dtype(key, saved.dtype, like))
        try:
            if isinstance(own, np.ndarray):
                return with_plain(like, copy_box(saved, view, dtype, tuple((0, size) for size in view.shape)))
            return with_plain(like, read_array(saved, view, dtype, find_sharding(like)))
        except OverflowError as error:
            raise Misfits({key: str(error)}) from None

    def _arrange(self, saved: SavedArray, like: Any, key: str) -> np.ndarray:
        """Returns an array mapped into memory, with the axes of its field in their order."""
        own, axes = tuple(get_plain_array(like).shape), list_named_sizes(like)
        if saved.axes is None or axes is None:
            self.check_shape(key, saved.shape, like)
            return saved.map().reshape(own)
        before = [axis for dim in saved.axes for axis in dim]
        if sorted(before) != sorted(axes) or (self.axis_order == "error" and before != [*axes]):
            remedy = "; `axis_order='transpose'` restores the order" if sorted(before) == sorted(axes) else ""
            raise Misfits({key: f"was saved as {format_saved(saved.axes)}, its field is {format_field(like)}{remedy}"})
        view = saved.map().reshape([size for _, size in before])
        names = [name for name, _ in before]
        return view.transpose([names.index(name) for name, _ in axes])

    def _load_keys(self, saved: SavedArray, like: Any, key: str) -> Any:
        """Returns random keys, which are saved as their data."""
        own = get_plain_array(like)
        if saved.generator is None or not is_random_key(own):
            was = f"{saved.dtype}" if saved.generator is None else f"random keys of {saved.generator!r}"
            raise Misfits({key: f"was saved as {was}, its field is {own.dtype}"})
        generator, data = describe_random_keys(own)
        if saved.generator != generator:
            raise Misfits({key: f"was saved with keys of {saved.generator!r}, its field has keys of {generator!r}"})
        shape = with_array(like, data, (*like.names, "")) if is_named_array(like) else data
        sharding = find_sharding(like)
        if sharding is not None:
            sharding = NamedSharding(sharding.mesh, P(*sharding.spec, *[None] * (own.ndim - len(sharding.spec)), None))
        found = read_array(saved, self._arrange(saved, shape, key), saved.dtype, sharding)
        return with_plain(like, jax.random.wrap_key_data(found, impl=generator))


def with_plain(like: Any, array: Any) -> Any:
    """Returns a plain array, with the names of another array if it has names."""
    return with_array(like, array) if is_named_array(like) else array


def find_sharding(like: Any) -> Any:
    """Returns the sharding of a field: its own or that of its names, or None without an active mapping."""
    own = get_plain_array(like)
    sharding, mapping, mesh = get_shape_sharding(own), current_mapping(), get_active_mesh()
    if sharding is not None or mapping is None or not isinstance(mesh, Mesh):
        return sharding
    if not is_named_array(like):
        return NamedSharding(mesh, P())
    return resolve_sharding(like.names, tuple(own.shape), mapping, mesh)


def get_shape_sharding(shape: Any) -> NamedSharding | None:
    """Returns the sharding of a shape; None if it has none, or one without devices, as JAX infers it."""
    sharding = shape.sharding if isinstance(shape, jax.ShapeDtypeStruct) else None
    return sharding if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh) else None


def format_saved(axes: SavedAxes) -> str:
    names: Names = tuple(name for dim in axes for name, _ in dim)
    return format_axes(names, tuple(size for dim in axes for _, size in dim))

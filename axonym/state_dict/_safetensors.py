"""`load_safetensors` and `save_safetensors`: trees in the files of Hugging Face's libraries, slice by slice."""

import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal, TypeAlias, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from .._ground.arguments import check_flag
from .._ground.atomic_file import flush_to_disk, is_special, name_file_in_errors, open_new_file, open_replacement
from .._ground.formats import format_axes, format_value
from ..mesh._create import set_mesh
from ..multihost._rendezvous import Rendezvous, as_seconds, get_coordination_store
from ..multihost._shared_values import assert_same_on_all_hosts, broadcast_from_host_zero
from ..named._array import is_named_array
from ..named._axis_layout import MeshLike
from ..named._base import get_plain_array, with_array
from ..partitioning._active_mapping import axis_mapping
from ..partitioning._active_mesh import get_active_mesh
from ..partitioning._mapping import ResourceMapping, current_mapping
from ..partitioning._resolve_spec import resolve_sharding
from ..partitioning._shard import shard
from ._from_state_dict import (
    DtypeRule,
    Misfits,
    StateDictReader,
    check_dtype_rule,
    format_field,
    from_state_dict,
    report_misfits,
    with_plain_array,
)
from ._keys import check_can_be_saved, describe_random_keys, has_key_dtype, parse_folder
from ._safetensors_format import (
    ArrayInfo,
    SafetensorsFile,
    SavedArray,
    check_dtype,
    copy_box,
    make_file_error,
    make_header,
    parse_json,
    read_array,
    write_array,
)
from ._to_state_dict import DeferredArray, StateDictWriter, list_named_sizes, to_state_dict, use_writer


try:
    import fcntl
except ImportError:  # not on all systems
    fcntl = None

T = TypeVar("T")

AxisOrder: TypeAlias = Literal["transpose", "error"]
"""What happens to an array whose axes were saved in another order: they are transposed back, or it is an error."""

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors")
_INCOMPLETE = re.compile(r"\.(model|axonym)[-.].*\.incomplete")
_ABANDONED_AFTER = 24 * 3600  # seconds without a change, after which an incomplete file counts as left by a killed save
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


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
    by `from_torch_compatible_state_dict`. Arrays of 64 bits are treated as by `from_state_dict`.

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
        # Shapes with shardings tell each field which slices of its array to read.
        shapes = jax.tree.map(lambda x: _keep_shape(x, keep_sharding=active is None), like)
        if active is not None:
            shapes = shard(shapes, active)
        reader = SafetensorsReader(arrays, dtypes, axis_order, flatten)
        stack.enter_context(report_misfits(reader, prefix, strict))
        loaded = from_state_dict(shapes, reader, prefix)
        # Arrays that modules have computed, as of merged axes, may be sharded otherwise.
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
    """Moves an array to the sharding of its field, if it has another one."""
    sharding = get_shape_sharding(shape)
    if sharding is None or leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    return jax.device_put(leaf, sharding)


def open_folder(folder: Path) -> dict[str, SavedArray]:
    """Returns the arrays of a folder, or of a single file, by their keys."""
    file = folder if folder.is_file() else folder / SINGLE
    if file.is_file():
        return SafetensorsFile(file).arrays
    index = folder / INDEX
    if not index.is_file():
        raise FileNotFoundError(f"{str(folder)!r} has neither {SINGLE!r} nor {INDEX!r}")
    weights = read_index(index)
    names = sorted({*weights.values()})
    if missing_files := [name for name in names if not (folder / name).is_file()]:
        raise FileNotFoundError(f"{str(index)!r} lists {', '.join(map(repr, missing_files))}, which is not there")
    files = {name: SafetensorsFile(folder / name) for name in names}
    if len({content.save for content in files.values()}) > 1:
        raise make_file_error(index, f"lists files of different saves: {', '.join(map(repr, names))}")
    names_by_key: dict[str, str] = {}
    for name, content in files.items():
        for key in content.arrays:
            if key in names_by_key:
                raise make_file_error(index, f"lists two files that have {key!r}, {names_by_key[key]!r} and {name!r}")
            names_by_key[key] = name
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
        return super().__getitem__(key).map()  # for modules that read arrays in a way of their own

    def load(self, like: Any, key: str) -> Any:
        saved_array: SavedArray = super().__getitem__(key)
        array = get_plain_array(like)
        if saved_array.generator is not None or has_key_dtype(array):
            return self._load_keys(saved_array, like, key)
        view = self._arrange(saved_array, like, key)
        dtype = np.dtype(self.choose_dtype(key, saved_array.dtype, like))
        try:
            if isinstance(array, np.ndarray):
                return with_plain_array(like, copy_box(saved_array, view, dtype))
            return with_plain_array(like, read_array(saved_array, view, dtype, find_sharding(like)))
        except OverflowError as error:
            raise Misfits({key: str(error)}) from None

    def _arrange(self, saved_array: SavedArray, like: Any, key: str) -> np.ndarray:
        """Returns an array mapped into memory, with the axes of its field in their order."""
        axes = list_named_sizes(like)
        if saved_array.axes is None or axes is None:  # then the shapes are all there is to compare
            self.check_shape(key, saved_array.shape, like)
            return saved_array.map().reshape(tuple(get_plain_array(like).shape))
        saved_axes = [axis for dim in saved_array.axes for axis in dim]
        names, sizes = tuple(name for name, _ in saved_axes), tuple(size for _, size in saved_axes)
        has_same_axes = sorted(saved_axes) == sorted(axes)
        if not has_same_axes or (self.axis_order == "error" and saved_axes != [*axes]):
            remedy = "; `axis_order='transpose'` restores the order" if has_same_axes else ""
            raise Misfits({key: f"was saved as {format_axes(names, sizes)}, its field is {format_field(like)}{remedy}"})
        return saved_array.map().reshape(sizes).transpose([names.index(name) for name, _ in axes])

    def _load_keys(self, saved_array: SavedArray, like: Any, key: str) -> Any:
        """Returns random keys, which are saved as their data."""
        keys = get_plain_array(like)
        if saved_array.generator is None:
            raise Misfits({key: f"was saved as {saved_array.dtype}, its field is {keys.dtype}"})
        if not has_key_dtype(keys):
            raise Misfits({key: f"was saved as random keys of {saved_array.generator!r}, its field is {keys.dtype}"})
        generator, data = describe_random_keys(keys)
        if saved_array.generator != generator:
            raise Misfits(
                {key: f"was saved with keys of {saved_array.generator!r}, its field has keys of {generator!r}"}
            )
        shape = with_array(like, data, (*like.names, "")) if is_named_array(like) else data
        sharding = find_sharding(like)
        if sharding is not None:
            unsharded = [None] * (keys.ndim + 1 - len(sharding.spec))  # the data have one axis more than the keys
            sharding = NamedSharding(sharding.mesh, P(*sharding.spec, *unsharded))
        key_data = read_array(saved_array, self._arrange(saved_array, shape, key), saved_array.dtype, sharding)
        return with_plain_array(like, jax.random.wrap_key_data(key_data, impl=generator))


def find_sharding(like: Any) -> Any:
    """Returns the sharding of a field: its own or that of its names, or None without an active mapping."""
    array = get_plain_array(like)
    sharding, mapping, mesh = get_shape_sharding(array), current_mapping(), get_active_mesh()
    if sharding is not None or mapping is None or not isinstance(mesh, Mesh):
        return sharding
    if not is_named_array(like):
        return NamedSharding(mesh, P())
    return resolve_sharding(like.names, tuple(array.shape), mapping, mesh)


def get_shape_sharding(shape: Any) -> NamedSharding | None:
    """Returns the sharding of a shape; None if it has none, or one without devices, as JAX infers it."""
    sharding = shape.sharding if isinstance(shape, jax.ShapeDtypeStruct) else None
    return sharding if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh) else None


def save_safetensors(
    tree: Any,
    folder: str | os.PathLike[str],
    max_shard_size: int | str = "5GB",
    *,
    prefix: str | None = None,
    flatten: bool = True,
    timeout: float = 600,
) -> None:
    """Writes the arrays of a tree to a folder, in the files and with the names that Hugging Face's libraries read.

    The keys are those of `to_state_dict`, the layout is that of `to_torch_compatible_state_dict`. Small trees become
    one file, `model.safetensors`; larger ones `model-00001-of-00003.safetensors` and so on, and an index. The names and
    sizes of all axes are in the metadata of each file, so that `load_safetensors` never confuses them.

    Each process writes the slices that its devices hold, in pieces of a few megabytes, and stacked layers are sliced
    one at a time, so no array is ever assembled. With several processes all of them call this, and the folder is one
    that all of them see. The files get their names once all are complete and on disk: a save that is killed leaves the
    older files, or a folder that cannot be loaded, never a mixture. If several programs save to one folder, the last
    one to end has it. Files are as large as their arrays and have no checksums, which the format lacks, except of
    headers.

    Bits are kept for booleans, integers, floats of 8 to 64 bits and `complex64`. Random keys are written as their data.
    Numbers, None, functions and static fields are not written.

    Args:
        tree: A module or any other tree of arrays.
        folder: The folder, which is made if necessary; other files in it stay.
        max_shard_size: How large a file may become, in bytes or as in `"5GB"` and `"500MiB"`; a larger array is in a
            file of its own.
        prefix: First part of all keys.
        flatten: Whether to merge the axes of layers, as by `flatten_modules`.
        timeout: How long a process waits for the others at the beginning and at the end, in seconds.

    Raises:
        TypeError: If the folder is not a path, or the prefix is not a string.
        ValueError: As `to_state_dict`, or if the format lacks the dtype of an array, an array is a shape, traced or
            donated, the size cannot be read, or processes have trees of other keys, names, sizes or dtypes.
        OSError: If a file cannot be written in this or another process.
        TimeoutError: If another process does not arrive in time.

    Example:
        >>> import axonym as nym
        >>> import jax, os, tempfile
        >>> layer = nym.nn.Linear.init(nym.Axis("embed", 8), nym.Axis("mlp", 4), key=jax.random.key(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nym.state_dict.save_safetensors(layer, folder)
        ...     print(os.listdir(folder))
        ...     loaded = nym.state_dict.load_safetensors(layer, folder)
        ['model.safetensors']
        >>> bool((loaded.weight == layer.weight).array.all())
        True
    """
    seconds, limit = as_seconds(timeout), parse_size(max_shard_size)
    target = parse_folder("save_safetensors", folder)
    check_flag("`flatten`", flatten)
    with _exchange_errors("begins", target, seconds):
        with use_writer(flattens=flatten, defers=True) as writer:
            arrays = to_state_dict(tree, prefix)
        infos = {key: _describe_entry(key, array, writer) for key, array in arrays.items()}
        shards = _split_shards(infos, limit)
        if jax.process_index() == 0:
            if target.exists() and not target.is_dir():
                raise NotADirectoryError(f"`save_safetensors` writes to a folder, and {str(target)!r} is a file")
            target.mkdir(parents=True, exist_ok=True)
            for name in shards:
                if is_special(target / name):
                    raise FileExistsError(f"{str(target / name)!r} is no regular file; remove it, or save elsewhere")
    # What differs would be written over the arrays of another process.
    assert_same_on_all_hosts(infos, "the tree of `save_safetensors`", timeout=seconds)
    # One name in all processes: headers with other names, and so with other checksums, may differ in length.
    save = broadcast_from_host_zero(uuid.uuid4().hex, timeout=seconds)
    headers = {name: make_header(shard, save) for name, shard in shards.items()}
    starts = {key: (name, start) for name, (_, offsets) in headers.items() for key, start in offsets.items()}
    try:
        with _exchange_errors("prepares its files", target, seconds):
            if jax.process_index() == 0:
                for name, shard in shards.items():
                    size = len(headers[name][0]) + sum(info.nbytes for info in shard.values())
                    _reserve_file(target / name, save, headers[name][0], size)
        with _exchange_errors("writes its files", target, seconds):
            _write_arrays(arrays, starts, target, save)
        with _exchange_errors("ends", target, seconds):
            if jax.process_index() == 0:
                with _lock_folder(target):
                    _publish_files(target, shards, save)
    except BaseException:
        if jax.process_index() == 0:
            for name in shards:
                _hide(target / name, save).unlink(missing_ok=True)
        raise


def parse_size(size: Any) -> int:
    """Returns a number of bytes."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]I?)?B?", size.upper()) if isinstance(size, str) else None
    if match is None or not float(match[1]):
        raise ValueError(
            f"`max_shard_size` is a number of bytes or a text as '5GB' or '500MiB', not {format_value(size)}"
        )
    return max(1, int(float(match[1]) * _UNITS[match[2] or ""]))


def _describe_entry(key: str, array: Any, writer: StateDictWriter) -> ArrayInfo:
    check_can_be_saved(repr(key), array)
    axes, generator, shape = writer.find_axes(array), None, array
    if has_key_dtype(array):  # saved as their data, which have one axis more
        generator, shape = describe_random_keys(array)
        axes = None if axes is None else (*axes, (("", shape.shape[-1]),))
    check_dtype(key, shape.dtype)
    return ArrayInfo(np.dtype(shape.dtype), tuple(shape.shape), axes, generator)


def _split_shards(infos: Mapping[str, ArrayInfo], limit: int) -> dict[str, dict[str, ArrayInfo]]:
    """Returns the arrays of each file by its name."""
    shards: list[dict[str, ArrayInfo]] = [{}]
    size = 0
    for key, info in infos.items():
        if shards[-1] and size + info.nbytes > limit:
            shards.append({})
            size = 0
        shards[-1][key] = info
        size += info.nbytes
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    count = len(shards)
    return {f"model-{number:05}-of-{count:05}.safetensors": shard for number, shard in enumerate(shards, start=1)}


def _hide(path: Path, save: str) -> Path:
    """Returns the name of a file of a save while it is not complete."""
    return path.with_name(f".{path.name}.{save}.incomplete")


def _reserve_file(path: Path, save: str, header: bytes, size: int) -> None:
    """Makes a file with its header and room for its arrays, so that a full disk is noticed first."""
    hidden_path = _hide(path, save)
    with name_file_in_errors(path, hidden_path), open_new_file(hidden_path) as file:
        if hasattr(os, "posix_fallocate"):  # not on all systems
            os.posix_fallocate(file.fileno(), 0, size)
        file.truncate(size)
        file.write(header)


def _write_arrays(arrays: dict[str, Any], starts: Mapping[str, tuple[str, int]], target: Path, save: str) -> None:
    """Writes the slices of this process, and lets each array go once it is written."""
    failure: OSError | None = None
    with contextlib.ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        for key in [*arrays]:
            array = arrays.pop(key)
            array = array.make() if isinstance(array, DeferredArray) else array
            if failure is not None:  # the other processes need this one to make their arrays
                continue
            if has_key_dtype(array):
                array = jax.random.key_data(array)
            name, start = starts[key]
            hidden_path = _hide(target / name, save)
            try:
                with name_file_in_errors(target / name, hidden_path):
                    if name not in files:
                        files[name] = stack.enter_context(hidden_path.open("r+b"))
                    write_array(files[name].fileno(), start, array)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure
        for name, file in files.items():
            with name_file_in_errors(target / name):
                flush_to_disk(file)


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Keeps other programs from publishing files in a folder, if its file system has locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _publish_files(target: Path, shards: Mapping[str, Mapping[str, ArrayInfo]], save: str) -> None:
    """Gives complete files their names, and removes those of an older save.

    A folder is read by `model.safetensors` or else by the index, so at each moment these are of one save.
    """
    if SINGLE not in shards:
        (target / INDEX).unlink(missing_ok=True)
    for name in shards:
        _hide(target / name, save).replace(target / name)
    if SINGLE in shards:
        (target / INDEX).unlink(missing_ok=True)
    else:
        weights = {key: name for name, shard in shards.items() for key in shard}
        total = sum(info.nbytes for shard in shards.values() for info in shard.values())
        index = {"metadata": {"total_size": total}, "weight_map": weights}
        with open_replacement(target / INDEX) as file:
            file.write(json.dumps(index, indent=2).encode())
        (target / SINGLE).unlink(missing_ok=True)
    for path in target.iterdir():
        if (_SHARD.fullmatch(path.name) and path.name not in shards) or _is_abandoned(path):
            path.unlink(missing_ok=True)


def _is_abandoned(path: Path) -> bool:
    """Returns whether an incomplete file was left by a save that was killed."""
    if not _INCOMPLETE.fullmatch(path.name):
        return False
    try:
        return time.time() - path.lstat().st_mtime > _ABANDONED_AFTER
    except FileNotFoundError:  # that save has ended meanwhile
        return False


@contextlib.contextmanager
def _exchange_errors(step: str, target: Path, seconds: float) -> Iterator[None]:
    """Waits for all processes at the end of a block; if one has an error, all of them raise one."""
    store = get_coordination_store()  # None if there is one process
    label = f"`save_safetensors` to {str(target)!r}"
    meeting = store and Rendezvous(store, "safetensors", f"{target.name} {step}", seconds, f"{label} {step} and")
    error: Exception | None = None
    try:
        yield
    except Exception as raised_error:
        error = raised_error  # raised below, after the other processes know of it
    if meeting is not None:
        texts = meeting.exchange_values("" if error is None else f"{type(error).__name__}: {error}", error)
        failed = [(process, text) for process, text in enumerate(texts) if text]
        if failed and error is None:
            raise OSError(f"{label} failed in process {failed[0][0]}: {failed[0][1]}")
    if error is not None:
        raise error

"""`serialise_leaves` and `deserialise_leaves`: Equinox's functions, with the axis names of every named array."""

import io
import json
import os
import zlib
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._ground.atomic_file import check_file_path, open_replacement
from .._ground.formats import format_axes, format_value
from ..named._array import is_named_array
from ..named._base import get_plain_array, with_array
from ..named._shape._rearrange import rearrange
from ..named._sharding import constrain_sharding
from ..state_dict._keys import check_can_be_saved, describe_random_keys, has_key_dtype, is_array_leaf


T = TypeVar("T")
_MAGIC = b"axonym leaves 1\n"
# After it come the length and the checksum of the header, the header in JSON, and the leaves as Equinox writes them.


def serialise_leaves(path_or_file: str | os.PathLike[str] | IO[bytes], tree: Any) -> None:
    """Writes the leaves of a tree to a file as `equinox.tree_serialise_leaves` does, and the names of their axes.

    Named arrays, other arrays, random keys and Python's numbers are written; functions, strings and static fields are
    not. A file of a path gets its name once it is complete and on disk; a link stays one. It is written by one process,
    from host memory; for models that are sharded over several processes there is
    `axonym.state_dict.save_safetensors`.

    Args:
        path_or_file: The path of the file, or a binary file that is open for writing.
        tree: A module or any other tree.

    Raises:
        TypeError: If `path_or_file` is neither a path nor a file.
        ValueError: If an array is sharded over several processes, a shape without data, traced, donated, a masked one
            of NumPy, or has Python objects.
        OSError: If the file cannot be written.

    Example:
        >>> import axonym as nym
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     nym.tree.serialise_leaves(file.name, nym.arange(nym.Axis("embed", 3)))
        ...     nym.tree.deserialise_leaves(file.name, nym.zeros({"embed": 3}, int)).array
        Array([0, 1, 2], dtype=int32)
    """
    _check_file("serialise_leaves", path_or_file, "write")
    for path, leaf in _list_leaves(tree):
        array = get_plain_array(leaf)
        if isinstance(array, np.ndarray) and array.dtype.hasobject:
            raise ValueError(f"{path or 'the array'} has Python objects, which cannot be read again; leave it out")
        check_can_be_saved(path or "the array", array)
        if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
            raise ValueError(
                f"{path or 'the array'} is sharded over several processes; use `axonym.state_dict.save_safetensors`"
            )
    if not isinstance(path_or_file, str | os.PathLike):
        return _write_leaves(path_or_file, tree)
    with open_replacement(check_file_path(path_or_file, "tree", "leaves")) as file:
        _write_leaves(file, tree)


def _write_leaves(file: IO[bytes], tree: Any) -> None:
    header = json.dumps({path: _describe_leaf_axes(leaf) for path, leaf in _list_leaves(tree)}).encode()
    file.write(_MAGIC + len(header).to_bytes(8, "little") + zlib.crc32(header).to_bytes(4, "little") + header)
    try:
        eqx.tree_serialise_leaves(cast(BinaryIO, file), jax.tree.map(_take_data, tree))
    except RuntimeError as error:  # Equinox hides the reason behind the path of the leaf
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__
        raise cause or error from None


def deserialise_leaves(path_or_file: str | os.PathLike[str] | IO[bytes], like: T) -> T:
    """Returns a tree with the leaves of a file that `serialise_leaves` has written.

    Axes in another order than in `like` are transposed back, where `equinox.tree_deserialise_leaves` would return the
    array transposed if the sizes are equal, and fail otherwise.

    Args:
        path_or_file: The path of the file, or a binary file that is open for reading and can be searched.
        like: A tree of the same structure, or its shapes as `equinox.filter_eval_shape` returns them.

    Returns:
        A tree of the same structure. Named arrays are sharded by the active mapping.

    Raises:
        TypeError: If `path_or_file` is neither a path nor a file.
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged or not of `serialise_leaves`, names or sizes of axes, dtypes or the leaves of
            the tree differ, or a leaf has 64 bits that JAX lacks without `jax_enable_x64`. The error lists all leaves
            that do not fit.

    Example:
        >>> import axonym as nym
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     nym.tree.serialise_leaves(file.name, {"weight": nym.ones({"mlp": 4, "embed": 4})})
        ...     loaded = nym.tree.deserialise_leaves(file.name, {"weight": nym.ones({"embed": 4, "mlp": 4})})
        ...     nym.tree.deserialise_leaves(file.name, {"weight": nym.ones({"embed": 4, "pos": 4})})
        Traceback (most recent call last):
        ValueError: the leaves do not fit:
          ['weight'] was saved as float32 (mlp: 4, embed: 4), in the tree it is float32 (embed: 4, pos: 4)
    """
    _check_file("deserialise_leaves", path_or_file, "read")
    if isinstance(path_or_file, str | os.PathLike):
        with Path(path_or_file).open("rb") as file:
            return deserialise_leaves(file, like)
    path = str(getattr(path_or_file, "name", "the file"))
    saved = _read_header(path_or_file, path)
    _check_leaves(saved, like)

    def order_as_saved(key_path: Any, leaf: Any) -> Any:
        if not is_named_array(leaf):
            return leaf
        axes = saved[jax.tree_util.keystr(key_path)]
        if [*leaf.names] == axes["names"]:
            return leaf
        make_shape = np.empty if isinstance(leaf.array, np.ndarray) else jax.ShapeDtypeStruct
        return with_array(leaf, make_shape(axes["sizes"], leaf.dtype), (*axes["names"],))

    shapes = jax.tree_util.tree_map_with_path(order_as_saved, like, is_leaf=is_named_array)
    try:
        loaded = eqx.tree_deserialise_leaves(cast(BinaryIO, path_or_file), jax.tree.map(_take_data_shape, shapes))
    except Exception as error:
        raise ValueError(f"{path!r} is damaged or truncated: {error}") from None
    return jax.tree.map(_restore_keys_and_order, like, loaded, is_leaf=is_named_array)


def _check_file(function: str, file: Any, method: str) -> None:
    """Raises a TypeError unless something is a path or a file that can be written or read."""
    if not isinstance(file, str | os.PathLike) and not hasattr(file, method):
        raise TypeError(f"`{function}` takes a path or a binary file first and then the tree, not {format_value(file)}")
    if isinstance(file, io.TextIOBase):
        raise TypeError(f"`{function}` takes a binary file; open it in mode 'wb' or 'rb'")


def _list_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Returns the path and the value of each array and each number."""
    pairs = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_named_array)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in pairs if is_array_leaf(leaf) or _is_number(leaf)]


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float | complex | np.generic)


def _describe_leaf_axes(leaf: Any) -> dict[str, Any]:
    if _is_number(leaf):
        return {"names": None, "sizes": None, "dtype": type(leaf).__name__, "keys": None}
    array = get_plain_array(leaf)
    names = [*leaf.names] if is_named_array(leaf) else None
    keys = describe_random_keys(array)[0] if has_key_dtype(array) else None
    return {"names": names, "sizes": [*array.shape], "dtype": str(array.dtype), "keys": keys}


def _format_saved(saved: dict[str, Any]) -> str:
    if saved["sizes"] is None:
        return saved["dtype"]
    shape = tuple(saved["sizes"]) if saved["names"] is None else format_axes(saved["names"], saved["sizes"])
    return f"{saved['keys'] or saved['dtype']} {shape}"


def _read_header(file: IO[bytes], path: str) -> dict[str, Any]:
    """Returns what has been saved by path."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError(
            f"{path!r} is not a file of `serialise_leaves`, or damaged; `equinox.tree_deserialise_leaves` reads "
            "those of Equinox"
        )
    length, checksum = int.from_bytes(file.read(8), "little"), int.from_bytes(file.read(4), "little")
    # A damaged length may be larger than the memory, so that no more is read than the file has.
    start, size = file.tell(), file.seek(0, os.SEEK_END)
    header = file.read(length) if file.seek(start) + length <= size else b""
    if len(header) != length or zlib.crc32(header) != checksum:
        raise ValueError(f"{path!r} is damaged or truncated: its header does not fit")
    try:
        saved = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path!r} is damaged or truncated: {error}") from None
    if not isinstance(saved, dict):
        raise ValueError(f"{path!r} is damaged or truncated: its header is no object in JSON")
    return saved


def _check_leaves(saved: dict[str, Any], like: Any) -> None:
    """Raises a ValueError for all leaves that do not fit."""
    expected = {path: _describe_leaf_axes(leaf) for path, leaf in _list_leaves(like)}
    reasons = [f"{path or 'the leaf'} is not in the file" for path in expected if path not in saved]
    reasons += [f"{path or 'the leaf'} is not in the tree" for path in saved if path not in expected]
    for path, axes in expected.items():
        if path in saved and _sort_axes(saved[path]) != _sort_axes(axes):
            difference = f"{_format_saved(saved[path])}, in the tree it is {_format_saved(axes)}"
            reasons.append(f"{path or 'the leaf'} was saved as {difference}")
    # Equinox makes JAX arrays for shapes, which lose half of their 64 bits.
    for path, leaf in _list_leaves(like):
        array = get_plain_array(leaf)
        if isinstance(array, jax.ShapeDtypeStruct) and not has_key_dtype(array):
            jax_dtype = jax.dtypes.canonicalize_dtype(array.dtype)
            if jax_dtype != array.dtype:
                reasons.append(
                    f"{path or 'the leaf'} is {array.dtype} in the tree, and JAX has {jax_dtype} for that without "
                    "`jax_enable_x64`; set that option, or make the leaf a NumPy array"
                )
    if reasons:
        raise ValueError("\n  ".join(["the leaves do not fit:", *reasons]))


def _sort_axes(described: dict[str, Any]) -> Any:
    names, sizes = described["names"], described["sizes"]
    axes = sizes if names is None else sorted(zip(names, sizes, strict=True))
    return axes, names is None, described["dtype"], described["keys"]


def _take_data(leaf: Any) -> Any:
    """Returns the data of random keys, and integers of the same bits for elements that NumPy's files do not hold."""
    if not is_array_leaf(leaf):
        return leaf
    if has_key_dtype(leaf):
        return jax.random.key_data(leaf)
    return np.asarray(leaf).view(f"u{leaf.dtype.itemsize}") if _is_extension_type(leaf) else leaf


def _take_data_shape(leaf: Any) -> Any:
    """Returns what Equinox needs to read `_take_data` of an array of this shape."""
    if not is_array_leaf(leaf):
        return leaf
    if has_key_dtype(leaf):
        return describe_random_keys(leaf)[1]
    return np.empty(leaf.shape, f"u{leaf.dtype.itemsize}") if _is_extension_type(leaf) else leaf


def _is_extension_type(x: Any) -> bool:
    """Returns whether elements are of a type that NumPy itself lacks, such as bfloat16."""
    return np.dtype(x.dtype).isbuiltin != 1


def _restore_keys_and_order(like: Any, loaded: Any) -> Any:
    """Returns a leaf with random keys for their data, and its axes in the order of the tree."""
    if not is_array_leaf(like):
        return loaded
    like_array, array = get_plain_array(like), get_plain_array(loaded)
    if has_key_dtype(like_array):
        array = jax.random.wrap_key_data(array, impl=describe_random_keys(like_array)[0])
    elif _is_extension_type(like_array):
        array = array.view(like_array.dtype)
        array = array if isinstance(like_array, np.ndarray) else jnp.asarray(array)
    if not is_named_array(like):
        return array
    if isinstance(like_array, np.ndarray):  # not by JAX, which may have fewer bits
        return with_array(like, array.transpose([loaded.names.index(name) for name in like.names]))
    return constrain_sharding(rearrange(with_array(loaded, array), like.names))

"""`restore`: the state that was saved at a step, on any devices."""

import functools
import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

from .._ground.arguments import check_flag
from .._ground.caches import cached_plan
from .._ground.errors import find_stacklevel
from .._ground.formats import format_value
from ..multihost._shared_values import broadcast_from_host_zero
from ..named._array import NamedArray
from ..named._axis import Names
from ..named._axis_layout import MeshLike
from ..named._base import NamedBase, get_plain_array, with_array
from ..partitioning._active_mesh import get_active_mesh
from ..partitioning._mapping import ResourceMapping
from ..partitioning._shard import infer_resource_partitions, pad_spec
from ..state_dict._safetensors import AxisOrder, check_axis_order
from ._check_like import check_leaves, check_widths, warn_of_static_fields
from ._checksums import Checksums, check_blocks, check_sizes, is_array_data, list_blocks, read_checksums
from ._data_state import Resumable, check_resumable, read_data_state
from ._errors import TIMEOUT_SECONDS, DamagedCheckpointError, agree_on_result, check_is_not_traced, import_orbax_handler
from ._steps import check_is_path, find_steps, get_step_folder, list_steps
from ._tree_metadata import (
    ARRAY_KINDS,
    LeafMetadata,
    Node,
    TreeMetadata,
    describe_tree,
    flatten_leaves,
    get_key_dtype,
    get_static_fields,
    iterate_nodes,
)


def restore(
    folder: str | os.PathLike[str],
    like: Any = None,
    *,
    step: int | None = None,
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    data: Resumable | None = None,
    axis_order: AxisOrder = "transpose",
    strict: bool = True,
    fallback: bool = False,
) -> Any:
    """Returns the state that was saved at a step, on the devices of this program.

    The mesh, the mapping, the type of mesh axes and the number of processes may all be others than those that saved it.
    Each process reads the parts of the arrays that its devices hold. Arrays are sharded by the mapping, as
    `axonym.shard` does it. Without a mesh, they go where those of `like` are, or to the default device.

    With `like`, paths, axes, element types and the types of Python numbers are compared with what was saved; values of
    `like` are not used. Static fields of modules and leaves such as functions come from `like`, with a warning if they
    were others. Without `like`, dicts, lists and tuples come back as such, and all other nodes, modules included, as
    dicts by the names of their fields. Named arrays have their names and their axes in the order of the checkpoint,
    NumPy arrays stay NumPy arrays, and leaves such as functions are left out.

    All files are compared with their checksums while they are read, by all processes together.

    Args:
        folder: The folder of the checkpoints.
        like: A tree of the arrays to restore, or of `jax.ShapeDtypeStruct`s, as `equinox.filter_eval_shape` makes it.
        step: Which step to restore; the newest if None.
        mapping: From names to mesh axes; the active mapping if None. If given, it decides for arrays of `like`, too,
            that are already sharded.
        mesh: The mesh, with devices; the active mesh if None.
        data: Iterator over the data; its `set_state` gets the state that this process saved.
        axis_order: What happens to an array whose axes were saved in another order: `"transpose"` returns it in the
            order of `like`, and `"error"` raises an error.
        strict: Whether leaves of the checkpoint that are not in `like` are an error; they are left out if not.
        fallback: Whether to take the newest checkpoint that is not damaged, with a warning, if no step is given.

    Returns:
        A tree with the structure of `like`, or of nested dicts, lists and tuples.

    Raises:
        TypeError: If `folder` is no path, or another argument has the wrong type.
        FileNotFoundError: If there is no checkpoint, or none of this step, or another program deletes it meanwhile.
        ValueError: If leaves are missing or unexpected, or have other axes or types: all of them are listed. If JAX
            would narrow elements of 64 bits, since `jax_enable_x64` is off, or this is called inside `jit`. If an axis
            cannot be sharded by the mapping. If processes saved different states of the data and their number has
            changed.
        DamagedCheckpointError: If a file is missing or was changed, or cannot be read as what it should be. The message
            names the file. It is a ValueError.

    Example:
        >>> import axonym as nym
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> nym.checkpoint.save(folder, {"weight": nym.ones({"mlp": 2, "embed": 3}), "epoch": 4}, step=10)
        >>> like = {"weight": nym.zeros({"embed": 3, "mlp": 2}), "epoch": 0}
        >>> state = nym.checkpoint.restore(folder, like)
        >>> state["weight"].shape, state["epoch"]
        ((embed: 3, mlp: 2), 4)
    """
    options = RestoreOptions(mapping, mesh, axis_order, strict, TIMEOUT_SECONDS)
    state, _ = restore_step(folder, like, options, step=step, data=data, fallback=fallback)
    return state


class RestoreOptions(NamedTuple):
    """Where to restore arrays to, how they are compared with `like`, and how long processes wait; see `restore`."""

    mapping: ResourceMapping | None
    mesh: MeshLike | None
    axis_order: AxisOrder
    strict: bool
    seconds: float


def restore_step(
    folder: str | os.PathLike[str],
    like: Any,
    options: RestoreOptions,
    *,
    step: int | None,
    data: Resumable | None,
    fallback: bool,
) -> tuple[Any, int]:
    """Returns a state and its step; arguments as for `restore`."""
    check_is_path(folder, "`restore(folder, like)`")
    check_axis_order(options.axis_order)
    check_flag("`strict`", options.strict)
    check_flag("`fallback`", fallback)
    check_is_not_traced()
    if fallback and step is not None:
        raise ValueError("`fallback` chooses among the newest checkpoints; leave it out, or leave out `step`")
    path = Path(folder).absolute()

    def list_candidates() -> list[int]:
        purpose = "restores the newest step" if step is None else f"restores step {format_value(step)}"
        steps = agree_on_result(
            f"the checkpoints in {path}", lambda: find_steps(path, step), seconds=options.seconds, purpose=purpose
        )
        return broadcast_from_host_zero(steps, timeout=options.seconds)

    steps = list_candidates()
    while True:
        newest, *older_steps = steps
        try:
            return _restore_folder(path, newest, like, options, data), newest
        except DamagedCheckpointError as error:
            subject = f"the checkpoint of step {newest}"
            was_deleted = newest not in list_steps(path)  # by another program, which keeps fewer of them
            if broadcast_from_host_zero(was_deleted, timeout=options.seconds):
                if step is not None:
                    message = f"{subject} in {path} was deleted while it was read; restore a newer one"
                    raise FileNotFoundError(message) from error
                steps = list_candidates()
            elif older_steps and fallback:
                warnings.warn(f"skipped {subject}: {error}", stacklevel=find_stacklevel())
                steps = older_steps
            else:
                remedy = ""
                if older_steps:
                    remedy = f"; `step={older_steps[0]}` restores the one before, as `fallback=True` does"
                raise DamagedCheckpointError(f"{subject} is damaged: {error}{remedy}") from error


def _restore_folder(path: Path, step: int, like: Any, options: RestoreOptions, data: Resumable | None) -> Any:
    folder, subject = get_step_folder(path, step), f"the checkpoint of step {step} in {path}"

    def read() -> tuple[list[PlannedLeaf], Any, dict[str, Any], Any]:
        checksums = read_checksums(folder.parent)
        metadata = read_metadata(folder, checksums)
        leaves, treedef = make_plan(metadata, like, options, subject)
        return leaves, treedef, read_stored_arrays(folder, leaves, checksums), _read_data(folder, metadata, data)

    leaves, treedef, arrays, state = agree_on_result(subject, read, seconds=options.seconds)
    # Each array is let go once its leaf is made, since both are in memory until then.
    tree = jax.tree.unflatten(treedef, [place_leaf(arrays.pop(leaf.saved.path, None), leaf) for leaf in leaves])
    # Only now, so that the iterator goes on as before if the restore fails in some process.
    if data is not None:
        data.set_state(state)
    return tree


class PlannedLeaf(NamedTuple):
    """A leaf to restore: as it was saved and as it is requested, the leaf of `like`, and the sharding to give it."""

    saved: LeafMetadata
    requested: LeafMetadata
    like: Any
    sharding: Any


def make_plan(
    metadata: TreeMetadata, like: Any, options: RestoreOptions, subject: str
) -> tuple[list[PlannedLeaf], Any]:
    """Returns the leaves of the result and its structure; raises a ValueError if they are not in the checkpoint."""
    saved_leaves = metadata.get_leaves()
    if isinstance(like, int) and "" not in saved_leaves:
        raise ValueError(f"`like` is a tree like the one to restore, not {like!r}; pass a step as `step={like!r}`")
    if like is None:
        paths, treedef = jax.tree.flatten(_replace_leaves(metadata.tree))
        requested_leaves = {path: saved_leaves[path] for path in paths}
        likes = [*map(make_shape, requested_leaves.values())]
    else:
        described = describe_tree(like)
        leaves, treedef = flatten_leaves(like)
        likes = [*leaves.values()]
        requested_leaves = {leaf.path: leaf for leaf in iterate_nodes(described) if isinstance(leaf, LeafMetadata)}
        check_leaves(saved_leaves, requested_leaves, options.axis_order, options.strict, subject)
        warn_of_static_fields(get_static_fields(metadata.tree), get_static_fields(described), subject)
    check_widths(requested_leaves, subject)
    shardings = find_shardings(jax.tree.unflatten(treedef, likes), likes, options.mapping, options.mesh)
    entries = zip(requested_leaves.values(), likes, shardings, strict=True)
    return [PlannedLeaf(saved_leaves[requested.path], requested, *entry) for requested, *entry in entries], treedef


def _replace_leaves(node: Node | LeafMetadata) -> Any:
    """Returns the tree of a checkpoint as dicts, lists and tuples, with paths in place of the leaves."""
    if isinstance(node, LeafMetadata):
        return node.path
    children: dict[Any, Any] = {}
    for key, child in zip(node.keys, node.children, strict=True):
        if not (isinstance(child, LeafMetadata) and child.kind == "object"):
            children[key] = _replace_leaves(child)
    if node.kind in ("list", "tuple"):
        return (list if node.kind == "list" else tuple)(children.values())
    return children


def read_metadata(folder: Path, checksums: Checksums) -> TreeMetadata:
    """Returns the metadata of a checkpoint, after all files but those of arrays have been checked."""
    check_sizes(checksums)
    check_blocks(checksums, [block for block in list_blocks(checksums) if not is_array_data(block[0])])()
    return TreeMetadata.read(folder)


def read_stored_arrays(folder: Path, leaves: list[PlannedLeaf], checksums: Checksums) -> dict[str, Any]:
    """Returns the arrays by path, as they are stored; this process checks its share of the files meanwhile."""
    stored_leaves: dict[str, tuple[LeafMetadata, Any]] = {}
    for saved, requested, _, sharding in leaves:
        if saved.is_stored:
            is_numpy = requested.kind.startswith("numpy")
            stored_leaves[saved.path] = saved, None if is_numpy else get_stored_sharding(saved, requested, sharding)
    blocks = [block for block in list_blocks(checksums) if is_array_data(block[0])]
    wait_for_checks = check_blocks(checksums, blocks[jax.process_index() :: jax.process_count()])
    try:
        return import_orbax_handler().read_arrays(folder, stored_leaves)
    finally:
        wait_for_checks()  # a damaged file matters more than the errors that it causes


def _read_data(folder: Path, metadata: TreeMetadata, data: Resumable | None) -> Any:
    if data is None:
        return None
    if not metadata.has_data_state:
        raise ValueError(f"the checkpoint in {folder} has no state of the data; restore it without `data`")
    check_resumable(data, "set_state")
    return read_data_state(folder, jax.process_index(), jax.process_count(), metadata.process_count)


def find_shardings(tree: Any, leaves: list[Any], mapping: ResourceMapping | None, mesh: MeshLike | None) -> list[Any]:
    """Returns the sharding of each leaf of a tree, None for those that are not arrays or are on the default device."""
    mesh = get_active_mesh() if mesh is None else mesh
    if mesh is None and mapping is None:
        return [_get_own_sharding(leaf) for leaf in leaves]
    if mesh is None:
        raise ValueError("`mapping` needs a mesh to restore onto; set one with `jax.set_mesh(mesh)` or pass `mesh=`")
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise TypeError(f"`mesh` is a mesh with devices, not {format_value(mesh)}")
    if not isinstance(mesh, Mesh):
        raise ValueError("a checkpoint is restored onto a mesh with devices, outside of `jit`; this mesh has none")
    shardings = infer_resource_partitions(tree, mapping, preserve_existing_shardings=mapping is None, mesh=mesh)
    return jax.tree.leaves(shardings, is_leaf=lambda x: x is None)


def _get_own_sharding(leaf: Any) -> Any:
    """Returns the sharding that an array was given; an uncommitted array may be moved by JAX, and so has none."""
    array = get_plain_array(leaf)
    sharding = getattr(array, "sharding", None)
    if isinstance(sharding, NamedSharding) and not isinstance(sharding.mesh, Mesh):
        return None
    return sharding if getattr(array, "committed", True) else None


def make_shape(leaf: LeafMetadata) -> Any:
    """Returns a stand-in for a leaf: a shape without data for an array, with its names."""
    match leaf.kind:
        case "array" | "key":
            dtype = get_key_dtype(leaf.dtype) if leaf.kind == "key" else jnp.dtype(leaf.dtype)
            shape = jax.ShapeDtypeStruct(leaf.shape, dtype)
        case "numpy":
            shape = np.broadcast_to(np.zeros((), jnp.dtype(leaf.dtype)), leaf.shape)
        case "numpy scalar":
            shape = jnp.dtype(leaf.dtype).type(0)
        case _:
            return leaf.decode()
    return shape if leaf.names is None else NamedArray(shape, leaf.names)


def find_order(saved_names: Names | None, requested_names: Names | None) -> tuple[int, ...] | None:
    """Returns the position in the checkpoint of each requested axis, None if they are in order."""
    if saved_names is None or requested_names is None or saved_names == requested_names:
        return None
    return tuple(saved_names.index(name) for name in requested_names)


def get_stored_sharding(saved: LeafMetadata, requested: LeafMetadata, sharding: Any) -> Any:
    """Returns the sharding with which an array is read, for its axes in the order of the checkpoint."""
    order = find_order(saved.names, requested.names)
    if isinstance(sharding, NamedSharding):
        entries = pad_spec(sharding.spec, len(saved.shape)).partitions
        if order is not None:
            entries = [entries[order.index(dim)] for dim in range(len(order))]
        key_entries = [None] * (len(saved.stored_shape) - len(saved.shape))  # of the data of random keys
        return NamedSharding(sharding.mesh, P(*entries, *key_entries), memory_kind=sharding.memory_kind)
    if order is not None and sharding is not None and not isinstance(sharding, SingleDeviceSharding):
        raise ValueError(f"{saved.path} cannot be transposed onto {sharding}; pass a mesh")
    return sharding


def enter_mesh_of(sharding: Any) -> AbstractContextManager[Any]:
    """Makes the mesh of a sharding the active one, none if it has no mesh, for operations outside of `jit`."""
    return jax.set_mesh(cast(Mesh, sharding.mesh) if isinstance(sharding, NamedSharding) else None)


def place_leaf(array: Any, leaf: PlannedLeaf) -> Any:
    """Returns a restored leaf, made of the array that was read, if the leaf has elements in the files."""
    saved, requested, like, sharding = leaf
    if saved.kind not in ARRAY_KINDS:
        return like if saved.kind == "object" else saved.decode()
    if not saved.is_stored:
        array = np.zeros(saved.stored_shape, jnp.dtype(saved.stored_dtype))
    order = find_order(saved.names, requested.names)
    if requested.kind in ("numpy", "numpy scalar"):
        array = np.asarray(array) if order is None else np.ascontiguousarray(np.transpose(array, order))
        array = array[()] if requested.kind == "numpy scalar" else array
    else:
        with enter_mesh_of(sharding):
            # Arrays that were saved by NumPy, or are empty, are still on the host.
            if not isinstance(array, jax.Array):
                array = array if order is None else np.transpose(array, (*order, *range(len(order), array.ndim)))
                array, order = jax.device_put(array, get_stored_sharding(requested, requested, sharding)), None
            if saved.kind == "key":
                array = jax.random.wrap_key_data(array, impl=saved.dtype)
            if order is not None:
                array = _make_transpose(order, sharding)(array)
    return with_array(like, array) if isinstance(like, NamedBase) else array


@cached_plan
def _make_transpose(order: tuple[int, ...], sharding: Any) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(functools.partial(jnp.transpose, axes=order), out_shardings=sharding)

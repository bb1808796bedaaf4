"""`assert_sharding_lock`: an error where specs differ from those in a file that was checked in."""

import os
from typing import Any

from .._ground.formats import shorten_list
from ..named._axis_layout import MeshLike
from ._lock_file import compare_with_lock, make_lock, save_lock
from ._sharding_analyzer import ShardingAnalyzer
from ._sharding_report import ShardingReport


_UPDATE = "AXONYM_UPDATE_LOCK"  # the environment variable with which locks are written again
_UNSET = ("", "0", "false", "no")  # values of environment variables
_MOST_LINES = 50


def assert_sharding_lock(
    tree: Any,
    path: str | os.PathLike[str],
    partition_specs: Any = None,
    *,
    mesh: MeshLike | None = None,
) -> None:
    """Asserts that all arrays of a tree are sharded as a lock file specifies, so that a diff shows each change.

    `ShardingReport.save_lock` writes the file. It is text, made to be committed: the mesh, and one line for each array
    with its shape, the names of its axes and its spec. Another way to write the same spec is not a change: trailing
    Nones, `("data",)` for `"data"`, mesh axes of size 1. If an array is not on the mesh but on the host, on one
    device or on another mesh, its place is in the file, by mesh axes and not by single devices. The mesh axes
    that an array is `unreduced` or `reduced` over are in the file too. Element types are not.

    To accept changes, run the tests with the environment variable `AXONYM_UPDATE_LOCK=1`, which writes the files again
    where something differs, and commit them. Where `CI` is set, as all common services do, files are never written.

    Args:
        tree: A `ShardingReport`, or a tree of arrays or `jax.ShapeDtypeStruct`s.
        path: The lock file.
        partition_specs: The specs of the tree, or a `ShardingRule` that chooses them; the arrays' own shardings if
            None.
        mesh: The mesh, with devices or abstract; the active mesh if None, or the mesh of the arrays.

    Raises:
        AssertionError: If something differs, with a line for each array that is added, removed, resized or moved.
        FileNotFoundError: If the file does not exist; the message shows how to make one.
        ValueError: If the file is damaged, or the specs have problems.
        TypeError: If specs or a mesh are given with a report, which has both.

    Example:
        >>> import axonym as nym
        >>> import jax, pathlib, tempfile
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> params = {"weight": jax.ShapeDtypeStruct((8, 16), "float32")}
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "sharding.lock"
        >>> nym.ShardingAnalyzer(mesh).sharding_report(params, {"weight": P("data")}).save_lock(path)
        >>> nym.assert_sharding_lock(params, path, {"weight": P(("data",), None)}, mesh=mesh)
        >>> nym.assert_sharding_lock(params, path, {"weight": P("model")}, mesh=mesh)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        AssertionError: the shardings differ from the sharding lock ...
          moved    ['weight'] (8, 16): P('data', None) -> P('model', None)
        ...
    """
    __tracebackhide__ = True  # pytest then shows the line of the test
    if not isinstance(tree, ShardingReport):
        tree = ShardingAnalyzer(mesh).sharding_report(tree, partition_specs)
    elif partition_specs is not None or mesh is not None:
        raise TypeError("A `ShardingReport` has its specs and its mesh; leave out `partition_specs` and `mesh`.")
    lock = make_lock(tree.leaves, tree.mesh, tree.problems)
    if _is_set(_UPDATE) and not _is_set("CI"):
        try:
            is_same = not compare_with_lock(path, lock, "")
        except (FileNotFoundError, ValueError):
            is_same = False
        if not is_same:
            save_lock(lock, path)
        return
    remedy = f"make one with `report.save_lock(path)`, or by running with {_UPDATE}=1 outside CI, and commit it"
    lines = compare_with_lock(path, lock, remedy)
    if lines:
        heading = f"the shardings differ from the sharding lock {os.fspath(path)!r}:"
        advice = f"If this is intended, run once with {_UPDATE}=1 outside CI, and commit the file."
        raise AssertionError("\n".join([heading, *(f"  {line}" for line in shorten_list(lines, _MOST_LINES)), advice]))


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() not in _UNSET

"""`assert_sharding_lock`: the assertion for tests that no change has moved an array that nobody meant to move."""

import os
from collections.abc import Mapping
from typing import Any

from ..partitioning.specs._active_mesh import MeshLike
from ._analyzer import ShardingAnalyzer
from ._lock import differences, lock_of, read_lock, save_lock
from ._report import ShardingReport


_UPDATE = "AXONYM_UPDATE_LOCK"
_MOST_LINES = 50
_NO = ("", "0", "false", "no")


def assert_sharding_lock(
    tree: Any,
    path: str | os.PathLike[str],
    partition_specs: Any = None,
    *,
    mesh: MeshLike | None = None,
) -> None:
    """Asserts that all arrays of a tree go where a lock file says, so that a diff shows each change of that.

    `ShardingReport.save_lock` writes the file. It is text, made to be committed: the mesh, and one line for each array
    with its shape, the names of its axes and its spec. What is only written in another way is no change: trailing
    Nones, `("data",)` for `"data"`, mesh axes of size 1. Of an array that is not on the mesh, as on the host, on one
    device or on another mesh, the file says where it is, by the mesh axes and not by single devices. Over which mesh
    axes an array is `unreduced` or `reduced` is there too. Element types are not in it.

    To accept changes, run the tests with the environment variable `AXONYM_UPDATE_LOCK=1`, which writes the files anew
    where something differs, and commit them. Where `CI` is set, as all common services do, files are never written.

    Args:
        tree: A `ShardingReport`, or a tree of arrays or `jax.ShapeDtypeStruct`s.
        path: The lock file.
        partition_specs: The specs of the tree, or a `ShardingRule` that chooses them; where the arrays lie, or are
            to lie, by their own shardings if None.
        mesh: The mesh, with devices or abstract; the one in force if None, or that of the arrays.

    Raises:
        AssertionError: If something differs, with a line for each array that is added, removed, resized or moved.
        FileNotFoundError: If there is no such file; it says how to make one.
        ValueError: If the file is damaged, or something is wrong with the specs.
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
        AssertionError: arrays do not go where ...
          moved    ['weight'] (8, 16): P('data', None) -> P('model', None)
        ...
    """
    __tracebackhide__ = True  # pytest then shows the line of the test
    report = _reported(tree, partition_specs, mesh)
    found = lock_of(report.leaves, report.mesh, report.problems)
    if _rewriting(os.environ):
        try:
            changed = differences(read_lock(path, ""), found)
        except (FileNotFoundError, ValueError):
            changed = ["the file"]
        if changed:
            save_lock(found, path)
        return
    remedy = f"make one with `report.save_lock(path)`, or by running with {_UPDATE}=1 outside CI, and commit it"
    lines = differences(read_lock(path, remedy), found)
    if lines:
        more = [f"and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
        first = f"arrays do not go where the sharding lock {os.fspath(path)!r} says:"
        last = f"If this is meant, run once with {_UPDATE}=1 outside CI, and commit the file."
        raise AssertionError("\n".join([first, *(f"  {line}" for line in [*lines[:_MOST_LINES], *more]), last]))


def _reported(tree: Any, partition_specs: Any, mesh: MeshLike | None) -> ShardingReport:
    """Returns the report to compare."""
    if not isinstance(tree, ShardingReport):
        return ShardingAnalyzer(mesh).sharding_report(tree, partition_specs)
    if partition_specs is not None or mesh is not None:
        raise TypeError("A `ShardingReport` has its specs and its mesh; leave `partition_specs` and `mesh` away.")
    return tree


def _rewriting(environment: Mapping[str, str]) -> bool:
    """Tells whether changes are accepted: if somebody says so, and never in CI."""
    update, ci = (environment.get(name, "").strip().lower() not in _NO for name in (_UPDATE, "CI"))
    return update and not ci

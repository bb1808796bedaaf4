"""Which devices exchange data in a collective, and the mesh axes along which they differ."""

import itertools
import math
import re
from collections.abc import Mapping

import numpy as np


_LISTS = re.compile(r"replica_groups=\{(?P<lists>(?:\{[\d,]*\},?)*)\}")
_RANGE = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? ?\{([^}]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_MESH_AXIS = re.compile(r"'([^']*)'=(\d+)")
_TAKEN_AXIS = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")


def read_replica_groups(attributes: str, devices: int) -> np.ndarray | None:
    """Returns the groups of devices of a collective, by their places in the mesh.

    XLA writes lists (`{{0,1},{2,3}}`), a range that is reshaped and transposed (`[4,2]<=[2,4]T(1,0)`), or axes of a
    mesh of its own (`mesh['axis_0'=2,'axis_1'=4] {'axis_0'}`), of which it may take a part (`'axis_1':(2)2`). No
    groups, or an empty list of them, mean all devices. The pairs of a permutation are groups of two: from and to.

    Args:
        attributes: What follows the operands of the instruction.
        devices: The number of devices of the program.

    Returns:
        Integers of shape (groups, members); None if the form is unknown or the groups differ in size.
    """
    if found := _PAIRS.search(attributes):
        return np.array(re.findall(r"\{(\d+),(\d+)\}", found[1]), int).reshape(-1, 2)
    if found := _LISTS.search(attributes):
        groups = [_read_numbers(part) for part in re.findall(r"\{([\d,]*)\}", found[1])]
        if len({len(group) for group in groups}) > 1:
            return None
        return np.array(groups) if groups else np.arange(devices)[None]
    if found := _RANGE.search(attributes):
        return _make_range(found[2], found[3]).reshape(_read_numbers(found[1]))
    if found := _MESH.search(attributes):
        order = _make_range(found[2], found[3]) if found[2] else None
        return _read_mesh_groups(found[1], order, found[4])
    return None if "replica_groups=" in attributes else np.arange(devices)[None]


def find_group_axes(groups: np.ndarray, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the mesh axes along which the members of a group differ.

    Args:
        groups: As `read_replica_groups` returns them.
        mesh: The sizes of the mesh axes.
    """
    if not mesh or not groups.size or groups.max() >= math.prod(mesh.values()):
        return ()
    places = np.stack(np.unravel_index(groups, tuple(mesh.values())))  # (mesh axes, groups, members)
    varies = (places != places[:, :, :1]).any(axis=(1, 2))
    return tuple(axis for axis, is_along in zip(mesh, varies, strict=True) if is_along)


def _read_numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]


def _make_range(sizes: str, order: str | None) -> np.ndarray:
    """Returns the numbers from 0 on in an array of these sizes, its dimensions in this order, flat."""
    shape = _read_numbers(sizes)
    return np.arange(math.prod(shape)).reshape(shape).transpose(_read_numbers(order) if order else None).ravel()


def _read_mesh_groups(mesh: str, devices: np.ndarray | None, axes: str) -> np.ndarray | None:
    """Returns the groups along axes, or parts of axes, of a mesh.

    A part `(before)size` of an axis is a dimension of that size, with `before` as the product of the sizes that come
    before it in the axis. So each axis is split at the places where some part starts or ends.
    """
    sizes = {name: int(size) for name, size in _MESH_AXIS.findall(mesh)}
    taken = [
        (name, int(before or 1), int(size or sizes.get(name, 0))) for name, before, size in _TAKEN_AXIS.findall(axes)
    ]
    if not all(name in sizes for name, _, _ in taken):
        return None
    dims: list[tuple[str, int, int]] = []
    for name, whole in sizes.items():
        cuts = sorted(
            {1, whole, *(cut for one, before, size in taken if one == name for cut in (before, before * size))}
        )
        dims += [(name, start, end // start) for start, end in itertools.pairwise(cuts)]
    shape = [size for _, _, size in dims]
    inner = [at for at, (name, start, size) in enumerate(dims) if _is_taken(taken, name, start, size)]
    outer = [at for at in range(len(dims)) if at not in inner]
    places = np.arange(math.prod(shape)) if devices is None else devices
    members = math.prod(shape[at] for at in inner)
    return places.reshape(shape).transpose([*outer, *inner]).reshape(-1, members)


def _is_taken(taken: list[tuple[str, int, int]], name: str, start: int, size: int) -> bool:
    return any(one == name and before <= start and start * size <= before * whole for one, before, whole in taken)

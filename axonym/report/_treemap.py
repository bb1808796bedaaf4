"""The arrays of a tree as nested groups by their paths, with their bytes: what the page draws as a treemap."""

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias


# A key as `jax.tree_util.keystr` writes it: `['name']`, `[0]` or `.name`.
_KEY = re.compile(r"""\[(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]|\[(?P<index>[^\]]*)\]|\.(?P<name>[^.\[]+)""")


class Group(NamedTuple):
    """Arrays and groups whose paths begin alike, the largest first; an array is its place in the order of the tree."""

    name: str
    path: str
    bytes: int
    members: tuple["Member", ...]


Member: TypeAlias = Group | int
_Paths: TypeAlias = list[tuple[tuple[str, ...], int]]


def path_parts(path: str) -> tuple[str, ...]:
    """Returns the keys of a path, written as `['layers'][0].weight` or as `layers/0/weight`."""
    if path[:1] not in ("[", "."):
        return tuple(part for part in path.split("/") if part)
    parts, at = [], 0
    while (found := _KEY.match(path, at)) is not None:
        text, index, name = found.groups()
        parts.append(text[1:-1] if text is not None else index if index is not None else name)
        at = found.end()
    rest = path[at:]
    return (*parts, rest) if rest else tuple(parts)


def grouped(paths: Sequence[str], sizes: Sequence[int]) -> Group:
    """Returns the arrays with these paths and bytes as one group of groups; those of one member are left out."""
    return _group((), [(path_parts(path), at) for at, path in enumerate(paths)], sizes)


def _group(path: tuple[str, ...], inside: _Paths, sizes: Sequence[int], above: int = 0) -> Group:
    """Returns the group at a path; it is called by what comes after the first keys, which the group around it has."""
    depth = len(path)
    below: dict[str, _Paths] = {}
    members: list[tuple[int, Member]] = []
    for parts, at in inside:
        if len(parts) > depth + 1:
            below.setdefault(parts[depth], []).append((parts, at))
        else:
            members.append((sizes[at], at))
    if len(below) == 1 and not members:
        (key,) = below
        return _group((*path, key), below[key], sizes, above)
    for key, paths in below.items():
        group = _group((*path, key), paths, sizes, depth)
        # A group of one array would be a frame around it and nothing more.
        lone = group.members[0] if len(group.members) == 1 else group
        members.append((group.bytes, lone))
    members.sort(key=lambda member: -member[0])
    total = sum(size for size, _ in members)
    return Group("/".join(path[above:]), "/".join(path), total, tuple(member for _, member in members))

"""`visualize_shardings`: the arrays of a tree in a terminal, and for each sharding which device holds which part."""

import importlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from jax.sharding import AxisType, Mesh

from ..partitioning.specs._active_mesh import MeshLike
from ._explain import explained_as_they_lie
from ._explanation import AxisExplanation, LeafExplanation, mesh_in_words
from ._table import format_bytes
from ._treemap import path_parts


if TYPE_CHECKING:
    from rich.console import Console

# Colours of Okabe and Ito, which people who are colour-blind tell apart and which read on light and on dark.
_COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#0072b2", "#f0e442")
_BAR = 10
_NARROW = 72  # columns, below which there is no room for bars
_MOST_PICTURES, _MOST_ROWS, _MOST_COLUMNS, _MOST_IDS = 8, 16, 8, 8


def visualize_shardings(
    tree: Any,
    mesh: MeshLike | None = None,
    *,
    console: "Console | None" = None,
    limit: int | None = 40,
) -> None:
    """Prints the arrays of a tree in the terminal, in colours, and which part of them each device holds.

    Each array has a line: its axes, its spec, and what it takes on each device, as a number and as a bar; the colours
    are those of the mesh axes. Arrays that are alike and whose paths differ in numbers alone, as those of layers do,
    share a line. Below, each sharding has a picture: a cell for each part of an array, with the devices that hold it.
    Devices of an abstract mesh are numbered by their places, and those of an `Explanation` too, which does not know
    them, unless the mesh is given. It takes the arrays as they lie, whatever mapping is in
    force, and prints once, while the function is traced, inside `jax.jit`. It needs rich: `pip install axonym[report]`.

    Args:
        tree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays, or a `ShardingReport` or an `Explanation`.
        mesh: The mesh; the one that the arrays lie on, or that is in force, if None.
        console: Where to print; the terminal if None.
        limit: How many lines of arrays are shown; all of them if None. The totals are of all.

    Raises:
        ImportError: If rich is not installed.
        ValueError: If the limit is negative.

    Example:
        >>> import axonym as nym
        >>> import rich.console
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> weight = nym.shard(nym.ones({"embed": 8, "mlp": 4}), {"embed": "data", "mlp": "model"}, mesh)
        >>> nym.visualize_shardings({"layers": [weight, weight]}, console=rich.console.Console(width=80))
        mesh (data: 4, model: 2), 8 devices
        array         axes, float32       spec                per device
        layers/*  x2  (embed: 8, mlp: 4)  P('data', 'model')        32 B  ██████████
        2 arrays, 256 B; 32 B (12.5%) on the fullest device, no array is whole
        <BLANKLINE>
        embed over data (4), mlp over model (2): 2 arrays
                  mlp #0  mlp #1
        embed #0    0       1
        embed #1    2       3
        embed #2    4       5
        embed #3    6       7
    """
    if limit is not None and limit < 0:
        raise ValueError(f"`limit` is the number of lines to show, or None for all; it was {limit}.")
    rich = _rich()
    found, where = (tree, mesh) if _is_report(tree) else explained_as_they_lie(tree, mesh)
    out: Any = rich.Console() if console is None else console
    paint = _Paint(rich, found.mesh, out.options.ascii_only, out.width)
    lines = _lines(found.leaves)
    out.print(paint.text((mesh_in_words(found.mesh, found.devices), "bold")))
    out.print(_table(lines[:limit], paint))
    if limit is not None and len(lines) > limit:
        out.print(paint.text(f"{paint.dots} {len(lines) - limit} more lines; `limit=None` shows all"))
    out.print(paint.text(_summary(found)))
    pictures = list(_pictures(lines, paint, _device_ids(found, where)))
    if pictures and where is None and getattr(found, "device_ids", None) is None:
        out.print(paint.text("\nDevices are numbered by their places in the mesh."))
    for piece in pictures:
        out.print(piece)


class _Reported(Protocol):
    """What explanations and reports have in common."""

    @property
    def leaves(self) -> tuple[LeafExplanation, ...]: ...
    @property
    def mesh(self) -> Mapping[str, int]: ...
    @property
    def devices(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def bytes_per_device(self) -> int: ...


class _Rich(NamedTuple):
    """The classes of rich that are used."""

    Console: Any
    Table: Any
    Text: Any


def _rich() -> _Rich:
    try:
        return _Rich(*(getattr(importlib.import_module(f"rich.{name.lower()}"), name) for name in _Rich._fields))
    except ImportError as missing:
        raise ImportError(
            "`visualize_shardings` needs rich, which is not installed; install it with `pip install axonym[report]`"
        ) from missing


def _is_report(tree: Any) -> bool:
    leaves = getattr(tree, "leaves", None)
    return hasattr(tree, "bytes_per_device") and isinstance(leaves, tuple)


class _Line(NamedTuple):
    """Arrays that are alike and whose paths differ in numbers alone, and what each device holds of all of them."""

    path: str
    leaf: LeafExplanation
    arrays: int
    bytes_per_device: int

    @property
    def sharding(self) -> tuple[tuple[str, tuple[str, ...], int], ...]:
        """Returns the axes that are divided: how each is called, over which mesh axes and in how many parts."""
        return tuple(
            (axis.name or f"dim {at}", axis.mesh_axes, axis.parts)
            for at, axis in enumerate(self.leaf.axes)
            if axis.parts > 1
        )


def _lines(leaves: tuple[LeafExplanation, ...]) -> list[_Line]:
    """Returns the lines of all arrays, in the order of the tree."""
    alike: dict[Any, list[LeafExplanation]] = {}
    for leaf in leaves:
        pattern = re.sub(r"(?<!\w)\d+(?!\w)", "*", "/".join(path_parts(leaf.path)))
        alike.setdefault((pattern, leaf.dtype, leaf.axes, leaf.error), []).append(leaf)
    return [
        _Line(
            (pattern if len(found) > 1 else "/".join(path_parts(found[0].path))) or "(the array itself)",
            found[0],
            len(found),
            sum(leaf.bytes_per_device for leaf in found),
        )
        for (pattern, *_), found in alike.items()
    ]


class _Paint(NamedTuple):
    """How things are drawn: with which library, in the colours of which mesh, whether only in ASCII, and how wide."""

    rich: _Rich
    mesh: Mapping[str, int]
    ascii: bool
    width: int

    @property
    def dots(self) -> str:
        """Returns what stands for things left out."""
        return "..." if self.ascii else "\N{HORIZONTAL ELLIPSIS}"

    def colour(self, mesh_axes: tuple[str, ...]) -> str:
        """Returns the colour of the first of some mesh axes."""
        order = list(self.mesh)
        at = next((order.index(axis) for axis in mesh_axes if axis in order), None)
        return "default" if at is None else _COLOURS[at % len(_COLOURS)]

    def text(self, *pieces: str | tuple[str, str]) -> Any:
        """Returns pieces of text, each alone or with its style; nothing in them is read as markup."""
        return self.rich.Text.assemble(*pieces)


def _summary(found: _Reported) -> str:
    count = f"{len(found.leaves)} array{'s' if len(found.leaves) != 1 else ''}, {format_bytes(found.bytes)}"
    share = f" ({found.bytes_per_device / found.bytes:.1%})" if found.bytes else ""
    whole = [leaf for leaf in found.leaves if all(axis.parts == 1 for axis in leaf.axes)]
    held = format_bytes(sum(leaf.bytes_per_device for leaf in whole))
    lone = f"{held} of it in {len(whole)} whole array{'s' if len(whole) != 1 else ''}" if whole else "no array is whole"
    return f"{count}; {format_bytes(found.bytes_per_device)}{share} on the fullest device, {lone}"


def _table(lines: list[_Line], paint: _Paint) -> Any:
    bars = paint.width >= _NARROW
    table = paint.rich.Table(box=None, pad_edge=False, show_edge=False)
    dtypes = {line.leaf.dtype for line in lines}
    common = dtypes.pop() if len(dtypes) == 1 else None
    paths = [_broken(line.path, max(paint.width // 3, 16)) for line in lines]
    table.add_column("array", overflow="fold", min_width=max((len(row) for path in paths for row in path), default=0))
    table.add_column("", no_wrap=True)
    for head in ("axes" if common is None else f"axes, {common}", "spec"):
        table.add_column(head, overflow="fold")
    table.add_column("per device", justify="right", no_wrap=True)
    if bars:
        table.add_column("", no_wrap=True, width=_BAR)
    most = max((line.bytes_per_device for line in lines), default=0)
    for line, path in zip(lines, paths, strict=True):
        bar = [_bar(line, most, paint)] if bars else []
        table.add_row(paint.text("\n".join(path)), *_cells(line, common, paint), *bar)
    return table


def _broken(path: str, most: int) -> list[str]:
    """Returns a path in lines of at most so many characters, each but the last with a slash at its end if it can."""
    rows = [""]
    for part in re.findall("[^/]*/?", path)[:-1]:
        if rows[-1].strip() and len(rows[-1]) + len(part) > most:
            rows.append("  ")
        rows[-1] += part
    return [row[at : at + most] for row in rows for at in range(0, len(row), most)]


def _cells(line: _Line, common: str | None, paint: _Paint) -> Iterator[Any]:
    """Yields the cells of a line after its path: how many arrays, axes and spec in colours, and bytes."""
    leaf = line.leaf
    yield paint.text((f"x{line.arrays}" if line.arrays > 1 else "", "bold"))
    pieces: list[tuple[str, str]] = []
    for axis in leaf.axes:
        pieces += [(", " if pieces else "", ""), (_axis(axis), paint.colour(axis.mesh_axes))]
    yield paint.text("(" if common is not None else f"{leaf.dtype} (", *pieces, ")")
    yield _spec(leaf, paint)
    yield paint.text(format_bytes(line.bytes_per_device))


def _axis(axis: AxisExplanation) -> str:
    return str(axis.size) if axis.name is None else f"{axis.name}: {axis.size}"


def _spec(leaf: LeafExplanation, paint: _Paint) -> Any:
    """Returns a spec with the names of mesh axes in their colours, or what there is in its place."""
    if leaf.error is not None or leaf.spec is None:
        return paint.text(("refused", "bold red"))
    if leaf.axes and all(axis.decision == "no mapping" for axis in leaf.axes):
        return paint.text((leaf.axes[0].why.removeprefix("no mapping; "), "dim"))
    pieces: list[str | tuple[str, str]] = []
    for word in re.split(r"('[^']*')", str(leaf.spec)):
        colour = paint.colour((word[1:-1],)) if word.startswith("'") else ""
        pieces.append((word, colour) if colour else word)
    return paint.text(*pieces)


def _bar(line: _Line, most: int, paint: _Paint) -> Any:
    """Returns a bar as long as what a device holds of the arrays is, by the most that a line has."""
    eighths = round(8 * _BAR * line.bytes_per_device / most) if most else 0
    if paint.ascii:
        bar = "#" * (-(-eighths // 8))
    else:
        full, rest = divmod(max(eighths, line.bytes_per_device > 0), 8)
        bar = "\N{FULL BLOCK}" * full + (chr(0x2590 - rest) if rest else "")
    axes = tuple(axis for _, over, _ in line.sharding for axis in over)
    return paint.text((bar, paint.colour(axes)))


def _device_ids(found: _Reported, mesh: MeshLike | None) -> np.ndarray | None:
    """Returns the devices of a mesh by number, without its Manual axes; by their places where it does not tell them."""
    sizes = found.mesh
    if not sizes or (mesh is not None and dict(mesh.shape) != dict(sizes)):
        return None
    if mesh is None:
        known = getattr(found, "device_ids", None)
        ids = np.arange(math.prod(sizes.values())) if known is None else np.asarray(known)
        return ids.reshape(tuple(sizes.values())) if ids.size == math.prod(sizes.values()) else None
    ids = mesh.device_ids if isinstance(mesh, Mesh) else np.arange(mesh.size).reshape(tuple(sizes.values()))
    return ids[tuple(slice(1) if kind == AxisType.Manual else slice(None) for kind in mesh.axis_types)]


def _pictures(lines: list[_Line], paint: _Paint, ids: np.ndarray | None) -> Iterator[Any]:
    """Yields a heading and a grid for each sharding that divides anything, those of most bytes first."""
    found: dict[Any, list[_Line]] = {}
    for line in lines:
        if line.sharding:
            found.setdefault(line.sharding, []).append(line)
    if ids is None:
        return
    kinds = sorted(found.items(), key=lambda item: -sum(line.bytes_per_device for line in item[1]))
    for sharding, alike in kinds[:_MOST_PICTURES]:
        if any(math.prod(paint.mesh.get(axis, 0) for axis in over) != parts for _, over, parts in sharding):
            continue  # It lies on another mesh.
        yield ""
        yield _heading(sharding, sum(line.arrays for line in alike), paint)
        yield _grid(sharding, ids, paint)
    if len(kinds) > _MOST_PICTURES:
        yield paint.text(f"{paint.dots} {len(kinds) - _MOST_PICTURES} more shardings")


def _heading(sharding: tuple[tuple[str, tuple[str, ...], int], ...], arrays: int, paint: _Paint) -> Any:
    pieces: list[str | tuple[str, str]] = []
    for name, over, parts in sharding:
        pieces += [", " if pieces else "", name, " over ", (" x ".join(over), paint.colour(over)), f" ({parts})"]
    return paint.text(*pieces, f": {arrays} array{'s' if arrays != 1 else ''}")


def _grid(sharding: tuple[tuple[str, tuple[str, ...], int], ...], ids: np.ndarray, paint: _Paint) -> Any:
    """Returns a grid of the parts of an array: the last divided axis across, the others down, the devices inside."""
    order = list(paint.mesh)
    divided = [order.index(axis) for _, over, _ in sharding for axis in over]
    rest = [at for at in range(len(order)) if at not in divided]
    parts = [count for _, _, count in sharding]
    held = ids.transpose(*divided, *rest).reshape(math.prod(parts[:-1]), parts[-1], -1)
    rows, names = _some(held.shape[0], _MOST_ROWS), [name for name, _, _ in sharding]
    labels = {row: _label(names[:-1], row, parts[:-1]) for row in rows if row is not None}
    widest = max(len(f"{names[-1]} #{parts[-1]}"), len(_ids(held[-1, -1], paint)) + 2) + 2
    fit = (paint.width - max(map(len, labels.values())) - 2) // widest
    columns = _some(parts[-1], max(min(fit, _MOST_COLUMNS), 3))
    table = paint.rich.Table(box=None, pad_edge=False, show_edge=False, padding=(0, 1))
    table.add_column("")
    for column in columns:
        table.add_column(paint.dots if column is None else f"{names[-1]} #{column}", justify="center")
    for row in rows:
        if row is None:
            table.add_row(paint.dots)
            continue
        places = (None if at is None else (held[row, at], row * parts[-1] + at) for at in columns)
        table.add_row(labels[row], *("" if place is None else _cell(*place, paint) for place in places))
    return table


def _label(names: list[str], row: int, parts: list[int]) -> str:
    """Returns what a row of a grid is: which part along each axis but the last."""
    where = np.unravel_index(row, parts) if parts else ()
    return ", ".join(f"{name} #{at}" for name, at in zip(names, where, strict=True))


def _some(number: int, most: int) -> list[int | None]:
    """Returns which of so many things are shown; None stands for those left out."""
    return list(range(number)) if number <= most else [*range(most - 2), None, number - 1]


def _cell(ids: np.ndarray, part: int, paint: _Paint) -> Any:
    """Returns the devices that hold a part, on a colour of its own."""
    colour = _COLOURS[part % len(_COLOURS)]
    ink = "#ffffff" if colour == "#0072b2" else "#000000"
    return paint.text((f" {_ids(ids, paint)} ", f"{ink} on {colour}"))


def _ids(ids: np.ndarray, paint: _Paint) -> str:
    """Returns the numbers of devices: all of a few, the first and the last of many."""
    if len(ids) > 2 and (np.diff(ids) == 1).all():
        return f"{ids[0]}-{ids[-1]}"
    shown = [*map(str, ids)]
    return " ".join(shown if len(ids) <= _MOST_IDS else [*shown[:3], paint.dots, shown[-1]])

"""`visualize_shardings`: the arrays of a tree in a terminal, and for each sharding which device has which shard."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from jax.sharding import AxisType, Mesh

from ..mesh._describe import pick_shown
from ..named._axis_layout import MeshLike
from ..partitioning._active_mesh import get_active_mesh
from ._explain import find_common_mesh, list_arrays
from ._explanation import LeafExplanation, ShardedTree, format_mesh_title
from ._format import check_count, format_bytes, format_count, format_path
from ._html_page import COLOURS, get_ink, split_path
from ._sharding_report import report_own_shardings


if TYPE_CHECKING:
    from rich.console import Console

_BAR_WIDTH = 10
_MIN_WIDTH_FOR_BARS = 72
_MAX_GRIDS, _MAX_ROWS, _MAX_COLUMNS, _MAX_IDS = 8, 16, 8, 8
_Sharding: TypeAlias = tuple[tuple[str, tuple[str, ...], int], ...]
"""The sharded axes of an array: the name of each, its mesh axes and the number of its parts."""


def visualize_shardings(
    tree: Any,
    mesh: MeshLike | None = None,
    *,
    console: "Console | None" = None,
    limit: int | None = 40,
) -> None:
    """Prints the arrays of a tree in the terminal, in colours, and which shard of them is on which device.

    Each array has a line: its axes, its spec, and its bytes on each device, as a number and as a bar; each mesh axis
    has a colour. Arrays that are alike and whose paths differ in numbers only, such as arrays of layers, share a line.
    Below, each sharding has a picture: a cell for each shard of an array, with its devices. Devices of an abstract mesh
    or of an `Explanation` are numbered by their positions, unless the mesh is given. The arrays are shown with their
    own shardings, whatever mapping is active. Inside `jax.jit`, this prints once, while the function is traced. It
    needs rich: `pip install axonym[report]`.

    Args:
        tree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays, or a `ShardingReport` or an `Explanation`.
        mesh: The mesh; None is the mesh of the arrays, or else the active mesh.
        console: Where to print; the terminal if None.
        limit: How many lines of arrays to show; all of them if None. The totals are of all.

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
        2 arrays, 256 B; 32 B (12.5%) on the fullest device, no array is unsharded
        <BLANKLINE>
        embed over data (4), mlp over model (2): 2 arrays
                  mlp #0  mlp #1
        embed #0    0       1
        embed #1    2       3
        embed #2    4       5
        embed #3    6       7
    """
    if limit is not None:
        check_count("limit", limit, "the number of lines to show, or None for all")
    rich = _import_rich()
    if isinstance(tree, ShardedTree):
        report = tree
    else:
        if mesh is None:
            mesh = find_common_mesh(list_arrays(tree))
        if mesh is None:
            mesh = get_active_mesh()
        report = report_own_shardings(tree, mesh)
    output: Any = rich.console.Console() if console is None else console
    paint = _Paint(rich, report.mesh, output.options.ascii_only, output.width)
    lines = _group_lines(report.leaves)
    output.print(paint.make_text((format_mesh_title(report.mesh, report.devices), "bold")))
    output.print(_make_line_table(lines[:limit], paint))
    if limit is not None and len(lines) > limit:
        output.print(paint.make_text(f"{paint.dots} {len(lines) - limit} more lines; `limit=None` shows all"))
    output.print(paint.make_text(_summarize_arrays(report)))
    pictures = [*_draw_shardings(lines, paint, _get_device_ids(report, mesh))]
    if pictures and mesh is None and getattr(report, "device_ids", None) is None:
        output.print(paint.make_text("\nDevices are numbered by their positions in the mesh."))
    for picture in pictures:
        output.print(picture)


def _import_rich() -> Any:
    try:
        import rich.console
        import rich.table
        import rich.text
    except ImportError as missing:
        raise ImportError(
            "`visualize_shardings` needs rich, which is not installed; install it with `pip install axonym[report]`"
        ) from missing
    return rich


class _Line(NamedTuple):
    """Arrays that are alike and whose paths differ in numbers only, and the bytes of all of them on each device."""

    path: str
    leaf: LeafExplanation
    arrays: int
    bytes_per_device: int

    @property
    def sharding(self) -> _Sharding:
        return tuple(
            (axis.name or f"dim {dim}", axis.mesh_axes, axis.parts)
            for dim, axis in enumerate(self.leaf.axes)
            if axis.parts > 1
        )


class _Paint(NamedTuple):
    """Makes texts and tables of rich, in the colours of mesh axes."""

    rich: Any
    mesh: Mapping[str, int]
    ascii: bool  # whether the console shows ASCII only
    width: int  # of the console

    @property
    def dots(self) -> str:
        return "..." if self.ascii else "\N{HORIZONTAL ELLIPSIS}"

    def get_colour(self, mesh_axes: tuple[str, ...]) -> str:
        """Returns the colour of the first of some mesh axes."""
        order = [*self.mesh]
        position = next((order.index(axis) for axis in mesh_axes if axis in order), None)
        return "default" if position is None else COLOURS[position % len(COLOURS)]

    def make_text(self, *pieces: str | tuple[str, str]) -> Any:
        """Returns pieces of text, each alone or with its style; nothing in them is read as markup."""
        return self.rich.text.Text.assemble(*pieces)

    def make_table(self, **options: Any) -> Any:
        return self.rich.table.Table(box=None, pad_edge=False, show_edge=False, **options)


def _group_lines(leaves: tuple[LeafExplanation, ...]) -> list[_Line]:
    alike: dict[Any, list[LeafExplanation]] = {}
    for leaf in leaves:
        pattern = re.sub(r"(?<!\w)\d+(?!\w)", "*", "/".join(split_path(leaf.path)))
        alike.setdefault((pattern, leaf.dtype, leaf.axes, leaf.error), []).append(leaf)
    lines: list[_Line] = []
    for (pattern, *_), members in alike.items():
        path = pattern if len(members) > 1 else "/".join(split_path(members[0].path))
        lines.append(_Line(format_path(path), members[0], len(members), sum(leaf.bytes_per_device for leaf in members)))
    return lines


def _summarize_arrays(report: ShardedTree) -> str:
    unsharded = [leaf for leaf in report.leaves if all(axis.parts == 1 for axis in leaf.axes)]
    unsharded_bytes = format_bytes(sum(leaf.bytes_per_device for leaf in unsharded))
    unsharded_text = "no array is unsharded"
    if unsharded:
        unsharded_text = f"{unsharded_bytes} of it in {format_count(len(unsharded), 'unsharded array')}"
    share = f" ({report.share:.1%})" if report.bytes else ""
    fullest = f"{format_bytes(report.bytes_per_device)}{share} on the fullest device"
    return f"{format_count(len(report.leaves), 'array')}, {format_bytes(report.bytes)}; {fullest}, {unsharded_text}"


def _make_line_table(lines: list[_Line], paint: _Paint) -> Any:
    table = paint.make_table()
    dtypes = {line.leaf.dtype for line in lines}
    common = dtypes.pop() if len(dtypes) == 1 else None
    longest = max((len(line.path) for line in lines), default=0)
    table.add_column("array", overflow="fold", min_width=min(longest, max(paint.width // 3, 16)))
    table.add_column("", no_wrap=True)
    for head in ("axes" if common is None else f"axes, {common}", "spec"):
        table.add_column(head, overflow="fold")
    table.add_column("per device", justify="right", no_wrap=True)
    has_bars = paint.width >= _MIN_WIDTH_FOR_BARS
    if has_bars:
        table.add_column("", no_wrap=True, width=_BAR_WIDTH)
    largest = max((line.bytes_per_device for line in lines), default=0)
    for line in lines:
        axes: list[tuple[str, str]] = []
        for axis in line.leaf.axes:
            text = str(axis.size) if axis.name is None else f"{axis.name}: {axis.size}"
            axes += [(", " if axes else "", ""), (text, paint.get_colour(axis.mesh_axes))]
        table.add_row(
            paint.make_text(line.path),
            paint.make_text((f"x{line.arrays}" if line.arrays > 1 else "", "bold")),
            paint.make_text("(" if common is not None else f"{line.leaf.dtype} (", *axes, ")"),
            _make_spec_text(line.leaf, paint),
            paint.make_text(format_bytes(line.bytes_per_device)),
            *([_make_bar(line, largest, paint)] if has_bars else []),
        )
    return table


def _make_spec_text(leaf: LeafExplanation, paint: _Paint) -> Any:
    """Returns a spec with the names of mesh axes in their colours, or the reason why there is none."""
    if leaf.spec is None:
        return paint.make_text(("invalid", "bold red"))
    if leaf.axes and leaf.axes[0].decision == "no mapping":
        return paint.make_text((leaf.axes[0].why.partition(";")[0], "dim"))
    words: list[tuple[str, str]] = []
    for word in re.split(r"('[^']*')", str(leaf.spec)):
        words.append((word, paint.get_colour((word[1:-1],)) if word.startswith("'") else ""))
    return paint.make_text(*words)


def _make_bar(line: _Line, largest: int, paint: _Paint) -> Any:
    """Returns a bar for the bytes on each device, relative to the line with the most."""
    eighths = round(8 * _BAR_WIDTH * line.bytes_per_device / largest) if largest else 0
    if paint.ascii:
        bar = "#" * (-(-eighths // 8))
    else:
        # After the full block in Unicode come the blocks of seven eighths, six and so on to one.
        if line.bytes_per_device:
            eighths = max(eighths, 1)
        full, remainder = divmod(eighths, 8)
        bar = "\N{FULL BLOCK}" * full + (chr(0x2590 - remainder) if remainder else "")
    axes = tuple(axis for _, mesh_axes, _ in line.sharding for axis in mesh_axes)
    return paint.make_text((bar, paint.get_colour(axes)))


def _get_device_ids(report: ShardedTree, mesh: MeshLike | None) -> np.ndarray | None:
    """Returns the ids of the devices of a mesh without its Manual axes, or their positions if it has no devices.

    They are None if there is no mesh, or it is not the one of the report.
    """
    sizes = tuple(report.mesh.values())
    if not sizes or (mesh is not None and dict(mesh.shape) != dict(report.mesh)):
        return None
    device_ids = mesh.device_ids if isinstance(mesh, Mesh) else getattr(report, "device_ids", None)
    ids = (np.arange(math.prod(sizes)) if device_ids is None else np.asarray(device_ids)).reshape(sizes)
    # Sizes are those within one part of the Manual axes; the devices of the first part stand for the others.
    kinds = [] if mesh is None else mesh.axis_types
    return ids[tuple(slice(1) if kind == AxisType.Manual else slice(None) for kind in kinds)]


def _draw_shardings(lines: list[_Line], paint: _Paint, ids: np.ndarray | None) -> Iterator[Any]:
    """Yields a heading and a grid for each sharding, those with the most bytes first."""
    lines_by_sharding: dict[_Sharding, list[_Line]] = {}
    for line in lines:
        if line.sharding and ids is not None:
            lines_by_sharding.setdefault(line.sharding, []).append(line)
    shardings = sorted(lines_by_sharding.items(), key=lambda item: -sum(line.bytes_per_device for line in item[1]))
    for sharding, sharded_lines in shardings[:_MAX_GRIDS]:
        # Sharded over another mesh than that of the report, whose devices are not known here.
        if any(math.prod(paint.mesh.get(axis, 0) for axis in mesh_axes) != parts for _, mesh_axes, parts in sharding):
            continue
        heading: list[str | tuple[str, str]] = []
        for name, mesh_axes, parts in sharding:
            axes = (" x ".join(mesh_axes), paint.get_colour(mesh_axes))
            heading += [", " if heading else "", name, " over ", axes, f" ({parts})"]
        yield ""
        yield paint.make_text(*heading, f": {format_count(sum(line.arrays for line in sharded_lines), 'array')}")
        yield _draw_device_grid(sharding, ids, paint)
    if len(shardings) > _MAX_GRIDS:
        yield paint.make_text(f"{paint.dots} {len(shardings) - _MAX_GRIDS} more shardings")


def _draw_device_grid(sharding: _Sharding, ids: Any, paint: _Paint) -> Any:
    """Returns a grid of the shards of an array: the last sharded axis across, the others down, the devices inside."""
    order = [*paint.mesh]
    # The mesh axes of each sharded axis become one dimension, and those over which the array is replicated the last.
    used_dims = [order.index(axis) for _, mesh_axes, _ in sharding for axis in mesh_axes]
    unused_dims = [position for position in range(len(order)) if position not in used_dims]
    names, parts = [name for name, _, _ in sharding], [count for _, _, count in sharding]
    device_ids = ids.transpose(*used_dims, *unused_dims).reshape(math.prod(parts[:-1]), parts[-1], -1)
    rows = pick_shown(device_ids.shape[0], _MAX_ROWS)
    labels: dict[int, str] = {}  # the part along each axis but the last
    for row in rows:
        if row is not None:
            position = np.unravel_index(row, parts[:-1]) if parts[:-1] else ()
            labels[row] = ", ".join(f"{name} #{part}" for name, part in zip(names[:-1], position, strict=True))
    # A cell has a space on each side of its ids, and each column one on each side of its cells.
    column_width = max(len(f"{names[-1]} #{parts[-1]}"), len(_format_ids(device_ids[-1, -1], paint)) + 2) + 2
    max_columns = min((paint.width - max(map(len, labels.values())) - 2) // column_width, _MAX_COLUMNS)
    columns = pick_shown(parts[-1], max(max_columns, 3))  # at least the first, dots and the last
    table = paint.make_table(padding=(0, 1))
    table.add_column("")
    for column in columns:
        table.add_column(paint.dots if column is None else f"{names[-1]} #{column}", justify="center")
    for row in rows:
        if row is None:
            table.add_row(paint.dots)
            continue
        cells: list[Any] = []
        for column in columns:
            if column is None:
                cells.append("")
                continue
            colour = COLOURS[(row * parts[-1] + column) % len(COLOURS)]
            text = f" {_format_ids(device_ids[row, column], paint)} "
            cells.append(paint.make_text((text, f"{get_ink(colour)} on {colour}")))
        table.add_row(labels[row], *cells)
    return table


def _format_ids(ids: np.ndarray, paint: _Paint) -> str:
    """Returns the ids of devices: all of a few, the first and the last of many."""
    if len(ids) > 2 and (np.diff(ids) == 1).all():
        return f"{ids[0]}-{ids[-1]}"
    texts = [*map(str, ids)]
    if len(ids) > _MAX_IDS:
        texts[3:-1] = [paint.dots]
    return " ".join(texts)

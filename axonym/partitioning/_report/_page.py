"""A report as one HTML page that needs nothing else: totals, a treemap of the arrays, a search box and a table.

What is known of the arrays goes into the page as JSON, in which no character can end the script that holds it; the
script of `_page.html` draws it. A content security policy lets that one script run and nothing be loaded.
"""

import base64
import hashlib
import html
import importlib.resources
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .._explanation import AxisExplanation
from .._infer import divided_axes
from .._table import human_bytes
from ._leaf import LeafReport
from ._treemap import Group, grouped, path_parts


_FOLDER = __name__.rpartition(".")[0]
# The colours of Okabe and Ito, which people who are colour-blind tell apart, each with the colour of text on it.
_COLOURS = (
    ("#0072b2", "#fff"),
    ("#e69f00", "#000"),
    ("#009e73", "#000"),
    ("#56b4e9", "#000"),
    ("#cc79a7", "#000"),
    ("#f0e442", "#000"),
    ("#d55e00", "#000"),
)


class Reported(Protocol):
    """What the page needs of a report."""

    @property
    def leaves(self) -> Sequence[LeafReport]:
        """What is said of each array."""
        ...

    @property
    def mesh(self) -> Mapping[str, int]:
        """The sizes of the mesh axes."""
        ...

    @property
    def devices(self) -> int:
        """The number of devices."""
        ...

    @property
    def bytes(self) -> int:
        """The size of all arrays."""
        ...

    @property
    def bytes_per_device(self) -> int:
        """What the fullest device holds."""
        ...

    @property
    def replicated_bytes(self) -> int:
        """What all devices together hold beyond one copy."""
        ...

    @property
    def imbalance(self) -> float:
        """How much more the fullest device holds than the mean."""
        ...

    @property
    def share_whole(self) -> float:
        """The share of the bytes in arrays that nothing divides."""
        ...

    @property
    def unused_mesh_axes(self) -> Mapping[str, str]:
        """The mesh axes over which no array is divided, each with the reason."""
        ...

    @property
    def problems(self) -> Sequence[str]:
        """What is wrong."""
        ...


def save_page(report: Reported, path: str | os.PathLike[str], title: str | None = None) -> Path:
    """Writes the page of a report to a file, whole or not at all, and returns where it is.

    Raises:
        FileNotFoundError: If the folder is not there.
        IsADirectoryError: If the path is a folder.
    """
    target = Path(path)
    if target.is_dir():
        name = str(target / "report.html")
        raise IsADirectoryError(f"the page needs the name of a file, and {str(path)!r} is a folder; name it {name!r}")
    if not target.parent.is_dir():
        folder = str(target.parent)
        raise FileNotFoundError(f"there is no folder {folder!r} for the page {target.name!r}; make it first")
    text = page(report, title).encode("utf-8", "backslashreplace")
    # A link stays one: what is replaced is the file that it leads to.
    final = Path(os.path.realpath(target))
    with tempfile.TemporaryDirectory(prefix=".axonym-", dir=final.parent) as beside:
        written = Path(beside) / "page.html"
        written.write_bytes(text)
        written.replace(final)
    return target


def page(report: Reported, title: str | None = None) -> str:
    """Returns a report as the text of an HTML page."""
    template = importlib.resources.files(_FOLDER).joinpath("_page.html").read_text("utf-8")
    _, _, script = template.rpartition("<script>")
    digest = hashlib.sha256(script.partition("</script>")[0].encode()).digest()
    parts = {
        "HASH": base64.b64encode(digest).decode(),
        "TITLE": html.escape(title or "Sharding report"),
        "MESH": html.escape(_mesh(report)),
        "FACTS": "".join(_facts(report)),
        "NOTES": "".join(_notes(report)),
        "DATA": _json(_data(report)),
    }
    return re.sub("@([A-Z]+)@", lambda mark: parts[mark[1]], template)


def _mesh(report: Reported) -> str:
    devices = f"{report.devices} device{'s' if report.devices != 1 else ''}"
    sizes = ", ".join(f"{name}: {size}" for name, size in report.mesh.items())
    return f"mesh ({sizes}), {devices}" if sizes else f"no mesh, {devices}"


def _facts(report: Reported) -> Iterator[str]:
    """Yields the totals, each with what it means."""
    share = f"{report.bytes_per_device / report.bytes:.1%} of all" if report.bytes else ""
    arrays = len(report.leaves)
    bad = len(report.problems)
    for name, number, note in (
        ("Arrays", str(arrays), human_bytes(report.bytes)),
        ("On the fullest device", human_bytes(report.bytes_per_device), share),
        ("In copies", human_bytes(report.replicated_bytes), "on all devices together"),
        ("In whole arrays", _percent(report.share_whole), "of all bytes; nothing divides them"),
        ("Imbalance", f"{report.imbalance:.2f}", "fullest device / mean"),
        ("Problems", str(bad), "see below" if bad else "none found"),
    ):
        mark = ' class="bad"' if name == "Problems" and bad else ""
        yield f"<div{mark}><dt>{name}</dt><dd>{html.escape(number)}</dd><dd>{html.escape(note)}</dd></div>"


def _percent(share: float) -> str:
    return "< 0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def _notes(report: Reported) -> Iterator[str]:
    """Yields what else is to be said: the problems, and the mesh axes that nothing uses."""
    if report.problems:
        items = "".join(f"<li>{html.escape(problem)}</li>" for problem in report.problems)
        yield f"<details open class='bad'><summary>Problems: {len(report.problems)}</summary><ul>{items}</ul></details>"
    if report.unused_mesh_axes:
        axes = "; ".join(f"{axis!r}, {why}" for axis, why in report.unused_mesh_axes.items())
        yield f"<p>Mesh axes over which no array is divided: {html.escape(axes)}</p>"


def _json(data: Any) -> str:
    """Returns JSON that can stand in HTML: nothing in it begins a tag, a comment or an entity."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(report: Reported) -> dict[str, Any]:
    """Returns what the script draws: what is said of each array is there once for all that are alike."""
    over = [_over(leaf, report.mesh) for leaf in report.leaves]
    order = list(report.mesh)
    # Whole arrays first, then by the number of mesh axes and their order in the mesh.
    kinds = sorted({(), *over}, key=lambda axes: (len(axes), [order.index(axis) for axis in axes]))
    sorts: dict[str, int] = {}
    arrays = []
    for leaf, axes in zip(report.leaves, over, strict=True):
        sort = sorts.setdefault(json.dumps(_about(leaf, kinds.index(axes))), len(sorts))
        arrays.append([leaf.path, "/".join(path_parts(leaf.path)) or "(the array itself)", sort])
    tree = grouped([leaf.path for leaf in report.leaves], [leaf.bytes_per_device for leaf in report.leaves])
    return {
        "kinds": [[list(axes), *_COLOURS[(at - 1) % len(_COLOURS)]] for at, axes in enumerate(kinds)],
        "sorts": [json.loads(sort) for sort in sorts],
        "arrays": arrays,
        "tree": _plain(tree),
    }


def _over(leaf: LeafReport, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the mesh axes that divide an array into parts, in the order of the mesh."""
    used = {axis for entry in leaf.spec or () for axis in divided_axes(entry)}
    return tuple(axis for axis, size in mesh.items() if axis in used and size > 1)


def _about(leaf: LeafReport, kind: int) -> dict[str, Any]:
    """Returns what is said of an array besides its path."""
    return {
        "kind": kind,
        "shape": f"({', '.join(str(axis.size) if axis.name is None else _sized(axis) for axis in leaf.axes)})",
        "dtype": leaf.dtype,
        "spec": "none" if leaf.spec is None else str(leaf.spec),
        "bytes": leaf.bytes,
        "each": leaf.bytes_per_device,
        "copies": leaf.replicated_bytes,
        "axes": [
            [axis.name or f"dimension {at}", axis.size, " x ".join(axis.mesh_axes), axis.parts, axis.why]
            for at, axis in enumerate(leaf.axes)
        ],
        "unused": list(leaf.unused.items()),
        "padding": [
            f"dimension {one.dimension} from {one.size} to {one.padded_size}: then {' x '.join(one.mesh_axes)} "
            f"can divide it, and {human_bytes(one.bytes_per_device)} are on each device"
            for one in leaf.padding
        ],
        "now": leaf.now,
        "error": leaf.error,
    }


def _sized(axis: AxisExplanation) -> str:
    return f"{axis.name}: {axis.size}"


def _plain(group: Group) -> list[Any]:
    return [group.name, group.path, [one if isinstance(one, int) else _plain(one) for one in group.members]]

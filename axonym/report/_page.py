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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from ._explanation import AxisExplanation, mesh_in_words
from ._leaf import LeafReport, padding_choices, padding_shown
from ._table import format_bytes
from ._treemap import Group, grouped, path_parts
from ._write import write_whole


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


class _Reported(Protocol):
    """What the page needs of a report."""

    @property
    def leaves(self) -> Sequence[LeafReport]: ...
    @property
    def mesh(self) -> Mapping[str, int]: ...
    @property
    def devices(self) -> int: ...
    @property
    def source(self) -> str: ...
    @property
    def rule(self) -> str | None: ...
    @property
    def several_meshes(self) -> bool: ...
    @property
    def bytes(self) -> int: ...
    @property
    def bytes_per_device(self) -> int: ...
    @property
    def replicated_bytes(self) -> int: ...
    @property
    def imbalance(self) -> float: ...
    @property
    def share_whole(self) -> float: ...
    @property
    def unused_mesh_axes(self) -> Mapping[str, str]: ...
    @property
    def problems(self) -> Sequence[str]: ...


def save_page(report: _Reported, path: str | os.PathLike[str], title: str | None = None) -> Path:
    """Writes the page of a report to a file, whole or not at all, and returns where it is.

    Raises:
        FileNotFoundError: If the folder is not there.
        IsADirectoryError: If the path is a folder.
    """
    return write_whole(path, page(report, title), "page", "report.html")


def page(report: _Reported, title: str | None = None) -> str:
    """Returns a report as the text of an HTML page."""
    template = importlib.resources.files(_FOLDER).joinpath("_page.html").read_text("utf-8")
    _, _, script = template.rpartition("<script>")
    digest = hashlib.sha256(script.partition("</script>")[0].encode()).digest()
    parts = {
        "HASH": base64.b64encode(digest).decode(),
        "TITLE": html.escape(title or f"Sharding report{f': {report.rule}' if report.rule else ''}"),
        "MESH": html.escape(_mesh(report)),
        "FACTS": "".join(_facts(report)),
        "NOTES": "".join(_notes(report)),
        "DATA": _json(_data(report)),
    }
    return re.sub("@([A-Z]+)@", lambda mark: parts[mark[1]], template)


def _mesh(report: _Reported) -> str:
    by = "the specs given" if report.source == "specs" else "the arrays' own shardings"
    return f"{mesh_in_words(report.mesh, report.devices, report.several_meshes)}; by {report.rule or by}"


def _facts(report: _Reported) -> Iterator[str]:
    """Yields the totals, each with what it means."""
    share = f"{report.bytes_per_device / report.bytes:.1%} of all" if report.bytes else ""
    arrays = len(report.leaves)
    bad = len(report.problems)
    for name, number, note in (
        ("Arrays", str(arrays), format_bytes(report.bytes)),
        ("On the fullest device", format_bytes(report.bytes_per_device), share),
        ("In copies", format_bytes(report.replicated_bytes), "on all devices together"),
        ("In whole arrays", _percent(report.share_whole), "of all bytes; nothing divides them"),
        ("Imbalance", f"{report.imbalance:.2f}", "fullest device / mean"),
        ("Problems", str(bad), "see below" if bad else "none found"),
    ):
        mark = ' class="bad"' if name == "Problems" and bad else ""
        yield f"<div{mark}><dt>{name}</dt><dd>{html.escape(number)}</dd><dd>{html.escape(note)}</dd></div>"


def _percent(share: float) -> str:
    return "< 0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def _notes(report: _Reported) -> Iterator[str]:
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


def _data(report: _Reported) -> dict[str, Any]:
    """Returns what the script draws: what is said of each array is there once for all that are alike."""
    found = [_kind(leaf) for leaf in report.leaves]
    # Whole arrays first, then by the number of mesh axes and their order in the mesh; what is refused comes last.
    order = {axis: at for at, axis in enumerate(report.mesh)}
    kinds = sorted({*found}, key=lambda one: (one[2], len(one[0]), [order.get(axis, 99) for axis in one[0]], one))
    sorts: dict[str, int] = {}
    arrays = []
    for leaf, kind in zip(report.leaves, found, strict=True):
        sort = sorts.setdefault(json.dumps(_about(leaf, kinds.index(kind))), len(sorts))
        arrays.append([leaf.path, "/".join(path_parts(leaf.path)) or "(the array itself)", sort])
    tree = grouped([leaf.path for leaf in report.leaves], [leaf.bytes_per_device for leaf in report.leaves])
    return {
        "kinds": list(_looks(kinds)),
        "sorts": [json.loads(sort) for sort in sorts],
        "arrays": arrays,
        "tree": _plain(tree),
    }


# The mesh axes that divide an array, in the order of its axes; where it is if not on the mesh; whether it is refused.
_Kind: TypeAlias = tuple[tuple[str, ...], str, bool]


def _kind(leaf: LeafReport) -> _Kind:
    """Returns what the colour of an array stands for."""
    over = tuple(str(mesh_axis) for axis in leaf.axes if axis.parts > 1 for mesh_axis in axis.mesh_axes)
    return () if leaf.error else over, leaf.place or "", leaf.error is not None


def _looks(kinds: Sequence[_Kind]) -> Iterator[list[str]]:
    """Yields of each kind what the legend calls it, how it is searched for, its colours and its pattern."""
    colours = 0
    for axes, place, refused in kinds:
        on = f" on {place}" if place else ""
        if refused:
            yield ["problem", "is:problem", "", "", "whole error"]
        elif axes:
            token = re.sub(r"\s", "_", f"over:{'+'.join(axes)}{on}".lower())
            dots = "" if colours < len(_COLOURS) else "dots"
            yield [f"{' + '.join(axes)}{on}", token, *_COLOURS[colours % len(_COLOURS)], dots]
            colours += 1
        else:
            whole = f"whole{on}" if place.startswith("mesh") else f"on {place}" if place else "whole on each device"
            token = re.sub(r"\s", "_", f"is:{place}".lower()) if place else "is:whole"
            yield [whole, token, "", "", "whole far" if place else "whole"]


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
            f"{padding_shown(leaf, sizes)}: then {format_bytes(sizes[-1].bytes_per_device)} are on each device"
            for sizes in padding_choices(leaf)
        ],
        "now": leaf.now,
        "error": leaf.error,
    }


def _sized(axis: AxisExplanation) -> str:
    return f"{axis.name}: {axis.size}"


def _plain(group: Group) -> list[Any]:
    return [group.name, group.path, [one if isinstance(one, int) else _plain(one) for one in group.members]]

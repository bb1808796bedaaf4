"""A report as one HTML page that needs nothing else: totals, notes, a treemap of the arrays, a search box and a table.

The data of the arrays goes into the page as JSON, in which no character can end the script element around it; the
script of `_html_page.html` draws it. A content security policy lets that one script run and nothing be loaded.
"""

import base64
import hashlib
import html
import importlib.resources
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ._explanation import LeafReport
from ._format import format_path
from ._table import Note
from ._write_file import write_file


_PACKAGE = __name__.rpartition(".")[0]

# Colours of Okabe and Ito, which colour-blind people can tell apart and which are readable on light and on dark.
COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#0072b2", "#f0e442")

# A key as `jax.tree_util.keystr` writes it: `['name']`, `[0]` or `.name`.
_KEY = re.compile(r"""\[(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]|\[(?P<index>[^\]]*)\]|\.(?P<name>[^.\[]+)""")

# The mesh axes that an array is sharded over, in the order of its axes; where it is if not on the mesh; whether its
# spec is invalid.
_Kind: TypeAlias = tuple[tuple[str, ...], str, bool]
_Paths: TypeAlias = list[tuple[tuple[str, ...], int]]


class Fact(NamedTuple):
    """A number at the top of the page: its name, the number, what it means, and whether it calls for a change."""

    name: str
    number: str
    meaning: str
    is_bad: bool = False


def save_html_page(
    path: str | os.PathLike[str],
    title: str,
    subtitle: str,
    facts: Sequence[Fact],
    notes: Sequence[Note],
    treemap: dict[str, Any],
) -> Path:
    """Writes a page to a file, completely or not at all, and returns its path."""
    template = importlib.resources.files(_PACKAGE).joinpath("_html_page.html").read_text("utf-8")
    _, _, script = template.rpartition("<script>")
    digest = hashlib.sha256(script.partition("</script>")[0].encode()).digest()
    data = json.dumps(treemap, separators=(",", ":"))
    for character in "<>&":  # so that nothing in a script begins a tag, a comment or an entity
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = {
        "HASH": base64.b64encode(digest).decode(),
        "TITLE": html.escape(title),
        "SUBTITLE": html.escape(subtitle),
        "FACTS": "".join(_format_facts(facts)),
        "NOTES": "".join(_format_page_notes(notes)),
        "DATA": data,
    }
    text = re.sub("@([A-Z]+)@", lambda mark: parts[mark[1]], template)
    return write_file(path, text, "page", "report.html")


def _format_facts(facts: Sequence[Fact]) -> Iterator[str]:
    for fact in facts:
        mark = ' class="bad"' if fact.is_bad else ""
        name, number, meaning = map(html.escape, fact[:3])
        yield f"<div{mark}><dt>{name}</dt><dd>{number}</dd><dd>{meaning}</dd></div>"


def _format_page_notes(notes: Sequence[Note]) -> Iterator[str]:
    for heading, items, is_bad, has_lines in notes:
        if has_lines:
            yield f"<p>{html.escape(heading)}</p><pre>{html.escape(chr(10).join(items))}</pre>"
        elif is_bad:
            listing = "".join(f"<li>{html.escape(item)}</li>" for item in items)
            yield f"<details open class='bad'><summary>{html.escape(heading)}</summary><ul>{listing}</ul></details>"
        else:
            yield f"<p>{html.escape(' '.join([heading, '; '.join(items)]))}</p>"


def get_ink(colour: str) -> str:
    """Returns the colour of text that is readable on one of the colours."""
    return "#ffffff" if colour == "#0072b2" else "#000000"


def make_treemap(leaves: Sequence[LeafReport], mesh_axes: Sequence[str]) -> dict[str, Any]:
    """Returns the data of a treemap; descriptions that several arrays share are there once, in `"descriptions"`."""
    # Unsharded arrays first, then by the number of mesh axes and their order in the mesh; invalid specs come last.
    order = {axis: position for position, axis in enumerate(mesh_axes)}

    def get_sort_key(kind: _Kind) -> tuple[Any, ...]:
        axes, _, is_invalid = kind
        return is_invalid, len(axes), [order.get(axis, 99) for axis in axes], kind  # 99 for an axis of another mesh

    leaf_kinds = [_get_kind(leaf) for leaf in leaves]
    kinds = sorted({*leaf_kinds}, key=get_sort_key)
    descriptions: dict[str, int] = {}
    arrays: list[list[Any]] = []
    for leaf, kind in zip(leaves, leaf_kinds, strict=True):
        description = json.dumps(_describe_leaf(leaf, kinds.index(kind)))
        number = descriptions.setdefault(description, len(descriptions))
        arrays.append([leaf.path, format_path("/".join(split_path(leaf.path))), number])
    paths = [(split_path(leaf.path), index) for index, leaf in enumerate(leaves)]
    _, tree = _group_arrays((), paths, [leaf.bytes_per_device for leaf in leaves])
    shared = [*map(json.loads, descriptions)]
    return {"kinds": [*_style_kinds(kinds)], "descriptions": shared, "arrays": arrays, "tree": tree}


def split_path(path: str) -> tuple[str, ...]:
    """Returns the keys of a path, written as `['layers'][0].weight` or as `layers/0/weight`."""
    if path[:1] not in ("[", "."):
        return tuple(part for part in path.split("/") if part)
    parts, end = [], 0
    while (match := _KEY.match(path, end)) is not None:
        text, index, name = match.groups()
        if text is not None:
            parts.append(text[1:-1])
        else:
            parts.append(name if index is None else index)
        end = match.end()
    return (*parts, path[end:]) if path[end:] else tuple(parts)


def _group_arrays(path: tuple[str, ...], paths: _Paths, sizes: Sequence[int], above: int = 0) -> tuple[int, list[Any]]:
    """Returns the bytes of the group at a path, and its name, path and members, the largest first.

    An array is its index in the order of the tree. The name of a group leaves out the first `above` keys, those of the
    group around it; groups of one member are replaced by the member.
    """
    subgroups: dict[str, _Paths] = {}
    members: list[tuple[int, Any]] = []
    for parts, index in paths:
        if len(parts) > len(path) + 1:
            subgroups.setdefault(parts[len(path)], []).append((parts, index))
        else:
            members.append((sizes[index], index))
    if len(subgroups) == 1 and not members:
        (key,) = subgroups
        return _group_arrays((*path, key), subgroups[key], sizes, above)
    for key, subgroup_paths in subgroups.items():
        size, group = _group_arrays((*path, key), subgroup_paths, sizes, len(path))
        members.append((size, group[2][0] if len(group[2]) == 1 else group))
    members.sort(key=lambda member: -member[0])
    content = [member for _, member in members]
    return sum(size for size, _ in members), ["/".join(path[above:]), "/".join(path), content]


def _get_kind(leaf: LeafReport) -> _Kind:
    """Returns the properties of an array that determine its colour."""
    mesh_axes = tuple(str(mesh_axis) for axis in leaf.axes if axis.parts > 1 for mesh_axis in axis.mesh_axes)
    if leaf.error is not None:
        mesh_axes = ()
    return mesh_axes, leaf.place or "", leaf.error is not None


def _style_kinds(kinds: Sequence[_Kind]) -> Iterator[list[str]]:
    """Yields the label of each kind in the legend, its word in a search, its colours and its pattern."""
    number = 0
    for axes, place, is_invalid in kinds:
        suffix = f" on {place}" if place else ""
        if is_invalid:
            yield ["problem", "is:problem", "", "", "unsharded error"]
        elif axes:
            colour, dots = COLOURS[number % len(COLOURS)], "" if number < len(COLOURS) else "dots"
            token = _make_token(f"over:{'+'.join(axes)}{suffix}")
            yield [f"{' + '.join(axes)}{suffix}", token, colour, get_ink(colour), dots]
            number += 1
        else:
            label = f"replicated{suffix}" if not place or place.startswith("mesh") else f"on {place}"
            pattern = "unsharded far" if place else "unsharded"
            yield [label, _make_token(f"is:{place or 'replicated'}"), "", "", pattern]


def _make_token(text: str) -> str:
    return re.sub(r"\s", "_", text.lower())


def _describe_leaf(leaf: LeafReport, kind: int) -> dict[str, Any]:
    """Returns everything that the page shows of an array except its path."""
    shape = ", ".join(str(axis.size) if axis.name is None else f"{axis.name}: {axis.size}" for axis in leaf.axes)
    return {
        "kind": kind,
        "shape": f"({shape})",
        "dtype": leaf.dtype,
        "spec": "none" if leaf.spec is None else str(leaf.spec),
        "bytes": leaf.bytes,
        "each": leaf.bytes_per_device,
        "copies": leaf.replicated_bytes,
        "axes": [
            [axis.name or f"dimension {dim}", axis.size, " x ".join(axis.mesh_axes), axis.parts, axis.why]
            for dim, axis in enumerate(leaf.axes)
        ],
        "unused": [*leaf.unused.items()],
        "now": leaf.now,
        "error": leaf.error,
    }

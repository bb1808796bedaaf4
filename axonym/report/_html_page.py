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
from typing import Any, NamedTuple

from ._table import Note
from ._write_file import write_file


_PACKAGE = __name__.rpartition(".")[0]


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
    parts = {
        "HASH": base64.b64encode(digest).decode(),
        "TITLE": html.escape(title),
        "SUBTITLE": html.escape(subtitle),
        "FACTS": "".join(_format_facts(facts)),
        "NOTES": "".join(_format_page_notes(notes)),
        "DATA": _format_json(treemap),
    }
    text = re.sub("@([A-Z]+)@", lambda mark: parts[mark[1]], template)
    return write_file(path, text, "page", "report.html")


def _format_facts(facts: Sequence[Fact]) -> Iterator[str]:
    for fact in facts:
        mark = ' class="bad"' if fact.is_bad else ""
        name, number, meaning = map(html.escape, fact[:3])
        yield f"<div{mark}><dt>{name}</dt><dd>{number}</dd><dd>{meaning}</dd></div>"


def _format_page_notes(notes: Sequence[Note]) -> Iterator[str]:
    for heading, items, is_bad in notes:
        if is_bad:
            listing = "".join(f"<li>{html.escape(item)}</li>" for item in items)
            yield f"<details open class='bad'><summary>{html.escape(heading)}</summary><ul>{listing}</ul></details>"
        else:
            yield f"<p>{html.escape(' '.join([heading, '; '.join(items)]))}</p>"


def _format_json(data: Any) -> str:
    """Returns JSON that can stand in HTML: nothing in it begins a tag, a comment or an entity."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

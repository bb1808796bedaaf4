"""Writing files completely or not at all, for pages and locks."""

import html
import os
from pathlib import Path
from typing import Any

from .._ground.atomic_file import check_file_path, open_replacement
from .._ground.errors import make_error
from .._ground.formats import format_value


def write_file(path: str | os.PathLike[str], text: str, kind: str, example: str) -> Path:
    """Writes a text to a file in UTF-8, atomically: readers get the old text or the new one, never a part.

    A link stays a link, and its target is replaced; an existing file keeps its permissions. Errors show the kind of
    file and an example of a name.
    """
    check_path(path, kind)
    replace_file(check_file_path(path, kind, example), text.encode("utf-8", "backslashreplace"))
    return Path(path)


def check_path(path: Any, kind: str) -> None:
    if not isinstance(path, str | os.PathLike):
        raise make_error(TypeError, f"The {kind} needs the path of a file, not {format_value(path)}.")


def write_html_page(path: str | os.PathLike[str], title: str, content: str, example: str) -> Path:
    """Writes a page with a heading and HTML below it, as `write_file` does."""
    heading = html.escape(title)
    page = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{heading}</title><h1>{heading}</h1>"
    return write_file(path, f"{page}{content}</html>", "page", example)


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file atomically, by renaming one that is complete; an existing file keeps its permissions."""
    with open_replacement(path) as file:
        file.write(content)

"""Writing files completely or not at all, for pages and locks."""

import html
import os
import tempfile
from pathlib import Path


def write_file(path: str | os.PathLike[str], text: str, kind: str, example: str) -> Path:
    """Writes a text to a file in UTF-8, atomically: readers get the old text or the new one, never a part.

    A link stays a link, and its target is replaced; an existing file keeps its permissions. Errors show the kind of
    file and an example of a name.
    """
    replace_file(check_file_path(path, kind, example), text.encode("utf-8", "backslashreplace"))
    return Path(path)


def check_file_path(path: str | os.PathLike[str], kind: str, example: str) -> Path:
    """Returns the file that `write_file` writes; raises its errors of paths where none can be written."""
    target = Path(path)
    if target.is_dir():
        name = str(target / example)
        raise IsADirectoryError(f"the {kind} needs the name of a file, and {str(path)!r} is a folder; name it {name!r}")
    final = Path(os.path.realpath(target))
    if not final.parent.is_dir():
        missing = str(final.parent if target.is_symlink() else target.parent)
        raise FileNotFoundError(f"there is no folder {missing!r} for the {kind} {target.name!r}; make it first")
    return final


def write_html_page(path: str | os.PathLike[str], title: str, content: str, example: str) -> Path:
    """Writes a page with a heading and HTML below it, as `write_file` does."""
    heading = html.escape(title)
    page = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{heading}</title><h1>{heading}</h1>"
    return write_file(path, f"{page}{content}</html>", "page", example)


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file atomically, by renaming one that is complete; an existing file keeps its permissions."""
    with tempfile.TemporaryDirectory(prefix=".axonym-", dir=path.parent) as folder:
        written = Path(folder) / "written"
        written.write_bytes(content)
        if path.exists():
            written.chmod(path.stat().st_mode)
        written.replace(path)

"""Writing files completely or not at all, for pages and locks."""

import os
import tempfile
from pathlib import Path


def write_file(path: str | os.PathLike[str], text: str, kind: str, example: str) -> Path:
    """Writes a text to a file; whoever reads it meanwhile gets all of the old text or all of the new one.

    A link stays a link, and the file that it leads to is replaced; an existing file keeps its permissions.

    Args:
        path: The file.
        text: The text, written in UTF-8 with the line ends as they are.
        kind: The kind of file, for errors.
        example: A name for such a file, for errors.

    Raises:
        FileNotFoundError: If the folder does not exist.
        IsADirectoryError: If the path is a folder.
    """
    target = Path(path)
    if target.is_dir():
        name = str(target / example)
        raise IsADirectoryError(f"the {kind} needs the name of a file, and {str(path)!r} is a folder; name it {name!r}")
    final = Path(os.path.realpath(target))
    if not final.parent.is_dir():
        missing = str(final.parent if target.is_symlink() else target.parent)
        raise FileNotFoundError(f"there is no folder {missing!r} for the {kind} {target.name!r}; make it first")
    with tempfile.TemporaryDirectory(prefix=".axonym-", dir=final.parent) as folder:
        written = Path(folder) / "written"
        written.write_bytes(text.encode("utf-8", "backslashreplace"))
        if final.exists():
            written.chmod(final.stat().st_mode)
        written.replace(final)
    return target

"""Files that are written completely or not at all: under another name first, which no other program uses."""

import contextlib
import io
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def open_replacement(path: Path) -> Iterator[BinaryIO]:
    """Yields a new file that replaces another one when the block ends, and is removed if the block fails.

    It is in the same folder and on disk before it gets its name. An existing file keeps its permissions, and a link is
    replaced, not followed. A device or a pipe is written into.
    """
    if is_special(path):
        content = io.BytesIO()  # NumPy asks a file for its position, which a pipe does not have
        yield content
        with name_file_in_errors(path):
            path.write_bytes(content.getvalue())
        return
    temporary = path.with_name(f".axonym-{uuid.uuid4().hex}.incomplete")
    with name_file_in_errors(path, temporary):
        file = open_new_file(temporary)
        try:
            with file:
                yield file
                flush_to_disk(file)
            if path.exists():
                temporary.chmod(stat.S_IMODE(path.stat().st_mode))
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def is_special(path: Path) -> bool:
    """Returns whether something is there that is no regular file: a device, a pipe or a folder."""
    return path.exists() and not path.is_file()


def open_new_file(path: Path) -> BinaryIO:
    """Returns a file that did not exist before, open for writing; not even a link of this name is followed."""
    return path.open("xb")


def flush_to_disk(file: BinaryIO) -> None:
    """Waits until everything that was written to a file is on disk."""
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def name_file_in_errors(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Raises the errors of writing a file with its final name: they have that of the temporary file, or none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # `numpy.ndarray.tofile` raises such errors
            raise OSError(f"{str(path)!r} cannot be written: {error}") from error
        if error.filename is None or os.fspath(error.filename) == str(temporary):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def check_folder_path(folder: str | os.PathLike[str], argument: str) -> Path:
    """Returns a folder; raises a ValueError for an empty path, which would be the current one."""
    if not os.fspath(folder):
        raise ValueError(f"{argument} is an empty path; give the name of a folder, or '.' for the current one")
    return Path(folder)


def check_file_path(path: str | os.PathLike[str], kind: str, example: str) -> Path:
    """Returns the file to write, which a link leads to; raises an OSError where no file can be written.

    Args:
        path: The path of the file.
        kind: What the file has, for errors.
        example: The name of such a file, for errors.
    """
    target = Path(path)
    if target.is_dir():
        name = str(target / example)
        raise IsADirectoryError(f"the {kind} needs the name of a file, and {str(path)!r} is a folder; name it {name!r}")
    if is_special(target):  # the link /dev/stdout leads to a pipe that has no path
        return target
    final = Path(os.path.realpath(target))
    if not final.parent.is_dir():
        missing = str(final.parent if target.is_symlink() else target.parent)
        raise FileNotFoundError(f"there is no folder {missing!r} for the {kind} {target.name!r}; make it first")
    return final

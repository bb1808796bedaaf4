"""Files are written completely or not at all, by every function that writes one."""

import os
import resource
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from axonym._ground.atomic_file import check_file_path, open_replacement
from axonym.report._write_file import write_html_page


END = b"the end of what was written"


def write_page(path: Path) -> None:
    write_html_page(path, "title", "content" * 1000, "page.html")


def write_text(path: Path) -> None:
    with open_replacement(check_file_path(path, "text", "text.txt")) as file:
        file.write(b"content" * 1000)


@pytest.fixture(params=[write_page, write_text])
def write(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_file_has_ordinary_permissions_and_keeps_them(write: Callable[[Path], None], tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "file")
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
        (tmp_path / "file").chmod(0o604)
        write(tmp_path / "file")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o604


def test_a_link_stays_one_and_no_other_is_followed(write: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"old")
    (tmp_path / ".file.incomplete").symlink_to("victim")
    (tmp_path / "file").symlink_to("target")
    write(tmp_path / "file")
    assert (tmp_path / "file").is_symlink() and (tmp_path / "target").stat().st_size > 1000
    assert (tmp_path / "victim").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == [".file.incomplete", "file", "target", "victim"]


def read_until_end(descriptor: int) -> bytes:
    content = b""
    while not content.endswith(END):
        content += os.read(descriptor, 1 << 16)
    return content.removesuffix(END)


def test_a_pipe_is_written_into(write: Callable[[Path], None], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to("pipe")
    write(tmp_path / "file")
    # Open for writing, too, since a writer that replaces the pipe would leave the reader waiting for ever.
    descriptor = os.open(pipe, os.O_RDWR)
    with ThreadPoolExecutor(1) as threads:
        for path in (pipe, tmp_path / "link"):
            content = threads.submit(read_until_end, descriptor)
            write(path)
            os.write(descriptor, END)
            assert content.result() == (tmp_path / "file").read_bytes()
    os.close(descriptor)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and sorted(os.listdir(tmp_path)) == ["file", "link", "pipe"]


def test_a_device_is_written_into(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "null"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        path.open("wb").close()
    except PermissionError:
        pytest.skip("Only root makes devices, and not on every file system.")
    write(path)
    assert stat.S_ISCHR(path.stat().st_mode) and os.listdir(tmp_path) == ["null"]


def test_a_full_disk_leaves_the_old_file_and_is_named(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=rf"File too large: '{path}'|'{path}' cannot be written: 4096 requested"):
            write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_paths_where_no_file_can_be_are_refused(write: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=r"needs the name of a file, and '.*' is a folder; name it '"):
        write(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*/missing' for the .* 'file'; make it first"):
        write(tmp_path / "missing" / "file")

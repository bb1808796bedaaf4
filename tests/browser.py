"""Headless Chromium for the tests of pages: what a page holds once its script has run, what it says, how it looks."""

import os
import shutil
import subprocess
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import pytest


NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Element:
    """An element of a page: its tag and attributes, the elements in it, and its text."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag, self.attributes = tag, attributes
        self.inside: list[Element] = []
        self.pieces: list[str | Element] = []

    @property
    def text(self) -> str:
        return "".join(piece if isinstance(piece, str) else piece.text for piece in self.pieces)

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def style(self) -> dict[str, str]:
        entries = (entry.partition(":") for entry in self.attributes.get("style", "").split(";"))
        return {name.strip(): value.strip() for name, _, value in entries}

    def all(self, tag: str | None = None, kind: str | None = None) -> list["Element"]:
        """The elements within this one, of a tag and of a class, in the order of the page."""
        found: list[Element] = []
        for one in self.inside:
            if tag in (None, one.tag) and (kind is None or kind in one.classes):
                found.append(one)
            found += one.all(tag, kind)
        return found

    def by_id(self, name: str) -> "Element":
        (found,) = (one for one in self.all() if one.attributes.get("id") == name)
        return found


class Reader(HTMLParser):
    """Reads what Chromium writes, in which every element that is not void is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("", {})]
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].inside.append(made)
        self.open[-1].pieces.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].pieces.append(data)


class Opened(NamedTuple):
    """A page as it is once its script has run, and what it said on the console, errors among that."""

    page: Element
    console: list[str]


def chromium() -> str:
    """The browser to start; a test that wants one is skipped where there is none."""
    found = os.environ.get("AXONYM_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("This needs Chromium: install it, or say where it is with AXONYM_CHROMIUM.")
    return found


def opened(
    file: Path,
    fragment: str = "",
    *,
    size: tuple[int, int] = (1200, 900),
    picture: Path | None = None,
    dark: bool = False,
    timeout: float = 120,
) -> Opened:
    """Opens a file, with a fragment in its address, and draws it to a picture if one is given.

    Args:
        file: The page.
        fragment: What stands after `#` in the address.
        size: How wide and how high the window is.
        picture: Where the picture is to be, a PNG.
        dark: Whether the page is asked for its dark colours.
        timeout: After how many seconds the browser is stopped.
    """
    address = file.resolve().as_uri() + (f"#{fragment}" if fragment else "")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [*OPTIONS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        options += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--enable-logging=stderr"]
        options += ["--dump-dom", *([f"--screenshot={picture}"] if picture else [])]
        done = subprocess.run([chromium(), *options, address], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return Opened(Reader(done.stdout).open[0], said)

"""Every Python block of the README and of the documentation runs, as a reader would run it, and prints what it says.

The blocks of a page share their names, from top to bottom. A `text` block right after one is what it prints, and so is
the comment after a `print(...)`. A block after a line `<!-- not run: reason -->` is left out, and one with a title is a
file, which is written where the page runs. The code in the column `Axonym` of a table runs as well, row by row; a
column `gives` beside it has its value, or its axes if it is an array. The reference has each public name once.
"""

import ast
import importlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import pytest

import axonym
from tools import make_errors


ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^(?P<skip><!-- not run: .+ -->\n+)?"
    r"^(?P<indent> *)```python(?: title=\"(?P<file>[^\"]+)\")?.*\n"
    r"(?P<code>(?:.*\n)*?)"
    r"(?P=indent)```\n"
    r"(?P<printed>\n(?P=indent)```text\n(?P<text>(?:.*\n)*?)(?P=indent)```\n)?",
    re.MULTILINE,
)
TABLE = re.compile(r"^\|(?P<head>.*)\| Axonym +\|\n\|[-|: ]+\|\n(?P<rows>(?:\|.*\|\n)+)", re.MULTILINE)
CELL = re.compile(r"(?<!\\)\|")
KIND = re.compile(r"# .+\n\n\*(Tutorial|Guide|Reference|Explanation)[,.] .*You need .+\*\n\n")
COMMENT = re.compile(r"^\s*print\(.*\)  # (.*)$", re.MULTILINE)
NAMESPACES = [
    "axonym",
    "axonym.axis",
    "axonym.checkpoint",
    "axonym.data",
    "axonym.fft",
    "axonym.interop",
    "axonym.linalg",
    "axonym.mesh",
    "axonym.multihost",
    "axonym.nn",
    "axonym.partitioning",
    "axonym.planner",
    "axonym.poly",
    "axonym.quantization",
    "axonym.random",
    "axonym.report",
    "axonym.rules",
    "axonym.state_dict",
    "axonym.training",
    "axonym.tree",
    "axonym.tree_util",
    "axonym.typing",
]


class Block(NamedTuple):
    """Code, moved down to its line in the page, what the page says that it prints, and the file that it is, if any."""

    code: str
    printed: str | None = None
    file: str | None = None


def blocks(page: Path) -> Iterator[Block]:
    """Yields the code of each block and table."""
    text = page.read_text()
    found = [*BLOCK.finditer(text), *TABLE.finditer(text)]
    for match in sorted(found, key=lambda match: match.start()):
        if match.re is TABLE:
            yield from rows(text, match)
        elif not match["skip"]:
            code = re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
            printed = match["text"] if match["printed"] else "\n".join(COMMENT.findall(code)) or None
            yield Block("\n" * text.count("\n", 0, match.start("code")) + code, printed, match["file"])


def rows(text: str, table: re.Match[str]) -> Iterator[Block]:
    """Yields the code in the last column of each row of a table, and the value in the one before if it is `gives`."""
    line = text.count("\n", 0, table.start("rows"))
    has_values = table["head"].split("|")[-1].strip() == "gives"
    for below, row in enumerate(table["rows"].splitlines()):
        *_, value, column, _ = CELL.split(row)
        for code in re.findall(r"`([^`]+)`", column):
            code = code.replace("\\|", "|")
            if has_values:
                code = f"print((lambda value: getattr(value, 'shape', value))({code}))"
            yield Block("\n" * (line + below) + code, value.strip(" `") if has_values else None)


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [page for page in found if list(blocks(page))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ModuleType("axonym_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with jax.numpy_rank_promotion("allow"):
        for code, printed, file in blocks(page):
            if file:
                Path(file).write_text(code.lstrip("\n"))
                continue
            exec(compile(code, page, "exec"), vars(module))
            got = capsys.readouterr().out
            assert printed is None or got.split() == printed.split(), f"line {len(code) - len(code.lstrip())} of {page}"


def test_each_page_says_its_kind_and_what_it_needs():
    others = [ROOT / "docs/changelog.md", *ROOT.glob("docs/api/*.md")]
    rest = [page for page in ROOT.glob("docs/**/*.md") if page not in others and not KIND.match(page.read_text())]
    assert not [str(page.relative_to(ROOT)) for page in rest], "*Guide. You need [meshes](mesh.md).* is missing."


def test_errors_are_shown_as_they_are_raised():
    page = make_errors.PAGE.read_text()
    assert set(re.findall(r"<!-- raises (\w+) -->", page)) == set(make_errors.MISTAKES)
    with jax.numpy_rank_promotion("allow"):
        assert make_errors.fill(page) == page, "Write it again by `python -m tools.make_errors`."


def test_each_known_fault_has_a_test():
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs/known-faults.md").read_text())
    tests = re.findall(r"^def (test_\w+)", (ROOT / "tests/test_known_faults.py").read_text(), re.MULTILINE)
    assert sorted({*named}) == sorted(tests)


def public(namespace: str) -> Iterator[tuple[str, Any]]:
    """Yields the full names that a namespace re-exports, and what they stand for."""
    module = importlib.import_module(namespace)
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.asname == alias.name and not inspect.ismodule(thing := getattr(module, alias.name)):
                    yield f"{namespace}.{alias.name}", thing


def identity(name: str, thing: Any) -> Any:
    """Returns what is the same for two names of one function or class; an alias of types is known by its own name."""
    own = callable(thing) and (getattr(thing, "__module__", None) or "").startswith("axonym")
    return id(thing) if own else name.rpartition(".")[2]


def documented(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return axonym.named if name == "axonym.named.named" else getattr(importlib.import_module(module), last)


def test_reference_has_each_public_name_once():
    text = "\n".join(page.read_text() for page in ROOT.glob("docs/api/*.md"))
    names = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    found = Counter(identity(name, documented(name)) for name in names)
    known = {identity(name, thing): name for space in NAMESPACES for name, thing in public(space)}
    assert not [known[one] for one in known if one not in found], "These are not in the reference."
    assert not [name for name in names if identity(name, documented(name)) not in known], "These are not public."
    assert not [known[one] for one, times in found.items() if times > 1], "These are in the reference twice."

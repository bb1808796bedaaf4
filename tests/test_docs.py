"""Every Python block of the README and of the documentation runs, as a reader would run it.

The blocks of a page share their names, from top to bottom. A block after a line
`<!-- not run: reason -->` is left out.
"""

import re
import sys
from pathlib import Path
from types import ModuleType

import jax
import pytest


ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^(?P<skip><!-- not run: .+ -->\n+)?"
    r"^(?P<indent> *)```python.*\n"
    r"(?P<code>(?:.*\n)*?)"
    r"(?P=indent)```",
    re.MULTILINE,
)


def blocks(page: Path) -> list[str]:
    """Returns the code of each block, moved down to its line in the page, for tracebacks."""
    text = page.read_text()
    found = [match for match in BLOCK.finditer(text) if not match["skip"]]
    return ["\n" * text.count("\n", 0, match.start("code")) + code(match) for match in found]


def code(match: re.Match[str]) -> str:
    return re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE)


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [page for page in found if blocks(page)]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    module = ModuleType("axonym_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with jax.numpy_rank_promotion("allow"):
        for block in blocks(page):
            exec(compile(block, page, "exec"), vars(module))

"""The documentation's site: output scrolls and is never wrapped, pages link to others, and are there as Markdown."""

import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .browser import opened


ROOT = Path(__file__).parents[1]
HOOK = ROOT / "tools/markdown_pages.py"
PHONE = 390  # pixels; the window of Chromium cannot be as narrow, but a frame in it can
PAGE = f"""# Output

```python
print("{"error " * 50}")
```

```text
{"error " * 50}
```

<script>
const sizes = [...document.querySelectorAll("pre code")].map(
  (block) => [block.scrollWidth, block.clientWidth, block.getClientRects()[0].height]
);
const page = [document.documentElement.scrollWidth, innerWidth];
parent.postMessage(JSON.stringify({{sizes, page}}), "*");
</script>
"""
START = """# Start

*Needs nothing.*

```python
print(1)
```

```text
1
```
"""
THIRD = """# Third

What the [second](second.md#output) page and [`dot`][axonym.dot] do, without [more][axonym.nothing].

```python
table = {"a": 1}["a"](second.md)
```

::: axonym.dot
"""
FRAME = """<p id="found"></p>
<script>addEventListener("message", (event) => { document.getElementById("found").textContent = event.data; });</script>
<iframe src="site/second/index.html" style="width: PHONEpx; height: 800px; border: 0"></iframe>
""".replace("PHONE", str(PHONE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a site of three pages in `site`, made with the project's own theme, styles and hooks."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("This needs mkdocs: install the extra `docs`.")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs/stylesheets", folder / "docs/stylesheets")
    texts = {
        "index": "# Index\n\nShort. A sentence that says what there is to find on this page.\n",
        "second": PAGE,
        "third": THIRD,
        "start": START,
    }
    for name, text in texts.items():
        (folder / "docs" / f"{name}.md").write_text(text)
    settings: dict[str, Any] = {"INHERIT": str(ROOT / "mkdocs.yml"), "plugins": ["search"]}
    hooks = [str(HOOK), str(ROOT / "tools/make_notebooks.py")]
    settings |= {"hooks": hooks, "validation": {"links": {"unrecognized_links": "info"}}}
    settings |= {"docs_dir": "docs", "nav": [f"{name}.md" for name in texts]}
    (folder / "mkdocs.yml").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", folder / "mkdocs.yml"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


def test_code_and_output_scroll_on_a_phone_and_are_not_wrapped(folder: Path):
    (folder / "frame.html").write_text(FRAME)
    found = json.loads(opened(folder / "frame.html").page.by_id("found").text)
    code, output = found["sizes"]
    for scrolled, shown, height in (code, output):
        assert shown <= PHONE < scrolled, "The block is wrapped, or as wide as its lines."
        assert height < 60, "The block has more than one line."
    assert found["page"] == [PHONE, PHONE], "The page itself scrolls sideways."


def test_pages_end_with_links_to_the_previous_and_the_next_page(folder: Path):
    footers = [
        html.unescape(path.read_text()).partition("<footer")[2]
        for path in (folder / "site/index.html", folder / "site/second/index.html", folder / "site/start/index.html")
    ]
    kinds = ["md-footer__link--prev", "md-footer__link--next"]
    assert [[kind in footer for kind in kinds] for footer in footers] == [[False, True], [True, True], [True, False]]
    assert 'href=".."' in footers[1] and 'href="../third/"' in footers[1]


def test_pages_to_learn_from_have_their_notebook_for_download(folder: Path):
    page = (folder / "site/start/index.html").read_text()
    assert '<a download href="../start.ipynb">' in page
    notebook = json.loads((folder / "site/start.ipynb").read_text())
    assert [cell["source"] for cell in notebook["cells"]] == ["# Start\n\n*Needs nothing.*", "print(1)"]
    assert "ipynb" not in (folder / "site/second/index.html").read_text()


def test_pages_are_there_as_markdown_whose_links_lead_to_markdown(folder: Path):
    text = (folder / "site/third/index.html.md").read_text()
    assert "the [second](../second/index.html.md#output) page and [`dot`](index.html.md) do, without more." in text
    assert '["a"](second.md)' in text, "Code has been changed."
    entry = text.partition("### axonym.dot\n")[2]
    assert "axonym.dot(first, /, *others, axis, precision=None," in entry and "\nExample:\n    >>> " in entry
    assert not re.search(" at 0x|^:::", text, re.MULTILINE)
    assert (
        '<link rel="alternate nofollow" type="text/markdown" href="index.html.md">'
        in (folder / "site/third/index.html").read_text()
    )
    assert (folder / "site/second/index.html.md").read_text() == (folder / "docs/second.md").read_text()


def test_the_index_for_programs_has_a_line_for_each_page(folder: Path):
    lines = (folder / "site/llms.txt").read_text().splitlines()
    assert lines[0] == "# Axonym" and lines[2].startswith("> Named-axis arrays for JAX")
    assert lines[4:] == [
        "- [Index](index.html.md): Short. A sentence that says what there is to find on this page.",
        "",
        "- [Output](second/index.html.md): ",
        "",
        "- [Third](third/index.html.md): What the second page and `dot` do, without more.",
        "",
        "- [Start](start/index.html.md): ",
    ]


def test_each_page_of_the_documentation_says_what_it_is_about():
    pytest.importorskip("mkdocs", reason="This needs mkdocs: install the extra `docs`.")
    spec = importlib.util.spec_from_file_location("markdown_pages", HOOK)
    assert spec and spec.loader
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    for page in ROOT.glob("docs/**/*.md"):
        text = page.read_text()
        assert text.startswith("---\ndescription: ") or len(hook.summarize(text)) > 20, page

"""The layout of the documentation's site: output scrolls and is never wrapped, and pages link to their neighbours."""

import html
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .browser import opened


ROOT = Path(__file__).parents[1]
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
    for name, text in {"index": "# Index\n", "second": PAGE, "start": START}.items():
        (folder / "docs" / f"{name}.md").write_text(text)
    settings: dict[str, Any] = {"INHERIT": str(ROOT / "mkdocs.yml"), "plugins": ["search"]}
    settings |= {"docs_dir": "docs", "nav": ["index.md", "second.md", "start.md"]}
    settings |= {"hooks": [str(ROOT / "tools/make_notebooks.py")]}
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
    assert 'href=".."' in footers[1] and 'href="../start/"' in footers[1]


def test_pages_to_learn_from_have_their_notebook_for_download(folder: Path):
    page = (folder / "site/start/index.html").read_text()
    assert '<a download href="../start.ipynb">' in page
    notebook = json.loads((folder / "site/start.ipynb").read_text())
    assert [cell["source"] for cell in notebook["cells"]] == ["# Start\n\n*Needs nothing.*", "print(1)"]
    assert "ipynb" not in (folder / "site/second/index.html").read_text()

"""The notebooks of the pages to learn from: their cells are the blocks of the page, which `test_docs.py` runs."""

import ast
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

from tools.make_notebooks import DOCS, list_pages, make_notebook

from .test_docs import blocks


def load_cells(text: str, page: str = "start.md", site_url: str | None = None) -> list[Any]:
    return json.loads(make_notebook(text, page, site_url))["cells"]


def load_page(page: Path) -> list[Any]:
    return load_cells(page.read_text(), page.relative_to(DOCS).as_posix())


def strip_print(source: str) -> str:
    """Returns code with `x` in place of `print(x)` at its end, which is how a notebook displays it."""
    above, _, last = source.rpartition("\n")
    return f"{above}\n{last.removeprefix('print(').removesuffix(')')}"


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: page.stem)
def test_cells_are_the_blocks_of_the_page(page: Path):
    cells = [cell for cell in load_page(page) if cell["cell_type"] == "code"]
    for cell, block in zip(cells, blocks(page), strict=True):
        code = block.code.strip("\n")
        if block.file:
            code = f"%%writefile {block.file}\n{code}"
        if any(output["output_type"] == "execute_result" for output in cell["outputs"]):
            code = strip_print(code)
        assert cell["source"] == code


def test_a_notebook_runs_and_displays_what_is_saved_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    module = ModuleType("axonym_notebook")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    displayed = 0
    for cell in load_page(DOCS / "tutorial/1-arrays.md"):
        if cell["cell_type"] != "code":
            continue
        code, saved = ast.parse(cell["source"]), cell["outputs"]
        if saved and saved[0]["output_type"] == "execute_result":
            last = code.body.pop()
            assert isinstance(last, ast.Expr)
            exec(compile(code, "notebook", "exec"), vars(module))
            shown = eval(compile(ast.Expression(last.value), "notebook", "eval"), vars(module))
            assert repr(shown).split() == saved[0]["data"]["text/plain"].split()
            assert shown._repr_html_().startswith("<")
            displayed += 1
        else:
            with jax.numpy_rank_promotion("allow"):
                exec(compile(code, "notebook", "exec"), vars(module))
            assert capsys.readouterr().out == (saved[0]["text"] if saved else "")
    assert displayed == 1


def test_folds_files_pictures_and_links():
    cells = load_cells(
        "# T\n\n[a](b.md#c) and [d](https://e.f)\n\n![picture](g.svg)\n\n"
        '```python title="h.py"\nx = 1\n```\n\n<!-- not run: why -->\n\n```python\nskipped\n```\n\n'
        '??? note "Answer"\n\n    Because.\n\n    ```python\n    print(2)\n    ```\n\n'
        "    ```text\n    2\n    ```\n\nEnd.\n",
        page="tutorial/1.md",
    )
    assert [cell["source"] for cell in cells] == [
        "# T\n\na and [d](https://e.f)",
        "%%writefile h.py\nx = 1",
        "<!-- not run: why -->\n\n```python\nskipped\n```",
        "<details><summary>Answer</summary>\n\nBecause.\n\n</details>",
        "print(2)",
        "End.",
    ]
    assert cells[4]["metadata"] == {"jupyter": {"source_hidden": True, "outputs_hidden": True}}
    assert cells[4]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "2\n"}]


def test_links_are_absolute_where_the_site_has_an_address():
    (cell,) = load_cells("[a](../b.md#c), [d](2.md), [e](../index.md#f)", "tutorial/1.md", "https://x.y/z")
    assert cell["source"] == "[a](https://x.y/z/b/#c), [d](https://x.y/z/tutorial/2/), [e](https://x.y/z/#f)"


def test_a_display_without_print_is_an_error():
    with pytest.raises(ValueError, match=r"ends in `print` of one object, not in 'x = 1'"):
        load_cells("<!-- display -->\n\n```python\nx = 1\n```\n")

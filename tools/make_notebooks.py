"""Makes notebooks of the pages to learn from: `docs/start.md` and `docs/tutorial/`.

The pages are the only source. As a hook of MkDocs, this adds `start.ipynb` and the others to the site, each next to its
page, which gets a link to it. `python tools/make_notebooks.py FOLDER` writes them into a folder.

A Python block becomes a cell, and the `text` block after it the saved output of that cell. The lines of Markdown that
mean something else in a notebook:

- `<!-- display -->` before a block: the cell ends in the object that the last line prints, whose HTML Jupyter shows.
- A block with a `title="train.py"` is that file: its cell writes it.
- What is folded, `??? note "Answer"`, stays folded: text in `<details>`, cells with hidden source and outputs.
- Pictures are left out, because a cell draws them; links between pages become words, unless the site has a `site_url`.
"""

import argparse
import ast
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin


DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("start.md", "tutorial/*.md")
PART = re.compile(
    r"(?:^<!-- (?P<comment>display|not run: .+) -->\n\n?)?"
    r'^```python(?: title="(?P<file>[^"]+)")?\n(?P<code>(?:.*\n)*?)```\n'
    r"(?:\n```text\n(?P<printed>(?:.*\n)*?)```\n)?"
    r'|^\?\?\? \w+ "(?P<summary>[^"]+)"\n(?P<folded>(?:\n|    .*\n)+)',
    re.MULTILINE,
)
PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)([^)\s]+)\)")

Cell = dict[str, Any]


def make_notebook(text: str, page: str, site_url: str | None = None) -> str:
    """Returns a page as the JSON of a notebook.

    Args:
        text: The Markdown of the page.
        page: Where the page is under `docs`, which its links start from.
        site_url: The address of the site, if it has one.
    """
    cells = list(make_cells(replace_links(PICTURE.sub("", text), page, site_url)))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def make_cells(text: str, *, folded: bool = False) -> Iterator[Cell]:
    """Yields the cells of a page, or of what is folded in it."""
    end = 0
    for part in PART.finditer(text):
        if (part["comment"] or "").startswith("not run"):
            continue  # It stays a block of the text.
        yield from make_text_cell(text[end : part.start()])
        end = part.end()
        if part["summary"]:
            yield from fold_cells(part["summary"], textwrap.dedent(part["folded"]))
        else:
            yield make_code_cell(part, folded=folded)
    yield from make_text_cell(text[end:])


def make_text_cell(text: str) -> Iterator[Cell]:
    if text.strip():
        yield {"cell_type": "markdown", "metadata": {}, "source": text.strip()}


def make_code_cell(part: re.Match[str], *, folded: bool) -> Cell:
    source, printed = part["code"].strip("\n"), part["printed"]
    outputs: list[Cell] = []
    if printed is not None:
        outputs = [{"output_type": "stream", "name": "stdout", "text": printed}]
    if part["comment"] == "display":
        source = display_last(source)
        data = {"text/plain": (printed or "").rstrip("\n")}
        outputs = [{"output_type": "execute_result", "execution_count": None, "data": data, "metadata": {}}]
    if part["file"]:
        source = f"%%writefile {part['file']}\n{source}"
    metadata = {"jupyter": {"source_hidden": True, "outputs_hidden": True}} if folded else {}
    return {"cell_type": "code", "execution_count": None, "metadata": metadata, "outputs": outputs, "source": source}


def display_last(source: str) -> str:
    """Returns the code with the object itself in place of `print(...)` in its last statement."""
    match ast.parse(source).body[-1]:
        case ast.Expr(value=ast.Call(func=ast.Name(id="print"), args=[shown], keywords=[])) as last:
            above = source.splitlines()[: last.lineno - 1]
            return "\n".join([*above, ast.get_source_segment(source, shown) or ""])
    raise ValueError(f"A block after `<!-- display -->` ends in `print` of one object, not in {source[-40:]!r}.")


def fold_cells(summary: str, text: str) -> Iterator[Cell]:
    for cell in make_cells(text, folded=True):
        if cell["cell_type"] == "markdown":
            cell["source"] = f"<details><summary>{summary}</summary>\n\n{cell['source']}\n\n</details>"
        yield cell


def replace_links(text: str, page: str, site_url: str | None) -> str:
    """Makes links to other pages absolute; with the words of the links alone if the site has no address."""

    def replace(link: re.Match[str]) -> str:
        words, target = link.groups()
        if not site_url:
            return words
        address = urljoin(urljoin(site_url.rstrip("/") + "/", page), target)
        return f"[{words}]({re.sub(r'(?:index)?[.]md', '/', address).replace('//#', '/#')})"

    return LINK.sub(replace, text)


def list_pages(docs: Path = DOCS) -> list[Path]:
    """Returns the pages that are notebooks, too."""
    return [page for pattern in PAGES for page in sorted(docs.glob(pattern))]


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the notebooks to the site."""
    from mkdocs.structure.files import File

    docs = Path(config.docs_dir)
    for page in list_pages(docs):
        name = page.relative_to(docs).as_posix()
        notebook = make_notebook(page.read_text(), name, config.site_url)
        files.append(File.generated(config, name.removesuffix(".md") + ".ipynb", content=notebook))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Adds a link to the notebook of a page below its title and what it needs."""
    docs = Path(config.docs_dir)
    if docs / page.file.src_uri not in list_pages(docs):
        return markdown
    title, needs, body = markdown.split("\n\n", 2)
    notebook = Path(page.file.src_uri).stem + ".ipynb"
    return f"{title}\n\n{needs} [Download it as a notebook]({notebook}){{: download }}\n\n{body}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the tutorial as notebooks.")
    parser.add_argument("folder", type=Path, help="where to write them; made if it does not exist")
    folder = parser.parse_args().folder
    for page in list_pages():
        file = (folder / page.relative_to(DOCS)).with_suffix(".ipynb")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(make_notebook(page.read_text(), page.relative_to(DOCS).as_posix()))
        print(file)


if __name__ == "__main__":
    main()

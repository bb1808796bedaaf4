"""A hook of mkdocs for programs that read: each page as Markdown beside its HTML, and `llms.txt`, the index of them.

The layout is that of https://llmstxt.org: the Markdown of `mesh/` is `mesh/index.html.md`, and `llms.txt` lists each
page with its first sentences, or the `description` in its head. Links lead to the Markdown of other pages. Entries of
the reference, which mkdocstrings writes into the HTML, are signatures and docstrings here.
"""

import importlib
import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page


ENTRY = re.compile(r"^::: (\S+)\n((?:    .*\n)*)", re.MULTILINE)
SNIPPET = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
REFERENCE = re.compile(r"\[([^\]\[]+)\]\[([\w.]+)\]")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
SENTENCE = re.compile(r"\S.*?(?:[.?!](?=\s)|$)")
ADDRESS = re.compile(r"<(?:function|class) '?([\w.]+)'?(?: at 0x\w+)?>")
SENTINEL = re.compile("=<object object at 0x\\w+>")
SHORT = 60  # characters that say too little of a page

pages: dict[str, tuple[Page, str]] = {}
navigation: list[Navigation] = []


def on_nav(nav: Navigation, /, **_: Any) -> None:
    """Starts anew, as for each build while a site is served."""
    pages.clear()
    navigation[:] = [nav]


def on_page_markdown(markdown: str, /, *, page: Page, **_: Any) -> None:
    """Keeps the text of a page as its file has it."""
    pages[page.file.src_uri] = page, markdown


def on_post_page(output: str, /, *, page: Page, **_: Any) -> str:
    """Returns the HTML of a page with a link to its Markdown, for programs that come by the HTML."""
    name = posixpath.basename(page.file.dest_uri)
    # The theme takes links that are `alternate` alone for translations, whose sitemaps it loads.
    link = f'<link rel="alternate nofollow" type="text/markdown" href="{name}.md">'
    return output.replace("</head>", f"{link}</head>", 1)


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Writes the pages and their index."""
    folder, root = Path(config.site_dir), Path(config.config_file_path).parent
    places = {name: uri for uri, (_, text) in pages.items() for name, _ in ENTRY.findall(text)}
    for page, markdown in pages.values():
        text = SNIPPET.sub(lambda snippet: (root / snippet[1]).read_text(encoding="utf-8"), markdown)
        text = convert_outside_of_code(ENTRY.sub(write_entry, text), page, places)
        (folder / f"{page.file.dest_uri}.md").write_text(text, encoding="utf-8")
    index = f"# {config.site_name}\n\n> {config.site_description}\n{''.join(list_sections(config.site_url or ''))}"
    (folder / "llms.txt").write_text(index, encoding="utf-8")


def convert_outside_of_code(text: str, page: Page, places: dict[str, str]) -> str:
    """Returns the text with links to the Markdown of other pages; code stays as it is."""

    def find(source: str) -> str:
        """Returns the way from the page to a file of the documentation; to its Markdown if it is a page."""
        target = f"{pages[source][0].file.dest_uri}.md" if source in pages else source
        return posixpath.relpath(target, posixpath.dirname(page.file.dest_uri) or ".")

    def replace_link(link: re.Match[str]) -> str:
        source = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link[1]))
        is_link = source in pages or Path(page.file.src_dir or "", source).is_file()
        return f"]({find(source)}{link[2] or ''})" if is_link else link[0]  # such as code in a docstring

    def replace_reference(reference: re.Match[str]) -> str:
        label, name = reference.groups()
        while name and name not in places:
            name = name.rpartition(".")[0]
        return f"[{label}]({find(places[name])})" if name else label

    parts, end = [], 0
    for fence in [*FENCE.finditer(text), None]:
        prose = text[end : fence.start() if fence else None]
        parts.append(REFERENCE.sub(replace_reference, LINK.sub(replace_link, prose)))
        if fence:
            parts.append(fence[0])
            end = fence.end()
    return "".join(parts)


def write_entry(entry: re.Match[str]) -> str:
    """Returns an entry of the reference: a heading, signatures, and the docstrings of a function or class."""
    heading = re.search(r"heading: (\S+)", entry[2])
    thing, name = find_object(entry[1]), heading[1] if heading else entry[1]
    described = [(name, thing)]
    if inspect.isclass(thing):
        members = ((key, getattr(thing, key)) for key in vars(thing) if not key.startswith("_"))
        described += [(f"{name}.{key}", member) for key, member in members if inspect.isroutine(member)]
    parts = [f"### {name}\n"]
    for full_name, function in described:
        if signature := format_signature(full_name, function):
            parts.append(f"```python\n{signature}\n```\n")
        if not isinstance(function, str | int | float | dict | tuple) and (text := inspect.getdoc(function)):
            parts.append(f"{text}\n")
    return "\n".join(parts)


def find_object(name: str) -> Any:
    """Returns what has a full name."""
    module, _, last = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), last)
    except ModuleNotFoundError:
        return getattr(find_object(module), last)


def format_signature(name: str, function: Any) -> str:
    """Returns the call with its parameters and their defaults; an empty text for what is not called."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters, return_annotation=signature.empty))
    return name + ADDRESS.sub(r"\1", SENTINEL.sub("", text))


def list_sections(address: str) -> Iterator[str]:
    """Yields the headings and lines of the index, in the order of the navigation."""
    for item in navigation[0].items:
        if isinstance(item, Page):
            yield f"\n{describe_page(item, address)}"
        if isinstance(item, Section):
            lines = [describe_page(page, address) for page in item.children if isinstance(page, Page)]
            yield f"\n## {item.title}\n\n{''.join(lines)}"


def describe_page(page: Page, address: str) -> str:
    """Returns the line of a page in the index."""
    text = page.meta.get("description") or summarize(pages[page.file.src_uri][1])
    return f"- [{page.title}]({address}{page.file.dest_uri}.md): {text}\n"


def summarize(markdown: str) -> str:
    """Returns the first sentences below the heading, without links; an empty text if code or nothing is there.

    A line in italics before them, which says of what kind a page is, is left out.
    """
    paragraphs = re.sub(r"<!--.*?-->", "", markdown, flags=re.DOTALL).strip().split("\n\n")
    prose = next((text for text in paragraphs if text.strip() and not re.match(r"#|\*[^*]+\*$", text)), "")
    if prose.startswith(("```", "!", ":::", "|", "- ")):
        return ""
    summary = ""
    for sentence in SENTENCE.findall(re.sub(r"\[([^\]]+)\](\([^)]*\)|\[[^\]]*\])", r"\1", " ".join(prose.split()))):
        summary = f"{summary} {sentence}".strip()
        if len(summary) >= SHORT:
            break
    return summary

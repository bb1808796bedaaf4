"""A hook of mkdocs: the search lists recipes and guides before the reference and what is about the project."""

from typing import Any


# By the path of a page or its folder, times how much its score counts; others count once.
BOOSTS = {
    "recipes/": 1.8,
    "checkpoints.md": 2.0,
    "parallelism.md": 2.0,
    "partitioning.md": 1.5,
    "api/": 0.5,
    "benchmarks.md": 0.5,
    "changelog.md": 0.5,
    "comparison.md": 0.5,
    "design.md": 0.1,
    "gallery.md": 0.2,
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    for path, boost in BOOSTS.items():
        if page.file.src_uri.startswith(path):
            page.meta["search"] = {"boost": boost}
    return markdown

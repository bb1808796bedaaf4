"""What hatchling adds to the metadata: the project's addresses, and a README for package indexes.

The addresses follow from that of the repository, `repository` under `[tool.hatch.metadata.hooks.custom]` or
`AXONYM_REPOSITORY` in the environment, as a workflow sets it. Without it there are none. `AXONYM_DOCUMENTATION` is the
address of the documentation's site, if it has one.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)]+)\)")


class MetadataHook(MetadataHookInterface):
    """Sets the addresses, and makes the links of the README absolute."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets `urls`, and the long description with links to the repository, which indexes cannot follow otherwise."""
        repository = (os.environ.get("AXONYM_REPOSITORY") or self.config.get("repository", "")).rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": make_links_absolute(text, repository)}
        metadata["urls"] = list_urls(repository) if repository else {}


def list_urls(repository: str) -> dict[str, str]:
    """Returns the addresses that package indexes show."""
    files = f"{repository}/blob/HEAD"
    return {
        "Documentation": os.environ.get("AXONYM_DOCUMENTATION") or f"{files}/docs/index.md",
        "Repository": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{files}/CHANGELOG.md",
    }


def make_links_absolute(text: str, repository: str) -> str:
    """Returns the text with links to a repository; with the words of the links alone if there is none."""

    def replace(link: re.Match[str]) -> str:
        image, label, target = link.groups()
        if not repository:
            return label
        return f"{image}[{label}]({repository}/{'raw' if image else 'blob'}/HEAD/{target})"

    return LINK.sub(replace, text)

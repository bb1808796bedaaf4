"""What hatchling does to README.md for package indexes, which cannot follow links to files of the repository."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Makes the links of the README absolute."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets the long description, with links to the `Repository` of the project's URLs."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {"content-type": "text/markdown", "text": make_links_absolute(text, repository)}


def make_links_absolute(text: str, repository: str | None) -> str:
    """Returns the text with links to a repository; with the words of the links alone if there is none."""

    def replace(link: re.Match[str]) -> str:
        image, label, target = link.groups()
        if repository is None:
            return label
        return f"{image}[{label}]({repository.rstrip('/')}/{'raw' if image else 'blob'}/HEAD/{target})"

    return LINK.sub(replace, text)

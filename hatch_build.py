"""Makes the page that a package index shows from README.md: links there lead to the repository, at this
release.

An index shows no files beside the page, so a relative link or picture would be broken.
"""

# ruff: noqa: TID251 - a script, outside the pure packages

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<is_picture>!?)\[(?P<text>[^\]]*)\]\((?!https?://|#)(?P<path>[^)\s]+)\)")


class LongDescription(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        page = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata["urls"]["Repository"]
        text = LINK.sub(lambda link: _absolute(link, repository, f"v{metadata['version']}"), page)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def _absolute(link: re.Match[str], repository: str, tag: str) -> str:
    kind = "raw" if link["is_picture"] else "blob"
    return f"{link['is_picture']}[{link['text']}]({repository}/{kind}/{tag}/{link['path']})"

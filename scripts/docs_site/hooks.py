"""What the site generator calls: other files of the repository become pages, and links lead to them."""

import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.docs_site import pages

COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE)
"""Notes for the tests, such as which one runs a block."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs["toc"] = {"slugify": pages.slug, "permalink": "#", "toc_depth": "2-3"}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the top of the repository, a list of decisions, and the files that pages link to."""
    for name, page in pages.AT_ROOT.items():
        if (pages.ROOT / name).is_file():
            files.append(File.generated(config, page, content=(pages.ROOT / name).read_text()))
    files.append(File.generated(config, "decisions/index.md", content=_decisions()))
    for file in sorted(_linked()):
        text = (pages.ROOT / file).read_text()
        files.append(File.generated(config, pages.on_site(file), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    at_root = {page: name for name, page in pages.AT_ROOT.items()}
    source = at_root.get(page.file.src_uri, f"{pages.DOCS}/{page.file.src_uri}")
    return pages.relinked(COMMENT.sub("", markdown), source)


def _linked() -> set[str]:
    """Return the files outside of docs/ that a page links to."""
    return {
        file
        for source in pages.sources()
        for link in pages.links((pages.ROOT / source).read_text())
        if (pages.ROOT / (file := pages.resolve(source, link.path))).is_file()
        and not file.startswith(f"{pages.DOCS}/")
        and file not in pages.AT_ROOT
    }


def _decisions() -> str:
    """List the decisions by their titles."""
    lines = ["# Decisions", "", "Larger choices, each with an example of use, the reason and the price.", ""]
    for path in sorted((pages.ROOT / pages.DECISIONS).glob("*.md")):
        title = path.read_text().partition("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"

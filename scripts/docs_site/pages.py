"""Which pages the documentation has, where their links lead, and which headings can be linked to.

The same Markdown is read on a code host and on the site. Links are written for the repository: relative, from
file to file. `resolve` says which file of the repository a link means; the site makes its own address of it.
"""

# ruff: noqa: TID251 - a script, outside the pure packages

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from posixpath import normpath

ROOT = Path(__file__).parents[2]
DOCS = "docs"
AT_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages that are kept at the top of the repository, and what they are called on the site."""
DECISIONS = "docs/decisions"

CODE_BLOCK = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"(?P<before>!?\[(?:[^][]|\[[^][]*\])*\]\()(?P<target>[^()\s]+(?:\([^()\s]*\))?)\)")
HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*#*\s*$", re.MULTILINE)
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:")
"""What begins with a scheme leads out of the repository."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link as it is written: `path` is empty for one inside the page."""

    line: int
    target: str

    @property
    def path(self) -> str:
        return self.target.partition("#")[0]

    @property
    def anchor(self) -> str:
        return self.target.partition("#")[2]


def sources(root: Path = ROOT) -> list[str]:
    """Return all pages, by their path in the repository."""
    at_root = [name for name in AT_ROOT if (root / name).is_file()]
    return at_root + sorted(str(path.relative_to(root)) for path in (root / DOCS).rglob("*.md"))


def links(markdown: str) -> list[Link]:
    """Return the links of a page that lead to a file of the repository or to a heading."""
    text = _without_code(markdown)
    return [
        Link(text.count("\n", 0, found.start()) + 1, found["target"])
        for found in LINK.finditer(text)
        if not OUTSIDE.match(found["target"])
    ]


def resolve(source: str, path: str) -> str:
    """Return which file of the repository a link on the page `source` means."""
    return normpath(str(PurePosixPath(source).parent / path)) if path else source


def slug(heading: str, _separator: str = "-") -> str:
    """Return the anchor of a heading, as code hosts make it: letters, digits, `-` and `_` stay."""
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", heading)
    kept = re.sub(r"[^\w\- ]", "", text.replace("`", "").strip().lower())
    return kept.replace(" ", "-")


def anchors(markdown: str) -> set[str]:
    """Return the anchors of the page's headings; a second one of equal text gets `-1`."""
    text = CODE_BLOCK.sub("", markdown)
    seen: dict[str, int] = {}
    return {_numbered(slug(found["text"]), seen) for found in HEADING.finditer(text)}


def _numbered(name: str, seen: dict[str, int]) -> str:
    count = seen[name] = seen.get(name, -1) + 1
    return f"{name}-{count}" if count else name


def _without_code(markdown: str) -> str:
    """Blank out code, and keep the line numbers."""
    text = CODE_BLOCK.sub(lambda found: "\n" * found[0].count("\n"), markdown)
    return CODE.sub("", text)


def on_site(file: str) -> str:
    """Return what a file of the repository is called among the sources of the site."""
    if file in AT_ROOT:
        return AT_ROOT[file]
    if file == DECISIONS:
        return "decisions/index.md"
    return file.removeprefix(f"{DOCS}/") if file.startswith(f"{DOCS}/") else f"files/{file}.txt"


def relinked(markdown: str, source: str, root: Path = ROOT) -> str:
    """Return the page with links for the site: what exists is found there, what does not stays as it is."""
    here = PurePosixPath(on_site(source)).parent

    def address(found: re.Match[str]) -> str:
        path, hash_, anchor = found["target"].partition("#")
        file = resolve(source, path)
        if not path or OUTSIDE.match(path) or not (root / file).exists():
            return found[0]
        return f"{found['before']}{_relative(on_site(file), here)}{hash_}{anchor})"

    return "".join(
        part if part.startswith(("```", "~~~", "`")) else LINK.sub(address, part)
        for part in _with_code_apart(markdown)
    )


def _with_code_apart(markdown: str) -> Iterator[str]:
    """Yield blocks of code, and the text between them."""
    at = 0
    for found in CODE_BLOCK.finditer(markdown):
        yield markdown[at : found.start()]
        yield found[0]
        at = found.end()
    yield markdown[at:]


def _relative(file: str, folder: PurePosixPath) -> str:
    shared = 0
    parts, base = file.split("/"), [part for part in folder.parts if part != "."]
    while shared < min(len(parts) - 1, len(base)) and parts[shared] == base[shared]:
        shared += 1
    return "/".join([".."] * (len(base) - shared) + parts[shared:])

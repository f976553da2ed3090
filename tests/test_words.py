"""Keep text in step with the code: maps list every module, names in text exist, and the English is plain."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SRC = ROOT / "src/gpu_orchestrator"
APPS = sorted(path.parent for path in (SRC / "apps").glob("*/__init__.py"))
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FOLDERS = ("src", "tests", "benchmarks", "controlplane", "scripts")
PYTHON = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

FILE = re.compile(r"`([\w./-]+\.(?:py|lua))`")
NAME = re.compile(r"`([a-z_][a-z0-9_]*)`")
MAPPED = re.compile(r"^  ([\w/]+)  +\S", re.MULTILINE)
LITERAL = re.compile(
    r"""(?P<before>^[ \t]*)?(?P<quote>\"{3}|'{3})(?P<text>(?:\\[\s\S]|[^\\])*?)(?P=quote)"""
    r"""|"(?:\\[\s\S]|[^"\\\n])*"|'(?:\\[\s\S]|[^'\\\n])*'|(?P<comment>\#[^\n]*)""",
    re.MULTILINE,
)
LUA_COMMENT = re.compile(r"""(?:[^'"-]|'[^']*'|"[^"]*"|-(?!-))*--\s*(.*)""")
MAKE_COMMENT = re.compile(r"(?:|[a-z%-]+:.*#)#@?\s*(.*)")

ODD = {
    r"\b[Ww]hoever\b": "name the actor: the caller, the worker, the pod",
    r"\banew\b": "say 'again'",
    r"\b[Ss]o (many|long|much) (of|as|must|may|wait|are|is)\b": "say 'at most', 'how long'",
    r"(?<!here )\b(is|are|was) no (?!longer|more|matter|need|way|such)[a-z]": "say 'is not a …'",
    r"\bfor ever\b": "say 'forever'",
    r"\b(parted? from|parts from|parting from)\b": "say 'disconnect'",
    r"(?<![\w.])(he|his|him|himself)\b": "say 'they', or name the client",
    r"(?m)(^|[.;:] )Who (?!am\b|are\b|is\b)": "name the actor",
    r"\b(for|to|of|by|from|with) who\b": "name the actor",
    r"\b[Nn]obody (complains|waits|asks|hears)\b": "say what the code does not do",
    r"\bwithout a word\b": "say 'without a message'",
}
"""Phrases that an engineer at the next desk would not use, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Text:
    """A docstring, a comment or a page, and where it starts."""

    path: Path
    line: int
    text: str

    def at(self, position: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line + self.text.count(chr(10), 0, position)}"


@cache
def texts() -> tuple[Text, ...]:
    """Return every page, docstring and comment, but those of this file, which quotes what is odd."""
    pages = [Text(path, 1, path.read_text()) for path in DOCS]
    code = [each for path in PYTHON if path != Path(__file__) for each in _in_code(path)]
    lua = [each for path in SRC.rglob("*.lua") for each in _in_lines(path, LUA_COMMENT)]
    return (*pages, *code, *lua, *_in_lines(ROOT / "Makefile", MAKE_COMMENT))


def _in_lines(path: Path, comment: re.Pattern[str]) -> Iterator[Text]:
    """Return the comment of each line that has one."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if found := comment.match(line):
            yield Text(path, number, found.group(1))


def _in_code(path: Path) -> Iterator[Text]:
    """Return each comment, and each long string that begins a line, as a docstring does. By an expression:
    Python's own parser and tokenizer take ten times as long."""
    source = path.read_text()
    for found in LITERAL.finditer(source):
        kind = "comment" if found["comment"] else "text" if found["before"] is not None else ""
        if kind:
            yield Text(path, source.count("\n", 0, found.start(kind)) + 1, found[kind])


@cache
def known_words() -> frozenset[str]:
    """Return every word of the code outside docstrings and comments: what a name in text may mean."""
    found: set[str] = set()
    for path in PYTHON:
        code = re.sub(r'"""[\s\S]*?"""|#.*', "", path.read_text())
        found |= {*re.findall(r"\w+", code), *path.relative_to(ROOT).with_suffix("").parts}
    for path in SRC.rglob("*.lua"):
        found |= {path.stem, *re.findall(r"\w+", re.sub(r"--.*", "", path.read_text()))}
    return frozenset(found)


@pytest.mark.parametrize("app", APPS, ids=lambda path: path.name)
def test_map_of_an_app_lists_exactly_its_modules(app: Path) -> None:
    text = ast.get_docstring(ast.parse((app / "__init__.py").read_text())) or ""
    paths = (path.relative_to(app).with_suffix("") for path in app.rglob("*.py"))
    modules = {str(path) for path in paths if path.name != "__init__"}
    assert set(MAPPED.findall(text)) == modules, f"bring the map in {app.name}/__init__.py up to date"


def test_files_named_in_text_exist() -> None:
    files = {str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}
    missing = [
        f"{each.at(match.start())}: {match.group(1)}"
        for each in texts()
        for match in FILE.finditer(each.text)
        if not any(path == match.group(1) or path.endswith(f"/{match.group(1)}") for path in files)
    ]
    assert not missing, "\n".join(missing)


def test_names_in_docstrings_exist() -> None:
    """A word in backticks is an identifier, a module or a value somewhere in the code."""
    stale = [
        f"{each.at(match.start())}: {match.group(0)}"
        for each in texts()
        if each.path.suffix == ".py"
        for match in NAME.finditer(each.text)
        if match.group(1) not in known_words()
    ]
    assert not stale, "\n".join(stale)


def test_english_is_plain() -> None:
    odd = [
        f"{each.at(match.start())}: {match.group(0)!r}: {advice}"
        for each in texts()
        for pattern, advice in ODD.items()
        for match in re.finditer(pattern, each.text)
    ]
    assert not odd, "\n".join(odd)

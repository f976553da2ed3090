"""Names of what can be observed, as the code has them and as docs/runbook.md lists them."""

import ast
import re
from collections.abc import Iterator
from functools import cache

from gpu_orchestrator.api import names
from tests.support.paths import ROOT

PACKAGE = ROOT / "src" / "gpu_orchestrator"
RUNBOOK = ROOT / "docs" / "runbook.md"
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
RECORDERS = {"record", "normal", "warning"}
CODE = re.compile(r"`([^`]+)`")


def column(heading: str) -> list[str]:
    """Return the names in the first column of the tables of the runbook with this heading."""
    tables = re.findall(
        rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", RUNBOOK.read_text(), re.MULTILINE
    )
    rows = [row.split(" | ")[0] for table in tables for row in table.splitlines()]
    return [name for row in rows for name in CODE.findall(row)]


def sections(heading: str) -> list[str]:
    """Return the headings of the third level below this one of the second level."""
    _, _, rest = RUNBOOK.read_text().partition(f"\n## {heading}\n")
    return re.findall(r"^### (.+)$", rest.split("\n## ")[0], re.MULTILINE)


@cache
def log_lines() -> frozenset[tuple[str, str]]:
    """Return the sentences that the code logs, each with its level; `exception` logs an error."""
    return frozenset(
        (text, "error" if call.func.attr == "exception" else call.func.attr)
        for call in _calls()
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in LEVELS
        and "log" in ast.unparse(call.func.value)
        for text in _texts(call.args[0])
    )


def event_reasons() -> set[str]:
    """Return the reasons of the events that the code records, and those that names.py has for events."""
    text = (PACKAGE / "api" / "names.py").read_text()
    blocks = re.findall(r"^# Reasons of .*\n((?:#.*\n|[A-Z_]+ = .*\n)+)", text, re.MULTILINE)
    listed = {each for block in blocks for each in re.findall(r'^[A-Z_]+ = "(\w+)"', block, re.MULTILINE)}
    return listed | {text for each in _reasons() for text in _texts(each)}


def _reasons() -> Iterator[ast.expr]:
    """Yield the arguments of recorders and of the operator's notes that are constants."""
    for call in _calls():
        called = ast.unparse(call.func)
        if called == "Note" and len(call.args) == 3:
            yield call.args[1]
        elif re.fullmatch(r"\w*(\.\w*)*recorder\.\w+", called) and called.rpartition(".")[2] in RECORDERS:
            yield call.args[2 if called.endswith(".record") else 1]


def _texts(value: ast.expr) -> Iterator[str]:
    match value:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*_texts(body), *_texts(orelse))
        case ast.Attribute(value=ast.Name(id="names"), attr=name):
            yield getattr(names, name)


@cache
def _calls() -> tuple[ast.Call, ...]:
    """Return every call in the package."""
    trees = (ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py")))
    return tuple(node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))

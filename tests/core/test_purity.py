"""The pure rooms stay pure: no clock, no random numbers, no log, no IO, however they are imported."""

import ast
from pathlib import Path

import pytest

from tests.support.paths import ROOT

ROOMS = ROOT / "src/gpu_orchestrator"
ALLOWED = {
    "bisect",
    "collections",
    "dataclasses",
    "difflib",
    "functools",
    "gpu_orchestrator",
    "heapq",
    "itertools",
    "math",
    "numpy",
    "operator",
    "typing",
}
FILES = sorted(path for room in ("core", "policies", "engine") for path in (ROOMS / room).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOMS)))
def test_pure_rooms_import_no_clock_randomness_or_io(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {name.split(".")[0] for node in ast.walk(tree) for name in _imports(node)}
    assert imported <= ALLOWED
    assert not [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "random" and _is_numpy(node.value)
    ]


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def _is_numpy(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("np", "numpy")

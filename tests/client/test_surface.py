"""The two clients offer the same, and cost little where they are not used."""

import inspect
import subprocess
import sys
from typing import Any

import pytest

import gpu_orchestrator
from gpu_orchestrator import client
from gpu_orchestrator.client import AsyncClient, AsyncHandle, AsyncSchedules, Client, Handle, Schedules


def surface(kind: type) -> dict[str, list[tuple[str, Any]]]:
    """Return the public methods with the names and defaults of their parameters."""
    return {
        name: [(each.name, each.default) for each in inspect.signature(method).parameters.values()]
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("blocking", "awaiting"), [(Client, AsyncClient), (Handle, AsyncHandle), (Schedules, AsyncSchedules)]
)
def test_both_clients_have_the_same_methods(blocking: type, awaiting: type) -> None:
    assert surface(blocking) == surface(awaiting)
    undocumented = [
        f"{kind.__name__}.{name}"
        for kind in (blocking, awaiting)
        for name in surface(kind)
        if not inspect.getdoc(getattr(kind, name))
    ]
    assert not undocumented


@pytest.mark.parametrize("module", [gpu_orchestrator, client])
def test_all_that_is_named_can_be_imported(module: Any) -> None:
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = module.nonsense


LIGHT = """
import sys
from gpu_orchestrator import Client, task
Client("http://127.0.0.1:1")
heavy = {"numpy", "aiohttp", "asyncio", "fastapi", "cyclopts", "rich", "structlog", "gpu_orchestrator.apps"}
print(sorted(heavy & set(sys.modules)))
"""


def test_blocking_client_loads_neither_server_nor_numpy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"

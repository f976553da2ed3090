"""`gpu-orchestrator model`: declare, load, pin and unload on a real server; and its tables."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_orchestrator.cli import model_rows
from gpu_orchestrator.cli.tables import Page, table
from tests.support.command_line import User, serving
from tests.support.patience import PATIENCE_S

NOW = datetime(2026, 11, 19, 12, 0, tzinfo=UTC)


def copy(**rest: Any) -> dict[str, Any]:
    return {
        "model_name": "m",
        "worker_id": "a",
        "devices": [0, 1],
        "status": "loaded",
        "memory_usage": "16GB",
        "memory_usage_bytes": 16 * 2**30,
        "load_time": "3.2s",
        "last_used": "2026-11-19T11:59:00.000Z",
        "pinned": False,
        **rest,
    }


def model(**rest: Any) -> dict[str, Any]:
    return {
        "name": "llama",
        "handler": "chat",
        "memory": "8GB",
        "memory_measured": False,
        "load_time": "",
        "path": "/w",
        "options": {},
        "pinned_on": [],
        "copies": [],
        **rest,
    }


@pytest.mark.parametrize(
    ("given", "row"),
    [
        pytest.param(model(), "llama chat 8GB (declared) - - -", id="declared"),
        pytest.param(
            model(memory_measured=True, load_time="3.2s", pinned_on=["*"], copies=[copy(status="in_use")]),
            "llama chat 8GB 3.2s a (in use) all workers",
            id="loaded and pinned",
        ),
        pytest.param(
            model(copies=[copy(worker_id=each) for each in "abcde"]),
            "llama chat 8GB (declared) - a, b, c and 2 more -",
            id="on many",
        ),
    ],
)
def test_row_of_a_model(given: dict[str, Any], row: str) -> None:
    columns, rows = model_rows.table([given])
    assert table(columns, rows, Page())[1].split() == row.split()


def test_row_of_a_copy() -> None:
    columns, rows = model_rows.copies([copy(pinned=True), copy(devices=[], memory_usage_bytes=0)], NOW)
    shown = [line.split() for line in table(columns, rows, Page())[1:]]
    assert shown[0] == ["a", "0,", "1", "loaded,", "pinned", "16GB", "3.2s", "1m", "ago"]
    assert shown[1][:4] == ["a", "none", "loaded", "-"]


TINY = """
class Tiny:
    def load(self, model):
        self.greeting = model.options["greeting"]

    def run(self, task):
        return self.greeting
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """Return the user of an `up` whose worker has a class for models."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tiny_models.py").write_text(TINY)
    with serving(folder, "--model", "tiny=tiny_models:Tiny") as running:
        yield running


@pytest.mark.real
def test_model_is_declared_loaded_pinned_and_unloaded(user: User) -> None:
    (worker,) = (each["worker_id"] for each in user.json("worker", "list")["workers"])
    user.says(
        "model", "add", "org/tiny", "--handler", "tiny", "--memory", "4GiB", "--option", "greeting=hello"
    )
    assert "there is no model unknown" in user.refused("model", "load", "unknown")
    task = user.says("model", "load", "org/tiny", "--worker", worker, "--pin").split()[-1]
    assert user.json("task", "wait", task)["status"] == "completed"
    assert user.says("task", "logs", task).startswith("loading model org/tiny\n")
    assert user.says("task", "submit", "tiny", "--model", "org/tiny", "--wait", "-q").strip() == '"hello"'
    assert f"pinned on {worker}" in user.says("model", "pin", "org/tiny", "--worker", worker)
    end = time.monotonic() + PATIENCE_S
    while worker not in user.says("model", "show", "org/tiny"):
        assert time.monotonic() < end
    assert re.search(r"org/tiny +tiny +4GB", user.says("model", "list"))
    assert f"is pinned on {worker}" in user.refused("model", "unload", "org/tiny")
    assert "pinned nowhere" in user.says("model", "unpin", "org/tiny")
    assert f"unloading org/tiny from {worker}" in user.says("model", "unload", "org/tiny")
    assert "removed" in user.says("model", "remove", "org/tiny")

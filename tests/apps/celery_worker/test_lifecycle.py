"""How Celery's options become those of the agent, and what its pools do not survive."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency import prefork, solo, thread

from gpu_orchestrator.apps.celery_worker import agent_process, lifecycle
from gpu_orchestrator.apps.celery_worker.agent_process import OPTIONS
from gpu_orchestrator.apps.celery_worker.lifecycle import Lifecycle


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        pytest.param({}, 0, id="as many as the agent finds right"),
        pytest.param({"pool_cls": prefork.TaskPool, "concurrency": 3}, 3, id="as asked"),
        pytest.param({"pool_cls": thread.TaskPool, "concurrency": "4"}, 4, id="threads"),
        pytest.param({"concurrency": "auto"}, 0, id="Celery's own guess is no better"),
        pytest.param({"pool_cls": solo.TaskPool, "concurrency": 8}, 1, id="solo runs one"),
    ],
)
def test_concurrency_of_celery_is_that_of_the_agent(options: dict[str, Any], slots: int) -> None:
    assert lifecycle._slots(options) == slots


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", ["--name", "gpu1", "--max-concurrent", "2"]),
        ("--label zone=b", ["--name", "gpu1", "--max-concurrent", "2", "--label", "zone=b"]),
        ("--name other --max-concurrent=5", ["--name", "other", "--max-concurrent=5"]),
        ("--function 'f=a b:c'", ["--name", "gpu1", "--max-concurrent", "2", "--function", "f=a b:c"]),
    ],
)
def test_options_of_the_operator_win(given: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS, given)
    command = agent_process.command(7, "gpu1", 2)
    assert command[command.index("--desk") :] == ["--desk", "7", *words]


def test_agent_chooses_its_name_and_number_if_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OPTIONS, raising=False)
    assert agent_process.command(7, "", 0)[-2:] == ["--desk", "7"]


def test_pool_without_processes_does_not_end_the_main_process() -> None:
    """The pool `solo` sends the signal of a new pool process in the main process itself."""
    made = Lifecycle()
    made._main = os.getpid()
    made._pool_process()


def test_spawned_pool_is_refused_with_the_reason() -> None:
    instance, options = SimpleNamespace(app=None), {"pool_start_method": "spawn"}
    with pytest.raises(SystemExit, match="leave it out"):
        Lifecycle()._begin("celery@box", instance, None, options)

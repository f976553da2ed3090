"""What `task wait` and `task submit --wait` say while a task waits, and when it has failed."""

import json
from typing import Any

import pytest

from gpu_orchestrator.cli import task, waiting
from gpu_orchestrator.cli.options import Server
from gpu_orchestrator.cli.task_options import TaskOptions
from gpu_orchestrator.cli.where import Place
from tests.cli.test_client import http, peer

ID = "3f2a" * 8
STUCK = {"reason": "0/1 workers fit: 1 has no GPU; start one", "waits_for_worker": True}


def answer(status: str, **more: Any) -> bytes:
    return http(json.dumps({"task_id": ID, "status": status, **more}).encode())


def test_task_that_waits_for_another_worker_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "QUIET_S", 0.0)
    answers = [answer("queued"), *[answer("queued", **STUCK)] * 3, answer("completed")]
    with peer(*answers) as url:
        assert waiting.on_terminal(Place(url), ID)["status"] == "completed"
    assert capsys.readouterr().err == f"task {ID} waits: {STUCK['reason']}\n"


def test_task_is_not_called_stuck_while_a_worker_may_be_about_to_join(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with peer(answer("queued", **STUCK), answer("completed")) as url:
        waiting.on_terminal(Place(url), ID)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        ("failed", f"see what it printed: gpu-orchestrator task logs {ID}\n"),
        ("dead", f"see what it printed: gpu-orchestrator task logs {ID}\n"),
        ("cancelled", ""),
    ],
)
def test_task_that_failed_points_to_its_logs(
    status: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        peer(answer(status, error={"type": "E", "message": "no"})) as url,
        pytest.raises(SystemExit, match="1"),
    ):
        task.wait(ID, server=Server(url=url))
    assert capsys.readouterr().err == hint


def test_memory_without_a_gpu_is_refused_before_anything_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        task.submit("echo", how=TaskOptions(memory="4GB", gpus=0), server=Server(url="http://127.0.0.1:1"))
    assert capsys.readouterr().err == (
        "gpu-orchestrator: --memory 4GB with --gpus 0: memory is reserved on GPUs; leave --memory out, or "
        "ask for at least one GPU\n"
    )

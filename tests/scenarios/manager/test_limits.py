"""Limits and cancellation of running tasks, as a client sees them, with either executor."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.fleet import Fleet, fleet
from tests.support.workers import is_alive

pytestmark = [pytest.mark.real, pytest.mark.celery]
FUNCTIONS = ("deaf", "cleans_up", "pid_after")
REGISTERED = [
    word for name in FUNCTIONS for word in ("--function", f"{name}=tests.support.worker_functions:{name}")
]


@pytest.fixture
async def manager(tmp_path: Path, executor: str) -> AsyncIterator[Fleet]:
    async with fleet(tmp_path, EXECUTOR=executor, TASK_SOFT_TIME_LIMIT="6") as running:
        await running.worker("a", "--max-concurrent", "4", "--processes", "4", *REGISTERED)
        yield running


async def called(manager: Fleet, function: str, **more: object) -> str:
    parameters = {"function": function, "arguments": {"seconds": 60}}
    return await manager.submit("python", parameters, **more)


async def test_limits_end_tasks_and_cancelled_ones_stop(manager: Fleet) -> None:
    """One worker plays all of it: to start it costs more than what is tested."""
    soft = await called(manager, "cleans_up")
    hard = await called(manager, "deaf", timeout=2, max_retries=0)
    willing, stubborn = await called(manager, "pid_after"), await called(manager, "deaf")
    queued = await called(manager, "pid_after")
    for task in (willing, stubborn):
        await manager.running(task)
    runners = manager.workers[0].below()
    began = time.monotonic()
    for task in (queued, willing, stubborn):
        assert (await manager.call("DELETE", f"/tasks/{task}"))[0] == 200
    assert (await manager.wait(soft))["result"] == "cleaned up"
    ended = await manager.wait(hard)
    assert (ended["status"], ended["error"]["type"], ended["attempt"]) == ("failed", "Timeout", 1)
    for task, attempts in ((queued, 0), (willing, 1), (stubborn, 1)):
        ended = await manager.wait(task)
        assert (ended["status"], ended["attempt"]) == ("cancelled", attempts)
    assert time.monotonic() - began < 50, "long before they would have ended by themselves"
    assert not all(map(is_alive, runners)), "those that did not listen were killed"
    assert (await manager.wait(await manager.submit("echo", 1)))["result"] == 1

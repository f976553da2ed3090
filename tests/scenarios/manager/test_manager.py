"""Parts of the manager fail: the store, the server, the leader of two. No acknowledged task is lost."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from tests.support.fleet import Fleet, eventually, fleet
from tests.support.nemesis import BUSY, children_of, name_of
from tests.support.scale import Scale

pytestmark = pytest.mark.real
Figure = Callable[[str], None]


@pytest.fixture
async def manager(tmp_path: Path, scale: Scale, executor: str) -> AsyncIterator[Fleet]:
    """Run a manager with leases longer than a busy machine needs to start a server, so that none expires."""
    settings: dict[str, str] = scale(test={"WORKER_LEASE": "60"}, accept={})
    async with fleet(tmp_path, EXECUTOR=executor, **settings) as running:
        yield running


def store_of(manager: Fleet) -> int:
    assert manager.server is not None
    (pid,) = [pid for pid in children_of(manager.server.pid) if "valkey-server" in name_of(pid)]
    return pid


async def test_killed_store_loses_nothing_and_tasks_continue(
    manager: Fleet, scale: Scale, figure: Figure
) -> None:
    worker = await manager.worker("a", "--max-concurrent", "4")
    running = await manager.submit("sleep", {"seconds": 4})
    await manager.running(running)
    body = {"task_type": "echo", "parameters": 1, "resources": {"gpus": 0}}
    status, batch = await manager.call("POST", "/tasks/batch", {"tasks": [body] * 200})
    assert status == 202
    os.kill(store_of(manager), signal.SIGKILL)
    killed = time.monotonic()

    async def takes_tasks() -> bool:
        return (await manager.call("POST", "/tasks", body))[0] == 202

    await eventually(takes_tasks, 60.0)
    probe = await manager.submit("echo", 2)
    assert (await manager.wait(probe))["status"] == "completed"
    figure(f"store killed, a new task done after {time.monotonic() - killed:.2f} s")
    assert time.monotonic() - killed < scale(test=BUSY, accept=1) * 5.0
    for each in batch["tasks"]:
        assert (await manager.wait(each["task_id"]))["status"] == "completed"
    ended = await manager.wait(running)
    assert (ended["status"], ended["attempt"]) == ("completed", 1), "the running task continued"
    assert worker.process.poll() is None


@pytest.mark.celery
async def test_killed_server_resumes_with_its_state(manager: Fleet, figure: Figure) -> None:
    await manager.worker("a", "--max-concurrent", "2")
    running = await manager.submit("sleep", {"seconds": 6})
    waiting = [await manager.submit("sleep", {"seconds": 0.1}) for _ in range(20)]
    await manager.running(running)
    assert manager.server is not None
    manager.server.kill()
    manager.server.wait()
    killed = time.monotonic()
    await manager.start()
    for name in waiting:
        assert (await manager.wait(name))["status"] == "completed"
    figure(f"server killed and started, all waiting done after {time.monotonic() - killed:.2f} s")
    ended = await manager.wait(running)
    assert (ended["status"], ended["attempt"]) == ("completed", 1), "the worker resumed with its running task"


async def test_second_server_leads_after_the_leader_is_killed(
    tmp_path: Path, figure: Figure, executor: str
) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 64)
    async with embedded(tmp_path / "store") as store:
        shared = {
            "EXECUTOR": executor,
            "REDIS_URL": store.url,
            "API_KEY": "k" * 64,
            "WORKER_TOKEN_FILE": str(token),
        }
        async with Fleet(tmp_path / "one", env=shared) as one, Fleet(tmp_path / "two", env=shared) as two:
            for manager, name in ((one, "a"), (two, "b")):
                await manager.worker(name, "--max-concurrent", "2")

            async def both_are_seen() -> bool:
                _, shown = await one.call("GET", "/cluster/status")
                return bool(shown["active_workers"] == 2)

            await eventually(both_are_seen, 60.0)
            names = [await two.submit("sleep", {"seconds": 0.2}) for _ in range(40)]
            crossing = await asyncio.gather(*(one.wait(name) for name in names[:10]))
            assert {each["status"] for each in crossing} == {"completed"}
            leader, other = (one, two) if await one.metric("leader") else (two, one)
            assert leader.server is not None
            leader.server.kill()
            leader.server.wait()
            killed = time.monotonic()
            probe = await other.submit("echo", 1)
            assert (await other.wait(probe))["status"] == "completed"
            figure(f"leader killed, a new task done after {time.monotonic() - killed:.2f} s")
            for name in names:
                assert (await other.wait(name))["status"] == "completed"


async def test_correlation_id_is_in_all_logs(tmp_path: Path) -> None:
    """The server's log, its log file and the worker's log have the same id."""
    logged = tmp_path / "logs" / "server.json"
    async with Fleet(
        tmp_path, {"LOG_LEVEL": "DEBUG", "LOG_FORMAT": "text", "LOG_FILE": str(logged)}
    ) as running:
        await running.worker("a", "--v", "1", "--simulate", "1xL4:24GiB")
        assert running._http is not None
        body = {"task_type": "echo"}
        async with running._http.post("/tasks", json=body, headers={"X-Request-ID": "order-66"}) as answer:
            name = (await answer.json())["task_id"]
        ended = await running.wait(name)
        assert ended["correlation_id"] == "order-66"
        devices = [f"0 {each['uuid']} L4" for each in ended["devices"]]
        assert len(devices) == 1
        scheduled = next(line for line in _objects(logged) if line["message"] == "task_scheduled")
        assert scheduled["correlation_id"] == "order-66"
        assert (scheduled["task_id"], scheduled["worker_id"]) == (name, "a")
        assert scheduled["devices"] == devices
        assert scheduled["estimated_duration"] >= 0
        begun = next(line for line in _objects(tmp_path / "a.log") if line["message"] == "task begins")
        assert (begun["task_id"], begun["correlation_id"]) == (name, "order-66")
        assert begun["devices"] == devices
    assert "task_scheduled" in (tmp_path / "server.log").read_text()


def _objects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]

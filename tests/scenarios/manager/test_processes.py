"""`server --processes 2`: real processes on one port and one store, one of them killed, all of them ended."""

import asyncio
import json
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from gpu_orchestrator.api import session
from tests.support import scripted_worker
from tests.support.fleet import Fleet, eventually
from tests.support.workers import is_alive

pytestmark = pytest.mark.real


async def fresh(fleet: Fleet, path: str) -> tuple[str, str]:
    """Ask over a new connection; return which process answered, and the text."""
    headers = {"Authorization": f"Bearer {fleet.key}"}
    timeout = aiohttp.ClientTimeout(total=60)
    async with (
        aiohttp.ClientSession(fleet.url, headers=headers, timeout=timeout) as http,
        http.get("/health") as health,
        http.get(path) as answer,
    ):
        return (await health.json())["dependencies"]["process"], await answer.text()


async def all_answer(fleet: Fleet, count: int) -> bool:
    found = {(await fresh(fleet, "/health"))[0] for _ in range(6 * count)}
    return len(found) == count


async def all_show(fleet: Fleet, metric: str, value: float) -> bool:
    """Return True if any process shows this sum of all. One that is too busy to answer the others for a
    second is missing in their sums."""
    shown = [counter((await fresh(fleet, "/metrics"))[1], metric) for _ in range(6)]
    return shown == [value] * 6


async def has_ended(pid: int) -> bool:
    return not is_alive(pid)


def children(pid: int) -> dict[int, str]:
    """Return the commands of the processes that this one started."""
    found = {}
    for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found[int(each)] = Path(f"/proc/{each}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def api_processes(fleet: Fleet) -> list[int]:
    assert fleet.server is not None
    return [pid for pid, command in children(fleet.server.pid).items() if "api_process" in command]


def counter(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


async def test_processes_share_port_store_and_metrics_and_survive_a_kill(tmp_path: Path) -> None:
    async with Fleet(tmp_path / "f", {"WORKER_PROCESSES": "2"}) as fleet:
        assert fleet.server is not None
        await eventually(lambda: all_answer(fleet, 2), 60)
        await fleet.worker("a", "--max-concurrent", "4")
        done = [await fleet.submit("echo", {"n": n}) for n in range(20)]
        for each in done:
            assert (await fleet.wait(each))["status"] == "completed"
        await eventually(lambda: all_show(fleet, "tasks_total", 20), 60)
        await eventually(lambda: all_show(fleet, "workers_connected ", 1), 60)
        await eventually(lambda: all_show(fleet, "leader ", 1), 60)
        shown = (await fresh(fleet, "/metrics"))[1]

        await _polls_through_any_process(fleet)
        waiting = [await fleet.submit("sleep", {"seconds": 1}) for _ in range(4)]
        victim = api_processes(fleet)[0]
        requests = counter(shown, "http_requests_total")
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: has_ended(victim), 60)  # its share of the port ends with it
        for _ in range(8):  # at once: the other one serves
            assert (await fresh(fleet, "/health"))[0].endswith(" of 2")
        await eventually(lambda: all_answer(fleet, 2), 60)
        assert victim not in api_processes(fleet)
        for each in waiting:
            shown_task = await fleet.wait(each, 60)
            assert shown_task["status"] == "completed", shown_task
        after = (await fresh(fleet, "/metrics"))[1]
        assert counter(after, "http_requests_total") >= requests, "no counter falls"
        assert counter(after, "tasks_total") >= 25

        before = list(children(fleet.server.pid))
        fleet.server.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(fleet.server.wait, 60) == 0
        assert not [pid for pid in before if is_alive(pid)], "neither processes nor the store are left"


async def _polls_through_any_process(fleet: Fleet) -> None:
    """Run a task on a worker without a WebSocket, whose every request is a new connection."""
    token = (fleet.folder / "data" / "worker-token").read_text()
    hello = scripted_worker.hello("polling", task_types=("rare",))

    async def post(path: str, body: bytes) -> bytes:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(fleet.url, headers=headers) as http,
            http.post(path, data=body) as got,
        ):
            assert got.status in (200, 201), await got.text()
            return await got.read()

    epoch = json.loads(await post("/workers", session.frame(hello)[1:-1]))["epoch"]
    task = await fleet.submit("rare")
    assigned: set[tuple[str, int]] = set()
    async with asyncio.timeout(60):
        while not assigned:
            received = session.read_by_worker(
                await post(f"/workers/polling/heartbeat?epoch={epoch}&timeout=1", b"[]")
            )
            assigned = {(each.task, each.attempt) for each in received if isinstance(each, session.Assign)}
    assert assigned == {(task, 1)}
    await post(f"/workers/polling/heartbeat?epoch={epoch}&timeout=0", session.frame(session.Done(task, 1)))
    assert (await fleet.wait(task))["status"] == "completed"
    await post(f"/workers/polling/heartbeat?epoch={epoch}&timeout=0", session.frame(session.Leaving()))

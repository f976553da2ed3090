"""The leader is killed at the moment of firing, again and again: each moment has one run, none is missed."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest

from gpu_orchestrator.adapters.store import schedules
from tests.support import stores
from tests.support.fleet import Fleet, eventually
from tests.support.patience import PATIENCE_S
from tests.support.scale import Scale
from tests.support.script_proxy import ScriptProxy, When, watching

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
Figure = Callable[[str], None]
NAME = "often"
SCHEDULE = {
    "name": NAME,
    "schedule": "@every 1s",
    "missed": "run_all",
    "task": {"task_type": "echo", "resources": {"gpus": 0}, "max_retries": 50, "max_lost_workers": 50},
}


async def test_leader_killed_while_it_fires_runs_each_moment_once(
    tmp_path: Path, scale: Scale, figure: Figure
) -> None:
    kills = scale(test=3, accept=50)
    shared = {"API_KEY": "k" * 64, "WORKER_TOKEN": "t" * 64, "SCHEDULE_MIN_INTERVAL": "1"}
    async with stores.external(tmp_path, appendonly="yes") as url:
        port = urlsplit(url).port or 0
        async with watching(port, schedules._FIRE) as first, watching(port, schedules._FIRE) as second:
            one, two = (
                Fleet(tmp_path / name, {**shared, "REDIS_URL": url.replace(str(port), str(proxy.port))})
                for name, proxy in (("one", first), ("two", second))
            )
            async with one, two:
                (tmp_path / "one" / "data" / "worker-token").write_text("t" * 64)
                await one.worker("w", "--server", two.url, "--max-concurrent", "8")
                status, made = await one.call("POST", "/schedules", SCHEDULE)
                assert status == 201, made
                await fires_after(one, 0)
                for number in range(kills):
                    when: When = get_args(When)[number % 3]
                    await kill_who_fires({first: one, second: two}, when)
                shown = await runs(one)
                took = overdue(shown)
    assert {each["status"] for each in shown} == {"completed"}
    moments = sorted(datetime.fromisoformat(each["labels"]["scheduled_for"]) for each in shown)
    steps = {later - sooner for sooner, later in pairwise(moments)}
    assert steps == {timedelta(seconds=1)}, "none is missed, none has two runs"
    figure(f"{kills} leaders killed as they fired: {len(moments)} moments, each run once, {took} late")


async def kill_who_fires(servers: dict[ScriptProxy, Fleet], when: When) -> None:
    """Kill the leader at its next firing, wait until another has fired, and start the killed one again."""
    for proxy in servers:
        proxy.arm(when)
    hits = {asyncio.create_task(proxy.hit.wait()): server for proxy, server in servers.items()}
    done, waiting = await asyncio.wait(hits, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    assert done, "nobody fires"
    for proxy in servers:
        proxy.arm(None)
    for each in waiting:
        each.cancel()
    killed = hits[done.pop()]
    assert killed.server is not None
    killed.server.kill()
    await asyncio.to_thread(killed.server.wait)
    other = next(each for each in servers.values() if each is not killed)
    _, known = await other.call("GET", f"/schedules/{NAME}")
    await asyncio.gather(killed.start(), fires_after(other, known["fired"]))


async def fires_after(server: Fleet, count: int) -> None:
    async def has_fired() -> bool:
        _, shown = await server.call("GET", f"/schedules/{NAME}")
        return bool(shown["fired"] > count)

    await eventually(has_fired, PATIENCE_S)


async def runs(server: Fleet) -> list[dict[str, Any]]:
    """Pause the schedule, and return its tasks once all have ended."""
    await server.call("POST", f"/schedules/{NAME}/pause")
    _, listed = await server.call("GET", f"/tasks?label=schedule={NAME}&limit=1000")
    assert listed["total"] == len(listed["tasks"])
    _, schedule = await server.call("GET", f"/schedules/{NAME}")
    assert schedule["fired"] == listed["total"]
    return [await server.wait(each["task_id"]) for each in listed["tasks"]]


def overdue(shown: list[dict[str, Any]]) -> str:
    """Return how long after its moment the latest task was queued."""
    late = [
        datetime.fromisoformat(each["created_at"]) - datetime.fromisoformat(each["labels"]["scheduled_for"])
        for each in shown
    ]
    return f"at most {max(late).total_seconds():.1f} s"

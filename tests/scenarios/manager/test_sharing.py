"""Several keys share a cluster: each gets its fair share, and a flood slows only its own key."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import pytest

from tests.support.fleet import Fleet, eventually, fleet
from tests.support.nemesis import children_of, name_of
from tests.support.paths import ROOT
from tests.support.scale import Scale

pytestmark = pytest.mark.real
Figure = Callable[[str], None]
WARM_UP = 50
PROBE_EVERY_S = 0.02
UNLIMITED = {"requests_per_minute": 0, "requests_per_hour": 0}
ECHO = {"task_type": "echo", "parameters": {}, "resources": {"gpus": 0}}
NAP = {"task_type": "sleep", "parameters": {"seconds": 0.02}, "resources": {"gpus": 1}}


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with fleet(tmp_path) as running:
        yield running


@dataclass(frozen=True)
class Client:
    """A client with its own key."""

    http: aiohttp.ClientSession
    key: str

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.http.request(method, path, json=body) as answer:
            return answer.status, await answer.json()

    async def submit_all(self, body: Any, count: int) -> list[str]:
        status, answer = await self.call("POST", "/tasks/batch", {"tasks": [body] * count})
        assert status == 202, answer
        return [each["task_id"] for each in answer["tasks"]]


@asynccontextmanager
async def client(manager: Fleet, name: str, **limits: float) -> AsyncIterator[Client]:
    status, made = await manager.call("POST", "/keys", {"name": name, "limits": limits})
    assert status == 201, made
    headers = {"Authorization": f"Bearer {made['key']}"}
    async with aiohttp.ClientSession(manager.url, headers=headers) as http:
        yield Client(http, made["key"])


def when(shown: str) -> float:
    return datetime.fromisoformat(shown).timestamp()


@dataclass(frozen=True, order=True)
class Run:
    """A task that ran; sorts by when it began."""

    began: float
    ended: float
    owner: str


async def runs(manager: Fleet, owners: dict[str, str]) -> list[Run]:
    found: list[Run] = []
    for offset in range(0, len(owners), 1000):
        _, page = await manager.call("GET", f"/tasks?limit=1000&offset={offset}&status=completed")
        found += [
            Run(when(each["started_at"]), when(each["completed_at"]), owners[each["task_id"]])
            for each in page["tasks"]
            if each["task_id"] in owners
        ]
    return sorted(found)


async def test_two_keys_share_two_devices_evenly(manager: Fleet, scale: Scale, figure: Figure) -> None:
    """Ann has run tasks and submitted all of hers before bob submits any. The worker is cordoned meanwhile;
    otherwise ann's tasks might be done before a slow client has submitted bob's. Small scale: tasks of both
    run in the same process, which saves a start for nearly every task."""
    count = scale(test=120, accept=1000)
    runners: list[str] = scale(test=["--share-runners"], accept=[])
    await manager.worker("a", "--simulate", "2xL4:24GiB", "--max-concurrent", "8", *runners)
    async with client(manager, "ann") as ann, client(manager, "bob") as bob:
        owners = dict.fromkeys(await ann.submit_all(NAP, 10), "ann")
        for name in owners:
            assert (await manager.wait(name))["status"] == "completed"
        await manager.call("POST", "/workers/a/cordon")
        owners |= dict.fromkeys(await ann.submit_all(NAP, count - 10), "ann")
        owners |= dict.fromkeys(await bob.submit_all(NAP, count), "bob")
        await manager.call("POST", "/workers/a/uncordon")
        for name in owners:
            assert (await manager.wait(name, 120.0))["status"] == "completed"
    everything = await runs(manager, owners)
    assert len(everything) == 2 * count
    places = {
        owner: [at for at, run in enumerate(everything) if run.owner == owner] for owner in ("ann", "bob")
    }
    both = everything[places["bob"][0] : min(places["ann"][-1], places["bob"][-1]) + 1]
    assert len(both) > count, "ann's tasks were done before bob's could begin"
    shares = [sum(run.owner == "bob" for run in both[:at]) / at for at in range(WARM_UP, len(both))]
    figure(f"{count} tasks each: bob had {min(shares):.1%} to {max(shares):.1%} of any prefix")
    check_even(both)


def check_even(both: list[Run]) -> None:
    """Check that in every prefix both owners had the devices equally long, within ten percent plus six of the
    longest tasks: what two devices and the next in the queue may be ahead, twice, as a busy machine reports
    late."""
    longest = max(run.ended - run.began for run in both)
    had = {"ann": 0.0, "bob": 0.0}
    for run in both:
        had[run.owner] += run.ended - run.began
        assert abs(had["ann"] - had["bob"]) <= 0.1 * sum(had.values()) / 2 + 6 * longest, had


async def test_running_tasks_and_daily_gpu_time_are_limited(manager: Fleet) -> None:
    await manager.worker("a", "--simulate", "4xL4:24GiB", "--max-concurrent", "8")
    nap = {**NAP, "parameters": {"seconds": 0.4}}
    async with (
        client(manager, "ann", running_tasks=1) as ann,
        client(manager, "bob", gpu_seconds_per_day=1) as bob,
    ):
        names = await ann.submit_all(nap, 4)
        ends = [await manager.wait(name) for name in names]
        times = sorted((when(each["started_at"]), when(each["completed_at"])) for each in ends)
        for (_, ended), (started, _) in pairwise(times):
            assert started > ended - 0.1, "one at a time, though four devices were free"
        await asyncio.gather(*(manager.wait(name) for name in await bob.submit_all(nap, 3)))

        async def is_refused() -> bool:
            return (await bob.call("POST", "/tasks", nap))[0] == 429

        await eventually(is_refused, 60.0)
        assert (await ann.call("POST", "/tasks", nap))[0] == 202


@pytest.mark.timeout(1800)
async def test_flood_slows_only_its_own_key(manager: Fleet, scale: Scale, figure: Figure) -> None:
    """Latency without the flood is measured before and after it, because the machine's speed varies."""
    count, connections = scale(test=2000, accept=100_000), scale(test=60, accept=100)
    probes = scale(test=100, accept=1500)
    await manager.worker("a", "--max-concurrent", "8")
    async with client(manager, "often") as flooder, client(manager, "calm", **UNLIMITED) as calm:
        quiet = await probe(calm, probes)
        before_mb = rss_mb(manager)
        flooding = asyncio.ensure_future(flood(manager.url, flooder.key, count, connections))
        flooded = []
        while not flooding.done():
            flooded += await probe(calm, 50)
        result = await flooding
        grown_mb = rss_mb(manager) - before_mb
        quiet += await probe(calm, probes)
    check_slowed(result, "429")
    assert result["statuses"]["202"] <= 100 * (1 + result["seconds"] / 60)
    assert await manager.metric("requests_refused_total") == result["statuses"]["429"]
    assert grown_mb < 50
    others = " and ".join(f"{median(took):.1f}/{p99(took):.1f}" for took in (quiet, flooded))
    figure(
        f"{count} submissions on {connections} connections: {result['statuses']} in {result['seconds']} s, "
        f"store {grown_mb:+.0f} MB; the other key's p50/p99 quiet and flooded: {others} ms"
    )
    if scale.tier == "accept":
        assert p99(flooded) < 2 * p99(quiet)


async def test_full_queue_limits_the_size_of_the_store(manager: Fleet, scale: Scale, figure: Figure) -> None:
    """The key has no rate limit, but submits more than it may have queued."""
    batches = scale(test=60, accept=2000)
    async with (
        client(manager, "much", **UNLIMITED, queued_tasks=500) as much,
        client(manager, "calm", **UNLIMITED) as calm,
    ):
        before_mb = rss_mb(manager)
        flooding = asyncio.ensure_future(flood(manager.url, much.key, batches, 10, batch=100))
        await probe(calm, scale(test=20, accept=500))
        result = await asyncio.wait_for(flooding, scale(test=120, accept=600))
        grown_mb = rss_mb(manager) - before_mb
        _, page = await much.call("GET", "/tasks?limit=1")
    check_slowed(result, "503")
    assert (result["statuses"]["202"], page["total"]) == (5, 500), (
        "no worker runs, and no batch is accepted in part"
    )
    assert await manager.metric("requests_refused_total") == result["statuses"]["503"]
    assert grown_mb < 50
    figure(
        f"{batches} batches of 100: {result['statuses']} in {result['seconds']} s, store {grown_mb:+.0f} MB"
    )


def check_slowed(result: Any, status: str) -> None:
    assert set(result["statuses"]) == {"202", status}, result
    assert result["least_retry_after"] >= 1
    assert result["without_retry_after"] == 0


async def probe(caller: Client, count: int) -> list[float]:
    """Submit `count` tasks, which must all be accepted, and return how long each took in ms."""
    took = []
    for _ in range(count):
        start = time.perf_counter()
        status, answer = await caller.call("POST", "/tasks", ECHO)
        took.append((time.perf_counter() - start) * 1000)
        assert status == 202, answer
        await asyncio.sleep(PROBE_EVERY_S)
    return took


def p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)]


async def flood(url: str, key: str, count: int, connections: int, batch: int = 0) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.flood",
        url,
        *map(str, (count, connections, batch)),
        env={**os.environ, "FLOOD_KEY": key},
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(output)


def rss_mb(manager: Fleet) -> float:
    """Return the resident memory of the store."""
    assert manager.server is not None
    (pid,) = [pid for pid in children_of(manager.server.pid) if "valkey-server" in name_of(pid)]
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024

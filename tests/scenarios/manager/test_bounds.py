"""The manager at its bounds in bytes: large results, a small store, long lists. Real server, real worker."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path

import aiohttp
import msgspec
import pytest

from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import Embedded
from tests.support.fleet import Fleet, eventually, fleet
from tests.support.scale import Scale

pytestmark = pytest.mark.real
MIB = 1 << 20
LARGE = ("--function", "large=tests.support.worker_functions:large")
FREE = {"gpus": 0}


class Watch:
    """The most memory that the store used while it was watched."""

    most = 0


@asynccontextmanager
async def watched(running: Fleet) -> AsyncIterator[Watch]:
    """Read how much memory the store uses, again and again, over a connection of the test's own."""
    watch = Watch()

    async def look(database: Database) -> None:
        while True:
            watch.most = max(watch.most, (await database.room()).used)
            await asyncio.sleep(0.02)

    async with Database(Embedded(running.folder / "data" / "store").url) as database:
        looking = asyncio.create_task(look(database))
        try:
            yield watch
        finally:
            looking.cancel()


def large(size: int) -> dict[str, object]:
    parameters = {"function": "large", "arguments": {"size": size}}
    return {"task_type": "python", "parameters": parameters, "resources": FREE}


async def read(http: aiohttp.ClientSession, task: str) -> int:
    """Read a result in parts, and return how many bytes it has."""
    async with http.get(f"/tasks/{task}/result") as answer:
        assert answer.status == 200, await answer.text()
        return sum([len(chunk) async for chunk in answer.content.iter_chunked(MIB)])


async def test_results_and_parameters_larger_than_the_store(
    tmp_path: Path, scale: Scale, figure: Callable[[str], None]
) -> None:
    """Without files, the results alone would fill the store several times."""
    store_mb = scale(test=16, accept=200)
    async with fleet(tmp_path, MAX_STORE_MB=str(store_mb), RATE_LIMIT_PER_MINUTE="0") as running:
        await running.worker("w", "--max-concurrent", "4", *LARGE)
        headers = {"Authorization": f"Bearer {running.key}"}
        async with watched(running) as watch, aiohttp.ClientSession(running.url, headers=headers) as http:
            await _many_results(running, http, scale(test=6, accept=256), 4 * MIB)
            figure(f"results: the store used {watch.most / MIB:.1f} of at most {store_mb} MiB")
            refused = await _large_both_ways(running, http, *scale(test=(16, MIB), accept=(100, 7 * MIB)))
            figure(
                f"parameters and results: it used {watch.most / MIB:.1f} of at most {store_mb} MiB; "
                f"{refused} submissions were told to retry"
            )
        assert 0 < watch.most < store_mb * MIB


async def _many_results(running: Fleet, http: aiohttp.ClientSession, count: int, size: int) -> None:
    """Submit small tasks with large results, all at once. Every result can be read, and lists stay small."""
    status, taken = await running.call("POST", "/tasks/batch", {"tasks": [large(size)] * count})
    assert status == 202, taken
    names = [each["task_id"] for each in taken["tasks"]]
    await eventually(lambda: ended(running, count), 60 + 2 * count)
    assert [await read(http, name) for name in names] == [size + 2] * count
    _, page = await running.call("GET", f"/tasks?limit={count}")
    assert page["total"] == count
    assert all((each["status"], each["result"]) == ("completed", None) for each in page["tasks"])
    assert len(msgspec.json.encode(page)) < 2000 * count


async def _large_both_ways(running: Fleet, http: aiohttp.ClientSession, count: int, size: int) -> int:
    """Submit more parameters than fit, and return how often that was refused. Each task gets its turn."""
    body = msgspec.json.encode({"task_type": "echo", "parameters": "x" * size, "resources": FREE})
    refused, names = 0, list[str]()
    while len(names) < count:
        async with http.post("/tasks", data=BytesIO(body)) as response:
            answer = await response.json()
            assert response.status in (202, 503), answer
        if response.status == 202:
            names.append(answer["task_id"])
        else:
            assert answer["error"]["code"] == "store_full"
            refused += 1
            await asyncio.sleep(0.2)
    for name in names:
        assert (await running.wait(name, 60))["status"] == "completed"
        assert await read(http, name) == size + 2
    _, page = await running.call("GET", f"/tasks?limit={count}")
    assert len(msgspec.json.encode(page)) < 2000 * count
    return refused


async def ended(running: Fleet, count: int) -> bool:
    _, shown = await running.call("GET", "/cluster/status")
    return bool(shown["tasks"].get("completed", 0) == count)

"""A task that prints without end: real server, real store, real worker. Its log keeps the end, and nothing
else suffers."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleet import Fleet, fleet
from tests.support.scale import Scale

pytestmark = pytest.mark.real

NAMES = ("counts", "floods", "has_thread", "leaves_behind", "says_all_ways")
FUNCTIONS = tuple(
    part for name in NAMES for part in ("--function", f"{name}=tests.support.worker_functions:{name}")
)
KEPT = 256 << 10


@pytest.fixture
async def manager(tmp_path: Path, executor: str) -> AsyncIterator[Fleet]:
    async with fleet(tmp_path, EXECUTOR=executor) as running:
        yield running


async def run(manager: Fleet, function: str, **arguments: Any) -> str:
    return await manager.submit("python", {"function": function, "arguments": arguments})


async def log_of(manager: Fleet, task: str) -> Any:
    status, log = await manager.call("GET", f"/tasks/{task}/logs")
    assert status == 200, log
    return log


@pytest.mark.parametrize("how", ["print", "write", "child"])
async def test_flood_keeps_its_end_and_disturbs_nobody(
    manager: Fleet, scale: Scale, figure: Callable[[str], None], how: str
) -> None:
    await manager.worker("a", *FUNCTIONS, "--max-concurrent", "4", "--processes", "3")
    for task in [await manager.submit("sleep", {"seconds": 0.2}) for _ in range(3)]:
        await manager.wait(task)
    megabytes = scale(test=10, accept=200)
    began, slowest_s = time.monotonic(), 0.0
    flood = await run(manager, "floods", megabytes=megabytes, how=how)
    following = asyncio.create_task(follow(manager, flood))
    while not following.done():
        at = time.monotonic()
        beside = await manager.submit("echo", {"at": at})
        assert (await manager.wait(beside))["status"] == "completed"
        slowest_s = max(slowest_s, time.monotonic() - at)
        await asyncio.sleep(0.05)
    figure(
        f"{megabytes} MB by {how} in {time.monotonic() - began:.1f} s; the slowest task beside it took "
        f"{slowest_s * 1000:.0f} ms"
    )
    assert slowest_s < scale(test=25.0, accept=1.0)
    log, lines = await log_of(manager, flood), megabytes * 10_000
    assert log["status"] == "failed"
    assert log["ended"]
    assert log["next"] > megabytes * 1_000_000
    assert KEPT * 0.7 < len(log["text"]) < KEPT * 1.5
    assert log["text"].endswith(f"RuntimeError: enough after {lines} lines\n")
    printed, _, trace = log["text"].partition("Traceback (most recent call last):\n")
    assert 'worker_functions.py"' in trace.split("\n")[0]
    numbers = [int(line[:9]) for line in printed.rpartition("bytes are not kept]\n")[2].splitlines()]
    assert len(numbers) * 100 > KEPT / 2
    assert numbers == list(range(numbers[0], lines)), "the last lines, all of them, in order"
    assert following.result()[-1] == ("end", {"status": "failed"})
    assert "".join(data["text"] for kind, data in following.result() if kind == "log").endswith(trace)


async def follow(manager: Fleet, task: str) -> list[tuple[str, Any]]:
    """Follow the log of a task to its end, and return all events."""
    assert manager._http is not None
    events = []
    headers = {"Accept": "text/event-stream"}
    async with manager._http.get(f"/tasks/{task}/logs", headers=headers) as answer:
        kind = ""
        buffer = b""
        async for chunk in answer.content.iter_any():
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                name, _, value = line.decode().partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    events.append((kind, json.loads(value)))
    return events


async def test_no_text_crosses_between_tasks_of_one_runner(manager: Fleet) -> None:
    await manager.worker("a", *FUNCTIONS)
    tasks = {
        "A": await run(manager, "says_all_ways", name="A"),
        "B": await run(manager, "leaves_behind", name="B", seconds=2),
        "C": await run(manager, "counts", lines=20, pause_s=0.05),
        "D": await run(manager, "has_thread", name="D"),
        "E": await run(manager, "says_all_ways", name="E"),
    }
    texts = {}
    for name, task in tasks.items():
        assert (await manager.wait(task))["status"] == "completed"
        texts[name] = (await log_of(manager, task))["text"]
    for name, text in texts.items():
        others = [f"{other}-" for other in tasks if other != name]
        assert not any(other in text for other in others), f"{name} has text of another task: {text}"
    assert texts["C"] == "".join(f"line {number}\n" for number in range(20))
    assert len(texts["A"].split()) == 6
    assert {"E-print", "E-bytes"} <= set(texts["E"].split())

"""Strangers at the door of a real server: slow connections, endless headers, more connections than there is
room for."""

import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleet import Fleet
from tests.support.scale import Scale
from tests.support.workers import compiled

pytestmark = pytest.mark.real
Figure = Callable[[str], None]


@contextmanager
def few_open_files() -> Iterator[int]:
    """Let processes that start meanwhile have the soft limit of a plain login shell. Yield the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    try:
        yield hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def strangers(kind: str, port: int, number: int) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.strangers", kind, "127.0.0.1", str(port), str(number)),
        stdout=asyncio.subprocess.PIPE,
        env=compiled(),
    )
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), 120) == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def answer_of(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    return json.loads(await asyncio.wait_for(process.stdout.readline(), 120))


async def probe(fleet: Fleet, count: int) -> list[float]:
    """Return how many ms each of these requests with a key took."""
    took = []
    for number in range(count):
        began = time.perf_counter()
        await fleet.submit("echo", {"number": number})
        took.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.005)
    return took


def p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99) - 1]


def open_files(fleet: Fleet) -> int:
    """Return the soft limit of the server."""
    assert fleet.server is not None
    limits = Path(f"/proc/{fleet.server.pid}/limits").read_text().splitlines()
    return next(int(line.split()[3]) for line in limits if line.startswith("Max open files"))


def rss_mb(fleet: Fleet) -> float:
    assert fleet.server is not None
    status = Path(f"/proc/{fleet.server.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def test_slow_strangers_and_endless_headers_are_refused_and_harm_nobody(
    tmp_path: Path, scale: Scale, figure: Figure
) -> None:
    count, size = scale(test=150, accept=1000), scale(test=20_000_000, accept=500_000_000)
    head_s, probes = scale(test=2, accept=30), scale(test=60, accept=1500)
    fleet = Fleet(tmp_path / "site", {"REQUEST_HEAD_TIMEOUT": str(head_s), "QUOTA_QUEUED_TASKS": "0"})
    async with AsyncExitStack() as stack:
        with few_open_files() as hard:
            await stack.enter_async_context(fleet)
        assert open_files(fleet) == hard, "the soft limit was raised"
        await probe(fleet, probes)
        quiet, before_mb = p99(await probe(fleet, probes)), rss_mb(fleet)
        async with strangers("slow", fleet.port, count) as slow:
            began = time.monotonic()
            async with strangers("header", fleet.port, size) as endless:
                sent, status = await answer_of(endless)
            during, during_mb = p99(await probe(fleet, probes)), rss_mb(fleet)
            await fleet.worker("w")
            refused = await answer_of(slow)
            took_s = time.monotonic() - began
        assert sent < 16_000_000, "what the sockets' buffers take, not what was offered"
        assert status in (431, 0), "the answer may be lost with what was still on its way"
        assert refused == {"408": count}
        assert head_s - 1 <= took_s + count * 0.002 + 1
        assert during_mb - before_mb < scale(test=20, accept=60)
        _, health = await fleet.call("GET", "/health")
        assert health["dependencies"]["connections"].endswith(f" of {min(4096, hard - 256)}")
        if scale.tier == "accept":
            assert during <= 2 * quiet
        figure(
            f"{count} slow connections and a header of {size:,} bytes ({sent:,} taken): "
            f"p99 of POST /tasks {quiet:.1f} ms before, {during:.1f} ms meanwhile; "
            f"memory {before_mb:.0f} MB before, {during_mb:.0f} MB meanwhile"
        )

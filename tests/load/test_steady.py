"""Ordinary clients at 200 requests per second, for five minutes in `make accept`: no request fails."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.support.fleet import fleet
from tests.support.request_mix import Client
from tests.support.scale import Scale

pytestmark = pytest.mark.real
CLIENTS, PER_SECOND = 20, 200


@pytest.mark.timeout(900)
async def test_steady_load_has_no_errors(tmp_path: Path, scale: Scale, figure: Callable[[str], None]) -> None:
    seconds = scale(test=4, accept=300)
    statuses: Counter[int] = Counter()
    took: list[float] = []
    async with fleet(tmp_path) as manager:
        await manager.worker("a", "--max-concurrent", "8")

        async def client(number: int) -> None:
            mix, count = Client(Random(number)), int(seconds * PER_SECOND / CLIENTS)
            begins = time.monotonic() + number / PER_SECOND
            for turn in range(count):
                due = begins + turn * CLIENTS / PER_SECOND
                await asyncio.sleep(max(due - time.monotonic(), 0.0))
                wanted, start = mix.next(), time.perf_counter()
                status, answer = await manager.call(wanted.method, wanted.path, wanted.body)
                took.append((time.perf_counter() - start) * 1000)
                statuses[status] += 1
                if status < 300:
                    mix.remember(wanted, answer)

        start = time.monotonic()
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
        pace = len(took) / (time.monotonic() - start)
    assert set(statuses) <= {200, 202}, statuses
    p50, p99 = (sorted(took)[int(len(took) * part)] for part in (0.5, 0.99))
    figure(f"{len(took)} requests at {pace:.0f}/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms")

"""Generators that are followed: real server, real store, real workers, both clients."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_orchestrator import AsyncClient
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import Embedded
from gpu_orchestrator.client import StreamRestarted, ValuesMissed
from tests.support.fleet import Fleet, fleet
from tests.support.forwarder import Forwarder
from tests.support.scale import Scale
from tests.support.worker_tasks import counts, counts_twice

pytestmark = pytest.mark.real
APP = ("--app", "tests.support.worker_tasks")
KEPT_KB = 128
LOG_COST = 320


@pytest.fixture
async def manager(tmp_path: Path, executor: str) -> AsyncIterator[Fleet]:
    async with fleet(tmp_path, EXECUTOR=executor, TASK_VALUES_KB=str(KEPT_KB)) as running:
        yield running


async def size_of_values(manager: Fleet) -> int:
    async with Database(Embedded(manager.folder / "data" / "store").url) as database:
        return int(await database.get_field("logs:sizes", "") or 0)


def peak_mib(manager: Fleet) -> int:
    assert manager.server is not None
    status = Path(f"/proc/{manager.server.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


async def all_of(stream: AsyncIterator[int | str]) -> list[int | str]:
    return [value async for value in stream]


async def test_each_of_many_values_is_seen_once_whatever_breaks(
    manager: Fleet, scale: Scale, figure: Callable[[str], None]
) -> None:
    """A hundred thousand values, five times what is kept. The connection breaks again and again, and once the
    server is killed. The reader holds the generator back, so nothing is missed."""
    count = scale(test=100_000, accept=1_000_000)
    await manager.worker("a", *APP)
    before, largest, seen = peak_mib(manager), 0, 0
    began = time.monotonic()
    with Forwarder(manager.port) as between:
        async with AsyncClient(f"http://127.0.0.1:{between.port}", key=manager.key) as client:
            handle = await client.submit(counts, count)
            async for number in handle.stream():
                assert number == seen
                seen += 1
                if seen % (count // 10) == 5:
                    largest = max(largest, await size_of_values(manager))
                    between.break_all()
                if seen == count // 2:
                    peak = peak_mib(manager)
                    assert manager.server is not None
                    manager.server.kill()
                    manager.server.wait()
                    await manager.start()
            assert await handle.result(60) == f"counted to {count}"
    peak = max(peak, peak_mib(manager))  # that of the server after the kill, too
    assert seen == count
    assert largest < (KEPT_KB << 10) + LOG_COST
    assert peak - before < 40
    figure(
        f"{count:,} values in {time.monotonic() - began:.1f} s; {largest >> 10} KB in the store, "
        f"the server grew by {peak - before} MB"
    )


async def test_values_of_a_lost_attempt_are_superseded(manager: Fleet, tmp_path: Path) -> None:
    """First the runner dies in the middle of a stream, then the whole worker."""
    worker = await manager.worker("a", *APP)
    async with AsyncClient(manager.url, key=manager.key) as client:
        handle = await client.submit(counts_twice, str(tmp_path))
        stream = aiter(handle.stream())
        assert [await anext(stream), await anext(stream)] == [0, 1]
        (tmp_path / "seen").touch()
        with pytest.raises(StreamRestarted, match=r"attempt 2 at task .* began"):
            await anext(stream)
        assert [number async for number in handle.stream()] == list(range(10, 15))

        longer = await client.submit(counts, 200, 0, 0.01)
        values = aiter(longer.stream())
        assert [await anext(values) for _ in range(20)] == list(range(20))
        worker.close()
        await manager.worker("b", *APP)
        with pytest.raises(StreamRestarted):
            await all_of(values)
        assert [number async for number in longer.stream()] == list(range(200))


async def test_nobody_waits_for_a_reader_that_has_gone(manager: Fleet) -> None:
    """Without a reader the oldest values go; who comes late is told how many. A task that waits for a reader
    can be cancelled."""
    await manager.worker("a", *APP)
    async with AsyncClient(manager.url, key=manager.key) as client:
        alone = await client.submit(counts, 1000, 1000)
        assert await alone.result(60) == "counted to 1000"
        with pytest.raises(ValuesMissed) as told:
            await anext(aiter(alone.stream()))
        assert 800 < told.value.count < 1000
        kept = [str(text) async for text in alone.stream(skip_missed=True)]
        assert int(kept[0].split()[0]) == told.value.count == 1000 - len(kept)
        assert [str(text) async for text in alone.stream(after=told.value.after)] == kept

        watched = await client.submit(counts, 1_000_000, 1000)
        stream = aiter(watched.stream())
        assert str(await anext(stream)).startswith("0 ")
        sizes = set()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.5):
                while True:
                    sizes.add(await size_of_values(manager))
                    await asyncio.sleep(0.05)
        assert max(sizes) < 2 * ((KEPT_KB << 10) + LOG_COST)
        assert await watched.cancel()
        assert (await watched.wait(60)).status == "cancelled"

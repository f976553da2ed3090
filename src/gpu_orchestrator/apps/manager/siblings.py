"""One of several API processes of a server: where it belongs, and what it asks the others for a scrape.

Any of them may get a scrape, and answers for all. Counters and histograms are in files that all processes
share: a process that starts again goes on counting where the one before ended, so no counter falls. Gauges
are asked from the others, each through a socket in a private folder. `cli/process_group.py` starts the
processes.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from gpu_orchestrator.adapters.disk import Disk

ANSWER_S = 1.0
PARTS = b"\0"
"""Separates the gauges of a process from those of devices, which only the leader has."""
Gauges = Callable[[], Awaitable[tuple[bytes, bytes]]]


@dataclass(frozen=True, slots=True)
class Place:
    """Process `number` of `of`. The parent has the store at the address `store`, in the folder `store_folder`
    if it is an embedded one."""

    number: int
    of: int
    folder: str
    store: str
    store_folder: str = ""

    def socket_of(self, number: int) -> Path:
        return Path(self.folder) / f"{number}.sock"


class ParentsStore:
    """The embedded store that the parent runs, as its API processes see it."""

    def __init__(self, folder: Path) -> None:
        self.disk, self.trouble = Disk(folder), ""


def share_counters(place: Place) -> None:
    """Keep counters in the files that all processes share. Call this before any metric is made."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = place.folder
    values.ValueClass = values.MultiProcessValue(lambda: place.number)  # type: ignore[no-untyped-call]


class Siblings:
    """`own` returns the gauges of this process, and those of devices."""

    def __init__(self, place: Place, own: Gauges) -> None:
        self._place, self._own = place, own

    def __str__(self) -> str:
        return f"{self._place.number} of {self._place.of}"

    @contextlib.asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Answer the other processes."""
        path = self._place.socket_of(self._place.number)
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._answer, path)
        try:
            yield
        finally:
            server.close()
            path.unlink(missing_ok=True)

    async def metrics(self) -> bytes:
        """Return what a scrape shows: the sums of all processes."""
        others = (number for number in range(1, self._place.of + 1) if number != self._place.number)
        found = [await self._own(), *await asyncio.gather(*map(self._ask, others))]
        devices = next((each for _, each in found if each), b"")
        return self._counters() + summed(gauges for gauges, _ in found) + devices

    def _counters(self) -> bytes:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, self._place.folder)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(PARTS.join(await self._own()))
            await writer.drain()
        writer.close()

    async def _ask(self, number: int) -> tuple[bytes, bytes]:
        """Return the gauges of another process; none if it has ended or does not answer in time."""
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._place.socket_of(number))
                try:
                    gauges, _, devices = (await reader.read(-1)).partition(PARTS)
                finally:
                    writer.close()
                return gauges, devices
        except (OSError, TimeoutError):
            return b"", b""


def summed(texts: Iterable[bytes]) -> bytes:
    """Return gauges in the text format of Prometheus whose values are the sums of those in `texts`."""
    families: dict[bytes, dict[bytes, float]] = {}
    for text in texts:
        head = b""
        for line in text.splitlines(keepends=True):
            if line.startswith(b"# HELP"):
                head = line
            elif line.startswith(b"# TYPE"):
                samples = families.setdefault(head + line, {})
            elif line.strip():
                sample, _, value = line.rpartition(b" ")
                samples[sample] = samples.get(sample, 0.0) + float(value)
    return b"".join(
        head + b"".join(b"%b %b\n" % (sample, repr(value).encode()) for sample, value in samples.items())
        for head, samples in families.items()
    )

"""Measure memory and CPU of a server with 500 clients on /ws, idle and under load.

    make bench-watchers [ARGS="--clients 500 --seconds 10 --tasks 50 --rate 10"]

The clients are in this process, the server in its own. `rate` is the tasks a second, with two events each.
The lag of an event is from its timestamp to its arrival at the last client.
"""

import asyncio
import json
import os
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
from cyclopts import run
from rich.console import Console
from rich.table import Table

from benchmarks.tasks import at, cpu_s
from tests.support.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Cost:
    rss_mb: float
    cpu_percent: float


async def cost(pid: int, seconds: float) -> Cost:
    before = cpu_s(pid)
    await asyncio.sleep(seconds)
    status = await asyncio.to_thread(Path(f"/proc/{pid}/status").read_text)
    return Cost(int(status.split("VmRSS:")[1].split()[0]) / 1024, 100 * (cpu_s(pid) - before) / seconds)


async def lags(sockets: list[aiohttp.ClientWebSocketResponse], events: int) -> list[float]:
    """Return for each event the ms until the last client has received it."""
    worst: dict[str, float] = {}

    async def read(socket: aiohttp.ClientWebSocketResponse) -> None:
        for _ in range(events):
            event: dict[str, Any] = await socket.receive_json(timeout=60)
            happened = datetime.fromisoformat(event["timestamp"]).timestamp()
            late = (time.time() - happened) * 1000
            worst[event["id"]] = max(worst.get(event["id"], 0.0), late)

    await asyncio.gather(*(read(socket) for socket in sockets))
    return list(worst.values())


async def measure(clients: int, seconds: float, tasks: int, rate: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        async with Fleet(Path(folder)) as fleet:
            assert fleet.server is not None
            assert fleet._http is not None
            await fleet.worker("a", "--max-concurrent", "4")
            alone = await cost(fleet.server.pid, seconds)
            connector = aiohttp.TCPConnector(limit=0)
            headers = fleet._http.headers
            async with aiohttp.ClientSession(fleet.url, headers=headers, connector=connector) as http:
                sockets = [await http.ws_connect("/ws") for _ in range(clients)]
                watched = await cost(fleet.server.pid, seconds)
                reading = asyncio.create_task(lags(sockets, 2 * tasks))
                before = cpu_s(fleet.server.pid)
                for _ in range(tasks):
                    await fleet.submit("echo")
                    await asyncio.sleep(1 / rate)
                found = await reading
                spent = 1000 * (cpu_s(fleet.server.pid) - before) / (2 * tasks * clients)
                for socket in sockets:
                    await socket.close()
    return {
        "clients": clients,
        "tasks_per_s": rate,
        "rss_mb_alone": round(alone.rss_mb, 1),
        "rss_mb_watched": round(watched.rss_mb, 1),
        "kib_per_client": round((watched.rss_mb - alone.rss_mb) * 1024 / clients, 1),
        "cpu_percent_alone": round(alone.cpu_percent, 2),
        "cpu_percent_watched": round(watched.cpu_percent, 2),
        "cpu_ms_per_delivery": round(spent, 3),
        "lag_ms_p50": round(at(found, 0.5), 1),
        "lag_ms_p99": round(at(found, 0.99), 1),
        "load": round(os.getloadavg()[0], 1),
    }


def main(*, clients: int = 500, seconds: float = 10.0, tasks: int = 50, rate: float = 10.0) -> None:
    figures = asyncio.run(measure(clients, seconds, tasks, rate))
    table = Table(title=f"a server with {clients} clients on /ws")
    for heading in ("figure", "value"):
        table.add_column(heading)
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console(width=110).print(table)
    print(json.dumps(figures))


if __name__ == "__main__":
    run(main)

"""Measure the webhook: the real process over TLS, with claims and nodes of a real API server.

    make bench-webhook [ARGS="--per-second 200 --seconds 30 --claims 1000"]

First at a steady rate: the time of a review counts from the moment at which it was due, so a pause of the
webhook delays all that were due meanwhile. Then as many as come back, on a few connections. `cpu_us` is what
the webhook spends on one review; unlike the times it hardly depends on what else the machine does.
"""

import asyncio
import json
import ssl
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from cyclopts import run

from benchmarks.table import show
from benchmarks.tasks import at, cpu_s
from controlplane.cluster import Cluster
from tests.support import scheduler_stage
from tests.support.admission_reviews import review
from tests.support.pod_json import pod
from tests.support.scheduler_stage import claim
from tests.support.webhook_process import Webhook

CONNECTIONS = 16
Call = tuple[str, bytes]


def calls(claims: int) -> Iterator[Call]:
    """Yield requests as they come in a cluster: mostly pods with claims and bare GPUs."""
    named = [pod(annotations={"gpu.scheduling/claim": f"claim-{number}"}) for number in range(claims)]
    for number in cycle(range(claims)):
        made, path = named[number], "/mutate"
        match number % 10:
            case 0 | 1 | 2 | 3:
                made = pod(annotations={"gpu.scheduling/gpus": "2"}, initContainers=[{"name": "load"}])
            case 4:
                made, path = claim("a", 4), "/validate"
            case 5:
                made, path = pod(), "/mutate/hide"
        yield path, json.dumps(review(made)).encode()


class Client:
    def __init__(self, http: aiohttp.ClientSession, url: str, claims: int) -> None:
        self._http, self._url, self._calls = http, url, calls(claims)
        self.failed = 0

    async def call(self) -> None:
        path, body = next(self._calls)
        async with self._http.post(self._url + path, data=body) as answer:
            is_good = answer.status == 200 and b'"allowed":true' in await answer.read()
        self.failed += not is_good

    async def steady(self, per_second: int, seconds: float) -> list[float]:
        """Call at a steady rate; return the ms from when each was due until it was answered."""
        began, took = time.perf_counter() + 0.1, list[float]()

        async def one(due: float) -> None:
            await asyncio.sleep(due - time.perf_counter())
            await self.call()
            took.append((time.perf_counter() - due) * 1000)

        async with asyncio.TaskGroup() as group:
            for number in range(int(per_second * seconds)):
                group.create_task(one(began + number / per_second))
        return sorted(took)

    async def flat_out(self, seconds: float) -> float:
        """Call as often as answers come; return how many per second."""
        done, end = 0, time.perf_counter() + seconds

        async def keep_calling() -> None:
            nonlocal done
            while time.perf_counter() < end:
                await self.call()
                done += 1

        await asyncio.gather(*(keep_calling() for _ in range(CONNECTIONS)))
        return done / seconds


async def measure(webhook: Webhook, per_second: int, seconds: float, claims: int) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=str(webhook.folder / "ca.crt"))
    connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=context)
    async with aiohttp.ClientSession(connector=connector) as http:
        client = Client(http, webhook.url, claims)
        await client.flat_out(min(1.0, seconds))
        assert webhook.process is not None
        before_s = cpu_s(webhook.process.pid)
        took = await client.steady(per_second, seconds)
        spent_s = cpu_s(webhook.process.pid) - before_s
        most = await client.flat_out(min(5.0, seconds))
    return {
        "per_s": per_second,
        "reviews": len(took),
        "p50_ms": round(at(took, 0.5), 2),
        "p99_ms": round(at(took, 0.99), 2),
        "slowest_ms": round(took[-1], 2),
        "cpu_us": round(spent_s * 1e6 / len(took)),
        "max_per_s": round(most),
        "failed": client.failed,
    }


def main(*, per_second: int = 200, seconds: float = 30.0, claims: int = 1000) -> None:
    with Cluster.start() as cluster, tempfile.TemporaryDirectory() as folder:
        scheduler_stage.install(cluster)
        made = [claim(f"claim-{number}", 1 + number % 8) for number in range(claims)]
        cluster.api.create_all(scheduler_stage.CLAIMS.format("default"), made)
        with Webhook(cluster.kubeconfig, Path(folder), drainSeconds=0) as webhook:
            found = uvloop.run(measure(webhook, per_second, seconds, claims))
    rows = [[name, f"{value:,}"] for name, value in found.items()]
    show(f"The webhook over TLS, {CONNECTIONS} connections", ("figure", f"{claims:,} claims"), rows)
    print(json.dumps(found))


if __name__ == "__main__":
    run(main)

"""Measure five minutes of ordinary clients at 200 requests per second: 5xx answers and latency.

    make load [ARGS="--seconds 60 --per-second 200"]

Locust plays the clients of tests/load/test_api_endpoints.py, each with the key of one owner that has limits
too high to meet; the server, its embedded store and one worker are real processes on this machine.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cyclopts import run

from benchmarks.table import show
from tests.support.fleet import Fleet

HERE = Path(__file__).parent.parent
LOCUST = Path(sys.prefix) / "bench" / "bin" / "locust"
PER_CLIENT = 4
HIGH = {"requests_per_minute": 1_000_000, "requests_per_hour": 60_000_000, "queued_tasks": 1_000_000}
Figures = dict[str, Any]


def main(*, seconds: int = 300, per_second: int = 200) -> None:
    found = asyncio.run(measure(seconds, per_second))
    columns = ("route", "requests", "p50 ms", "p99 ms", "failed")
    rows = [[str(each[name]) for name in columns] for each in found["routes"]]
    show(f"{found['per_second']:g} requests a second for {seconds} s", columns, rows)
    print(json.dumps(found))
    sys.exit(1 if found["failed"] or found["server_errors"] else 0)


async def measure(seconds: int, per_second: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        async with Fleet(Path(folder)) as manager:
            await manager.worker("load", "--max-concurrent", "8")
            _, made = await manager.call("POST", "/keys", {"name": "load", "limits": HIGH})
            stats = await asyncio.to_thread(locust, manager.url, made["key"], seconds, per_second)
            errors = await server_errors(manager)
    return {**summary(stats, seconds), "server_errors": errors}


def locust(url: str, key: str, seconds: int, per_second: int) -> list[Any]:
    clients = str(max(per_second // PER_CLIENT, 1))
    many = ["--headless", "--users", clients, "--spawn-rate", clients, "--run-time", f"{seconds}s"]
    quietly = ["--json", "--only-summary", "--loglevel", "WARNING", "--exit-code-on-error", "0"]
    done = subprocess.run(
        [str(LOCUST), "-f", "tests/load/test_api_endpoints.py", "--host", url, *many, *quietly],
        cwd=HERE,
        env={**os.environ, "LOAD_KEY": key, "PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        timeout=seconds + 60,
        check=True,
    )
    stats: list[Any] = json.loads(done.stdout)
    return stats


async def server_errors(manager: Fleet) -> int:
    """Return the 5xx answers that the server counted. Health routes do not count: not ready is not an
    error."""
    samples = await manager.samples("http_requests_total")
    return int(sum(value for labels, value in samples if 'status="5' in labels and "/health/" not in labels))


def summary(stats: list[Any], seconds: int) -> Figures:
    everything: dict[int, int] = {}
    for each in stats:
        for ms, count in each["response_times"].items():
            everything[int(float(ms))] = everything.get(int(float(ms)), 0) + count
    requests = sum(each["num_requests"] for each in stats)
    return {
        "requests": requests,
        "per_second": round(requests / seconds, 1),
        "failed": sum(each["num_failures"] for each in stats),
        "p50_ms": quantile(everything, 0.5),
        "p99_ms": quantile(everything, 0.99),
        "routes": [_route(each) for each in sorted(stats, key=lambda each: -int(each["num_requests"]))],
    }


def _route(each: Any) -> Figures:
    times = {int(float(ms)): count for ms, count in each["response_times"].items()}
    return {
        "route": f"{each['method']} {each['name']}",
        "requests": each["num_requests"],
        "p50 ms": quantile(times, 0.5),
        "p99 ms": quantile(times, 0.99),
        "failed": each["num_failures"],
    }


def quantile(times: dict[int, int], part: float) -> int:
    """Return the quantile of `times`, which maps each time to how often it was seen."""
    left = sum(times.values()) * part
    for ms in sorted(times):
        left -= times[ms]
        if left <= 0:
            return ms
    return 0


if __name__ == "__main__":
    run(main)

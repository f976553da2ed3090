"""Tasks per second and round trips: ours, Celery, dramatiq and taskiq on one Valkey, one worker each.

    make bench-tasks [ARGS="--rounds 3 --seconds 4"]

Every acknowledged write is on disk (appendfsync always) for all of them. A no-op with a stored result; ours
is submitted straight to the store and through HTTP. They take turns; ratios are medians over the rounds.
"""

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
from cyclopts import run
from rich.console import Console
from rich.table import Table

from gpu_orchestrator.adapters.store.database import Database, wait_until_up
from gpu_orchestrator.adapters.store.embedded import binary
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.values import NewTask
from gpu_orchestrator.api import task
from gpu_orchestrator.api.task import TaskSpec
from tests.stores import free_port

HERE = Path(__file__).parent
PEERS = HERE / "peers"
BENCH = HERE.parent / ".venv" / "bench" / "bin"
BATCH = 500
SLOTS = 64
WORKER = "bench"
ONE = json.dumps({"task_type": "echo", "parameters": None, "resources": {"gpus": 0}}).encode()
PEER_COMMANDS = {
    "celery": ("celery", "-A", "celery_peer", "worker", "--pool", "solo", "--loglevel", "ERROR"),
    "dramatiq": ("dramatiq", "dramatiq_peer", "--processes", "1", "--threads", "8"),
    "taskiq": ("taskiq", "worker", "taskiq_peer:broker", "--workers", "1", "--no-configure-logging"),
}
FIRST = {"celery": 150, "dramatiq": 600, "taskiq": 400, "ours": 3000, "http": 3000}


@dataclass
class Figures:
    per_s: dict[str, list[float]] = field(default_factory=dict)
    trips_ms: dict[str, list[float]] = field(default_factory=dict)
    post_per_s: list[float] = field(default_factory=list)
    batch_per_s: list[float] = field(default_factory=list)
    idle_mb: float = 0.0
    idle_cpu: float = 0.0

    def add(self, name: str, per_s: float) -> None:
        self.per_s.setdefault(name, []).append(per_s)

    def median(self, name: str) -> float:
        return statistics.median(self.per_s.get(name, [0.0]))

    def ratio(self, peer: str) -> float:
        pairs = zip(self.per_s["ours"], self.per_s.get(peer, []), strict=False)
        return round(statistics.median([ours / theirs for ours, theirs in pairs] or [0.0]), 2)


@dataclass(frozen=True, slots=True)
class Line:
    """One connection with next to no cost of its own, so that the server is measured and not its client."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: bytes

    @classmethod
    async def open(cls, url: str, key: str) -> "Line":
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        return cls(reader, writer, f"Host: {host}\r\nAuthorization: Bearer {key}\r\n".encode())

    async def post(self, path: str, body: bytes) -> bytes:
        start = b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (path.encode(), self.head, len(body))
        self.writer.write(start + body)
        headers = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        assert headers.startswith((b"http/1.1 202", b"http/1.1 200")), headers
        return await self.reader.readexactly(int(headers.split(b"content-length:")[1].split(b"\r\n")[0]))

    def close(self) -> None:
        self.writer.close()


@dataclass
class Ours:
    url: str
    key: str
    http: aiohttp.ClientSession
    store: Store
    process: subprocess.Popen[bytes]

    async def direct(self, count: int) -> float:
        spec = task.encode(TaskSpec("echo", gpus=0))
        before = await self._completed()
        start = time.monotonic()
        for first in range(0, count, BATCH):
            size = min(BATCH, count - first)
            await self.store.tasks.submit([NewTask(uuid4().hex, spec, "null") for _ in range(size)])
        return count / (await self._until(before + count) - start)

    async def through_http(self, count: int) -> tuple[float, float]:
        """Tasks per second accepted, and completed."""
        batch = b'{"tasks": [%b]}' % b",".join([ONE] * BATCH)
        line, before = await Line.open(self.url, self.key), await self._completed()
        start = time.monotonic()
        for _ in range(0, count, BATCH):
            await line.post("/tasks/batch", batch)
        accepted, number = time.monotonic(), -(-count // BATCH) * BATCH
        line.close()
        return number / (accepted - start), number / (await self._until(before + number) - start)

    async def posts(self, count: int) -> float:
        """Tasks accepted one by one per second, by 16 clients; they are run afterwards."""
        await self._say("cordon")
        before, left = await self._completed(), iter(range(count))
        lines = [await Line.open(self.url, self.key) for _ in range(16)]

        async def client(line: Line) -> None:
            for _ in left:
                await line.post("/tasks", ONE)

        start = time.monotonic()
        await asyncio.gather(*(client(line) for line in lines))
        seconds = time.monotonic() - start
        for line in lines:
            line.close()
        await self._say("uncordon")
        await self._until(before + count)
        return count / seconds

    async def trips(self, count: int) -> list[float]:
        found, line = [], await Line.open(self.url, self.key)
        for _ in range(count + 20):
            start = time.monotonic()
            answer = json.loads(await line.post("/tasks?wait=30", ONE))
            found.append((time.monotonic() - start) * 1000)
            assert answer["status"] == "completed", answer
        line.close()
        return found[20:]

    async def _say(self, word: str) -> None:
        async with self.http.post(f"/workers/{WORKER}/{word}") as answer:
            assert answer.status == 200, await answer.text()

    async def _completed(self) -> int:
        return (await self.store.tasks.counts()).states["completed"]

    async def _until(self, count: int) -> float:
        while await self._completed() < count:  # noqa: ASYNC110 - the store tells nobody but its own
            await asyncio.sleep(0.01)
        return time.monotonic()


def main(*, rounds: int = 3, seconds: float = 4.0, trips: int = 200) -> None:
    if not (BENCH / "celery").exists():
        sys.exit("the peers are not installed; run `make bench-tasks`")
    figures = asyncio.run(measure(rounds, seconds, trips))
    show(figures)


async def measure(rounds: int, seconds: float, trips: int) -> Figures:
    figures, sizes = Figures(), dict(FIRST)
    with tempfile.TemporaryDirectory() as folder:
        async with valkey(Path(folder)) as port, ours(Path(folder), port) as us:
            await idle(us, figures)
            for _ in range(rounds):
                for name in PEER_COMMANDS:
                    with peer(name, port) as url:
                        per_s, times = await asyncio.to_thread(ask_peer, name, url, sizes[name], trips)
                    figures.add(name, per_s)
                    figures.trips_ms.setdefault(name, []).extend(times)
                    sizes[name] = max(int(per_s * seconds), 100)
                figures.add("ours", per_s := await us.direct(sizes["ours"]))
                sizes["ours"] = max(int(per_s * seconds), 1000)
                batch, done = await us.through_http(sizes["http"])
                figures.batch_per_s.append(batch)
                figures.add("http", done)
                figures.post_per_s.append(await us.posts(int(seconds * 1000)))
                figures.trips_ms.setdefault("ours", []).extend(await us.trips(trips))
    return figures


async def idle(us: Ours, figures: Figures, for_s: float = 5.0) -> None:
    before = cpu_s(us.process.pid)
    await asyncio.sleep(for_s)
    figures.idle_cpu = 100 * (cpu_s(us.process.pid) - before) / for_s
    status = await asyncio.to_thread(Path(f"/proc/{us.process.pid}/status").read_text)
    figures.idle_mb = int(status.split("VmRSS:")[1].split()[0]) / 1024


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def valkey(folder: Path) -> AsyncIterator[int]:
    """The one server of all, on TCP, every write on disk before it is acknowledged."""
    port = free_port()
    settings = {
        "port": str(port),
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
    }
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    process = subprocess.Popen([binary(), *arguments], stdout=subprocess.DEVNULL)  # noqa: ASYNC220
    database = Database(f"redis://127.0.0.1:{port}/0")
    try:
        await wait_until_up(database, 10)
        yield port
    finally:
        await database.close()
        process.terminate()
        await asyncio.to_thread(process.wait)


@contextlib.asynccontextmanager
async def ours(folder: Path, store_port: int) -> AsyncIterator[Ours]:
    """The server and one worker, as an operator would start them."""
    port, data = free_port(), folder / "data"
    command = str(Path(sys.executable).with_name("gpu-orchestrator"))
    address = f"redis://127.0.0.1:{store_port}/0"
    url = f"http://127.0.0.1:{port}"
    env = {**os.environ, "REDIS_URL": address}
    server = subprocess.Popen(  # noqa: ASYNC220
        [command, "server", "--port", str(port), "--data", str(data)], env=env, stderr=subprocess.DEVNULL
    )
    await answers(f"{url}/health/ready")
    worker = subprocess.Popen(  # noqa: ASYNC220
        [command, "worker", "--server", url, "--token-file", str(data / "worker-token"), "--name", WORKER,
         "--simulate", "1", "--simulation", str(folder / "gpus"),
         "--max-concurrent", str(SLOTS), "--processes", "1"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    key = json.loads(await asyncio.to_thread((data / "client.json").read_text))["key"]
    try:
        async with (
            aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {key}"}) as http,
            Store(Database(address), owner="bench") as store,
        ):
            us = Ours(url, key, http, store, server)
            await us.direct(100)
            yield us
    finally:
        for process in (worker, server):
            process.terminate()
            await asyncio.to_thread(process.wait)


async def answers(url: str) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(url) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)


@contextlib.contextmanager
def peer(name: str, port: int) -> Any:
    url = f"redis://127.0.0.1:{port}/{1 + list(PEER_COMMANDS).index(name)}"
    program, *rest = PEER_COMMANDS[name]
    env = {**os.environ, "STORE_URL": url, "PYTHONPATH": str(PEERS)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    worker = subprocess.Popen(
        [str(BENCH / program), *rest],
        cwd=PEERS,
        env=env,
        start_new_session=True,
        **quiet,  # type: ignore[call-overload]
    )
    try:
        yield url
    finally:
        os.killpg(worker.pid, signal.SIGTERM)
        try:
            worker.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def ask_peer(name: str, url: str, count: int, trips: int) -> tuple[float, list[float]]:
    """Tasks per second and round trips, once its worker has answered."""
    env = {**os.environ, "STORE_URL": url, "PYTHONPATH": str(PEERS)}

    def ask(what: str, number: int) -> Any:
        client = [str(BENCH / "python"), f"{name}_peer.py", what, str(number)]
        return json.loads(subprocess.check_output(client, cwd=PEERS, env=env, text=True))

    times = ask("trip", trips)
    return count / ask("submit", count)["total_s"], times


def show(figures: Figures) -> None:
    table = Table(title="a no-op with stored result, appendfsync always, one worker each")
    for heading in ("system", "tasks/s (median)", "all rounds", "round trip p50 / p99 ms"):
        table.add_column(heading)
    for name, values in figures.per_s.items():
        times = figures.trips_ms.get(name)
        trip = f"{at(times, 0.5):.2f} / {at(times, 0.99):.2f}" if times else "-"
        table.add_row(name, f"{figures.median(name):.0f}", ", ".join(f"{v:.0f}" for v in values), trip)
    console = Console(width=110)
    console.print(table)
    post, batch = statistics.median(figures.post_per_s), statistics.median(figures.batch_per_s)
    console.print(
        f"POST /tasks {post:.0f}/s, in batches of {BATCH} {batch:.0f}/s; load {os.getloadavg()[0]:.1f}"
    )
    console.print(f"our server when idle: {figures.idle_mb:.0f} MB, {figures.idle_cpu:.1f} % of one core")
    print(json.dumps({
        "ratio_celery": figures.ratio("celery"),
        "ratio_dramatiq": figures.ratio("dramatiq"),
        "ratio_taskiq": figures.ratio("taskiq"),
        "p50_ms": round(at(figures.trips_ms["ours"], 0.5), 2),
        "p99_ms": round(at(figures.trips_ms["ours"], 0.99), 2),
        "post_per_s": round(statistics.median(figures.post_per_s)),
        "batch_per_s": round(statistics.median(figures.batch_per_s)),
        "idle_mb": round(figures.idle_mb, 1),
        "idle_cpu_percent": round(figures.idle_cpu, 2),
    }))  # fmt: skip


def at(values: list[float] | None, part: float) -> float:
    ordered = sorted(values or [0.0])
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


if __name__ == "__main__":
    run(main)

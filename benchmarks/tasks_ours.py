"""Our side of `make bench-tasks`: a server and workers as an operator starts them, called in several ways.

Two workers have joined, one with many slots and one with a single slot. While one is measured, the other is
cordoned and idle.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import aiohttp

from controlplane.cluster import free_port
from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.api import task
from gpu_orchestrator.api.task import TaskSpec

BATCH, CLIENTS, SLOTS = 500, 16, 64
MANY, ONE = "many", "one"
WORKERS = {MANY: SLOTS, ONE: 1}
BODY = json.dumps({"task_type": "echo", "parameters": None, "resources": {"gpus": 0}}).encode()
TRIP, WARM = "/tasks?wait=30", 20
START_S = 30.0
COMMAND = (str(Path(sys.executable).with_name("gpu-orchestrator")),)


@dataclass(frozen=True, slots=True)
class Line:
    """One connection that costs almost no CPU, so that the server is measured and not its client."""

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

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@dataclass(frozen=True, slots=True)
class Usual:
    """The client that most Python programs would use."""

    http: aiohttp.ClientSession

    async def post(self, path: str, body: bytes) -> bytes:
        async with self.http.post(path, data=body) as answer:
            assert answer.status in (200, 202), await answer.text()
            return await answer.read()

    async def close(self) -> None: ...


def trips_in_turn(url: str, key: str, count: int) -> list[float]:
    """Return the round trips in ms. Requests one after another need only a socket, not an event loop."""
    host, _, port = url.removeprefix("http://").partition(":")
    head = f"POST {TRIP} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
    request = f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
    found = []
    with socket.create_connection((host, int(port)), timeout=START_S) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count + WARM):
            start = time.monotonic()
            line.sendall(request)
            answer = json.loads(_body(line))
            found.append((time.monotonic() - start) * 1000)
            assert answer["status"] == "completed", answer
    return found[WARM:]


def _body(line: socket.socket) -> bytes:
    received = _receive(line)
    while b"\r\n\r\n" not in received:
        received += _receive(line)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += _receive(line)
    return body


def _receive(line: socket.socket) -> bytes:
    if not (received := line.recv(65536)):
        raise ConnectionError("the server closed the connection in the middle of a response")
    return received


@dataclass
class Ours:
    url: str
    key: str
    http: aiohttp.ClientSession
    store: Store
    process: "subprocess.Popen[bytes]"

    async def use(self, worker: str) -> None:
        """Let only this worker get tasks."""
        for name in WORKERS:
            await self._set_worker(name, "uncordon" if name == worker else "cordon")

    async def client(self, *, usual: bool) -> Line | Usual:
        return Usual(self.http) if usual else await Line.open(self.url, self.key)

    async def direct(self, count: int) -> float:
        """Return the tasks per second, submitted directly to the store and run."""
        before, start = await self._completed(), time.monotonic()
        await self._fill(count)
        return count / (await self._until(before + count) - start)

    async def drained(self, count: int, worker: str) -> float:
        """Return the tasks per second of the worker alone: all were submitted before it got any."""
        await self.use("nobody")
        before = await self._completed()
        await self._fill(count)
        await self.use(worker)
        first, began = await self._reached(before + count // 10)
        return (before + count - first) / (await self._until(before + count) - began)

    async def batches(self, count: int) -> tuple[float, float]:
        """Return the tasks per second that were accepted over HTTP in batches, and completed."""
        batch = b'{"tasks": [%b]}' % b",".join([BODY] * BATCH)
        line, before = await self.client(usual=False), await self._completed()
        start = time.monotonic()
        for _ in range(0, count, BATCH):
            await line.post("/tasks/batch", batch)
        accepted, number = time.monotonic(), -(-count // BATCH) * BATCH
        await line.close()
        return number / (accepted - start), number / (await self._until(before + number) - start)

    async def posts(self, count: int, *, usual: bool) -> float:
        """Return the tasks per second accepted one by one from many clients at once; they run afterwards."""
        await self.use("nobody")
        before, left = await self._completed(), iter(range(count))
        clients = [await self.client(usual=usual) for _ in range(CLIENTS)]

        async def submit(client: Line | Usual) -> None:
            for _ in left:
                await client.post("/tasks", BODY)

        start = time.monotonic()
        await asyncio.gather(*map(submit, clients))
        seconds = time.monotonic() - start
        for client in clients:
            await client.close()
        await self.use(MANY)
        await self._until(before + count)
        return count / seconds

    async def trips(self, count: int, *, usual: bool = False) -> list[float]:
        """Return the milliseconds from submitting a task to its result, one task after another."""
        if not usual:
            return await asyncio.to_thread(trips_in_turn, self.url, self.key, count)
        found, client = [], Usual(self.http)
        for _ in range(count + WARM):
            start = time.monotonic()
            answer = json.loads(await client.post(TRIP, BODY))
            found.append((time.monotonic() - start) * 1000)
            assert answer["status"] == "completed", answer
        return found[WARM:]

    async def _fill(self, count: int) -> None:
        spec = task.encode(TaskSpec("echo", gpus=0))
        for first in range(0, count, BATCH):
            size = min(BATCH, count - first)
            await self.store.tasks.submit([NewTask(uuid4().hex, spec, "null") for _ in range(size)])

    async def _set_worker(self, worker: str, word: str) -> None:
        async with self.http.post(f"/workers/{worker}/{word}") as answer:
            assert answer.status == 200, await answer.text()

    async def _completed(self) -> int:
        return (await self.store.tasks.counts()).states["completed"]

    async def _until(self, count: int) -> float:
        return (await self._reached(count))[1]

    async def _reached(self, count: int, within_s: float = 120.0) -> tuple[int, float]:
        """Wait until `count` tasks are completed. Return how many are, and when."""
        async with asyncio.timeout(within_s):
            while (found := await self._completed()) < count:  # noqa: ASYNC110 - the store sends no notification
                await asyncio.sleep(0.005)
        return found, time.monotonic()


@contextlib.asynccontextmanager
async def ours(
    folder: Path, store_port: int, *, database: int = 0, command: tuple[str, ...] = COMMAND
) -> AsyncIterator[Ours]:
    """Start a server and the usual workers with `command`."""
    port, data = free_port(), folder / "data"
    address, url = f"redis://127.0.0.1:{store_port}/{database}", f"http://127.0.0.1:{port}"
    words = ("server", "--port", str(port), "--data", str(data))
    processes = [_start(*command, *words, REDIS_URL=address)]
    try:
        await _answers(f"{url}/health/ready")
        key = json.loads(await asyncio.to_thread((data / "client.json").read_text))["key"]
        for name, slots in WORKERS.items():
            processes.append(_worker(command, name, slots, url, folder))
        async with (
            aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {key}"}) as http,
            Store(Database(address), owner="bench") as store,
        ):
            us = Ours(url, key, http, store, processes[0])
            for name in WORKERS:
                await _answers(f"{url}/workers/{name}", Authorization=f"Bearer {key}")
            for name in reversed(WORKERS):
                await us.use(name)
                await us.direct(50)
            yield us
    finally:
        for process in reversed(processes):
            process.terminate()
            await asyncio.to_thread(process.wait, 20)


def _worker(
    command: tuple[str, ...], name: str, slots: int, url: str, folder: Path
) -> "subprocess.Popen[bytes]":
    token, gpus = folder / "data" / "worker-token", folder / f"gpus-{name}"
    what = ("--server", url, "--token-file", str(token), "--name", name)
    return _start(
        *command, "worker", *what, "--simulate", "1", "--simulation", str(gpus),
        "--max-concurrent", str(slots), "--processes", "1",
    )  # fmt: skip


def _start(*words: str, **environ: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(words, env={**os.environ, **environ}, stderr=subprocess.DEVNULL)


async def _answers(url: str, **headers: str) -> None:
    async with asyncio.timeout(START_S), aiohttp.ClientSession(headers=headers) as http:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(url) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)

"""A whole manager for tests: real server processes, real workers, and a client of the HTTP API."""

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp

from controlplane.cluster import free_port
from tests.support import warm
from tests.support.patience import PATIENCE_S, pause_s
from tests.support.workers import CeleryWorker, Worker, compiled, gone_within

COMMAND = warm.PROGRAM


class Fleet:
    """A server and its workers. `folder` has the server's data, the logs and each worker's simulated GPUs;
    `env` is the server's environment."""

    def __init__(self, folder: Path, env: dict[str, str] | None = None) -> None:
        self.folder, self.port, self.env = folder, free_port(), {**compiled(), **(env or {})}
        folder.mkdir(exist_ok=True)
        self.workers: list[Worker] = []
        self.key = ""
        self.server: subprocess.Popen[bytes] | None = None
        self._http: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close()
        if self._http is not None:
            await self._http.close()
        if self.server is not None:
            self.server.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self.server.wait, 60)

    async def start(self) -> None:
        """Start the server, or start it again on the same data."""
        data = self.folder / "data"
        with (self.folder / "server.log").open("ab") as log:
            self.server = warm.Popen(
                [COMMAND, "server", "--port", str(self.port), "--data", str(data)],
                cwd=self.folder,
                env=self.env,
                stdout=log,
                stderr=log,
            )
        await eventually(self._is_ready, PATIENCE_S)
        if self._http is None:
            self.key = json.loads(_read(data / "client.json"))["key"]
            self._http = self._client()

    def _client(self) -> aiohttp.ClientSession:
        """Return a client that closes idle connections before the server does, which would hit the next
        request."""
        headers = {"Authorization": f"Bearer {self.key}"}
        connector = aiohttp.TCPConnector(keepalive_timeout=2.0)
        return aiohttp.ClientSession(self.url, headers=headers, connector=connector)

    async def _is_ready(self) -> bool:
        assert self.server is not None
        assert self.server.poll() is None, _read(self.folder / "server.log")
        try:
            async with aiohttp.ClientSession() as http, http.get(f"{self.url}/health/ready") as answer:
                return answer.status == 200 and (self.folder / "data" / "client.json").exists()
        except aiohttp.ClientError:
            return False

    async def worker(self, name: str, *options: str) -> Worker:
        """Start a worker and wait until the server shows it as online."""
        worker = self.started(name, *options)
        self.workers.append(worker)
        await self.back(name)
        return worker

    def started(self, name: str, *options: str) -> Worker:
        """Start a worker without waiting until it is online."""
        token = _read(Path(self.env.get("WORKER_TOKEN_FILE", self.folder / "data" / "worker-token")))
        given = ("--simulation", str(self.folder / f"gpus-{name}"), *options)
        log = self.folder / f"{name}.log"
        if self.env.get("EXECUTOR") == "celery":
            return CeleryWorker(self.url, log, *given, token=token, name=name, broker=self.broker)
        return Worker(self.url, log, *given, token=token, name=name)

    @property
    def broker(self) -> dict[str, str]:
        """The settings with which Celery's commands find the broker: that of the server, or its store."""
        given = {name: value for name, value in self.env.items() if name.startswith(("CELERY_", "REDIS_"))}
        return given | {"DATA_DIR": str(self.folder / "data")}

    async def back(self, name: str) -> None:
        """Wait until a worker is online."""
        await eventually(lambda: self._is_online(name), PATIENCE_S)

    async def _is_online(self, name: str) -> bool:
        _, shown = await self.call("GET", f"/workers/{name}")
        return bool(shown.get("status") == "online")

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        assert self._http is not None
        async with self._http.request(method, path, json=body) as answer:
            return answer.status, await answer.json()

    async def submit(self, task_type: str, parameters: Any = None, **more: Any) -> str:
        """Submit a task, without a GPU unless `resources` is given."""
        body = {"task_type": task_type, "parameters": parameters or {}, "resources": {"gpus": 0}, **more}
        status, answer = await self.call("POST", "/tasks", body)
        assert status == 202, answer
        return str(answer["task_id"])

    async def wait(self, task: str, within_s: float = PATIENCE_S) -> Any:
        _, answer = await self.call("GET", f"/tasks/{task}/wait?timeout={within_s:g}")
        return answer

    async def until(self, task: str, within_s: float = PATIENCE_S, **expected: Any) -> Any:
        """Wait until the task shows these values, and return it."""
        shown: Any = None

        async def shows() -> bool:
            nonlocal shown
            _, shown = await self.call("GET", f"/tasks/{task}")
            return all(shown[name] == value for name, value in expected.items())

        await eventually(shows, within_s)
        return shown

    async def running(self, task: str) -> Worker:
        """Wait until a task has begun, and return its worker."""
        shown = await self.until(task, status="running")
        return next(worker for worker in self.workers if worker.name == shown["assigned_worker"])

    async def metric(self, name: str) -> float:
        """Return the sum of all samples of one metric."""
        return sum(value for _, value in await self.samples(name))

    async def samples(self, name: str) -> list[tuple[str, float]]:
        """Return the samples of one metric: labels and values."""
        assert self._http is not None
        async with self._http.get("/metrics") as answer:
            lines = (await answer.text()).splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line.split("{")[0].split(" ")[0] == name]
        return [(labels.removeprefix(name), float(value)) for labels, value in pairs]


def _read(path: Path) -> str:
    return path.read_text()


async def eventually(check: Callable[[], Awaitable[bool]], within_s: float) -> None:
    """Poll until the check is true: HTTP offers no event to wait for."""
    end = time.monotonic() + within_s
    while True:
        looked_at = time.monotonic()
        if await check():
            return
        assert looked_at < end, f"not so within {within_s} s"
        await asyncio.sleep(pause_s(time.monotonic() - looked_at, 0.02))


@asynccontextmanager
async def fleet(folder: Path, **settings: str) -> AsyncIterator[Fleet]:
    """Run a manager, and check at the end that no process of any worker is left. `settings` are the
    server's."""
    async with Fleet(folder, settings) as running:
        yield running
    for worker in running.workers:
        gone_within(worker, PATIENCE_S)
        assert not worker.is_in_trouble(), worker.log.read_text()

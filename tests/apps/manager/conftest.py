"""Fixtures: a whole manager in the test's own process, on an embedded store, with scripted workers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpu_orchestrator.adapters import settings
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager import server
from gpu_orchestrator.apps.manager.access.keys import Keys, key_of
from tests.support import scripted_worker
from tests.support.patience import PATIENCE_S
from tests.support.scripted_worker import ScriptedWorker

KEY, TOKEN = "k" * 64, "t" * 64
PATIENT = {"worker_lease": 60}
"""Scripted workers do not renew leases by themselves, so leases are long in tests that are not about them."""


@dataclass
class Site:
    """One server and a client with the admin key."""

    running: server.Running
    http: aiohttp.ClientSession
    stack: AsyncExitStack

    async def call(self, method: str, path: str, body: Any = None, **rest: Any) -> tuple[int, Any]:
        async with self.http.request(method, path, json=body, **rest) as answer:
            return answer.status, await answer.json()

    async def ready(self) -> None:
        """Wait until a process leads."""
        async with asyncio.timeout(60):
            while (await self.call("GET", "/health/ready"))[0] != 200:  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.01)

    async def missed(self, worker: str) -> None:
        """Wait until the worker is suspect, or already offline because its short lease expired first."""
        async with asyncio.timeout(30):
            while (await self.call("GET", f"/workers/{worker}"))[1]["status"] not in ("suspect", "offline"):
                pass

    async def submit(self, task_type: str = "echo", **rest: Any) -> str:
        status, answer = await self.call("POST", "/tasks", {"task_type": task_type, **rest})
        assert status == 202, answer
        return str(answer["task_id"])

    async def task(self, name: str) -> Any:
        return (await self.call("GET", f"/tasks/{name}"))[1]

    async def wait(self, name: str, timeout_s: float = PATIENCE_S) -> Any:
        return (await self.call("GET", f"/tasks/{name}/wait?timeout={timeout_s}"))[1]

    async def join(self, name: str = "w", **rest: Any) -> ScriptedWorker:
        """Return a worker that has joined and received its `Welcome`."""
        greeting = scripted_worker.hello(name, **rest)
        worker = await self.stack.enter_async_context(
            scripted_worker.joined(self.running.url, TOKEN, greeting)
        )
        await worker.receive(session.Welcome)
        return worker


NewSite = Callable[..., Any]


@pytest.fixture
async def new_site(tmp_path: Path) -> AsyncIterator[NewSite]:
    async with AsyncExitStack() as stack:

        async def open_site(name: str = "one", **given: Any) -> Site:
            given = {**PATIENT, "api_port": 0, "data_dir": str(tmp_path / name), **given}
            chosen = settings.load({}, tmp_path / "none", **given)
            keys = Keys([key_of(KEY, "admin"), key_of(TOKEN, "worker")])
            running = await stack.enter_async_context(server.running(chosen, keys))
            headers = {"Authorization": f"Bearer {KEY}"}
            http = await stack.enter_async_context(aiohttp.ClientSession(running.url, headers=headers))
            opened = Site(running, http, stack)
            await opened.ready()
            return opened

        yield open_site


@pytest.fixture
async def site(new_site: NewSite) -> Site:
    opened: Site = await new_site()
    return opened

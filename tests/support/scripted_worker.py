"""A scripted worker for tests of the manager: the test decides what it sends, and when."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec

from gpu_orchestrator.api import session
from tests.support.patience import PATIENCE_S

M = TypeVar("M", bound=session.Message)


def device(index: int, gib: int = 24, **rest: Any) -> session.Device:
    return session.Device(index, f"GPU-{index}", "nvidia", "L4", gib * 1024, **rest)


def reading(index: int, *, gib: int = 24, others_gib: int = 0, **rest: Any) -> session.Reading:
    used = others_gib * 1024
    return session.Reading(index, used, gib * 1024 - used, used, **rest)


class ScriptedWorker:
    """One worker's connection. Messages of the manager are kept until the test takes them by kind."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, name: str) -> None:
        self.socket, self.name = socket, name
        self.received: list[session.ToWorker] = []
        self._more = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def send(self, *messages: session.Message) -> None:
        await self.socket.send_bytes(session.frame(*messages))

    async def receive(self, kind: type[M], within_s: float = PATIENCE_S) -> M:
        """Take the next message of this kind."""
        async with asyncio.timeout(within_s):
            while True:
                for message in self.received:
                    if isinstance(message, kind):
                        self.received.remove(message)
                        return message
                self._more.clear()
                await self._more.wait()

    async def take(self) -> session.Assign:
        """Take the next assignment, and send `Started` for it."""
        assign = await self.receive(session.Assign)
        await self.send(session.Started(assign.task, assign.attempt))
        return assign

    async def finish(self, assign: session.Assign, result: Any = None) -> bool:
        await self.send(session.Done(assign.task, assign.attempt, msgspec.Raw(msgspec.json.encode(result))))
        return await self.acked(assign)

    async def acked(self, assign: session.Assign) -> bool:
        while (ack := await self.receive(session.Ack)).task != assign.task or ack.attempt != assign.attempt:
            pass
        return ack.accepted

    async def work(self) -> None:
        """Complete every assignment with its parameters as the result, forever."""
        while True:
            assign = await self.receive(session.Assign, within_s=3600)
            await self.send(session.Done(assign.task, assign.attempt, assign.parameters))

    async def vanish(self) -> None:
        """Abort the connection without a close message."""
        self._reading.cancel()
        assert self.socket._response.connection is not None
        assert self.socket._response.connection.transport is not None
        self.socket._response.connection.transport.abort()

    async def close(self) -> None:
        self._reading.cancel()
        await self.socket.close()

    async def _read(self) -> None:
        async for message in self.socket:
            self.received.extend(session.read_by_worker(message.data))
            self._more.set()


def hello(name: str, **rest: Any) -> session.Hello:
    """Return a greeting. Devices called `GPU-0` get UUIDs of this worker's own: no two workers may have the
    same."""
    given = rest.pop("devices", (device(0), device(1)))
    own = tuple(
        msgspec.structs.replace(each, uuid=f"{each.uuid}-{name}")
        if each.uuid == f"GPU-{each.index}"
        else each
        for each in given
    )
    known: dict[str, Any] = {
        "devices": own,
        "task_types": ("echo", "sleep"),
        "max_concurrent": 8,
        "instance": f"{name}-1",
        **rest,
    }
    return session.Hello(name, **known)


@asynccontextmanager
async def joined(url: str, token: str, greeting: session.Hello) -> AsyncIterator[ScriptedWorker]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.ws_connect(f"{url}/workers/{greeting.name}/session") as socket,
    ):
        worker = ScriptedWorker(socket, greeting.name)
        await worker.send(greeting)
        try:
            yield worker
        finally:
            await worker.close()

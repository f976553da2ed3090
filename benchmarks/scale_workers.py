"""Many simulated workers in one process, for `make bench-scale`: each speaks the worker's protocol on its own
WebSocket.

    python -m benchmarks.scale_workers URL FIRST COUNT SLOTS

It prints a line when it is up. The token comes on the first line of standard input. Assignments are held
until a second line comes; from then on each is completed at once. It prints a line when all have joined.
"""

import asyncio
import sys
from itertools import count

import aiohttp
import msgspec

from gpu_orchestrator.api import session

DEVICES, MEMORY_MIB = 8, 24 * 1024
RENEW_S = 3.0
JOIN_AT_ONCE = 32
NOTHING = msgspec.Raw(b"null")


class SimulatedWorker:
    def __init__(self, name: str, slots: int, go: asyncio.Event) -> None:
        self.name, self._slots, self._go = name, slots, go
        self.joined = asyncio.Event()
        self._held: list[session.Assign] = []

    async def work(self, http: aiohttp.ClientSession, room: asyncio.Semaphore) -> None:
        await room.acquire()
        async with http.ws_connect(f"/workers/{self.name}/session", max_msg_size=0) as socket:
            await socket.send_bytes(session.frame(self._hello()))
            renewing = asyncio.create_task(self._renew(socket))
            finishing = asyncio.create_task(self._finish_held(socket))
            try:
                async for message in socket:
                    for each in session.read_by_worker(message.data):
                        await self._receive(socket, each, room)
            finally:
                renewing.cancel()
                finishing.cancel()

    async def _receive(
        self, socket: aiohttp.ClientWebSocketResponse, message: session.ToWorker, room: asyncio.Semaphore
    ) -> None:
        match message:
            case session.Welcome():
                self.joined.set()
                room.release()
            case session.Assign() if self._go.is_set():
                await socket.send_bytes(session.frame(_done(message)))
            case session.Assign():
                self._held.append(message)
            case session.Goodbye():
                raise RuntimeError(f"{self.name} was refused: {message}")
            case _:
                pass

    async def _finish_held(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await self._go.wait()
        held, self._held = self._held, []
        await socket.send_bytes(session.frame(*map(_done, held)))

    async def _renew(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await self.joined.wait()
        for number in count(1):
            await socket.send_bytes(session.frame(session.Renew(number)))
            await asyncio.sleep(RENEW_S)

    def _hello(self) -> session.Hello:
        devices = tuple(
            session.Device(index, f"{self.name}-{index}", "nvidia", "L4", MEMORY_MIB)
            for index in range(DEVICES)
        )
        return session.Hello(self.name, "i", devices, task_types=("echo",), max_concurrent=self._slots)


def _done(assign: session.Assign) -> session.Done:
    return session.Done(assign.task, assign.attempt, NOTHING)


async def main(url: str, first: int, number: int, slots: int) -> None:
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    token = (await loop.run_in_executor(None, sys.stdin.readline)).strip()
    go, room = asyncio.Event(), asyncio.Semaphore(JOIN_AT_ONCE)
    workers = [SimulatedWorker(f"sim-{at}", slots, go) for at in range(first, first + number)]
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(url, headers=headers, connector=connector) as http:
        running = [asyncio.create_task(each.work(http, room)) for each in workers]
        await asyncio.gather(*(each.joined.wait() for each in workers))
        print("joined", flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        go.set()
        await asyncio.gather(*running)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:5])))

"""A replicated store for tests: Valkey servers, Sentinels that watch them, and an address that can be moved
from one server to another while its old connections live on, as behind a load balancer."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from controlplane.cluster import free_port
from gpu_orchestrator.adapters.store.errors import Unreachable
from gpu_orchestrator.adapters.store.valkey.address import Address, Login, Place
from gpu_orchestrator.adapters.store.valkey.dial import Dialer
from gpu_orchestrator.adapters.store.valkey.embedded import binary
from gpu_orchestrator.adapters.store.valkey.resp import Lost, Refused

NAME = "main"
SILENT_MS = 700
"""When a Sentinel takes a silent server for dead."""
LIMIT_S = 60.0


class Node:
    """One server, or one Sentinel."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        self.port, self.folder, self._options = free_port(), folder, options
        folder.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *more: str) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [binary(), *self._options, "--port", str(self.port), "--dir", str(self.folder), *more],
                stdout=log,
            )

    async def up(self, *more: str) -> None:
        """Start the server and wait until it answers."""
        self.start(*more)
        await self.until("PING", lambda reply: reply == b"PONG")

    async def command(self, *parts: str | int) -> Any:
        dialer = Dialer(Address((Place("127.0.0.1", self.port),), Login()))
        connection = await dialer.connect(Place("127.0.0.1", self.port), 5.0, Login())
        try:
            return await connection.execute(*parts)
        finally:
            connection.abort()

    async def until(self, command: str, check: Any) -> Any:
        """Repeat a command until the reply is as wanted."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                with contextlib.suppress(Lost, Refused):
                    if check(reply := await self.command(*command.split())):
                        return reply
                await asyncio.sleep(0.02)

    async def follows(self) -> bool:
        """Return True if this is a replica that has its primary's data."""
        with contextlib.suppress(Lost, Refused):
            role = await self.command("ROLE")
            return bool(role[0] == b"slave" and role[3] == b"connected")
        return False

    async def is_replica_in_step(self) -> None:
        await self.until("ROLE", lambda role: role[0] == b"slave" and role[3] == b"connected")

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Replicated:
    """Servers of which the first begins as the primary, and the Sentinels that watch them."""

    def __init__(self, folder: Path, *, nodes: int, sentinels: int, fsync: str) -> None:
        options = [
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            fsync,
            "--repl-diskless-sync-delay",
            "0",
        ]
        self.nodes = [Node(folder / f"node{n}", options) for n in range(nodes)]
        self.sentinels = [Node(folder / f"sentinel{n}", []) for n in range(sentinels)]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"sentinel://{hosts}/{NAME}"

    async def start(self) -> None:
        first, *others = self.nodes
        await first.up()
        for node in others:
            await node.up("--replicaof", f"127.0.0.1 {first.port}")
        for node in others:
            await node.is_replica_in_step()
        for sentinel in self.sentinels:
            config = sentinel.folder / "sentinel.conf"
            config.write_text(
                f"sentinel monitor {NAME} 127.0.0.1 {first.port} {len(self.sentinels) // 2 + 1}\n"
                f"sentinel down-after-milliseconds {NAME} {SILENT_MS}\n"
                f"sentinel failover-timeout {NAME} 3000\n"
            )
            sentinel._options = [str(config), "--sentinel"]
            await sentinel.up()
        for sentinel in self.sentinels:
            await sentinel.until(f"SENTINEL MASTER {NAME}", self._sees_all)

    def _sees_all(self, reply: list[bytes]) -> bool:
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        others = (int(fields[b"num-slaves"]), int(fields[b"num-other-sentinels"]))
        return others >= (len(self.nodes) - 1, len(self.sentinels) - 1)

    async def primary(self) -> Node:
        """Return the server that the Sentinels name and that says that it is one."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                with contextlib.suppress(Lost, Refused, StopIteration):
                    _, port = await self.sentinels[0].command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
                    node = next(each for each in self.nodes if each.port == int(port))
                    if node.process is not None and (await node.command("ROLE"))[0] == b"master":
                        return node
                await asyncio.sleep(0.02)

    async def whole(self) -> Node:
        """Wait until one is the primary and all others follow it; return the primary. On a busy machine the
        Sentinels may take it for dead meanwhile, so look for it again each time."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                primary = await self.primary()
                if all([each is primary or await each.follows() for each in self.nodes]):
                    return primary
                await asyncio.sleep(0.02)

    async def fail_over(self) -> Node:
        """Kill the primary, wait for another, and start the killed one again; return the new primary."""
        old = await self.primary()
        old.kill()
        new = await self.primary()
        await old.up()
        return new

    def close(self) -> None:
        for node in (*self.sentinels, *self.nodes):
            if node.process is not None:
                node.send(signal.SIGCONT)
            node.kill()


@contextlib.asynccontextmanager
async def replicated(
    folder: Path, *, nodes: int = 2, sentinels: int = 1, fsync: str = "everysec"
) -> AsyncIterator[Replicated]:
    made = Replicated(folder, nodes=nodes, sentinels=sentinels, fsync=fsync)
    try:
        await made.start()
        yield made
    finally:
        made.close()


class MovableAddress:
    """A port that passes connections on to a server. `move` is for new connections; those that are open stay
    where they are."""

    def __init__(self, to: int) -> None:
        self.port, self._to = free_port(), to
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def move(self, to: int) -> None:
        self._to = to

    async def __aenter__(self) -> "MovableAddress":
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        self._writers.add(writer)
        writers, copying = [writer], []
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
            writers.append(back)
            copying = [asyncio.create_task(_copy(reader, back)), asyncio.create_task(_copy(there, writer))]
            await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass
        finally:
            for each in copying:
                each.cancel()
            for end in writers:
                end.transport.abort()
            self._writers.discard(writer)
            self._passing.discard(task)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()


async def answers(call: Any) -> Any:
    """Repeat a call of the store until it answers, as callers do."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                return await call()
            except Unreachable:
                await asyncio.sleep(0.02)

"""A store that reads a large file is waited for, however long that takes, and tells how far it is."""

import asyncio
import re
import signal
import subprocess
from pathlib import Path

import pytest

from controlplane.cluster import free_port
from gpu_orchestrator.adapters.store.errors import Loading
from gpu_orchestrator.adapters.store.valkey import database as database_module
from gpu_orchestrator.adapters.store.valkey import embedded as embedded_module
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import Embedded, binary, embedded
from tests.support.fleet import COMMAND

pytestmark = pytest.mark.real
KEYS = 6000
DELAY = "--key-load-delay"
"""Microseconds that a server spends on each key of its file. It answers after every thousand."""
PROGRESS = re.compile(r"the store reads its file: [\d.]+ % so far")


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    """Return the folder of a store with some keys."""
    async with embedded(tmp_path / "store") as server, Database(server.url) as database:
        await database._execute_all(*(("SET", f"{number}", "x") for number in range(KEYS)))
    return tmp_path / "store"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_module, "START_S", 0.3)
    monkeypatch.setattr(database_module, "TELL_EVERY_S", 0.1)


async def test_embedded_store_is_waited_for(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\nexec {binary()} "$@" {DELAY} 300\n')
    slow.chmod(0o755)
    monkeypatch.setattr(embedded_module, "binary", lambda: str(slow))
    server, told = Embedded(file), list[str]()
    try:
        await server.start(told.append)
        assert told
        assert all(PROGRESS.fullmatch(each) for each in told)
        assert server.trouble == ""
        async with Database(server.url) as database:
            assert await database._execute("DBSIZE") == KEYS
    finally:
        await server.stop()


async def loads_forever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as a server does that reads an endless file."""
    while received := await reader.read(1000):
        if b"ROLE" in received:
            writer.write(b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n")
        elif b"INFO" in received:
            writer.write(b"$28\r\nloading_loaded_perc:12.50\r\n\r\n\r\n")
        else:
            writer.write(b"-LOADING Valkey is loading the dataset in memory\r\n")
    writer.close()


async def test_configured_store_is_waited_for_until_sigterm(tmp_path: Path) -> None:
    store = await asyncio.start_server(loads_forever, "127.0.0.1", 0)
    port = store.sockets[0].getsockname()[1]
    async with Database(f"redis://127.0.0.1:{port}/0") as database:
        with pytest.raises(Loading) as caught:
            await database.ping()
        assert caught.value.progress == "the store reads its file: 12.5 % so far"
    server = subprocess.Popen(  # noqa: ASYNC220
        [COMMAND, "server", "--port", str(free_port()), "--data", str(tmp_path / "data")],
        env={"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(port), "LOG_FORMAT": "text"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        line = await asyncio.to_thread(server.stderr.readline)
        assert "the store reads its file" in line
        assert "12.5" in line
        server.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait, 20) == 130
    finally:
        server.kill()
        server.wait()
        assert server.stderr is not None
        server.stderr.close()
        store.close()

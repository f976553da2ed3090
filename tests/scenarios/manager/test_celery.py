"""Celery workers: what Celery's own tools show and do, and what the broker cannot make a worker do."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis
from celery import Celery

from controlplane.cluster import free_port
from gpu_orchestrator import AsyncClient
from gpu_orchestrator.adapters import settings
from gpu_orchestrator.adapters.broker import config
from gpu_orchestrator.adapters.broker.address import broker_of
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from gpu_orchestrator.api.tickets import INFERENCE, MANAGEMENT, queue_of
from tests.support import documents, warm
from tests.support.fleet import Fleet, eventually, fleet
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.workers import CELERY, compiled

pytestmark = pytest.mark.real
GATED = ("--function", "gate=tests.support.worker_functions:waits_for")
APPENDS = ("--function", "appends=tests.support.worker_functions:appends_until")
HERE = "tests/scenarios/manager/test_celery.py"


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with fleet(tmp_path, EXECUTOR="celery") as running:
        yield running


def client_of(manager: Fleet) -> Celery:
    """Return Celery's client, configured as our app is."""
    app = Celery("tests", set_as_current=False)
    app.conf.update(config.of(broker_of(settings.load(manager.broker, manager.folder / "no.env"))))
    return app


async def gated(manager: Fleet, gate: Path) -> str:
    task = await manager.submit("python", {"function": "gate", "arguments": {"path": str(gate)}})
    await manager.running(task)
    return task


@contextmanager
def flower(manager: Fleet, port: int) -> Any:
    command = [*CELERY, "flower", "--address=127.0.0.1", f"--port={port}"]
    with (manager.folder / "flower.log").open("ab") as log:
        process = subprocess.Popen(command, env=compiled() | manager.broker, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


async def page(url: str) -> str:
    try:
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            return await answer.text() if answer.status == 200 else ""
    except aiohttp.ClientError:
        return ""


async def test_celery_shows_tasks_and_can_revoke_them(manager: Fleet, tmp_path: Path) -> None:
    port, gate = free_port(), tmp_path / "gate"
    app = client_of(manager)
    with flower(manager, port):
        worker = await manager.worker("gpu1", "--max-concurrent", "2", *GATED)

        async def flower_has_events() -> bool:
            return "gpu1@test" in await page(f"http://127.0.0.1:{port}/workers")

        await eventually(flower_has_events, PATIENCE_S)
        task = await gated(manager, gate)

        async def flower_shows_it() -> bool:
            shown = await page(f"http://127.0.0.1:{port}/task/{task}.1")
            return INFERENCE in shown and "STARTED" in shown

        await eventually(flower_shows_it, PATIENCE_S)
    shown = await asyncio.to_thread(app.control.inspect(["gpu1@test"], limit=1).active)
    assert [(each["name"], each["id"]) for each in shown["gpu1@test"]] == [(INFERENCE, f"{task}.1")]

    def told(what: str) -> Any:
        return app.send_task(f"{MANAGEMENT}.{what}", queue=queue_of("gpu1")).get(PATIENCE_S)

    second = await gated(manager, gate)
    assert await asyncio.to_thread(told, "ping") == {"worker": "gpu1", "joined": True}, (
        "though all slots are taken"
    )
    assert set((await asyncio.to_thread(told, "status"))["running"]) == {f"{task}.1", f"{second}.1"}
    assert (await asyncio.to_thread(told, "health"))["healthy"]

    pool = [each["worker_pid"] for each in shown["gpu1@test"]]
    os.kill(pool[0], signal.SIGKILL)  # the run goes on, and the redelivered ticket waits for it
    app.control.revoke(f"{second}.1", terminate=True)
    assert (await manager.call("DELETE", f"/tasks/{task}"))[0] == 200
    for each in (task, second):
        ended = await manager.wait(each)
        assert (ended["status"], ended["attempt"]) == ("cancelled", 1)

    async def celery_says_so() -> bool:
        return bool(await asyncio.to_thread(lambda: app.AsyncResult(f"{task}.1").state) == "REVOKED")

    await eventually(celery_says_so, PATIENCE_S)
    await asyncio.to_thread(told, "drain")
    assert await asyncio.to_thread(worker.process.wait, PATIENCE_S) == 0


@pytest.fixture
async def confined(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Run a manager whose broker is another store, with the user of docs/celery.md."""
    (rules,) = re.findall("^ACL SETUSER fleet (.*)$", (ROOT / "docs" / "celery.md").read_text(), re.MULTILINE)
    async with embedded(tmp_path / "broker") as broker:
        with redis.Redis(unix_socket_path=str(broker.socket)) as administrator:
            await asyncio.to_thread(administrator.execute_command, "ACL", "SETUSER", "fleet", *rules.split())
            url = f"redis+socket://fleet:PASSWORD@{broker.socket}"
            async with fleet(tmp_path / "manager", EXECUTOR="celery", CELERY_BROKER_URL=url) as running:
                yield running
            assert await asyncio.to_thread(administrator.acl_log) == []


async def test_broker_starts_nothing_that_the_ledger_does_not_have(confined: Fleet, tmp_path: Path) -> None:
    """A message in pickle, tickets for other attempts, and the same ticket again. The broker's user may use
    nothing but Celery's part of it."""
    manager = confined
    worker = await manager.worker("gpu1", "--max-concurrent", "2", *APPENDS)
    app, gate, runs, trap = client_of(manager), tmp_path / "gate", tmp_path / "runs", tmp_path / "trap"
    arguments = {"path": str(runs), "gate": str(gate)}
    task = await manager.submit("python", {"function": "appends", "arguments": arguments})
    await manager.running(task)

    def send(attempt: int, epoch: int, **more: Any) -> None:
        ticket = {"task": task, "attempt": attempt, "epoch": epoch}
        app.send_task(INFERENCE, kwargs=ticket, queue=queue_of("gpu1"), ignore_result=True, **more)

    await asyncio.to_thread(
        app.send_task, INFERENCE, args=[Trap(str(trap))], queue=queue_of("gpu1"), serializer="pickle"
    )
    for attempt, epoch in ((2, 1), (1, 2), (1, 1)):
        await asyncio.to_thread(send, attempt, epoch)

    async def all_are_void() -> bool:
        counted = dict(await manager.samples("celery_tickets_void_total"))
        return counted == {'{reason="old"}': 2.0, '{reason="again"}': 1.0}

    await eventually(all_are_void, PATIENCE_S)
    assert "Refusing to deserialize" in worker.log.read_text()
    assert not trap.exists()
    gate.touch()
    assert (await manager.wait(task))["attempt"] == 1
    assert runs.read_text() == "run\n"


class Trap:
    """Makes a folder where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


async def test_up_has_a_worker_of_celery(tmp_path: Path) -> None:
    data = tmp_path / "data"
    env = {**compiled(), "EXECUTOR": "celery", "API_PORT": str(free_port()), "DATA_DIR": str(data)}
    command = [warm.PROGRAM, "up", "--quiet", "--simulate", "1", "--max-concurrent", "2"]
    with (tmp_path / "log").open("wb") as log:
        process = warm.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log)

    async def is_up() -> bool:
        return (data / "client.json").exists()

    try:
        await eventually(is_up, PATIENCE_S)
        async with AsyncClient(**access(data)) as client:
            handle = await client.submit("echo", {"by": "celery"})
            assert await handle.result(PATIENCE_S) == {"by": "celery"}
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, PATIENCE_S)
    assert f"Task {INFERENCE}" in (data / "worker.log").read_text()


def access(data: Path) -> dict[str, Any]:
    known = json.loads((data / "client.json").read_text())
    return {"url": known["url"], "key": known["key"]}


async def test_documented_fleet_runs(tmp_path: Path) -> None:
    """Type in what docs/celery.md has."""
    typed = documents.run_by(HERE, "docs/celery.md")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**compiled(), "PATH": path, "DATA_DIR": str(tmp_path / "data"), "API_PORT": str(free_port())}
    printed = await asyncio.to_thread(documents.type_in, typed, cwd=tmp_path, env=env)
    assert "gpu_orchestrator.inference" in "".join(printed)

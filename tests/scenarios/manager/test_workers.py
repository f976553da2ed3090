"""Runners, workers and hosts fail while tasks run: real server, real store, real processes."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from os import kill
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.gpus import simulated
from gpu_orchestrator.adapters.gpus.simulated import Simulated
from tests.support import nemesis
from tests.support.fleet import Fleet, fleet
from tests.support.patience import PATIENCE_S
from tests.support.scale import Scale

pytestmark = pytest.mark.real
Figure = Callable[[str], None]
GATED = ("--function", "gate=tests.support.worker_functions:waits_for")
LEASE_S = 60
RUNS_S = 5.0
RERUN_S = {"native": 5.0, "celery": 10.0}
"""A Celery worker takes its next ticket from a broker."""
"""Longer than stopping a host takes on a busy machine, shorter than a lease: the result must be waiting when
the agent continues."""


@pytest.fixture
async def manager(tmp_path: Path, executor: str) -> AsyncIterator[Fleet]:
    async with fleet(tmp_path, EXECUTOR=executor) as running:
        yield running


@pytest.fixture
async def patient(tmp_path: Path, scale: Scale, executor: str) -> AsyncIterator[Fleet]:
    """Run a manager with leases so long that nothing here can be due to the end of one."""
    settings: dict[str, str] = scale(test={"WORKER_LEASE": str(LEASE_S)}, accept={})
    async with fleet(tmp_path, EXECUTOR=executor, **settings) as running:
        yield running


async def submit_gated(manager: Fleet, gate: Path) -> str:
    """Submit a task that ends when the gate exists."""
    return await manager.submit("python", {"function": "gate", "arguments": {"path": str(gate)}})


async def test_task_of_a_killed_runner_restarts_within_a_second(
    patient: Fleet, tmp_path: Path, scale: Scale, figure: Figure
) -> None:
    manager, gate = patient, tmp_path / "gate"
    worker = await manager.worker("a", *GATED)
    task = await submit_gated(manager, gate)
    await manager.running(task)
    kill(worker.runner(), signal.SIGKILL)
    killed = time.monotonic()
    await manager.until(task, attempt=2, status="running")
    figure(f"runner killed, run again after {time.monotonic() - killed:.2f} s")
    assert time.monotonic() - killed < scale(test=LEASE_S / 2, accept=1.0), "long before a lease would expire"
    gate.touch()
    assert (await manager.wait(task))["status"] == "completed"


@pytest.mark.celery
async def test_task_of_a_killed_worker_restarts_within_seconds(
    manager: Fleet, tmp_path: Path, scale: Scale, figure: Figure, executor: str
) -> None:
    gate = tmp_path / "gate"
    await manager.worker("a", *GATED)
    await manager.worker("b", *GATED)
    task = await submit_gated(manager, gate)
    worker = await manager.running(task)
    worker.signal(signal.SIGKILL)
    killed = time.monotonic()
    again = await manager.until(task, attempt=2, status="running")
    figure(f"worker killed ({executor}), run again after {time.monotonic() - killed:.2f} s")
    assert time.monotonic() - killed < scale(test=nemesis.BUSY, accept=1) * RERUN_S[executor]
    assert again["assigned_worker"] != worker.name
    gate.touch()
    assert (await manager.wait(task))["status"] == "completed"


@pytest.mark.celery
async def test_task_of_a_silent_host_restarts_within_15_s_and_its_late_result_is_dropped(
    manager: Fleet, scale: Scale, figure: Figure
) -> None:
    """On one host all processes are stopped while a task runs; on another only the agent, so that a result
    waits in its socket. Both continue while a third runs their tasks again: only its results count."""
    who = ("--function", "who=tests.support.worker_functions:pid_after")
    third = await manager.worker("c", *who)
    await manager.call("POST", "/workers/c/cordon")
    first, second = await manager.worker("a", *who), await manager.worker("b", *who)
    parameters = {"function": "who", "arguments": {"seconds": RUNS_S}}
    tasks = [await manager.submit("python", parameters) for _ in range(2)]
    for task in tasks:
        await manager.running(task)
    stopped = [first.process.pid, *first.below(), second.agent]
    nemesis.send(stopped, signal.SIGSTOP)
    silent = time.monotonic()
    try:
        await manager.call("POST", "/workers/c/uncordon")
        await manager.until(tasks[0], attempt=2)
        figure(f"host silent, run again after {time.monotonic() - silent:.2f} s")
        assert time.monotonic() - silent < scale(test=nemesis.BUSY, accept=1) * 15.0
        await manager.until(tasks[1], attempt=2)
    finally:
        nemesis.send(stopped, signal.SIGCONT)
    for task in tasks:
        final = await manager.wait(task)
        assert (final["status"], final["attempt"], final["assigned_worker"]) == ("completed", 2, "c")
        assert final["result"] in third.below()
    await manager.back("a")
    await manager.back("b")


async def test_leaving_worker_finishes_running_and_refuses_waiting_tasks(
    patient: Fleet, tmp_path: Path
) -> None:
    manager, gate = patient, tmp_path / "gate"
    await manager.worker("b")
    await manager.call("POST", "/workers/b/cordon")
    leaving = await manager.worker("a", *GATED)
    running = await submit_gated(manager, gate)
    await manager.running(running)
    await manager.call("POST", "/workers/b/uncordon")
    leaving.signal(signal.SIGTERM)
    later = [await manager.submit("echo", {"number": number}) for number in range(10)]
    for number, task in enumerate(later):
        shown = await manager.wait(task)
        assert (shown["status"], shown["result"], shown["assigned_worker"]) == (
            "completed",
            {"number": number},
            "b",
        )
    gate.touch()
    assert await asyncio.to_thread(leaving.process.wait, PATIENCE_S) == 0
    first = await manager.wait(running)
    assert (first["status"], first["attempt"], first["assigned_worker"]) == ("completed", 1, "a")


async def test_memory_of_foreign_processes_is_never_assigned(manager: Fleet) -> None:
    """Six tasks fit on two devices at once, four while a foreign process has memory on one of them. None may
    ever run out of memory, whatever the last report showed."""
    await manager.worker("a", "--simulate", "2xL4:24GiB", "--max-concurrent", "6")
    folder = manager.folder / "gpus-a"
    devices = Simulated(folder, "2xL4:24GiB").devices()
    for device in (*devices, *devices):
        foreign = simulated.allocate(folder, device.uuid, 9_000)
        resources = {"gpus": 1, "gpu_memory": "6GB"}
        tasks = [await manager.submit("vram", {"hold_s": 0.2}, resources=resources) for _ in range(6)]
        for task in tasks:
            assert (await manager.wait(task))["status"] == "completed"
        foreign.free()
    assert "OutOfMemory" not in manager.workers[0].log.read_text()

"""A runner ends with its keeper, its lease or its agent, and never leaves a process behind."""

import asyncio
import os
import signal
from contextlib import suppress

import pytest

from gpu_orchestrator.adapters import keeper
from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.frames import Options
from tests.support.runners import RunnerClient, running
from tests.support.scale import Scale
from tests.support.workers import is_alive

pytestmark = pytest.mark.real

NAMES = ("family", "crash", "exits", "deaf", "cleans_up")
OPTIONS = Options(
    functions={name: f"tests.support.worker_functions:{name}" for name in NAMES}, allow_command=True
)


async def start_family(client: RunnerClient) -> set[int]:
    """Run a task that starts children and grandchildren, and return the runner's processes."""
    client.run("python", {"function": "family", "arguments": {"seconds": 300}})
    await client.receive(frames.Printed)
    return await processes(client, 6)


async def processes(client: RunnerClient, count: int) -> set[int]:
    """Wait until the runner, with its keeper, has `count` processes, and return them."""
    for _ in range(3000):
        if len(pids := client.runner.pids()) >= count:
            return pids
        await asyncio.sleep(0.01)
    raise AssertionError(f"never {count} processes: {pids}")


async def ended(pids: set[int]) -> None:
    """Wait until the kernel reports that these processes are gone."""
    loop = asyncio.get_running_loop()
    for pid in pids:
        with suppress(ProcessLookupError):
            descriptor, gone = os.pidfd_open(pid), asyncio.Event()
            loop.add_reader(descriptor, gone.set)
            async with asyncio.timeout(30):
                await gone.wait()
            loop.remove_reader(descriptor)
            os.close(descriptor)


async def test_children_are_found_with_and_without_the_kernels_list() -> None:
    async with running(OPTIONS) as client:
        pids = await start_family(client)
        for pid in pids:
            assert sorted(keeper._children(pid)) == sorted(keeper._children_by_parent(pid))


async def test_kill_ends_all_processes_of_the_runner() -> None:
    async with running(OPTIONS) as client:
        pids = await start_family(client)
        client.runner.kill()
        await client.wait_gone()
        assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_children_of_a_killed_runner_end_with_it(number: signal.Signals) -> None:
    async with running(OPTIONS) as client:
        pids = await start_family(client)
        os.kill((await client.receive(frames.Ready)).pid, number)
        assert f"killed by {number.name}" in await client.wait_gone()
        assert not [pid for pid in pids if is_alive(pid)]


async def test_runner_ends_with_its_keeper() -> None:
    async with running(OPTIONS) as client:
        ready = await client.receive(frames.Ready)
        os.kill(client.runner.pid, signal.SIGKILL)
        assert "killed by SIGKILL" in await client.wait_gone()
        await ended({ready.pid})


async def test_expired_lease_ends_the_runner(scale: Scale) -> None:
    async with running(OPTIONS) as client:
        pids = await start_family(client)
        until = elapsed_s() + 0.5
        client.runner.prolong(until)
        await client.wait_gone()
        assert until <= elapsed_s() < until + scale(test=20, accept=0.5), "not at the end of the lease"
        assert not [pid for pid in pids if is_alive(pid)]


async def test_extended_lease_keeps_the_runner() -> None:
    async with running(OPTIONS) as client:
        client.runner.prolong(elapsed_s() + 0.3)
        client.runner.prolong(elapsed_s() + 60)
        assert await client.result("sleep", {"seconds": 0.6})


async def test_crash_evidence_names_signal_and_source_file() -> None:
    async with running(OPTIONS) as client:
        client.run("python", {"function": "crash"})
        evidence = await client.wait_gone()
        assert "killed by SIGSEGV" in evidence
        assert "functions.py" in evidence


async def test_evidence_has_the_exit_code() -> None:
    async with running(OPTIONS) as client:
        client.run("python", {"function": "exits"})
        assert "exit code 7" in await client.wait_gone()


async def test_soft_limit_interrupts_only_its_task() -> None:
    async with running(OPTIONS) as client:
        client.run("python", {"function": "cleans_up", "arguments": {"seconds": 60}}, task="a")
        client.run("sleep", {"seconds": 0.3}, task="b")
        await client.receive(frames.Printed, "a")
        await asyncio.sleep(0.05)
        for _ in range(3):
            client.runner.send(frames.SoftLimit("a", 1))
        assert bytes((await client.receive(frames.Ended, "a")).result) == b'"cleaned up"'
        assert (await client.receive(frames.Ended, "b")).task == "b"


async def test_handler_that_ignores_its_soft_limit_fails() -> None:
    async with running(OPTIONS) as client:
        client.run("command", {"arguments": ["sleep", "60"]})
        program = (await processes(client, 3)) - {client.runner.pid, (await client.receive(frames.Ready)).pid}
        client.runner.send(frames.SoftLimit("t", 1))
        assert (await client.receive(frames.Erred)).error == "SoftLimitReached"
        await ended(program)


async def test_cancelling_a_command_ends_its_program() -> None:
    async with running(OPTIONS) as client:
        client.run("command", {"arguments": ["sleep", "60"]})
        program = (await processes(client, 3)) - {client.runner.pid, (await client.receive(frames.Ready)).pid}
        client.runner.send(frames.Cancel("t", 1))
        await client.receive(frames.Stopped)
        await ended(program)


async def test_task_cancelled_before_it_begins_is_stopped() -> None:
    async with running(OPTIONS) as client:
        client.run("sleep", {"seconds": 60})
        client.runner.send(frames.Cancel("t", 1))
        await client.receive(frames.Stopped)


async def test_withdraw_returns_tasks_that_have_not_begun() -> None:
    async with running(OPTIONS) as client:
        client.run("sleep", {"seconds": 60, "progress": True}, task="long")
        for name in ("a", "b"):
            client.run("echo", {}, task=name)
        await client.receive(frames.Printed, "long")
        client.runner.send(frames.Withdraw())
        withdrawn = await client.receive(frames.Withdrawn)
        assert withdrawn.runs == (("a", 1), ("b", 1))


async def test_urgent_frames_are_read_behind_a_full_socket_buffer() -> None:
    async with running(OPTIONS) as client:
        client.run("sleep", {"seconds": 60, "progress": True}, task="long")
        await client.receive(frames.Printed, "long")
        for number in range(8):
            client.run("echo", "x" * (1 << 20), task=str(number))
        client.runner.send(frames.Withdraw())
        client.runner.send(frames.Cancel("long", 1))
        assert len((await client.receive(frames.Withdrawn)).runs) == 8
        await client.receive(frames.Stopped, "long")
        assert await client.result("echo", 1, task="next") == 1


async def test_children_of_an_interrupted_task_end() -> None:
    async with running(OPTIONS) as client:
        pids = await start_family(client)
        client.runner.send(frames.SoftLimit("t", 1))
        assert (await client.receive(frames.Erred)).spent
        await ended(pids)

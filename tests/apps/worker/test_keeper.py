"""A runner never outlives its reason, and never leaves a process behind."""

import asyncio
import os
import signal
from contextlib import suppress

import pytest

from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.apps.worker.runners import frames, keeper
from gpu_orchestrator.apps.worker.runners.frames import Options
from tests.support.runners import Spoken, running
from tests.support.scale import Scale
from tests.support.workers import is_alive

pytestmark = pytest.mark.real

NAMES = ("family", "crash", "exits", "deaf", "cleans_up")
OPTIONS = Options(
    functions={name: f"tests.support.worker_functions:{name}" for name in NAMES}, allow_command=True
)


async def a_family(spoken: Spoken) -> set[int]:
    """The runner's processes, once it has children and grandchildren."""
    spoken.run("python", {"function": "family", "arguments": {"seconds": 300}})
    await spoken.hear(frames.Line)
    return await processes(spoken, 6)


async def processes(spoken: Spoken, count: int) -> set[int]:
    """All processes of the runner, keeper included, once there are so many."""
    for _ in range(3000):
        if len(pids := spoken.runner.pids()) >= count:
            return pids
        await asyncio.sleep(0.01)
    raise AssertionError(f"never {count} processes: {pids}")


async def ended(pids: set[int]) -> None:
    """Waits until these processes are gone, as the kernel tells it."""
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
    async with running(OPTIONS) as spoken:
        pids = await a_family(spoken)
        for pid in pids:
            assert sorted(keeper._children(pid)) == sorted(keeper._children_by_parent(pid))


async def test_killing_a_runner_kills_its_whole_family() -> None:
    async with running(OPTIONS) as spoken:
        pids = await a_family(spoken)
        spoken.runner.kill()
        await spoken.gone()
        assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_family_of_a_killed_runner_dies_with_it(number: signal.Signals) -> None:
    async with running(OPTIONS) as spoken:
        pids = await a_family(spoken)
        os.kill((await spoken.hear(frames.Ready)).pid, number)
        assert f"killed by {number.name}" in await spoken.gone()
        assert not [pid for pid in pids if is_alive(pid)]


async def test_a_runner_dies_with_its_keeper() -> None:
    async with running(OPTIONS) as spoken:
        ready = await spoken.hear(frames.Ready)
        os.kill(spoken.runner.pid, signal.SIGKILL)
        assert "killed by SIGKILL" in await spoken.gone()
        await ended({ready.pid})


async def test_a_lease_that_nobody_prolongs_ends_the_runner(scale: Scale) -> None:
    async with running(OPTIONS) as spoken:
        pids = await a_family(spoken)
        until = elapsed_s() + 0.5
        spoken.runner.prolong(until)
        await spoken.gone()
        assert until <= elapsed_s() < until + scale(test=20, accept=0.5), "not at the end of the first"
        assert not [pid for pid in pids if is_alive(pid)]


async def test_a_prolonged_lease_lets_it_run() -> None:
    async with running(OPTIONS) as spoken:
        spoken.runner.prolong(elapsed_s() + 0.3)
        spoken.runner.prolong(elapsed_s() + 60)
        assert await spoken.result("sleep", {"seconds": 0.6})


async def test_the_evidence_of_a_crash_says_where() -> None:
    async with running(OPTIONS) as spoken:
        spoken.run("python", {"function": "crash"})
        evidence = await spoken.gone()
        assert "killed by SIGSEGV" in evidence
        assert "functions.py" in evidence


async def test_an_exit_code_is_evidence() -> None:
    async with running(OPTIONS) as spoken:
        spoken.run("python", {"function": "exits"})
        assert "exit code 7" in await spoken.gone()


async def test_a_soft_limit_reaches_its_task_and_no_other() -> None:
    async with running(OPTIONS) as spoken:
        spoken.run("python", {"function": "cleans_up", "arguments": {"seconds": 60}}, task="a")
        spoken.run("sleep", {"seconds": 0.3}, task="b")
        await spoken.hear(frames.Line, "a")
        await asyncio.sleep(0.05)
        for _ in range(3):
            spoken.runner.send(frames.SoftLimit("a", 1))
        assert bytes((await spoken.hear(frames.Ended, "a")).result) == b'"cleaned up"'
        assert (await spoken.hear(frames.Ended, "b")).task == "b"


async def test_a_handler_without_care_for_its_soft_limit_fails_by_it() -> None:
    async with running(OPTIONS) as spoken:
        spoken.run("command", {"arguments": ["sleep", "60"]})
        program = (await processes(spoken, 3)) - {spoken.runner.pid, (await spoken.hear(frames.Ready)).pid}
        spoken.runner.send(frames.SoftLimit("t", 1))
        assert (await spoken.hear(frames.Erred)).error == "SoftLimitReached"
        await ended(program)


async def test_cancelling_a_command_ends_its_program() -> None:
    async with running(OPTIONS) as spoken:
        spoken.run("command", {"arguments": ["sleep", "60"]})
        program = (await processes(spoken, 3)) - {spoken.runner.pid, (await spoken.hear(frames.Ready)).pid}
        spoken.runner.send(frames.Cancel("t", 1))
        await spoken.hear(frames.Stopped)
        await ended(program)


async def test_a_task_cancelled_before_it_began_is_stopped_too() -> None:
    async with running(OPTIONS) as spoken:
        spoken.run("sleep", {"seconds": 60})
        spoken.runner.send(frames.Cancel("t", 1))
        await spoken.hear(frames.Stopped)


async def test_what_has_not_begun_can_be_taken_back() -> None:
    async with running(OPTIONS) as spoken:
        spoken.run("sleep", {"seconds": 60, "progress": True}, task="long")
        for name in ("a", "b"):
            spoken.run("echo", {}, task=name)
        await spoken.hear(frames.Line, "long")
        spoken.runner.send(frames.Withdraw())
        withdrawn = await spoken.hear(frames.Withdrawn)
        assert withdrawn.runs == (("a", 1), ("b", 1))


async def test_urgent_words_are_heard_behind_more_than_a_socket_holds() -> None:
    async with running(OPTIONS) as spoken:
        spoken.run("sleep", {"seconds": 60, "progress": True}, task="long")
        await spoken.hear(frames.Line, "long")
        for number in range(8):
            spoken.run("echo", "x" * (1 << 20), task=str(number))
        spoken.runner.send(frames.Withdraw())
        spoken.runner.send(frames.Cancel("long", 1))
        assert len((await spoken.hear(frames.Withdrawn)).runs) == 8
        await spoken.hear(frames.Stopped, "long")
        assert await spoken.result("echo", 1, task="next") == 1


async def test_children_of_a_task_that_was_cut_short_do_not_stay() -> None:
    async with running(OPTIONS) as spoken:
        pids = await a_family(spoken)
        spoken.runner.send(frames.SoftLimit("t", 1))
        assert (await spoken.hear(frames.Erred)).spent
        await ended(pids)

"""The agent's handle of a runner, without a real runner."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.attempt import Attempt
from gpu_orchestrator.apps.worker.runners.runner_handle import RunnerHandle, RunnerPlan


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_socket_of_a_dead_runner_is_closed_once(
    run: Callable[[Coroutine[None, None, int]], int],
) -> None:
    """After a second close, the descriptor could be another runner's lifeline. Nothing is written to it."""
    broken: list[object] = []

    async def connect() -> int:
        gone = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(lambda _, what: broken.append(what))
        plan = RunnerPlan((), {}, frames.Options(), lambda *_: None, lambda *_: None, lambda *_: gone.set())
        runner = RunnerHandle(plan)
        near, far = socket.socketpair()
        far.close()
        for end in runner._far_ends:
            os.close(end)
        await runner._connect(near)
        async with asyncio.timeout(60):
            await gone.wait()
        runner.send(frames.Withdraw())
        await asyncio.sleep(0.01)
        return near.fileno()

    assert run(connect()) == -1, "the socket does not know that its descriptor is closed"
    assert broken == []


async def test_runner_gets_no_task_before_the_agent_knows_it_is_ready() -> None:
    """A busy agent reads `Ready` late. A first task that ran before that had printed to nobody."""
    printed: list[tuple[Attempt | None, str]] = []

    def receive(runner: RunnerHandle, frame: frames.ToAgent) -> None:
        runner.is_ready |= isinstance(frame, frames.Ready)

    plan = RunnerPlan(
        (),
        {},
        frames.Options(),
        receive,
        lambda _, whose, text: printed.append((whose, text)),
        lambda *_: None,
    )
    runner, attempt = RunnerHandle(plan), Attempt(session.Assign("t", 1, "echo"))
    near, far = socket.socketpair()
    with far:
        await runner._connect(near)
        runner.queue.append(attempt)
        runner.send(attempt.as_run())
        await asyncio.sleep(0.01)
        with pytest.raises(BlockingIOError):
            far.recv(1, socket.MSG_DONTWAIT)
        os.write(runner._output.far, b"from the start of the interpreter\n")
        runner.receive([frames.Ready(os.getpid())])
        far.settimeout(60)
        sent = frames.read_by_runner().feed(await asyncio.to_thread(far.recv, 1 << 16))
        os.write(runner._output.far, b"from the task\n")
        runner.receive([frames.Ended("t", 1)])
        runner.ended("it was closed")
    assert [type(frame) for frame in sent] == [frames.Setup, frames.Run]
    assert printed == [(None, "from the start of the interpreter\n"), (attempt, "from the task\n")]

"""The agent's handle of a runner, without a real runner."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from gpu_orchestrator.apps.worker import frames
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

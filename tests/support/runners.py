"""One real runner process without an agent: tests of handlers, limits and endings send it frames directly."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.runners.runner_handle import RunnerHandle, RunnerPlan
from tests.support.patience import PATIENCE_S

T = TypeVar("T", bound=frames.Frame)


class RunnerClient:
    """The agent's side of one runner. `received` holds its frames, its raw output, and None for its end."""

    def __init__(self, options: frames.Options, environment: Mapping[str, str]) -> None:
        self.received: list[Any] = []
        self.evidence = ""
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self.runner = RunnerHandle(
            RunnerPlan(
                devices=(),
                environment=environment,
                options=options,
                on_frame=lambda _, frame: self._note(frame),
                on_output=lambda _, _attempt, text: self._note(text),
                on_end=lambda _, evidence: self._gone(evidence),
            )
        )

    def run(self, task_type: str, parameters: Any, *, memory_mib: int = 0, task: str = "t") -> None:
        raw = msgspec.Raw(msgspec.json.encode(parameters))
        self.runner.send(frames.Run(task, 1, task_type, raw, memory_mib=memory_mib))

    async def receive(self, kind: type[T], task: str = "t", *, within_s: float = PATIENCE_S) -> T:
        async with asyncio.timeout(within_s), self._changed:
            while True:
                for frame in self.received:
                    if isinstance(frame, kind) and getattr(frame, "task", task) == task:
                        return frame
                await self._changed.wait()

    async def result(self, task_type: str, parameters: Any, **more: Any) -> Any:
        self.run(task_type, parameters, **more)
        return msgspec.json.decode((await self.receive(frames.Ended, more.get("task", "t"))).result)

    async def error(self, task_type: str, parameters: Any, **more: Any) -> frames.Erred:
        self.run(task_type, parameters, **more)
        return await self.receive(frames.Erred, more.get("task", "t"))

    async def wait_gone(self, within_s: float = PATIENCE_S) -> str:
        async with asyncio.timeout(within_s), self._changed:
            while not self.evidence:
                await self._changed.wait()
        return self.evidence

    def printed(self, task: str = "t") -> str:
        """Return what this task printed through Python."""
        printed = [each for each in self.received if isinstance(each, frames.Printed)]
        return "".join(each.text for each in printed if each.task == task)

    def _gone(self, evidence: str) -> None:
        self.evidence = evidence
        self._note(None)

    def _note(self, frame: frames.ToAgent | str | None) -> None:
        self.received.append(frame)
        task = asyncio.ensure_future(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def running(
    options: frames.Options | None = None, environment: Mapping[str, str] | None = None
) -> AsyncIterator[RunnerClient]:
    client = RunnerClient(options or frames.Options(), environment or {})
    await client.runner.start(elapsed_s() + 300)
    try:
        yield client
    finally:
        client.runner.kill()
        await client.wait_gone()

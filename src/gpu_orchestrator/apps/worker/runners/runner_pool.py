"""The runners of this worker, by the set of devices they see. `attempts` takes runners from here.

An attempt with devices gets a runner of its own, which stays for the next attempt on the same set. Attempts
without devices share a few runners.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.gpus.gpu import Gpus
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.attempt import Attempt, Devices
from gpu_orchestrator.apps.worker.runners.runner_handle import RunnerHandle, RunnerPlan

AHEAD = 32
"""Attempts that a quick runner may have queued, so that it does not wait for the agent after a short task."""


@dataclass(frozen=True, slots=True)
class RunnerCallbacks:
    """Called with a runner's frames, with its output and the attempt that it belongs to, and with how the
    runner ended."""

    on_frame: Callable[[RunnerHandle, frames.ToAgent], None]
    on_output: Callable[[RunnerHandle, Attempt | None, str], None]
    on_end: Callable[[RunnerHandle, str], None]


class RunnerPool:
    def __init__(self, gpus: Gpus, options: frames.Options, *, processes: int, idle_s: float) -> None:
        self._gpus, self._options = gpus, options
        self._processes, self._idle_s = processes, idle_s
        self._runners: defaultdict[Devices, list[RunnerHandle]] = defaultdict(list)
        self._until = 0.0
        self._starting = BackgroundTasks()

    def all(self) -> list[RunnerHandle]:
        return [runner for runners in self._runners.values() for runner in runners]

    def of(self, attempt: Attempt) -> RunnerHandle | None:
        """Return the runner that has this attempt."""
        return next((runner for runner in self._runners[attempt.devices] if attempt in runner.queue), None)

    def clear(self, devices: Devices) -> bool:
        """Kill runners that hold memory on these devices and are ending, or idle and of another set.

        Return True if there were none; otherwise the caller tries again when they are gone."""
        near = [runner for runner in self.all() if not set(devices).isdisjoint(runner.devices)]
        in_the_way = [r for r in near if r.is_ending or (not r.queue and r.devices != devices)]
        for runner in in_the_way:
            runner.kill()
        return not in_the_way

    def free(self, devices: Devices, callbacks: RunnerCallbacks) -> RunnerHandle | None:
        """Return a runner for one more attempt: idle, or new, or quick enough to have attempts queued."""
        runners = [runner for runner in self._runners[devices] if not runner.is_ending]
        for runner in runners:
            if not runner.queue:
                return runner
        if devices or len(runners) < self._processes:
            return self._start(devices, callbacks)
        ahead = min((r for r in runners if r.is_quick), key=lambda r: len(r.queue), default=None)
        return ahead if ahead and len(ahead.queue) < AHEAD else None

    def remove(self, runner: RunnerHandle) -> None:
        self._runners[runner.devices].remove(runner)

    def prolong(self, until: float) -> None:
        """Let all runners run until then, by `clock.elapsed_s()`."""
        self._until = until
        for runner in self.all():
            runner.prolong(until)

    def kill(self) -> None:
        for runner in self.all():
            runner.queue.clear()
            runner.kill()

    def tidy(self, now: float) -> None:
        """Kill runners that have held devices without work for `idle_s`, to free their memory."""
        for runner in self.all():
            idle = runner.is_ready and not runner.queue and not runner.is_ending
            if idle and runner.devices and now - runner.idle_since > self._idle_s:
                runner.kill()

    def _start(self, devices: Devices, callbacks: RunnerCallbacks) -> RunnerHandle:
        environment = self._gpus.environment(devices)
        runner = RunnerHandle(
            RunnerPlan(
                devices, environment, self._options, callbacks.on_frame, callbacks.on_output, callbacks.on_end
            )
        )
        self._runners[devices].append(runner)
        self._starting.start(self._started(runner))
        return runner

    async def _started(self, runner: RunnerHandle) -> None:
        try:
            await runner.start(self._until)
        except OSError as error:
            runner.ended(f"could not be started: {error}")

"""The runners of this worker, by the set of devices they see. `attempts` takes runners from here.

An attempt with devices gets a runner of its own, which stays for the next attempt on the same set. Attempts
without devices share a few runners. A runner serves one owner only, unless the operator allows more: what a
task leaves behind in its process (variables, threads, files, device memory) is not for other owners."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.gpus.gpu import Gpus
from gpu_orchestrator.adapters.process_rights import User
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.attempt import Attempt, Devices
from gpu_orchestrator.apps.worker.runners.runner_handle import RunnerHandle, RunnerPlan

AHEAD = 32
"""Attempts that a quick runner may have queued, so that it does not wait for the agent after a short task."""
SPARE = 8
"""Idle runners without devices that may stay, beyond those that work, so that owners who take turns need not
wait for a new one each time."""


@dataclass(frozen=True, slots=True)
class RunnerCallbacks:
    """Called with a runner's frames, with its output and the attempt that it belongs to, and with how the
    runner ended."""

    on_frame: Callable[[RunnerHandle, frames.ToAgent], None]
    on_output: Callable[[RunnerHandle, Attempt | None, str], None]
    on_end: Callable[[RunnerHandle, str], None]


class RunnerPool:
    def __init__(
        self,
        gpus: Gpus,
        options: frames.Options,
        *,
        processes: int,
        idle_s: float,
        shares_owners: bool = False,
        user: User | None = None,
    ) -> None:
        self._gpus, self._options = gpus, options
        self._processes, self._idle_s = processes, idle_s
        self._shares_owners, self._user = shares_owners, user
        self._runners: defaultdict[Devices, list[RunnerHandle]] = defaultdict(list)
        self._until = 0.0
        self._starting = BackgroundTasks()

    def all(self) -> list[RunnerHandle]:
        return [runner for runners in self._runners.values() for runner in runners]

    def of(self, attempt: Attempt) -> RunnerHandle | None:
        """Return the runner that has this attempt."""
        return next((runner for runner in self._runners[attempt.devices] if attempt in runner.queue), None)

    def clear(self, attempt: Attempt) -> bool:
        """Kill runners that hold memory on the devices of this attempt and are ending, or idle and of no use
        to it: of another set of devices, or of another owner.

        Return True if there were none; otherwise the caller tries again when they are gone."""
        devices, owner = attempt.devices, self._owner_of(attempt)
        near = [runner for runner in self.all() if not set(devices).isdisjoint(runner.devices)]
        is_other = [r for r in near if not r.queue and (r.devices, r.owner) != (devices, owner)]
        in_the_way = [r for r in near if r.is_ending or r in is_other]
        for runner in in_the_way:
            runner.kill()
        return not in_the_way

    def free(self, attempt: Attempt, callbacks: RunnerCallbacks) -> RunnerHandle | None:
        """Return a runner for one more attempt: idle, or new, or quick enough to have attempts queued."""
        devices, owner = attempt.devices, self._owner_of(attempt)
        runners = [runner for runner in self._runners[devices] if not runner.is_ending]
        mine = [runner for runner in runners if runner.owner == owner]
        busy = sum(bool(runner.queue) for runner in runners)
        if devices or busy < self._processes:
            idle = next((runner for runner in mine if not runner.queue), None)
            return idle or self._start(devices, owner, callbacks)
        ahead = min((r for r in mine if r.is_quick), key=lambda r: len(r.queue), default=None)
        return ahead if ahead and len(ahead.queue) < AHEAD else None

    def _owner_of(self, attempt: Attempt) -> str:
        return "" if self._shares_owners else attempt.owner

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
        """Kill runners that have been without work for `idle_s`, to free their memory: all that hold devices,
        and those without devices beyond the usual number."""
        idle = [
            runner for runner in self.all() if _is_idle(runner) and now - runner.idle_since > self._idle_s
        ]
        spare = max(len(self._runners[()]) - self._processes, 0)
        for runner in [*(r for r in idle if r.devices), *[r for r in idle if not r.devices][:spare]]:
            runner.kill()

    def _start(self, devices: Devices, owner: str, callbacks: RunnerCallbacks) -> RunnerHandle:
        if not devices:
            self._kill_spare()
        environment = self._gpus.environment(devices)
        runner = RunnerHandle(
            RunnerPlan(
                devices,
                environment,
                self._options,
                callbacks.on_frame,
                callbacks.on_output,
                callbacks.on_end,
                owner,
                self._user,
            )
        )
        self._runners[devices].append(runner)
        self._starting.start(self._started(runner))
        return runner

    def _kill_spare(self) -> None:
        """Kill the runner without devices that has been idle longest, if there are too many."""
        idle = sorted((r for r in self._runners[()] if _is_idle(r)), key=lambda runner: runner.idle_since)
        if len(idle) >= SPARE:
            idle[0].kill()

    async def _started(self, runner: RunnerHandle) -> None:
        try:
            await runner.start(self._until)
        except OSError as error:
            runner.ended(f"could not be started: {error}")


def _is_idle(runner: RunnerHandle) -> bool:
    return runner.is_ready and not runner.queue and not runner.is_ending

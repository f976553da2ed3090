"""The runners of this worker, by the set of devices they see. `attempts` takes runners from here.

An attempt with devices gets a runner of its own, which stays for the next attempt on the same set. Attempts
without devices share a few runners. A runner serves one owner only, unless the operator allows more: what a
task leaves behind in its process (variables, threads, files, device memory) is not for other owners. A runner
with a model runs code of the worker's operator and serves all of them; it stays until `model_cache` evicts
it."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.gpus.gpu import Gpus
from gpu_orchestrator.adapters.process_rights import User
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.attempt import Attempt, Devices
from gpu_orchestrator.apps.worker.runners.mps import MpsDaemons
from gpu_orchestrator.apps.worker.runners.runner_handle import RunnerHandle, RunnerPlan

NO_MPS = ("amd", "intel")
"""Vendors whose devices have nothing like MPS."""
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


class RunnerUse(NamedTuple):
    """What an attempt needs a runner for. `owner` is empty if owners share runners. `limit_mib` is how much
    of each device MPS lets it take, 0 for all. `model` is the key of what the runner has loaded, empty for
    none."""

    devices: Devices
    owner: str
    limit_mib: int
    model: str

    def is_served_by(self, runner: RunnerHandle) -> bool:
        return self == (runner.devices, runner.owner, runner.limit_mib, runner.model)


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
        mps: MpsDaemons | None = None,
        is_pinned: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._gpus, self._options = gpus, options
        self._processes, self._idle_s = processes, idle_s
        self._shares_owners, self._user, self._mps = shares_owners, user, mps
        self._runners: defaultdict[Devices, list[RunnerHandle]] = defaultdict(list)
        self._is_pinned = is_pinned
        self._until = 0.0
        self._starting = BackgroundTasks()

    def all(self) -> list[RunnerHandle]:
        return [runner for runners in self._runners.values() for runner in runners]

    def of(self, attempt: Attempt) -> RunnerHandle | None:
        """Return the runner that has this attempt."""
        return next((runner for runner in self._runners[attempt.devices] if attempt in runner.queue), None)

    def clear(self, attempt: Attempt) -> bool:
        """Kill runners that hold memory on the devices of this attempt and are ending, or idle and of no use
        to it: of another set of devices, of another owner, or with another limit of memory. Runners with a
        model only stand in the way of an attempt that takes whole devices.

        Return True if there were none; otherwise the caller tries again when they are gone."""
        use, takes_all = self._use_of(attempt), attempt.assign.exclusive
        near = [runner for runner in self.all() if _is_near(use, runner)]
        idle = (r for r in near if not r.queue and not r.is_ending and not use.is_served_by(r))
        for runner in idle:
            is_outdated = bool(use.model) and name_of(runner.model) == name_of(use.model)
            stays = runner.model and not is_outdated
            if not stays or (takes_all and not self._is_pinned(name_of(runner.model))):
                runner.end()
        return not any(runner.is_ending for runner in near)

    def is_clear(self, attempt: Attempt) -> bool:
        """Return whether `clear` would find nothing to end or to wait for, and no copy of its model
        is there."""
        use = self._use_of(attempt)
        near = [runner for runner in self.all() if _is_near(use, runner)]
        idle = (each for each in near if not each.queue and not each.model)
        return not any(idle) and not any(each.is_ending or use.is_served_by(each) for each in near)

    def pinned_near(self, attempt: Attempt) -> str:
        """Return a pinned model on the devices of an attempt that takes them whole; empty if there is
        none."""
        if not attempt.assign.exclusive:
            return ""
        use, devices = self._use_of(attempt), set(attempt.devices)
        near = (each for each in self.all() if each.model and not devices.isdisjoint(each.devices))
        others = (name_of(each.model) for each in near if not use.is_served_by(each))
        return next((model for model in others if self._is_pinned(model)), "")

    def is_served_by(self, attempt: Attempt, runner: RunnerHandle) -> bool:
        return self._use_of(attempt).is_served_by(runner)

    def has_copy(self, attempt: Attempt) -> bool:
        """Return whether a runner has the model of this attempt on its devices, or loads it."""
        return self._copy_of(self._use_of(attempt)) is not None

    def is_copy_busy(self, attempt: Attempt) -> bool:
        """Return whether the copy of its model is in use, or being loaded: its tasks run one by one."""
        copy = self._copy_of(self._use_of(attempt)) if attempt.model_key else None
        return copy is not None and bool(copy.queue)

    def _copy_of(self, use: RunnerUse) -> RunnerHandle | None:
        runners = (each for each in self._runners[use.devices] if use.model and not each.is_ending)
        return next((each for each in runners if use.is_served_by(each)), None)

    def free(self, attempt: Attempt, callbacks: RunnerCallbacks) -> RunnerHandle | None:
        """Return a runner for one more attempt: idle, or new, or quick enough to have attempts queued."""
        use = self._use_of(attempt)
        idle = ahead = None
        busy = 0
        for runner in self._runners[use.devices]:
            if runner.is_ending:
                continue
            queued = len(runner.queue)
            busy += queued > 0 and not runner.model
            if not use.is_served_by(runner):
                continue
            if not queued:
                idle = idle or runner
            if runner.is_quick and (ahead is None or queued < len(ahead.queue)):
                ahead = runner
        # Members of a gang wait for each other: one that waited for the runner of another would wait forever.
        if use.devices or use.model or attempt.assign.gang or busy < self._processes:
            return idle or self._start(use, callbacks)
        return ahead if ahead and len(ahead.queue) < AHEAD else None

    def _use_of(self, attempt: Attempt) -> RunnerUse:
        if attempt.model_key:
            return RunnerUse(attempt.devices, "", 0, attempt.model_key)
        limit_mib = self._limit_mib(attempt)
        owner = "" if self._shares_owners and not limit_mib else attempt.owner
        return RunnerUse(attempt.devices, owner, limit_mib, "")

    def _limit_mib(self, attempt: Attempt) -> int:
        """Return what MPS limits an attempt to; 0 for whole devices, and where there is no MPS."""
        if self._mps is None or attempt.assign.exclusive or not attempt.devices:
            return 0
        vendors = {device.uuid: device.vendor for device in self._gpus.devices()}
        can_limit = all(vendors.get(uuid) not in NO_MPS for uuid in attempt.devices)
        return attempt.assign.memory_mib if can_limit else 0

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

    def end(self) -> float:
        """End the runners whose model a server backs; return how long that may take."""
        for runner in self.all():
            if runner.ends_within_s:
                runner.end()
        return max((each.ends_within_s for each in self.all()), default=0.0)

    @property
    def has_servers(self) -> bool:
        return any(each.ends_within_s for each in self.all())

    def tidy(self, now: float) -> None:
        """Kill runners that have been without work for `idle_s`, to free their memory: all that hold devices,
        and those without devices beyond the usual number."""
        idle = [
            runner
            for runner in self.all()
            if _is_idle(runner) and not runner.model and now - runner.idle_since > self._idle_s
        ]
        spare = max(sum(not runner.model for runner in self._runners[()]) - self._processes, 0)
        for runner in [*(r for r in idle if r.devices), *[r for r in idle if not r.devices][:spare]]:
            runner.kill()
        if self._mps is not None:
            self._mps.keep_only({(r.owner, r.devices) for r in self.all() if r.limit_mib})

    def pids(self) -> set[int]:
        """Return the ids of processes that hold memory for the runners, but are none of them."""
        return self._mps.pids() if self._mps is not None else set()

    def close(self) -> None:
        """End what serves the runners, after the last of them has ended."""
        if self._mps is not None:
            self._mps.kill()

    def _start(self, use: RunnerUse, callbacks: RunnerCallbacks) -> RunnerHandle:
        if not use.devices and not use.model:
            self._kill_spare()
        environment = self._gpus.environment(use.devices)
        runner = RunnerHandle(
            RunnerPlan(
                use.devices,
                environment,
                self._options,
                callbacks.on_frame,
                callbacks.on_output,
                callbacks.on_end,
                use.owner,
                self._user,
                use.limit_mib,
                use.model,
            )
        )
        self._runners[use.devices].append(runner)
        self._starting.start(self._started(runner))
        return runner

    def _kill_spare(self) -> None:
        """Kill the runner without devices that has been idle longest, if there are too many."""
        idle = sorted(
            (r for r in self._runners[()] if _is_idle(r) and not r.model),
            key=lambda runner: runner.idle_since,
        )
        if len(idle) >= SPARE:
            idle[0].kill()

    async def _started(self, runner: RunnerHandle) -> None:
        try:
            await runner.start(self._until, self._variables(runner))
        except OSError as error:
            runner.ended(f"could not be started: {error}")

    async def _variables(self, runner: RunnerHandle) -> dict[str, str]:
        """Return what makes a runner a client of its owner's MPS daemon; start that if need be."""
        if self._mps is None or not runner.limit_mib:
            return {}
        visible = self._gpus.environment(runner.devices)
        return await self._mps.environment_of(runner.owner, runner.devices, visible, runner.limit_mib)


def name_of(model_key: str) -> str:
    """Return the name of a model from its key, see `Attempt.model_key`."""
    return model_key.partition("\n")[0]


def _is_near(use: RunnerUse, runner: RunnerHandle) -> bool:
    """Return whether a runner shares a device with this use, or has its model in the machine's memory."""
    if not use.devices:
        return not runner.devices and bool(use.model) and name_of(use.model) == name_of(runner.model)
    return not set(use.devices).isdisjoint(runner.devices)


def _is_idle(runner: RunnerHandle) -> bool:
    return runner.is_ready and not runner.queue and not runner.is_ending

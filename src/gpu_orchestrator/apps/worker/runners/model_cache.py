"""The models that this worker keeps loaded, one runner each: which of them must go, and when.

Room is made for an attempt before its runner starts. To evict a model is to end its runner: the driver takes
the memory back, and the attempt begins when the process is gone. What a task uses and what an operator pinned
is never evicted.
"""

from collections.abc import Callable, Mapping
from itertools import count
from typing import NamedTuple

import structlog

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.attempt import Attempt
from gpu_orchestrator.apps.worker.frames import HEALTHY, RESTARTING, Health
from gpu_orchestrator.apps.worker.runners.model_copy import NEVER, ModelCopy
from gpu_orchestrator.apps.worker.runners.runner_handle import RunnerHandle
from gpu_orchestrator.apps.worker.runners.runner_pool import RunnerPool
from gpu_orchestrator.apps.worker.settings import CacheRules
from gpu_orchestrator.core import copies

DRIVER_S = 2.0
"""How long the driver may still count the memory of a process that has ended."""
LONGEST_WHY = 500
log = structlog.get_logger()


class _Held(NamedTuple):
    runner: RunnerHandle
    copy: copies.Copy


class ModelCache:
    """`changed` is called when a model was loaded or has gone."""

    def __init__(
        self, pool: RunnerPool, rules: CacheRules, now: Callable[[], float], changed: Callable[[], None]
    ) -> None:
        self.rules = rules
        self._pool, self._now, self._changed = pool, now, changed
        self._numbers = count(1)
        self._pinned: frozenset[str] = frozenset()
        self._freed_at = NEVER
        self._hits = self._misses = self._evictions = self._failures = 0

    def counts(self) -> session.CacheCounts:
        return session.CacheCounts(self._hits, self._misses, self._evictions, self._failures)

    def is_pinned(self, model: str) -> bool:
        return model in self._pinned

    def pin(self, models: tuple[str, ...]) -> None:
        """Never evict copies of these models from now on."""
        self._pinned = frozenset(models)

    # --- room ----------------------------------------------------------------------------------------------

    def make_room(
        self, attempt: Attempt, missing_mib: Callable[[Attempt], Mapping[copies.Device, int]]
    ) -> bool:
        """Evict what an attempt needs the place of; `missing_mib` returns what it lacks on each device.
        Return False if the caller must try again: when a runner has ended, or after a moment."""
        if not attempt.model_key and not self._runners():
            return True
        if attempt.model_key and not self._pool.has_copy(attempt):
            self._keep_within(attempt)
        short = missing_mib(attempt)
        if not any(mib > 0 for mib in short.values()):
            return True
        held, now = self._held(), self._now()
        known = {id(each.copy): each.runner for each in held}
        gone = copies.victims([each.copy for each in held], short, now, self.rules.min_loaded_s)
        if not gone:  # or the driver has not noticed yet that a process has ended
            return now - self._freed_at > DRIVER_S
        for each in gone:
            self._evict(known[id(each)], "another model needs its memory")
        return False

    def has_room_beside(
        self, attempt: Attempt, missing_mib: Callable[[Attempt], Mapping[copies.Device, int]]
    ) -> bool:
        """Return whether one more model has room without an eviction."""
        held = [each.copy for each in self._held()]
        total_mib = sum(map(copies.held_mib, held)) + attempt.assign.memory_mib * len(attempt.devices)
        if len(held) >= self.rules.most or total_mib > self.rules.most_mib:
            return False
        return not any(mib > 0 for mib in missing_mib(attempt).values())

    def give_up(self, runner: RunnerHandle) -> None:
        """End a runner whose load takes too long, if no attempt waits for it: that has a limit of its own."""
        if runner.copy is not None and not runner.copy.is_loaded and not runner.queue:
            runner.kill()

    def _keep_within(self, attempt: Attempt) -> None:
        """Evict copies so that with the one that this attempt loads there are not too many."""
        held = self._held()
        coming_mib = attempt.assign.memory_mib * len(attempt.devices)
        known = {id(each.copy): each.runner for each in held}
        most, most_mib = self.rules.most - 1, self.rules.most_mib - coming_mib
        for each in copies.beyond([each.copy for each in held], self._now(), most=most, most_mib=most_mib):
            self._evict(known[id(each)], "the cache of models is full")

    def tidy(self) -> None:
        """Evict what no task used for long, and what is too much after a task has ended."""
        now, held = self._now(), self._held()
        stay = []
        for each in held:
            if self.rules.ttl_s and each.copy.may_go and now - _used_at(each.copy) > self.rules.ttl_s:
                self._evict(each.runner, "no task used it for long")
            else:
                stay.append(each)
        known = {id(each.copy): each.runner for each in stay}
        rules, left = self.rules, [each.copy for each in stay]
        for copy in copies.beyond(left, now, most=rules.most, most_mib=rules.most_mib):
            self._evict(known[id(copy)], "the cache of models is full")

    def unload(self, model: str) -> None:
        """Evict the idle copies of a model, as an operator wishes, pinned or not."""
        for each in self._held():
            if each.copy.model == model and not each.copy.busy:
                self._evict(each.runner, "an operator said so")

    def _evict(self, runner: RunnerHandle, why: str) -> None:
        if runner.copy is not None and not runner.is_ending:
            self._evictions += 1
            log.info("model evicted", model=runner.copy.model, devices=list(runner.devices), why=why)
            runner.end()

    # --- what happens to copies ----------------------------------------------------------------------------

    def load_for(self, runner: RunnerHandle, attempt: Attempt) -> bool:
        """Note that this runner gets an attempt for a model; return True if it has to load it first."""
        if runner.copy is None:
            name = attempt.model.name if attempt.model else ""
            runner.copy = ModelCopy(name, next(self._numbers))
        self._hits += (is_known := runner.copy.is_asked)
        self._misses += not is_known
        runner.copy.is_asked, runner.copy.reserved_mib = True, attempt.assign.memory_mib
        return not is_known

    def task_begins(self, copy: ModelCopy, attempt: Attempt) -> None:
        copy.begins_task(self._now(), attempt.assign.memory_mib)

    def task_ended(self, runner: RunnerHandle) -> None:
        if runner.copy is not None:
            runner.copy.ends_task(self._now())

    def loaded(self, runner: RunnerHandle, load_s: float, ends_within_s: float = 0.0) -> None:
        if runner.copy is not None:
            runner.copy.loaded(self._now(), load_s, ends_within_s)
            devices = list(runner.devices)
            log.info("model loaded", model=runner.copy.model, devices=devices, load_s=round(load_s, 3))
            self._changed()

    def told(self, runner: RunnerHandle, health: Health) -> None:
        """Note how the server of a copy is now."""
        if runner.copy is not None:
            runner.copy.health = health
            said = {"model": runner.copy.model, "restarts": health.restarts, "why": health.why}
            if health.state == RESTARTING:
                log.warning("model server fails, it is started again", **said)
            elif health.state == HEALTHY:
                log.info("model server is healthy again", **said)
            self._changed()

    def runner_ended(self, runner: RunnerHandle) -> None:
        if runner.copy is not None:
            self._freed_at = self._now()
            self._failures += not runner.copy.is_loaded
            self._changed()

    def measured(self, runner: RunnerHandle, mib: int) -> None:
        """Take in what the driver says that a loaded copy holds on one device."""
        if runner.copy is not None and runner.copy.is_loaded:
            runner.copy.mib = max(runner.copy.mib, mib)

    def report(self, index_of: Mapping[str, int]) -> tuple[session.Copy, ...]:
        now = self._now()
        return tuple(
            session.Copy(
                model=known.model,
                devices=tuple(index_of[uuid] for uuid in runner.devices if uuid in index_of),
                number=known.number,
                is_loaded=known.is_loaded,
                used_mib=known.mib,
                load_s=known.load_s,
                loaded_ago_s=_ago(now, known.loaded_at),
                used_ago_s=_ago(now, max(known.used_at, known.loaded_at)),
                uses=known.uses,
                task=runner.queue[0].assign.task if runner.queue else "",
                pinned=self.is_pinned(known.model),
                server=known.health.state if known.health else "",
                server_why=known.health.why[:LONGEST_WHY] if known.health else "",
                server_restarts=known.health.restarts if known.health else 0,
            )
            for runner in self._runners()
            if (known := runner.copy) is not None
        )

    def _runners(self) -> list[RunnerHandle]:
        return [each for each in self._pool.all() if each.copy is not None and not each.is_ending]

    def _held(self) -> list[_Held]:
        found = []
        for runner in self._runners():
            if (known := runner.copy) is not None:
                busy, pinned = bool(runner.queue) or not known.is_loaded, self.is_pinned(known.model)
                found.append(_Held(runner, known.as_copy(runner.devices, busy=busy, pinned=pinned)))
        return found


def _used_at(copy: copies.Copy) -> float:
    return max(copy.used_at, copy.loaded_at)


def _ago(now: float, at: float) -> float:
    return round(max(now - at, 0.0), 3) if at > NEVER else 0.0

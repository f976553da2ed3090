"""Tasks on their way into the store: requests of many callers go together, owners take turns, and each
request is taken whole or not at all.

The store decides on a request when it sees the first of its tasks, for all of them. A large one goes in
parts, so that nobody waits long for it; its other parts are not judged again.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from msgspec.structs import replace

from gpu_orchestrator.adapters.store.records import Limit, NewTask, NoRoom, Submitted, Unit
from gpu_orchestrator.apps.manager.tasks.batching import Batcher

TOLD_FOR_S = 1.0
"""Not longer than the shortest `Retry-After`."""

Submit = Callable[[Sequence[NewTask], Sequence[Unit], Sequence[int]], Awaitable[Sequence[Submitted]]]


@dataclass(slots=True, eq=False)
class Submission:
    """One request. `unit` is what of it is still to be taken; `refused` is the store's answer, if it was
    not."""

    unit: Unit
    refused: NoRoom | None = None

    def part_taken(self, tasks: Sequence[NewTask]) -> None:
        left = list(self.unit.tasks)
        for task in tasks:
            left[task.level] -= 1
        self.unit = Unit(self.unit.owner, 0, 0, 0, tuple(left))


class Admission:
    """Whoever was told that too many of his tasks wait is told again for a moment without asking the store,
    unless he asks for less or for what may be known: so a flood costs others next to nothing."""

    def __init__(self, submit: Submit, now: Callable[[], float] = monotonic) -> None:
        self._submit, self._now = submit, now
        self._full: dict[str, tuple[float, int, NoRoom]] = {}
        self._batcher: Batcher[tuple[Submission, NewTask], Submitted] = Batcher(self._perform)

    async def put(self, tasks: Sequence[NewTask], unit: Unit) -> list[Submitted]:
        """All of them or none: then every answer is the same `NoRoom`. `unit` has the limits; its tasks are
        counted here."""
        counts = [0] * len(unit.tasks)
        for task in tasks:
            counts[task.level] += 1
        if (told := self._told(unit, tasks)) is not None:
            return [told] * len(tasks)
        asked = Submission(replace(unit, tasks=tuple(counts)))
        taken = await self._batcher.put_all([(asked, task) for task in tasks], unit.owner)
        if asked.refused is not None and asked.refused.limit is Limit.OWNER_QUEUE:
            self._full[unit.owner] = (self._now() + TOLD_FOR_S, len(tasks), asked.refused)
        return taken

    def _told(self, unit: Unit, tasks: Sequence[NewTask]) -> NoRoom | None:
        until, count, refused = self._full.get(unit.owner, (0.0, 0, None))
        if refused is None or not unit.most_queued:
            return None
        if self._now() >= until:
            del self._full[unit.owner]
            return None
        asks_for_less = len(tasks) < count or any(task.idempotency for task in tasks)
        return None if asks_for_less else refused

    async def _perform(self, items: list[tuple[Submission, NewTask]]) -> Sequence[Submitted]:
        parts: dict[Submission, list[NewTask]] = {}
        for asked, task in items:
            if asked.refused is None:
                parts.setdefault(asked, []).append(task)
        answers = await self._take(parts) if parts else {}
        return [answers[task.id] if task.id in answers else _refusal(asked) for asked, task in items]

    async def _take(self, parts: dict[Submission, list[NewTask]]) -> dict[str, Submitted]:
        tasks = [task for part in parts.values() for task in part]
        unit_of = [number for number, part in enumerate(parts.values(), 1) for _ in part]
        taken = await self._submit(tasks, [asked.unit for asked in parts], unit_of)
        answers = {task.id: each for task, each in zip(tasks, taken, strict=True)}
        for asked, part in parts.items():
            asked.refused = next(
                (each for task in part if isinstance(each := answers[task.id], NoRoom)), None
            )
            asked.part_taken(part)
        return answers


def _refusal(asked: Submission) -> NoRoom:
    assert asked.refused is not None  # noqa: S101 - only then its other parts are not asked for
    return asked.refused

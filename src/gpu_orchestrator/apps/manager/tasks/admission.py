"""Writes submitted tasks to the store: batches the requests of many callers, lets owners take turns, and
accepts each request whole or not at all.

The store decides on a whole request when it sees the request's first task. A large request goes in parts, so
that others do not wait long for it; its later parts are not judged again.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from msgspec.structs import replace

from gpu_orchestrator.adapters.store.records import Limit, NewTask, NoRoom, Submitted, Unit
from gpu_orchestrator.apps.manager.tasks.batching import Batcher

REPEAT_REFUSAL_S = 1.0
"""How long a refusal is repeated. Not longer than the shortest `Retry-After`."""

Submit = Callable[[Sequence[NewTask], Sequence[Unit], Sequence[int]], Awaitable[Sequence[Submitted]]]


@dataclass(slots=True, eq=False)
class Submission:
    """One request. `unit` is the part that the store has not accepted yet; `refused` is the store's refusal,
    if any."""

    unit: Unit
    refused: NoRoom | None = None

    def part_taken(self, tasks: Sequence[NewTask]) -> None:
        left = list(self.unit.tasks)
        for task in tasks:
            left[task.level] -= 1
        self.unit = Unit(self.unit.owner, 0, 0, 0, tuple(left))


class Admission:
    """Queues requests for the store. After a refusal for too many queued tasks, the owner gets the same
    refusal for a moment without a call to the store, so a flood costs others next to nothing. A request for
    fewer tasks, or one with idempotency keys that may be known, does go to the store."""

    def __init__(self, submit: Submit, now: Callable[[], float] = monotonic) -> None:
        self._submit, self._now = submit, now
        self._refusals: dict[str, tuple[float, int, NoRoom]] = {}
        self._batcher: Batcher[tuple[Submission, NewTask], Submitted] = Batcher(self._perform)

    async def put(self, tasks: Sequence[NewTask], unit: Unit) -> list[Submitted]:
        """Submit all tasks or none: then every answer is the same `NoRoom`. `unit` has the limits; its tasks
        are counted here."""
        counts = [0] * len(unit.tasks)
        for task in tasks:
            counts[task.level] += 1
        if (refused := self._recent_refusal(unit, tasks)) is not None:
            return [refused] * len(tasks)
        submission = Submission(replace(unit, tasks=tuple(counts)))
        answered = await self._batcher.put_all([(submission, task) for task in tasks], unit.owner)
        if submission.refused is not None and submission.refused.limit is Limit.OWNER_QUEUE:
            self._refusals[unit.owner] = (self._now() + REPEAT_REFUSAL_S, len(tasks), submission.refused)
        return answered

    async def put_together(self, tasks: Sequence[NewTask], unit: Unit) -> Sequence[Submitted]:
        """Submit all tasks in one step of the store, alone: a part of a gang must never be there without the
        rest."""
        counts = [0] * len(unit.tasks)
        for task in tasks:
            counts[task.level] += 1
        return await self._submit(tasks, [replace(unit, tasks=tuple(counts))], [1] * len(tasks))

    def _recent_refusal(self, unit: Unit, tasks: Sequence[NewTask]) -> NoRoom | None:
        until, count, refused = self._refusals.get(unit.owner, (0.0, 0, None))
        if refused is None or not unit.most_queued:
            return None
        if self._now() >= until:
            del self._refusals[unit.owner]
            return None
        may_fit = len(tasks) < count or any(task.idempotency for task in tasks)
        return None if may_fit else refused

    async def _perform(self, items: list[tuple[Submission, NewTask]]) -> Sequence[Submitted]:
        parts: dict[Submission, list[NewTask]] = {}
        for submission, task in items:
            if submission.refused is None:
                parts.setdefault(submission, []).append(task)
        answers = await self._submit_parts(parts) if parts else {}
        return [
            answers[task.id] if task.id in answers else _refusal(submission) for submission, task in items
        ]

    async def _submit_parts(self, parts: dict[Submission, list[NewTask]]) -> dict[str, Submitted]:
        tasks = [task for part in parts.values() for task in part]
        unit_of = [number for number, part in enumerate(parts.values(), 1) for _ in part]
        answered = await self._submit(tasks, [submission.unit for submission in parts], unit_of)
        answers = {task.id: each for task, each in zip(tasks, answered, strict=True)}
        for submission, part in parts.items():
            submission.refused = next(
                (each for task in part if isinstance(each := answers[task.id], NoRoom)), None
            )
            if len(part) < sum(submission.unit.tasks):  # the rest of it goes later
                submission.part_taken(part)
        return answers


def _refusal(submission: Submission) -> NoRoom:
    assert submission.refused is not None  # noqa: S101 - its other parts are skipped only then
    return submission.refused

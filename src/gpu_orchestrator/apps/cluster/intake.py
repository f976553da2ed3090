"""Tasks on their way into the store: requests of many callers go together, owners take turns, and each
request is taken whole or not at all.

The store decides on a request when it sees the first of its tasks, for all of them. A large one goes in
parts, so that nobody waits long for it; its other parts are not judged again.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gpu_orchestrator.adapters.store.values import OWNER_FULL, NewTask, Taken, Unit
from gpu_orchestrator.apps.cluster.gather import Gather

Submit = Callable[[Sequence[NewTask], Sequence[Unit], Sequence[int]], Awaitable[Sequence[Taken]]]


@dataclass(slots=True, eq=False)
class Asked:
    """One request. `unit` is what of it is still to be taken; `refused` is the store's answer, if it was
    not."""

    unit: Unit
    refused: Taken | None = None

    def part_taken(self, tasks: Sequence[NewTask]) -> None:
        left = list(self.unit.tasks)
        for task in tasks:
            left[task.level] -= 1
        self.unit = Unit(self.unit.owner, 0, 0, 0, tuple(left))


class Intake:
    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._gather: Gather[tuple[Asked, NewTask], Taken] = Gather(
            self._perform, flow_of=lambda item: item[0].unit.owner
        )

    async def put(self, tasks: Sequence[NewTask], unit: Unit) -> list[Taken]:
        """`unit` with its limits; its tasks are counted here."""
        counts = [0] * len(unit.tasks)
        for task in tasks:
            counts[task.level] += 1
        asked = Asked(replace(unit, tasks=tuple(counts)))
        return await self._gather.put_all([(asked, task) for task in tasks])

    async def _perform(self, items: list[tuple[Asked, NewTask]]) -> Sequence[Taken]:
        parts: dict[Asked, list[NewTask]] = {}
        for asked, task in items:
            if asked.refused is None:
                parts.setdefault(asked, []).append(task)
        answers = await self._take(parts) if parts else {}
        return [answers[task.id] if task.id in answers else _refusal(asked) for asked, task in items]

    async def _take(self, parts: dict[Asked, list[NewTask]]) -> dict[str, Taken]:
        tasks = [task for part in parts.values() for task in part]
        unit_of = [number for number, part in enumerate(parts.values(), 1) for _ in part]
        taken = await self._submit(tasks, [asked.unit for asked in parts], unit_of)
        answers = {task.id: each for task, each in zip(tasks, taken, strict=True)}
        for asked, part in parts.items():
            asked.refused = next((each for task in part if is_refusal(each := answers[task.id])), None)
            asked.part_taken(part)
        return answers


def is_refusal(taken: Taken) -> bool:
    return taken.fresh <= OWNER_FULL


def _refusal(asked: Asked) -> Taken:
    assert asked.refused is not None  # noqa: S101 - only then its other parts are not asked for
    return asked.refused

"""Why queued tasks wait, and how far ahead they are: for lists and single tasks, in the words of `explain`.

Answers are kept for a second, and a second computes at most MOST_SHAPES new ones: ten thousand waiting tasks
that all ask for something else do not make lists slow. A task beyond that keeps the reason in its row.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from gpu_orchestrator.adapters.store.tasks import Row, Tasks
from gpu_orchestrator.api import task
from gpu_orchestrator.apps.manager.fleet import words
from gpu_orchestrator.apps.manager.fleet.nodes import request_of
from gpu_orchestrator.apps.manager.views import Wait
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import why_not
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.policies.registry import Registry

FRESH_S = 1.0
MOST_SHAPES = 100
MOST_OWNERS = 20
NEVER = float("-inf")


@dataclass(slots=True)
class Judged:
    """What was found out in one second: refusals by shape, and why owners are held back; empty if neither."""

    since: float = NEVER
    refusals: dict[Shape, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)


class Waiting:
    """`cluster` returns the cluster as it is now; `held_back` returns why no task of an owner may start,
    empty if one may."""

    def __init__(
        self,
        stored: Tasks,
        registry: Registry,
        cluster: Callable[[], Awaitable[Cluster]],
        held_back: Callable[[str], Awaitable[str]],
    ) -> None:
        self._stored, self._registry, self._cluster, self._held_back = stored, registry, cluster, held_back
        self._judged = Judged()

    async def of(self, rows: Mapping[str, Row]) -> dict[str, Wait]:
        """Return reason and position of the queued tasks among these."""
        queued = {name: row for name, row in rows.items() if row["state"] == "queued"}
        if not queued:
            return {}
        positions = await self._stored.positions(list(queued))
        reasons = await self._reasons(queued)
        return {name: Wait(reasons[name], positions.get(name)) for name in queued}

    async def _reasons(self, queued: Mapping[str, Row]) -> dict[str, str]:
        if monotonic() - self._judged.since > FRESH_S:
            self._judged = Judged(monotonic())
        judged = self._judged
        requests = {name: request_of(name, task.decode(row["spec"])) for name, row in queued.items()}
        await self._judge_owners(judged.owners, {each.tenant for each in requests.values()})
        await self._judge_shapes(judged.refusals, {each.shape: each for each in requests.values()})
        return {
            name: judged.owners.get(request.tenant) or judged.refusals.get(request.shape, "")
            for name, request in requests.items()
        }

    async def _judge_owners(self, known: dict[str, str], owners: set[str]) -> None:
        for owner in owners - set(known):
            if len(known) < MOST_OWNERS:
                known[owner] = await self._held_back(owner)

    async def _judge_shapes(self, known: dict[Shape, str], requests: Mapping[Shape, Request]) -> None:
        new = [shape for shape in requests if shape not in known][: max(MOST_SHAPES - len(known), 0)]
        if not new:
            return
        cluster = await self._cluster()
        for shape in new:
            refusal = why_not(shape, cluster, self._registry.policy_of(requests[shape]))
            known[shape] = words.message(refusal) if refusal else ""

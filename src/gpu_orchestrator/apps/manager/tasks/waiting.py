"""Why queued tasks wait, and how far ahead they are: for lists and single tasks, in the words of `explain`.

Answers are kept for a second, and a second computes at most MOST_SHAPES new ones: ten thousand waiting tasks
that all ask for something else do not make lists slow. A task beyond that keeps the reason in its row.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

from gpu_orchestrator.adapters.store.tasks import Row, Tasks
from gpu_orchestrator.api import task
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet import kept_places, words
from gpu_orchestrator.apps.manager.fleet.kept_places import KeptPlace
from gpu_orchestrator.apps.manager.fleet.nodes import NO_HINTS, Hints, Sizes, no_sizes, request_of
from gpu_orchestrator.apps.manager.views import Wait
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import why_not
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.policies.registry import Registry

FRESH_S = 1.0
MOST_SHAPES = 100
MOST_OWNERS = 20
NEVER = float("-inf")


async def nothing_is_kept() -> Sequence[KeptPlace]:
    return ()


@dataclass(slots=True)
class Judged:
    """What was found out in one second: refusals by shape, None if one fits, and why owners are held back,
    empty if they are not, and what tasks of
    models wait for; the places that are kept."""

    since: float = NEVER
    refusals: dict[Shape, Refusal | None] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    places: Sequence[KeptPlace] = ()


class Waiting:
    """`cluster` returns the cluster as it is now; `held_back` returns why no task of an owner may start,
    empty if one may; `hints_of` returns what the earlier attempts of a task teach about the next. `sizes`
    returns what a model takes, and `model_waits` what its tasks wait for where there is room; `places` what
    is kept for tasks that wait."""

    def __init__(
        self,
        stored: Tasks,
        registry: Registry,
        cluster: Callable[[], Awaitable[Cluster]],
        held_back: Callable[[str], Awaitable[str]],
        hints_of: Callable[[TaskSpec, str], Hints] = lambda _spec, _deaths: NO_HINTS,
        sizes: Sizes = no_sizes,
        model_waits: Callable[[str], str] = lambda _: "",
        places: Callable[[], Awaitable[Sequence[KeptPlace]]] = nothing_is_kept,
    ) -> None:
        self._sizes, self._model_waits, self._places = sizes, model_waits, places
        self._hints_of = hints_of
        self._stored, self._registry, self._cluster, self._held_back = stored, registry, cluster, held_back
        self._judged = Judged()

    async def of(self, rows: Mapping[str, Row]) -> dict[str, Wait]:
        """Return reason and position of the queued tasks among these."""
        queued = {name: row for name, row in rows.items() if row["state"] == "queued"}
        if not queued:
            return {}
        positions = await self._stored.positions(list(queued))
        judged, requests = await self._judge(queued)
        waits = {name: self._wait(requests[name], judged, positions.get(name)) for name in queued}
        return {
            name: _with_place(name, _of_gang(queued[name], wait), judged.places)
            for name, wait in waits.items()
        }

    async def _judge(self, queued: Mapping[str, Row]) -> tuple[Judged, dict[str, Request]]:
        if monotonic() - self._judged.since > FRESH_S:
            self._judged = Judged(monotonic(), places=await self._places())
        judged = self._judged
        requests = {name: self._request(name, row) for name, row in queued.items()}
        await self._judge_owners(judged.owners, {each.tenant for each in requests.values()})
        await self._judge_shapes(judged.refusals, {each.shape: each for each in requests.values()})
        return judged, requests

    def _request(self, name: str, row: Row) -> Request:
        spec, deaths = task.decode(row["spec"]), row.get("deaths", "")
        return request_of(name, spec, self._hints_of(spec, deaths) if deaths else NO_HINTS, self._sizes)

    async def _judge_owners(self, known: dict[str, str], owners: set[str]) -> None:
        for owner in owners - set(known):
            if len(known) < MOST_OWNERS:
                known[owner] = await self._held_back(owner)

    async def _judge_shapes(
        self, known: dict[Shape, Refusal | None], requests: Mapping[Shape, Request]
    ) -> None:
        new = [shape for shape in requests if shape not in known][: max(MOST_SHAPES - len(known), 0)]
        if not new:
            return
        cluster = await self._cluster()
        for shape in new:
            known[shape] = why_not(shape, cluster, self._registry.policy_of(requests[shape]))

    def _model_reason(self, model: str, known: dict[str, str]) -> str:
        if model and model not in known:
            known[model] = self._model_waits(model)
        return known[model] if model else ""

    def _wait(self, request: Request, judged: Judged, position: int | None) -> Wait:
        refusal = judged.refusals.get(request.shape)
        if held_back := judged.owners.get(request.tenant):
            return Wait(held_back, position)
        if refusal is None:
            return Wait(self._model_reason(request.shape.model, judged.models), position)
        return Wait(words.why_it_waits(refusal), position, words.needs_another_worker(refusal))


def _with_place(name: str, wait: Wait, places: Sequence[KeptPlace]) -> Wait:
    said = kept_places.words_of(places, name) if places else ""
    return replace(wait, reason=f"{wait.reason}; {said}" if wait.reason else said) if said else wait


def _of_gang(row: Row, wait: Wait) -> Wait:
    """Say of a member of a gang for which alone there is room that it waits for the others."""
    if "gang" not in row or wait.reason:
        return wait
    return replace(wait, reason=f"waits until all {row['gang']} members of its gang fit at the same time")

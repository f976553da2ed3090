"""One table of clusters and requests for the operator's reconcile, the scheduler's coordinator and the task
dispatcher. All three must choose the same places, because one core decides for all of them."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_orchestrator.adapters import settings
from gpu_orchestrator.adapters.store.records import Assigned, Assignment, UnfinishedTask
from gpu_orchestrator.api import task
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.access.quotas import Quotas
from gpu_orchestrator.apps.manager.dispatch.deps import DispatcherDeps
from gpu_orchestrator.apps.manager.dispatch.dispatcher import Dispatcher
from gpu_orchestrator.apps.manager.fleet import strategies
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.operator.observe.capacity import Capacity
from gpu_orchestrator.apps.operator.planning.reconcile import reconcile
from gpu_orchestrator.apps.operator.planning.snapshot import Given, WorkloadSnapshot
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.policies.registry import Registry
from tests.support import operator_builders, scheduler_objects, scripted_worker
from tests.support.scheduler_harness import World

CHEAP = {"gpu-orchestrator/cheap-node": "true"}
NOWHERE = "-"


@dataclass(frozen=True)
class Case:
    """`gpus` of each node; `requests` in GPUs and in order; `places` that each of the three must choose."""

    strategy: str
    gpus: dict[str, int]
    requests: tuple[int, ...]
    places: tuple[str, ...]
    cheap: tuple[str, ...] = ()

    def labels(self, name: str) -> dict[str, str]:
        return CHEAP if name in self.cheap else {}


CASES = [
    pytest.param(
        Case("leastLoaded", {"a": 4, "b": 8}, (2, 2, 2, 2), ("b", "b", "a", "b")), id="most free first"
    ),
    pytest.param(
        Case("leastLoaded", {"a": 8, "b": 4}, (8, 4, 1), ("a", "b", NOWHERE)), id="until the cluster is full"
    ),
    pytest.param(
        Case("leastLoaded", {"a": 2}, (3, 2, 1), (NOWHERE, "a", NOWHERE)), id="an unfit request is skipped"
    ),
    pytest.param(
        Case("binPack", {"a": 8, "b": 4, "c": 8}, (2, 2, 4, 8), ("a", "a", "a", "c")), id="fullest first"
    ),
    pytest.param(
        Case("binPack", {"a": 8, "b": 8}, (4, 8, 4), ("a", "b", "a")), id="an empty node stays whole"
    ),
    pytest.param(
        Case("costOptimized", {"a": 8, "b": 4}, (2, 2, 2), ("b", "b", "a"), cheap=("b",)),
        id="cheap before large",
    ),
    pytest.param(
        Case("leastFragmenting", {"a": 8, "b": 2}, (1, 1, 2), ("b", "b", "a")), id="whole nodes stay whole"
    ),
    pytest.param(Case("leastLoaded", {}, (1,), (NOWHERE,)), id="no node at all"),
]


@pytest.mark.parametrize("case", CASES)
def test_operator_places_as_in_the_table(case: Case) -> None:
    world = Capacity(Registry(), random.Random(1), clock=lambda: 0.0, found=lambda _: None)
    for name, gpus in case.gpus.items():
        world.see_node(None, operator_builders.node(name, gpus, labels=case.labels(name)))
    found: list[str] = []
    for number, gpus in enumerate(case.requests):
        workload = operator_builders.workload(
            f"w{number}", meta={"uid": f"uid-{number}"}, gpuCount=gpus, schedulingStrategy=case.strategy
        )

        def ask(
            wishes: Sequence[Request], most: int = 1, *, name: str = f"team/w{number}", at: int = number
        ) -> Given | Refusal:
            answer = world.ask(name, wishes, float(at), most)
            found.append(answer.node if isinstance(answer, Given) else NOWHERE)
            return answer

        reconcile(WorkloadSnapshot(workload), operator_builders.NOW, ask, random.Random(1))
    assert tuple(found) == case.places


@pytest.mark.parametrize("case", CASES)
def test_scheduler_places_as_in_the_table(case: Case) -> None:
    """Nodes and pods come in as from the API server; the coordinator's bind jobs are the places."""
    world = World(
        *(scheduler_objects.node(name, gpus, labels=case.labels(name)) for name, gpus in case.gpus.items())
    )
    for number, gpus in enumerate(case.requests):
        world.pod(scheduler_objects.pod(f"p{number}", gpus=gpus, strategy=case.strategy))
    found = {job.pod.metadata.name: job.placement.node for job in world.executor.jobs}
    places = tuple(found.get(f"p{number}", NOWHERE) for number in range(len(case.requests)))
    assert places == case.places
    assert len(world.executor.refused) == places.count(NOWHERE)


@dataclass
class RecordingStore:
    """A store that accepts every assignment and records it."""

    given: dict[str, str] = field(default_factory=dict)

    async def assign(self, assignments: Sequence[Assignment]) -> list[Assigned]:
        self.given.update({each.id: each.worker for each in assignments})
        return [Assigned("{}", "") for _ in assignments]


@pytest.mark.parametrize("case", CASES)
async def test_dispatcher_places_as_in_the_table(case: Case) -> None:
    recorded = RecordingStore()
    store: Any = cast(Any, SimpleNamespace(tasks=recorded))
    registry = strategies.registry(case.strategy)
    quotas = Quotas(settings.Settings())
    dispatcher = Dispatcher(
        DispatcherDeps(
            store, lambda *_: None, registry, MemoryPolicy(1.0, 0), Metrics(), lambda: 1_000.0, quotas
        )
    )
    workers = {
        name: WorkerState(
            scripted_worker.hello(
                name,
                devices=tuple(scripted_worker.device(index) for index in range(gpus)),
                labels=case.labels(name),
                max_concurrent=100,
            )
        )
        for name, gpus in case.gpus.items()
    }
    waiting = tuple(
        UnfinishedTask(
            str(number), task.encode(TaskSpec("echo", gpus=gpus)), 0, 0, number, "", "queued", "", ""
        )
        for number, gpus in enumerate(case.requests)
    )

    async def pages() -> AsyncIterator[tuple[UnfinishedTask, ...]]:
        yield waiting

    await dispatcher.load(pages(), workers)
    dispatcher.start()
    while dispatcher.engine.counts()["in flight"]:  # noqa: ASYNC110 - a turn of the loop, no time
        await asyncio.sleep(0)
    dispatcher.close()
    assert (
        tuple(recorded.given.get(str(number), NOWHERE) for number in range(len(case.requests))) == case.places
    )

"""A node whose GPUs are all held, an API server that only records, and a preemption controller between."""

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.transport.base import Answer, Request, Stream
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.actions import Bound
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.controllers.preemption import PreemptionController
from gpu_orchestrator.apps.scheduler.controllers.release import EndedPod
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.cycle import pod_request
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.core.request import Request as Wanted
from gpu_orchestrator.engine.events import PlacementObserved, QueueUpdated
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import node, pod


class Server:
    """Has disruption budgets and accepts every write; `on_list` is called before budgets are answered, and
    `on_evict` after each eviction."""

    def __init__(self) -> None:
        self.evicted: list[str] = []
        self.nominated: list[str | None] = []
        self.budgets: list[dict[str, Any]] = []
        self.on_list: Callable[[], object] = lambda: None
        self.on_evict: Callable[[], object] = lambda: None

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        body: dict[str, Any] = json.loads(request.body or b"{}")
        if request.method == "GET":
            self.on_list()
            found = {"kind": "PodDisruptionBudgetList", "metadata": {"resourceVersion": "1"}}
            return Answer(200, json.dumps({**found, "items": self.budgets}).encode())
        if request.target.endswith("/eviction"):
            self.evicted.append(body["metadata"]["name"])
            self.on_evict()
        elif request.method == "PATCH":
            self.nominated.append(body["status"]["nominatedNodeName"])
            return Answer(200, msgspec.json.encode(pod("high")))
        return Answer(201, b"{}")

    def stream(
        self, request: Request, *, timeout_s: float, renew: bool = False
    ) -> AbstractAsyncContextManager[Stream]:
        raise NotImplementedError

    async def close(self) -> None: ...


def budget(name: str, allowed: int) -> dict[str, Any]:
    spec = {"selector": {"matchLabels": {"app": "kept"}}}
    status = {"disruptionsAllowed": allowed}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec, "status": status}


class Scene:
    """A node with two GPUs, which two pods have, and one of high priority that wants one."""

    def __init__(self, gpus: int = 2, pods: int = 2, clock: Callable[[], float] | None = None) -> None:
        self.world, self.server, self.ended = World(node("a", gpus)), Server(), list[EndedPod]()
        self.whys: list[str] = []
        clock, client = clock or asyncio.get_running_loop().time, Client(self.server)
        status = PodStatusWriter(client, self.world.pods)
        self.controller = PreemptionController(
            client,
            self.world.coordinator,
            status,
            Reporter(status, Recorder(client, "test"), Pacer(clock), lambda _: None),
            metrics=Metrics(),
            may_write=lambda: True,
            clock=clock,
            rng=random.Random(1),
            evicts=lambda _, why: self.whys.append(why),
            ended_since=lambda moment: self.ended,
        )
        for at in range(pods):
            self.world.pod(self.low(at, bound=False))
            self.world.coordinator.done(Bound(self.world.executor.jobs[at]))
            self.world.pod(self.low(at))
        if pods:
            self.world.pod(pod("high", gpus=1, priority=10, preemptionPolicy="PreemptLowerPriority"))

    def low(self, at: int, *, bound: bool = True, **meta: Any) -> Pod:
        """Return the pod that has, or will have, the GPU of this number."""
        where = {"node": "a", "allocated": f"a:{at}", "phase": "Running"} if bound else {}
        return pod(f"low-{at}", gpus=1, meta={"labels": {"app": "kept"}, **meta}, **where)

    def state(self) -> str | None:
        return self.world.coordinator.engine.state_of("uid-high")


def ends_in(seconds: float) -> str:
    return timestamps.seconds(datetime.now(UTC) + timedelta(seconds=seconds))


class QueueScene:
    """A node with four GPUs, all of which pods of queue `web` borrow; `ml` is guaranteed two of them. The
    label `queue` names a pod's queue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        made = pod_request.request_of

        def in_queue(seen: Pod, *others: Any, **terms: Any) -> Any:
            found = made(seen, *others, **terms)
            return (
                replace(found, queue=seen.metadata.labels.get("queue", ""))
                if isinstance(found, Wanted)
                else found
            )

        monkeypatch.setattr(pod_request, "request_of", in_queue)
        self.scene = Scene(gpus=4, pods=0)
        self.coordinator, self.server = self.scene.world.coordinator, self.scene.server
        self.controller = self.scene.controller
        self.coordinator.feed(
            QueueUpdated(QueueTerms("ml", guaranteed={"*": 2000}, **{"reclaim": "any", **more})),
            QueueUpdated(QueueTerms("web", guaranteed={"*": 2000})),
        )
        for at in range(4):
            self.bound(at, "web")

    def bound(self, at: int, queue: str) -> None:
        world, meta = self.scene.world, {"labels": {"queue": queue, "app": "kept"}}
        world.pod(pod(f"web-{at}", gpus=1, priority=at, meta=meta))
        self.coordinator.done(Bound(world.executor.jobs[-1]))
        where = {"node": "a", "allocated": f"a:{at}", "phase": "Running"}
        world.pod(pod(f"web-{at}", gpus=1, priority=at, meta=meta, **where))
        held = self.coordinator.engine.cluster.held_on("a")[f"uid-web-{at}"]
        self.coordinator.feed(PlacementObserved(held, queue=queue))

    def wants(self, name: str, gpus: int = 1, queue: str = "ml") -> None:
        """A pod that preempts nobody by its own priority."""
        meta = {"labels": {"queue": queue}}
        self.scene.world.pod(pod(name, gpus=gpus, meta=meta, preemptionPolicy="Never"))

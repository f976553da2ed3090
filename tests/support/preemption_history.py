"""A cluster that changes at random, with a preemption controller: pods and gangs come and go, nodes are
closed, binds fail. Who is evicted ends after a while and comes again under another name, as its owner makes
it do."""

import asyncio
import json
import random
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.transport.base import Answer, Request, Stream
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import names
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound, Failed
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.controllers.preemption import PreemptionController
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from tests.support.preemption_scene import ends_in
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import gpu_queue, namespace, node, pod

PREEMPTS = "PreemptLowerPriority"
BUDGETS = {"kind": "PodDisruptionBudgetList", "metadata": {"resourceVersion": "1"}}
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class History:
    """`ends` is when pods end that were deleted. `wrong` says who was evicted and should not have been."""

    def __init__(self, rng: random.Random, nodes: int = 3, gpus: int = 4, **more: Any) -> None:
        self.clock, self.rng, self.made = asyncio.get_running_loop().time, rng, 0
        self.gpus, self.zones = gpus, {f"n{at}": f"z{at % 2}" for at in range(nodes)}
        self.world = World(*map(self._node, self.zones), clock=self.clock, **more)
        self.closed, self.groups, self.budgets = set[str](), list[str](), list[dict[str, Any]]()
        self.fails = self.slow = 0.0
        """Which part of binds fails, and which part of pods has a long grace period."""
        self.ends, self.evicted, self.wrong = dict[str, float](), list[str](), list[str]()
        client = Client(self)
        status = PodStatusWriter(client, self.world.pods)
        self.controller = PreemptionController(
            client,
            self.world.coordinator,
            status,
            Reporter(status, Recorder(client, "test"), Pacer(self.clock), lambda _: None),
            metrics=Metrics(),
            may_write=lambda: True,
            clock=self.clock,
            rng=rng,
            evicts=self._evicts,
        )

    # --- the API server ----------------------------------------------------------------------------------

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        if request.method == "GET":
            return Answer(200, json.dumps({**BUDGETS, "items": self.budgets}).encode())
        if request.method != "PATCH":
            return Answer(201, b"{}")
        parts = request.target.split("?")[0].split("/")
        if (shown := self.world.pods.get(f"{parts[4]}/{parts[6]}")) is None:
            return Answer(404, b'{"kind": "Status", "reason": "NotFound"}')
        changed: dict[str, Any] = json.loads(request.body or b"{}")["status"]
        if "nominatedNodeName" in changed:
            status = replace(shown.status, nominated_node_name=changed["nominatedNodeName"] or "")
            shown = self._show(replace(shown, status=status))
        return Answer(200, msgspec.json.encode(shown))

    def stream(
        self, request: Request, *, timeout_s: float, renew: bool = False
    ) -> AbstractAsyncContextManager[Stream]:
        raise NotImplementedError

    async def close(self) -> None: ...

    def _show(self, seen: Pod) -> Pod:
        self.made += 1
        shown = replace(seen, metadata=replace(seen.metadata, resource_version=f"9{self.made:06}"))
        self.world.pod(shown)
        return shown

    def _evicts(self, victim: Pod, why: str) -> None:
        if key(victim) in self.evicted:
            self.wrong.append(f"{key(victim)} is evicted twice")
        _, is_by_priority, priority = why.partition("which has priority ")
        if is_by_priority and victim.spec.priority >= int(priority):
            self.wrong.append(f"{key(victim)} of {victim.spec.priority} is {why}")
        self.evicted.append(key(victim))
        self.delete(key(victim))

    # --- what happens ------------------------------------------------------------------------------------

    def queues(self, **guaranteed: int) -> None:
        """Make queues, each for the namespace of its name."""
        for name, gpus in guaranteed.items():
            self.world.namespace(namespace(name, team=name))
            self.world.queue(gpu_queue(name, name, guaranteed={"*": gpus}))

    def add(self, name: str, space: str = "default", **terms: Any) -> None:
        self.made += 1
        created = (EPOCH + timedelta(seconds=self.made)).strftime("%Y-%m-%dT%H:%M:%SZ")
        made = pod(name, preemptionPolicy=PREEMPTS, **terms)
        of = {"namespace": space, "uid": f"uid-{space}-{name}", "creation_timestamp": created}
        self._show(replace(made, metadata=replace(made.metadata, **of, labels={"app": name})))
        self.pump()

    def again(self, seen: Pod) -> None:
        """Make a pod like this one."""
        notes = {word: each for word, each in seen.metadata.annotations.items() if word != names.ALLOCATED}
        name = f"{seen.metadata.name.partition('.')[0]}.{self.made}"
        meta = replace(
            seen.metadata, name=name, uid=f"uid-{name}", annotations=notes, deletion_timestamp=None
        )
        status = replace(seen.status, phase="Pending", nominated_node_name="")
        self._show(replace(seen, metadata=meta, spec=replace(seen.spec, node_name=""), status=status))
        self.pump()

    def pump(self) -> None:
        """Do what the scheduler decided."""
        executor = self.world.executor
        while executor.jobs or executor.gangs:
            jobs = [*executor.jobs, *(job for gang in executor.gangs for job in gang)]
            executor.jobs.clear()
            executor.gangs.clear()
            for job in jobs:
                self._bind(job)

    def _bind(self, job: BindJob) -> None:
        seen, where = self.world.pods.get(key(job.pod)), job.placement
        if seen is None or self.rng.random() < self.fails:
            self.world.coordinator.done(Failed(job, "it is gone"))
            return
        self.world.coordinator.done(Bound(job))
        given = {names.ALLOCATED: f"{where.node}:{','.join(map(str, where.devices))}"}
        meta = replace(seen.metadata, annotations=seen.metadata.annotations | given)
        spec, status = replace(seen.spec, node_name=where.node), replace(seen.status, phase="Running")
        self._show(replace(seen, metadata=meta, spec=spec, status=status))

    def delete(self, name: str) -> None:
        seen = self.world.pods.get(name)
        if seen is None or seen.metadata.deletion_timestamp:
            return
        if not seen.spec.node_name:
            self.world.pod_gone(name)
            self.pump()
            return
        until = ends_in(600 if self.rng.random() < self.slow else 30)
        self._show(replace(seen, metadata=replace(seen.metadata, deletion_timestamp=until)))
        self.ends[name] = self.clock() + self.rng.choice([0.5, 3.0, 8.0])

    def _end(self) -> None:
        for name in [name for name, at in self.ends.items() if at <= self.clock()]:
            del self.ends[name]
            if (seen := self.world.pods.get(name)) is not None:
                self.world.pod_gone(name)
                self.world.coordinator.freed(seen.metadata.uid)
                self.pump()
                if name in self.evicted:
                    self.again(seen)

    def turn_node(self, name: str) -> None:
        """Close the node, or open it again."""
        self.closed ^= {name}
        self.world.node(self._node(name))
        self.pump()

    def _node(self, name: str) -> Any:
        closed: dict[str, Any] = {"unschedulable": True} if self.made and name in self.closed else {}
        return node(name, self.gpus, labels={"zone": self.zones[name]}, **closed)

    async def step(self, for_s: float) -> None:
        """Let time pass, and the scheduler look once."""
        await asyncio.sleep(for_s)
        self._end()
        self.world.coordinator.tick()
        self.pump()
        await self.controller.check()
        self.pump()

    def rooms(self) -> set[str]:
        """Return the pods for which room is kept."""
        cluster = self.world.coordinator.engine.cluster
        held = (each for name in self.zones for each in cluster.held_on(name))
        return {each.removeprefix("room/") for each in held if each.startswith("room/")}

    def waiting(self) -> list[Pod]:
        return [each for each in self.world.pods if not each.spec.node_name]

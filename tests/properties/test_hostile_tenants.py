"""Tenants annotate bound pods at random while pods come and go, an administrator deletes leases
and the scheduler is restarted: no device is given twice, and no lease of a live pod is deleted by us."""

import asyncio
import json
import random
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.kube.transport.base import Answer
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import claims
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import Lease, Node, Pod
from gpu_orchestrator.apps.scheduler.accounting.agent_liveness import AgentLiveness
from gpu_orchestrator.apps.scheduler.binding.binder import Binder
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases
from gpu_orchestrator.apps.scheduler.binding.mps_gate import MpsGate
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.controllers.claims import ClaimController
from gpu_orchestrator.apps.scheduler.controllers.release import Releaser
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.controllers.sweep import Sweeper, SweeperDeps
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.cycle.shared import CoordinatorConfig
from gpu_orchestrator.apps.scheduler.executor import KubeExecutor
from gpu_orchestrator.apps.scheduler.informers import Stores, claims_of
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.policies.registry import Registry
from tests.support import scheduler_objects
from tests.support.lease_server import LeaseServer
from tests.support.scheduler_harness import Shown, gone, volume_binder
from tests.support.scheduler_stage import holders

KILLED = "ignore:Exception ignored in. <coroutine object:pytest.PytestUnraisableExceptionWarning"
"""A kill may come before a coroutine has started."""

pytestmark = [pytest.mark.looptime, pytest.mark.filterwarnings(KILLED)]

NODES, GPUS, STEPS = ("a", "b"), 3, 150
WAIT_S = 3.0

Json = dict[str, Any]


class Server(LeaseServer):
    """Pods and leases as the API server has them. `truth` is what each live bound pod was given, by lease and
    in milli; `shown` are the changes that the watches have not delivered yet."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.pods: dict[str, Json] = {}
        self.truth: dict[str, dict[str, int]] = {}
        self.binds, self.violations = 0, list[str]()
        self.shown: dict[str, list[tuple[str, Json | None]]] = {"pods": [], "leases": []}

    def _answer(self, method: str, target: str, body: Json) -> Answer:
        path = target.partition("?")[0]
        if "/pods/" in path:
            name, _, part = path.partition("/pods/")[2].partition("/")
            return self._pod(method, name, part, body)
        if "/leases" not in path:
            return Answer(404, b'{"kind":"Status","code":404,"reason":"NotFound"}')
        before = {name: holders(lease) for name, lease in self.leases.items()}
        answer = super()._answer(method, target, body)
        for name in before.keys() | self.leases.keys():
            now = holders(self.leases[name]) if name in self.leases else set()
            for uid in before.get(name, set()) - now:
                self._check(
                    name not in self.truth.get(uid, {}), f"{method} took {name} from {uid}, which lives"
                )
        if method != "GET" and answer.status < 300:
            name = path.rpartition("/leases")[2].strip("/") or body["metadata"]["name"]
            self.shown["leases"].append((name, _copy(self.leases.get(name))))
        return answer

    def _pod(self, method: str, name: str, part: str, body: Json) -> Answer:
        found = self.pods.get(name)
        if found is None:
            return Answer(404, b'{"kind":"Status","code":404,"reason":"NotFound"}')
        if method == "GET":
            return Answer(200, json.dumps(found).encode())
        meta = found["metadata"]
        if body["metadata"].get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
            return Answer(409, b'{"kind":"Status","code":409,"reason":"Conflict"}')
        if part == "binding":
            if found["spec"].get("nodeName"):
                return Answer(409, b'{"kind":"Status","code":409,"reason":"Conflict"}')
            self._bind(found, body)
        self.write(name)
        lost = part == "binding" and self._rng.random() < 0.2
        return Answer(500, b"") if lost else Answer(200, json.dumps(found).encode())

    def _bind(self, found: Json, body: Json) -> None:
        self.binds += 1
        uid, node = found["metadata"]["uid"], body["target"]["name"]
        found["spec"]["nodeName"] = node
        found["metadata"]["annotations"] |= body["metadata"]["annotations"]
        ids = body["metadata"]["annotations"]["gpu.scheduling/allocated"].rpartition(":")[2].split(",")
        self.truth[uid] = {f"gpu-{node}-{each}": 300 if "shared" in uid else 1000 for each in ids}
        for name in self.truth[uid]:
            held_by = holders(self.leases[name]) if name in self.leases else set()
            self._check(uid in held_by, f"{uid} was bound without {name}")
            given = {each: parts[name] for each, parts in self.truth.items() if name in parts}
            self._check(sum(given.values()) <= 1000, f"{name} was given twice: {given}")

    def _check(self, holds: bool, violation: str) -> None:
        """Remember a violation. Raised here, it would be one more failed request to the scheduler."""
        if not holds:
            self.violations.append(violation)

    def write(self, name: str) -> None:
        """Store a change of the pod, and let the watch show it later."""
        self._version += 1
        self.pods[name]["metadata"]["resourceVersion"] = str(self._version)
        self.shown["pods"].append((name, _copy(self.pods[name])))

    def create(self, name: str, **asking: Any) -> None:
        self.pods[name] = msgspec.to_builtins(scheduler_objects.pod(name, **asking))
        self.write(name)

    def delete(self, name: str) -> None:
        gone = self.pods.pop(name)
        self.truth.pop(gone["metadata"]["uid"], None)
        self.shown["pods"].append((name, None))

    def delete_lease(self, name: str) -> None:
        """An administrator deletes it by hand."""
        del self.leases[name]
        self.shown["leases"].append((name, None))


def _copy(found: Json | None) -> Json | None:
    return json.loads(json.dumps(found)) if found else None


class Term:
    """A scheduler from its start on: all its parts but the watches, which deliver when a test says so."""

    def __init__(self, server: Server) -> None:
        self.server, client = server, Client(server)
        clock = asyncio.get_running_loop().time
        self.pods: Store[Pod] = Store({"claim": claims_of, "volume": lambda _: [], "rule": lambda _: []})
        self.leases: Store[Lease] = Store()
        nodes, shares = Store[Node](), Store[GpuClaim]({"pod": lambda each: [claims.reserved_for(each)]})
        reports = Store[GpuNodeStatus]()
        stores = Stores(self.pods, nodes, shares, reports, self.leases, Store(), Store())
        metrics, pacer, self.pod_status = Metrics(), Pacer(clock), PodStatusWriter(client, self.pods)
        device_leases = DeviceLeases(
            client, "system", Overlay(Shown(self.leases)), metrics=metrics, now=lambda: f"t{clock():015.6f}"
        )
        writer = ClaimWriter(client)
        binder = Binder(
            client,
            self.pod_status,
            device_leases,
            writer,
            mps_gate=MpsGate(Store(), lambda _: True),
            volume_binder=volume_binder(client, stores),
            reserves_claims=False,
            may_write=lambda: True,
            now=lambda: f"t{clock():015.6f}",
        )
        reporter = Reporter(self.pod_status, Recorder(client, "test"), pacer, lambda _: None)
        self.executor = KubeExecutor(
            client, self.pod_status, device_leases, binder, reporter, metrics=metrics, pacer=pacer
        )
        self.coordinator = Coordinator(
            Engine(Registry().policy_of, random.Random(1)),
            stores,
            self.executor,
            CoordinatorConfig(),
            clock=clock,
            is_agent_live=lambda _: False,
        )
        self.releaser = Releaser(
            device_leases,
            reports,
            AgentLiveness(clock, lambda: datetime.now(UTC)),
            leases_of=self.coordinator.lease_index.of,
            has_stopped=gone,
            freed=self.coordinator.freed,
            clock=clock,
            wait_s=WAIT_S,
            agent_s=15.0,
        )
        self.executor.attach(self.coordinator, self.releaser)
        controller = ClaimController(
            writer, self.coordinator, self.releaser, metrics=metrics, pacer=pacer, now=lambda: "now"
        )
        self.sweeper = Sweeper(
            client,
            device_leases,
            SweeperDeps(self.coordinator, controller, self.releaser, reporter, metrics),
            clear_leases=self.executor.clear_leases,
            now=lambda: f"t{clock():015.6f}",
            clock=clock,
            wait_s=WAIT_S,
        )
        for name in NODES:
            for node in nodes.put(scheduler_objects.node(name, GPUS)):
                self.coordinator.nodes.on_node(*node)
        for shared in shares.put(scheduler_objects.claim("shared", exclusivity="Shared", share=300)):
            self.coordinator.on_claim(*shared)
        self._list()
        self.coordinator.open()
        self._running = asyncio.create_task(self.releaser.run())

    def _list(self) -> None:
        """Show everything as it is now, leases before pods."""
        for name, lease in self.server.leases.items():
            self._show("leases", name, lease)
        for name, pod in self.server.pods.items():
            self._show("pods", name, pod)
        self.server.shown = {"pods": [], "leases": []}

    def deliver(self, kind: str, count: int) -> None:
        shown = self.server.shown[kind]
        for name, found in shown[:count]:
            self._show(kind, name, found)
        del shown[:count]

    def _show(self, kind: str, name: str, found: Json | None) -> None:
        if kind == "leases":
            lease = msgspec.convert(found, Lease) if found else None
            for was, new in self.leases.put(lease) if lease else self.leases.drop(f"system/{name}"):
                self.coordinator.lease_index.on_lease(was, new)
            return
        pod = msgspec.convert(found, Pod) if found else None
        for old, now in self.pods.put(pod) if pod else self.pods.drop(f"default/{name}"):
            self.pod_status.on_pod(old, now)
            self.coordinator.on_pod(old, now)

    async def end(self) -> None:
        """As a kill: nothing more is written."""
        self.coordinator.close()
        self.executor.wake_at(None)
        self.executor._tasks.cancel()
        self._running.cancel()
        await asyncio.sleep(0)


class Play:
    """Random steps of tenants, an administrator and the watches."""

    def __init__(self, seed: int) -> None:
        self.rng, self.server = random.Random(seed), Server(seed)
        self.term, self.made = Term(self.server), 0

    async def step(self) -> None:
        rng, bound = self.rng, [name for name, pod in self.server.pods.items() if pod["spec"].get("nodeName")]
        match rng.choices(
            ["create", "annotate", "delete", "sweep", "pods", "leases", "wait", "admin", "restart"],
            [4, 6, 2, 2, 6, 6, 4, 0.5, 0.5],
        )[0]:
            case "create":
                self.made += 1
                kind = rng.choice(["one", "two", "shared"])
                asking: Json = {
                    "one": {"gpus": 1},
                    "two": {"gpus": 2},
                    "shared": {"claim_template": "shared"},
                }
                self.server.create(f"{kind}-{self.made}", **asking[kind])
            case "annotate" if bound:
                self.annotate(rng.choice(bound))
            case "delete" if bound:
                self.server.delete(rng.choice(list(self.server.pods)))
            case "sweep":
                await self.term.sweeper.once()
            case "pods" | "leases" as kind:
                self.term.deliver(kind, rng.randrange(1, 6))
            case "admin" if self.server.leases:
                await self.delete_a_lease()
            case "restart":
                await self.term.end()
                self.term = Term(self.server)
            case _:
                await asyncio.sleep(rng.choice([0.0, 0.005, 0.1, 1.0, 5.0]))

    def annotate(self, name: str) -> None:
        """As the pod's owner may."""
        rng, annotations = self.rng, self.server.pods[name]["metadata"]["annotations"]
        ids = ",".join(str(rng.randrange(GPUS)) for _ in range(rng.randrange(1, 4)))
        word, value = rng.choice(
            [
                ("allocated", f"{rng.choice(NODES)}:{ids}"),
                ("allocated", f"{self.server.pods[name]['spec']['nodeName']}:{ids}"),
                ("allocated", None),
                ("allocated", "a:" + "9" * 5000),
                ("claim", "shared"),
                ("claim-template", "shared"),
                ("gpus", rng.choice(["1", "64", "x", None])),
                ("visible-devices", "0,1,2"),
            ]
        )
        annotations.pop(f"gpu.scheduling/{word}", None)
        if value is not None:
            annotations[f"gpu.scheduling/{word}"] = value
        self.server.write(name)

    async def delete_a_lease(self) -> None:
        """Nothing but memory knows of it until the sweep has restored it: no restart before that."""
        await self.settle()
        if self.server.leases:
            self.server.delete_lease(self.rng.choice(list(self.server.leases)))
            await self.settle()

    async def settle(self) -> None:
        """Let the watches catch up, and everything come to rest."""
        for _ in range(20):
            for kind in ("leases", "pods"):
                self.term.deliver(kind, 1000)
            await self.term.sweeper.once()
            await asyncio.sleep(1.0)


@pytest.mark.parametrize("seed", range(12))
async def test_no_device_is_given_twice_and_no_live_pod_loses_its_lease(seed: int) -> None:
    play = Play(seed)
    for _ in range(STEPS):
        await play.step()
    await play.settle()
    held = {(name, uid) for name, lease in play.server.leases.items() for uid in holders(lease)}
    assert {(name, uid) for uid, parts in play.server.truth.items() for name in parts} <= held
    assert play.server.binds > 3
    for name in list(play.server.pods):
        play.server.delete(name)
    await play.settle()
    assert play.server.leases == {}
    assert play.server.violations == []
    await play.term.end()

"""What is done about a device that becomes unhealthy while a pod has it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.transport.base import Answer, Request, Stream
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.devices import OnUnhealthy
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.controllers.health import DAMPED, HealthConfig, HealthController
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from tests.apps.scheduler.test_holdings import lease
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import claim, node, pod, report

pytestmark = pytest.mark.looptime

START = datetime(2026, 11, 19, tzinfo=UTC)
BLOCKED = {
    "kind": "Status",
    "code": 429,
    "reason": "TooManyRequests",
    "message": "Cannot evict pod as it would violate the pod's disruption budget.",
    "details": {"causes": [{"reason": "DisruptionBudget", "message": "needs 1 healthy pod"}]},
}


class Server:
    """Accepts every write, and keeps it; answers evictions with `refusal`, if there is one."""

    def __init__(self) -> None:
        self.evicted: list[str] = []
        self.conditions: list[tuple[str, str]] = []
        self.events: list[str] = []
        self.refusal: dict[str, Any] | None = None

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        body: dict[str, Any] = msgspec.json.decode(request.body or b"{}")
        if request.target.endswith("/eviction"):
            if self.refusal:
                return Answer(self.refusal["code"], msgspec.json.encode(self.refusal))
            self.evicted.append(body["metadata"]["name"])
        elif "/gpuclaims/" in request.target:
            last = body["status"]["conditions"][-1]
            self.conditions.append((last["status"], last["message"]))
        elif request.method == "POST":
            self.events.append(f"{body['regarding']['kind']} {body['reason']}: {body['note']}")
        return Answer(201, b"{}")

    def stream(
        self, request: Request, *, timeout_s: float, renew: bool = False
    ) -> AbstractAsyncContextManager[Stream]:
        raise NotImplementedError

    async def close(self) -> None: ...


class Scene:
    """A world with one node, whose devices pods hold, and a health controller."""

    def __init__(self, on_unhealthy: OnUnhealthy = "Event") -> None:
        self.world, self.server, self.metrics = World(node("a", 0)), Server(), Metrics()
        self.on_unhealthy: OnUnhealthy = on_unhealthy
        self.times: dict[int, dict[str, str]] = {}
        self.lead()
        self.report()

    def lead(self) -> None:
        """Start a health controller that knows nothing of what was before it."""
        clock, coordinator = asyncio.get_running_loop().time, self.world.coordinator
        client = Client(self.server)
        self.recorder = Recorder(client, "test")
        status = PodStatusWriter(client, self.world.pods)
        config = HealthConfig(
            self.on_unhealthy, lambda name: name not in self.world.silent, lambda: True, lambda: "now", clock
        )
        self.health = HealthController(
            client,
            coordinator,
            ClaimWriter(client),
            Reporter(status, self.recorder, Pacer(clock), lambda _: None),
            config,
            metrics=self.metrics,
        )

    def report(self, *unhealthy: int, why: str = "XID 79") -> None:
        """Report four devices as an agent does that does not damp."""
        now = timestamps.seconds(START + timedelta(seconds=asyncio.get_running_loop().time()))
        each = [self._device(at, why if at in unhealthy else "", now) for at in range(4)]
        seen: GpuNodeStatus = report("a", *each, observedAt=now)
        before = self.world.node_statuses.get("a")
        self.world.report(seen)
        self.health.on_node_status(before, seen)

    def _device(self, at: int, why: str, now: str) -> dict[str, Any]:
        times = self.times.setdefault(at, {})
        if why:
            times.setdefault("unhealthySince", now)
            return {"id": at, "health": "Unhealthy", "unhealthyReason": why, **times}
        if times.pop("unhealthySince", None):
            times["recoveredAt"] = now
        return {"id": at, **times}

    def hold(self, name: str, *devices: int, **claimed: Any) -> None:
        """Show a pod that holds these devices, with a claim of its own."""
        status = {"phase": "Bound", "podUID": f"uid-{name}"}
        self.world.claim(claim(name, reserved_for=f"uid-{name}", status=status, **claimed))
        for device in devices:
            self.world.lease(lease(device, name))
        self.world.pod(pod(name, node="a", claim=name))

    def counted(self, action: str) -> float:
        labels = {"action": action}
        return self.metrics.registry.get_sample_value("gpu_scheduler_unhealthy_pods_total", labels) or 0.0


@asynccontextmanager
async def running(scene: Scene) -> AsyncIterator[Scene]:
    tasks = [asyncio.create_task(each) for each in (scene.health.run(30.0), scene.recorder.run())]
    await asyncio.sleep(1)
    yield scene
    for each in tasks:
        each.cancel()


TEXT = "on a: device 1 is unhealthy (XID 79)"


async def test_pod_and_claim_are_told_once_and_again_when_the_device_has_recovered() -> None:
    async with running(Scene()) as scene:
        scene.hold("p", 0, 1)
        scene.hold("other", 2)
        scene.report(1, 3)
        await asyncio.sleep(60)
        assert scene.server.events == [f"Pod DeviceUnhealthy: {TEXT}", f"GpuClaim DeviceUnhealthy: {TEXT}"]
        assert scene.server.conditions[0] == ("False", TEXT)
        scene.report()
        await asyncio.sleep(60)
        assert [each.partition(":")[0] for each in scene.server.events[2:]] == [
            "Pod DevicesRecovered",
            "GpuClaim DevicesRecovered",
        ]
        assert (scene.server.evicted, scene.counted("told")) == ([], 1)


@pytest.mark.parametrize(
    ("installed", "claimed", "evicted", "told"),
    [
        ("Ignore", None, [], False),
        ("Event", None, [], True),
        ("Evict", None, ["p"], True),
        ("Event", "Evict", ["p"], True),
        ("Evict", "Ignore", [], False),
        ("Ignore", "Event", [], True),
    ],
)
async def test_claim_says_what_is_done_and_else_the_installation(
    installed: OnUnhealthy, claimed: str | None, evicted: list[str], told: bool
) -> None:
    async with running(Scene(installed)) as scene:
        scene.hold("p", 1, **({"onUnhealthy": claimed} if claimed else {}))
        scene.report(1)
        await asyncio.sleep(120)
        assert scene.server.evicted == evicted
        assert bool(scene.server.events) == bool(scene.server.conditions) == told
        assert scene.counted("evicted") == len(evicted)


async def test_device_that_flaps_evicts_one_pod_and_costs_few_writes() -> None:
    """Sixty times a minute, and after the eviction another pod gets the device as soon as it is healthy."""
    async with running(Scene("Evict")) as scene:
        scene.hold("p", 1)
        for turn in range(60):
            scene.report(*([1] if turn % 2 else []))
            if scene.server.evicted == ["p"] and "default/p" in scene.world.pods:
                scene.world.pod_gone("p")
                scene.world.lease_gone("gpu-a-1")
                scene.hold("q", 1)
            await asyncio.sleep(1)
        assert scene.server.evicted == ["p"]
        assert len(scene.server.conditions) + len(scene.server.events) < 30
        for _ in range(3):
            assert scene.server.evicted == ["p"]
            scene.report(1)  # an agent reports every five minutes, if nothing changes
            await asyncio.sleep(DAMPED.total_seconds() / 2)
        assert scene.server.evicted == ["p", "q"], "a device that stays unhealthy is left in the end"


async def test_new_leader_evicts_nobody_again_within_ten_minutes() -> None:
    """It knows of the eviction before it by nothing but the agent's report."""
    scene = Scene("Evict")
    async with running(scene):
        scene.hold("p", 1)
        scene.report(1)
        await asyncio.sleep(60)
        assert scene.server.evicted == ["p"]
        scene.world.pod_gone("p")
        scene.world.lease_gone("gpu-a-1")
        scene.report()
        scene.hold("q", 1)
    scene.lead()
    async with running(scene):
        await asyncio.sleep(DAMPED.total_seconds() - 2)
        scene.report(1)
        await asyncio.sleep(300)
        scene.report(1)
        assert scene.server.evicted == ["p"]
        assert [each for each in scene.server.events if each.startswith("Pod")][
            -1
        ] == f"Pod DeviceUnhealthy: {TEXT}"
        scene.report()
        await asyncio.sleep(DAMPED.total_seconds())
        scene.report(1)
        await asyncio.sleep(60)
        assert scene.server.evicted == ["p", "q"], "it was well for ten minutes"


async def test_pods_are_evicted_if_an_older_agent_tells_no_times() -> None:
    async with running(Scene("Evict")) as scene:
        scene.hold("p", 1)
        seen = report("a", {"id": 1, "health": "Unhealthy", "recoveredAt": "yesterday"})
        scene.world.report(seen)
        scene.health.on_node_status(None, seen)
        await asyncio.sleep(60)
        assert scene.server.evicted == ["p"]


async def test_all_that_share_the_device_are_evicted_once_each() -> None:
    async with running(Scene("Evict")) as scene:
        for name in ("p", "q"):
            scene.hold(name, exclusivity="Shared", share=100)
        scene.world.lease(lease(1, "p", "q", share=100))
        scene.report(1)
        await asyncio.sleep(200)
        assert sorted(scene.server.evicted) == ["p", "q"]


async def test_budget_delays_the_eviction_and_is_told_once() -> None:
    async with running(Scene("Evict")) as scene:
        scene.server.refusal = BLOCKED
        scene.hold("p", 1)
        scene.report(1)
        await asyncio.sleep(60)
        told = [each for each in scene.server.events if each.startswith("Pod EvictionNotPossible")]
        assert (scene.server.evicted, len(told)) == ([], 1)
        assert "disruption budget" in told[0]
        assert scene.counted("blocked") >= 3
        scene.server.refusal = None
        await asyncio.sleep(30)
        assert scene.server.evicted == ["p"]


async def test_nobody_is_evicted_on_the_last_word_of_a_dead_agent() -> None:
    async with running(Scene("Evict")) as scene:
        scene.world.silent.add("a")
        scene.hold("p", 1)
        scene.report(1)
        await asyncio.sleep(120)
        assert (scene.server.evicted, len(scene.server.events)) == ([], 2)
        scene.world.silent.clear()
        await asyncio.sleep(60)
        assert scene.server.evicted == ["p"]


async def test_new_leader_goes_on_and_tells_nothing_twice() -> None:
    scene = Scene("Evict")
    scene.hold("p", 1)
    scene.report(1)
    shown = {"type": "DevicesHealthy", "status": "False", "message": TEXT}
    status = {"phase": "Bound", "conditions": [shown]}
    scene.world.claim(claim("p", reserved_for="uid-p", status=status))
    scene.hold("recovered", 2)
    stale = {**shown, "message": "on a: device 2 is unhealthy"}
    scene.world.claim(
        claim("recovered", reserved_for="uid-recovered", status={"phase": "Bound", "conditions": [stale]})
    )
    async with running(scene):
        await asyncio.sleep(60)
        assert scene.server.evicted == ["p"]
        assert not [each for each in scene.server.events if "DeviceUnhealthy" in each]
        assert scene.server.conditions[0] == ("True", "all devices are healthy again")


async def test_device_of_unknown_health_ends_no_pod() -> None:
    async with running(Scene("Evict")) as scene:
        scene.hold("p", 1)
        seen = report("a", {"id": 1, "health": "Unknown"})
        scene.world.report(seen)
        scene.health.on_node_status(None, seen)
        await asyncio.sleep(60)
        assert (scene.server.evicted, scene.server.events) == ([], [])

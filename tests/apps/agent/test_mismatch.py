"""Pods that use a device beside those that were given it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Unreachable
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.api import deviceleases, names
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from gpu_orchestrator.api.kubernetes import Node
from gpu_orchestrator.api.seen_pod import SeenPod, SeenSpec
from gpu_orchestrator.api.wire import ObjectMeta
from gpu_orchestrator.apps.agent import mismatch, taint
from gpu_orchestrator.apps.agent.metrics import Metrics
from gpu_orchestrator.apps.agent.mismatch import AGAIN_S, Mismatches, Use
from gpu_orchestrator.apps.agent.settings import Settings
from gpu_orchestrator.apps.agent.taint import TaintedNode, TaintedSpec, Tainter
from tests.support.agent_builders import NODE, Server

pytestmark = pytest.mark.looptime
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
USE = Use("uid-a", 3, "GPU-3")
NOTHING: frozenset[Use] = frozenset()


def pod(name: str = "a", namespace: str = "team", allocated: str = "") -> SeenPod:
    notes = {names.ALLOCATED: allocated}
    meta = ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}", annotations=notes)
    return SeenPod(meta, SeenSpec(node_name=NODE))


def lease(*uids: str, device: int = 3) -> Any:
    ref = DeviceRef(NODE, device)
    if len(uids) == 1:
        made = deviceleases.exclusive(ref, Holder(uids[0]), names.NAMESPACE)
    else:
        holders = [Holder(each, share=100) for each in uids]
        made = deviceleases.shared(ref, holders, names.NAMESPACE, "2026-01-01T00:00:00Z")
    return msgspec.to_builtins(made)


class Site:
    def __init__(self, **settings: Any) -> None:
        self.server, self.metrics = Server(), Metrics(NODE)
        self.pods = {"uid-a": pod()}
        self.settings = Settings(node_name=NODE, **settings)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Mismatches]:
        client, clock = Client(self.server).with_limits(patience_s=0), asyncio.get_running_loop().time
        recorder = Recorder(client, names.AGENT)
        made = Mismatches(
            client,
            self.settings,
            pod=self.pods.get,
            node=lambda: Node(ObjectMeta(name=NODE, uid="node-uid")),
            recorder=recorder,
            metrics=self.metrics,
            clock=clock,
        )
        tasks = [asyncio.create_task(made.run()), asyncio.create_task(recorder.run())]
        yield made
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def look(self, made: Mismatches, *uses: Use, given: frozenset[Use] = NOTHING) -> None:
        made.observe(frozenset(uses), given)
        await asyncio.sleep(1)

    @property
    def alarms(self) -> float | None:
        return self.metrics.registry.get_sample_value("gpu_agent_mismatch_total")

    @property
    def events(self) -> list[Any]:
        return self.server.writes("events.k8s.io")

    @property
    def lease_reads(self) -> int:
        return sum(each.method == "GET" for each in self.server.requests)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(lease("uid-a"), id="exclusive"),
        pytest.param(lease("uid-b", "uid-a"), id="one of several"),
    ],
)
async def test_holder_of_the_lease_may_use_the_device(found: Any) -> None:
    site = Site()
    site.server.found[f"{LEASES}/gpu-{NODE}-3"] = found
    async with site.running() as made:
        for _ in range(20):
            await site.look(made, USE)
        assert not made.found
    assert (site.alarms, site.events) == (0.0, [])
    assert site.lease_reads == 1, "a use that is right is not checked again"


@pytest.mark.parametrize(
    "found", [pytest.param(lease("uid-b"), id="another's"), pytest.param(None, id="nobody's")]
)
async def test_pod_on_a_device_that_it_was_not_given(found: Any) -> None:
    site = Site()
    if found:
        site.server.found[f"{LEASES}/gpu-{NODE}-3"] = found
    async with site.running() as made:
        for _ in range(5):
            await site.look(made, USE)
        assert list(made.found) == [USE]
    assert site.alarms == 1.0
    (event,) = site.events
    assert (event["regarding"]["name"], event["regarding"]["uid"]) == ("a", "uid-a")
    assert (event["reason"], event["type"]) == ("DeviceMismatch", "Warning")
    assert "GPU 3 (GPU-3)" in event["note"]
    assert site.lease_reads == 1


async def test_alarm_ends_when_the_lease_names_the_pod_or_the_process_is_gone() -> None:
    site = Site()
    async with site.running() as made:
        await site.look(made, USE)
        site.server.found[f"{LEASES}/gpu-{NODE}-3"] = lease("uid-a")
        await site.look(made, USE)
        assert made.found, "not asked at every look"
        await asyncio.sleep(AGAIN_S)
        await site.look(made, USE)
        assert not made.found
        await site.look(made)
        site.server.found.clear()
        await site.look(made, USE)
        await site.look(made)
        assert not made.found
    assert site.alarms == 2.0


async def test_device_that_the_kubelet_gave_needs_no_lease() -> None:
    site = Site()
    async with site.running() as made:
        await site.look(made, USE, given=frozenset({USE}))
    assert (site.alarms, site.lease_reads) == (0.0, 0)


async def test_process_of_a_pod_that_is_gone_is_told_on_the_node() -> None:
    site = Site()
    site.pods.clear()
    async with site.running() as made:
        await site.look(made, USE)
    (event,) = site.events
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Node", NODE)
    assert "uid-a" in event["note"]


async def test_ended_pod_that_still_holds_its_lease_raises_no_alarm() -> None:
    site = Site()
    site.pods.clear()
    site.server.found[f"{LEASES}/gpu-{NODE}-3"] = lease("uid-a")
    async with site.running() as made:
        await site.look(made, USE)
    assert site.alarms == 0.0


async def test_ignored_namespace() -> None:
    site = Site(ignore_namespaces=("team",))
    async with site.running() as made:
        await site.look(made, USE)
    assert (site.alarms, site.lease_reads) == (0.0, 0)


@pytest.mark.parametrize(("annotation", "alarms"), [(f"{NODE}:2,3", 0.0), (f"{NODE}:2", 1.0), ("b:3", 1.0)])
async def test_without_leases_the_binding_says_what_was_given(annotation: str, alarms: float) -> None:
    site = Site(lock="binding")
    site.pods["uid-a"] = pod(allocated=annotation)
    async with site.running() as made:
        await site.look(made, USE)
    assert (site.alarms, site.lease_reads) == (alarms, 0)


async def test_server_that_is_away_is_asked_again_at_the_next_look() -> None:
    site = Site()
    async with site.running() as made:
        site.server.away = Unreachable("away")
        await site.look(made, USE)
        assert site.alarms == 0.0
        site.server.away = None
        await site.look(made, USE)
    assert site.alarms == 1.0


def test_pod_whose_devices_have_unknown_names_may_use_any() -> None:
    a, b = frozenset({"uid-a"}), frozenset({"uid-b"})
    on_device = {"GPU-0": a | b, "GPU-1": b}
    assert mismatch.excused({"GPU-2": a}, on_device, b) == {"GPU-0": b, "GPU-1": b, "GPU-2": a}
    assert mismatch.excused({"GPU-0": a}, on_device, frozenset())["GPU-0"] == a


def test_uses_of_devices_without_an_id_are_left_out() -> None:
    found = mismatch.uses({"GPU-3": frozenset({"uid-a"}), "GPU-9": frozenset({"b"})}, {"GPU-3": 3})
    assert found == {USE}


OTHER = {"key": "a", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("taints", "wanted", "left"),
    [
        pytest.param([], True, [taint.TAINT], id="first"),
        pytest.param([OTHER], True, [OTHER, taint.TAINT], id="beside another"),
        pytest.param([taint.TAINT], True, None, id="there already"),
        pytest.param([OTHER, taint.TAINT], False, [OTHER], id="taken off"),
        pytest.param([taint.TAINT], False, [], id="the only one taken off"),
        pytest.param([OTHER], False, None, id="not there"),
    ],
)
def test_taint(taints: list[Any], wanted: bool, left: list[Any] | None) -> None:
    node = TaintedNode(ObjectMeta(name=NODE, resource_version="7"), TaintedSpec(taints))
    body = taint.patch(node, wanted)
    if left is None:
        assert body is None
    else:
        assert body == {"metadata": {"resourceVersion": "7"}, "spec": {"taints": left or None}}


async def test_taint_is_written_once_and_taken_off() -> None:
    site = Site()
    path = f"/api/v1/nodes/{NODE}"
    site.server.found[path] = {
        "metadata": {"name": NODE, "resourceVersion": "7"},
        "spec": {"taints": [OTHER]},
    }
    tainter = Tainter(Client(site.server).with_limits(patience_s=0), NODE, site.metrics)
    for _ in range(3):
        await tainter.set(wanted=True)
    assert [each["spec"]["taints"] for each in site.server.writes()] == [[OTHER, taint.TAINT]]
    site.server.found[path]["spec"]["taints"] = [OTHER, taint.TAINT]
    await tainter.set(wanted=False)
    assert site.server.writes()[-1]["spec"]["taints"] == [OTHER]


async def test_taint_left_by_an_agent_before_is_taken_off() -> None:
    site = Site()
    path = f"/api/v1/nodes/{NODE}"
    site.server.found[path] = {"metadata": {"name": NODE}, "spec": {"taints": [taint.TAINT]}}
    tainter = Tainter(Client(site.server).with_limits(patience_s=0), NODE, site.metrics)
    site.server.away = Unreachable("away")
    await tainter.set(wanted=False)
    assert not site.server.writes()
    site.server.away = None
    await tainter.set(wanted=False)
    assert site.server.writes()[-1]["spec"]["taints"] is None

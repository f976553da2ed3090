"""One bind against a server that refuses and loses answers, for a pod whose owner changes its annotations."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.kube.transport.base import Answer
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from gpu_orchestrator.api.kubernetes import Lease
from gpu_orchestrator.api.nodedevices import KEPT_FOR_PLUGIN
from gpu_orchestrator.api.volume_choice import VolumePlan
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound, Failed, Outcome
from gpu_orchestrator.apps.scheduler.binding.binder import Acquired, Binder
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases, LeaseHold
from gpu_orchestrator.apps.scheduler.binding.mps_gate import MpsGate
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device
from tests.support.lease_server import LeaseServer
from tests.support.scheduler_harness import Shown, stores_of, volume_binder
from tests.support.scheduler_objects import pod

pytestmark = pytest.mark.looptime

Json = dict[str, Any]


class Server(LeaseServer):
    """Leases and the pod `p`. `on_bind` decides the answer to a bind; `refused` are refused subresources."""

    def __init__(self) -> None:
        super().__init__(1)
        self.pod: Json = msgspec.to_builtins(pod("p", gpus=1))
        self.on_bind: Callable[[Json], Answer] = self.bind
        self.refused: dict[str, int] = {}

    def _answer(self, method: str, target: str, body: Json) -> Answer:
        if "/pods/" not in target:
            return super()._answer(method, target, body)
        part = target.partition("/pods/p")[2].strip("/")
        if part in self.refused:
            return refusal(self.refused[part])
        if part == "binding":
            return self.on_bind(body)
        if method == "PATCH":
            self.move_version()
        return Answer(200, json.dumps(self.pod).encode())

    def bind(self, body: Json) -> Answer:
        self.pod["spec"]["nodeName"] = body["target"]["name"]
        self.pod["metadata"]["annotations"] |= body["metadata"]["annotations"]
        self.move_version()
        return Answer(201, b"{}")

    def move_version(self) -> None:
        self.pod["metadata"]["resourceVersion"] += "0"


def refusal(code: int) -> Answer:
    reason = {403: "Forbidden", 409: "Conflict", 422: "Invalid"}.get(code, "InternalError")
    return Answer(code, json.dumps({"kind": "Status", "code": code, "reason": reason}).encode())


def leases_on(server: Server) -> DeviceLeases:
    known: Overlay[Lease] = Overlay(Shown(Store()))
    return DeviceLeases(Client(server), "system", known, metrics=Metrics(), now=lambda: "now")


def binder_on(server: Server, **more: Any) -> Binder:
    client = Client(server)
    return Binder(
        client,
        PodStatusWriter(client, Store()),
        leases_on(server),
        ClaimWriter(client),
        mps_gate=MpsGate(Store(), lambda _: True),
        volume_binder=volume_binder(client, stores_of()),
        reserves_claims=False,
        may_write=lambda: True,
        now=lambda: "t2",
        **more,
    )


def job_on(server: Server) -> BindJob:
    """Return the job to bind `p` to devices 0 and 1 of node a."""
    shown = pod("p", gpus=1)
    server.pod["metadata"]["resourceVersion"] = shown.metadata.resource_version
    return BindJob(shown, Placement("uid-p", "a", devices=(0, 1)), (Device(0), Device(1)))


async def perform(server: Server, **more: Any) -> Outcome:
    async with asyncio.timeout(60):
        return await binder_on(server, **more).perform(job_on(server))


async def test_bind_that_is_answered_has_its_leases() -> None:
    server = Server()
    assert isinstance(await perform(server), Bound)
    assert set(server.leases) == {"gpu-a-0", "gpu-a-1"}


async def test_node_closed_to_claims_after_the_decision_is_not_bound_to() -> None:
    """A device plugin's pod was bound there while the leases were written: the claim yields."""
    server = Server()
    outcome = await perform(server, barred={"a": KEPT_FOR_PLUGIN}.__getitem__)
    assert isinstance(outcome, Failed)
    assert "node a was closed to claims meanwhile: such nodes are kept for a device plugin" in outcome.why
    assert (server.leases, server.pod["spec"].get("nodeName", "")) == ({}, "")
    assert not outcome.is_permanent


@pytest.mark.parametrize(
    ("code", "is_permanent"), [(403, True), (422, True), (409, False)], ids=["403", "422", "409"]
)
async def test_refused_bind_releases_its_leases_and_says_whether_it_will_repeat(
    code: int, is_permanent: bool
) -> None:
    server = Server()
    server.refused["binding"] = code
    outcome = await perform(server)
    assert isinstance(outcome, Failed)
    assert (outcome.is_permanent, server.leases) == (is_permanent, {})
    assert f"({code})" in outcome.why


async def test_refused_lease_says_that_it_will_repeat() -> None:
    server = Server()
    server.forbidden.add("gpu-a-0")
    outcome = await perform(server)
    assert isinstance(outcome, Failed)
    assert outcome.is_permanent
    assert server.leases == {}


async def test_lease_that_the_pod_had_before_is_not_released() -> None:
    """Another scheduler binds the same pod; the lease is its as much as ours."""
    server = Server()
    holder = Holder("uid-p", "p", "default", since="t1")
    assert isinstance(await leases_on(server).acquire(DeviceRef("a", 0), holder, exclusive=True), LeaseHold)
    server.refused["binding"] = 409
    assert isinstance(await perform(server), Failed)
    assert set(server.leases) == {"gpu-a-0"}


@pytest.mark.parametrize("allocated", [None, "a:0,1", "a:7"])
async def test_bind_whose_answer_was_lost_keeps_its_leases(allocated: str | None) -> None:
    """Also if the owner has changed the annotation before we read the pod again."""
    server = Server()

    def bind_and_fail(body: Json) -> Answer:
        server.bind(body)
        annotations = server.pod["metadata"]["annotations"]
        annotations.pop("gpu.scheduling/allocated")
        if allocated:
            annotations["gpu.scheduling/allocated"] = allocated
        return Answer(500, b"")

    server.on_bind = bind_and_fail
    outcome = await perform(server)
    assert set(server.leases) == {"gpu-a-0", "gpu-a-1"}
    assert isinstance(outcome, Bound if allocated == "a:0,1" else Failed)
    if isinstance(outcome, Failed):
        assert {lease.metadata.name for lease in outcome.found} == {"gpu-a-0", "gpu-a-1"}


async def test_bind_without_an_answer_that_was_not_carried_out_releases_its_leases() -> None:
    server = Server()
    server.on_bind = lambda _: Answer(500, b"")
    before = server.pod["metadata"]["resourceVersion"]
    outcome = await perform(server)
    assert isinstance(outcome, Failed)
    assert server.leases == {}
    assert server.pod["metadata"]["resourceVersion"] != before  # so it never will be


async def test_pod_bound_elsewhere_meanwhile_releases_our_leases() -> None:
    server = Server()

    def bound_elsewhere(_: Json) -> Answer:
        server.pod["spec"]["nodeName"] = "b"
        return Answer(500, b"")

    server.on_bind = bound_elsewhere
    assert isinstance(await perform(server), Failed)
    assert server.leases == {}


@pytest.mark.parametrize("part", ["status", ""], ids=["pod cannot be written", "pod cannot be read"])
async def test_unknown_outcome_that_cannot_be_settled_ends_and_keeps_the_leases(part: str) -> None:
    server = Server()
    server.on_bind = lambda _: Answer(500, b"")
    server.refused[part] = 403
    outcome = await perform(server)
    assert isinstance(outcome, Failed)
    assert outcome.is_permanent
    assert {lease.metadata.name for lease in outcome.found} == set(server.leases) == {"gpu-a-0", "gpu-a-1"}


async def test_members_of_a_gang_that_wait_for_volumes_do_not_keep_other_gangs_from_binding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpu_orchestrator.apps.scheduler.binding.binder.GANGS_AT_ONCE", 1)
    server, forever = Server(), asyncio.Event()
    binder, job = binder_on(server), job_on(server)

    async def wait(_: BindJob, __: VolumePlan, acquired: Acquired) -> Acquired:
        await forever.wait()
        return acquired

    monkeypatch.setattr(binder, "_with_volumes", wait)
    waits = replace(job, volumes=VolumePlan("a"))
    first = asyncio.create_task(binder.perform_gang("slow", [waits]))
    async with asyncio.timeout(60):
        (outcome,) = await binder.perform_gang("quick", [job])
    assert isinstance(outcome, Bound), outcome.why
    forever.set()
    await first

"""Bind the volumes of one pod against a server that answers as the API server does: what is written, how long
it waits, and what becomes of the leases."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.kube.transport.base import Answer
from gpu_orchestrator.api.kubernetes import Lease, VolumeClaim
from gpu_orchestrator.api.volume_choice import Use, VolumePlan
from gpu_orchestrator.api.volumes import Volume
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound, Failed, Outcome
from gpu_orchestrator.apps.scheduler.binding.binder import Binder
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases
from gpu_orchestrator.apps.scheduler.binding.mps_gate import MpsGate
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device
from tests.support.lease_server import LeaseServer
from tests.support.scheduler_harness import Shown, stores_of, volume_binder
from tests.support.scheduler_objects import node, pod, volume, volume_claim

pytestmark = pytest.mark.looptime

Json = dict[str, Any]
SELECTED = "volume.kubernetes.io/selected-node"


class Server(LeaseServer):
    """Leases, the volume `v` and the claim `data`; every bind succeeds."""

    def __init__(self) -> None:
        super().__init__(1)
        self.writes: list[tuple[str, Json]] = []
        self.binds: list[Json] = []
        self.refused: dict[str, int] = {}

    def _answer(self, method: str, target: str, body: Json) -> Answer:
        kind = next((each for each in ("persistentvolumes", "persistentvolumeclaims") if each in target), "")
        if target.endswith("/binding"):
            self.binds.append(body)
            return Answer(201, b"{}")
        if not kind:
            return super()._answer(method, target, body)
        if code := self.refused.get(kind):
            status = {"kind": "Status", "code": code, "reason": "Conflict" if code == 409 else "Forbidden"}
            return Answer(code, json.dumps(status).encode())
        self.writes.append((kind, body))
        name = target.rpartition("/")[2]
        meta = {"name": name, "uid": f"uid-{name}", **body["metadata"], "resourceVersion": "1000000"}
        if kind == "persistentvolumeclaims":
            meta["namespace"] = "default"
        return Answer(200, json.dumps({**body, "metadata": meta}).encode())


CLAIM = volume_claim("data", of="local", storage="1Gi")
VOLUME = volume("v", "a", of="local")
STATIC = VolumePlan("a", (Use(CLAIM, VOLUME),))
NEW = VolumePlan("a", provisions=(CLAIM,))
POD = pod("p", gpus=1)
HERE = {"kubernetes.io/hostname": "a"}


class Stage:
    """A binder of the pod `p` with two devices of node a."""

    def __init__(self, plan: VolumePlan, **settings: Any) -> None:
        self.plan, self.server = plan, Server()
        self.stores = stores_of(POD, node("a", labels=HERE), CLAIM, VOLUME)
        client = Client(self.server)
        self.volumes = volume_binder(client, self.stores, **settings)
        known: Overlay[Lease] = Overlay(Shown(Store()))
        self.leads = True
        self.binder = Binder(
            client,
            PodStatusWriter(client, Store()),
            DeviceLeases(client, "system", known, metrics=Metrics(), now=lambda: "now"),
            ClaimWriter(client),
            mps_gate=MpsGate(Store(), lambda _: True),
            volume_binder=self.volumes,
            reserves_claims=False,
            may_write=lambda: self.leads,
            now=lambda: "t2",
        )

    def start(self) -> asyncio.Task[Outcome]:
        at = Placement("uid-p", "a", devices=(0, 1))
        job = BindJob(POD, at, (Device(0), Device(1)), volumes=self.plan)
        return asyncio.create_task(self.binder.perform(job))

    async def started(self) -> asyncio.Task[Outcome]:
        """Start the bind and let it come to its wait."""
        running = self.start()
        await asyncio.sleep(1)
        assert not running.done()
        return running

    def claim(self, **changed: Any) -> None:
        """Let the watch show the claim; without arguments, that it is gone."""
        put = self.stores.volume_claims.put(volume_claim("data", **changed)) if changed else None
        for change in put or self.stores.volume_claims.drop("default/data"):
            self.volumes.on_volume_claim(*change)

    def volume(self, **spec: Any) -> None:
        for change in self.stores.volumes.put(volume("v", "a", of="local", **spec)):
            self.volumes.on_volume(*change)

    def bound_by_controller(self) -> None:
        """Let the watches show that kube-controller-manager has bound the claim to the volume."""
        late = {"resourceVersion": "1000001"}
        self.volume(claimRef={"namespace": "default", "name": "data", "uid": "uid-data"}, meta=late)
        self.claim(volume="v", meta=late)


async def ended(running: asyncio.Task[Outcome]) -> Outcome:
    async with asyncio.timeout(5):
        return await running


async def failure(running: asyncio.Task[Outcome]) -> Failed:
    outcome = await ended(running)
    assert isinstance(outcome, Failed)
    return outcome


async def test_claim_is_written_into_the_volume_and_the_pod_bound_when_the_claim_is() -> None:
    stage = Stage(STATIC)
    running = await stage.started()
    ((kind, body),) = stage.server.writes
    assert kind == "persistentvolumes"
    assert body == {
        "metadata": {
            "resourceVersion": VOLUME.metadata.resource_version,
            "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"},
        },
        "spec": {
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": "default",
                "name": "data",
                "uid": "uid-data",
                "resourceVersion": CLAIM.metadata.resource_version,
            }
        },
    }
    assert set(stage.server.leases) == {"gpu-a-0", "gpu-a-1"}
    assert stage.server.binds == []
    stage.bound_by_controller()
    assert isinstance(await ended(running), Bound)
    (bind,) = stage.server.binds
    # The version of before the leases: a scheduler that takes one away must move it first.
    assert bind["metadata"]["resourceVersion"] == POD.metadata.resource_version


async def test_claim_is_annotated_with_the_node_for_which_its_volume_is_created() -> None:
    stage = Stage(NEW)
    running = await stage.started()
    version = CLAIM.metadata.resource_version
    asked = {"metadata": {"resourceVersion": version, "annotations": {SELECTED: "a"}}}
    assert stage.server.writes == [("persistentvolumeclaims", asked)]
    stage.bound_by_controller()
    assert isinstance(await ended(running), Bound)


def selected(claim: VolumeClaim) -> VolumeClaim:
    meta = msgspec.structs.replace(claim.metadata, annotations={SELECTED: "a"})
    return msgspec.structs.replace(claim, metadata=meta)


def given(seen: Volume, uid: str) -> Volume:
    named = {"namespace": "default", "name": "data", "uid": uid}
    spec = msgspec.to_builtins(seen.spec) | {"claimRef": named}
    return msgspec.structs.replace(seen, spec=msgspec.convert(spec, type(seen.spec)))


@pytest.mark.parametrize(
    ("plan", "writes"),
    [
        pytest.param(VolumePlan("a", provisions=(selected(CLAIM),)), 0, id="node selected"),
        pytest.param(VolumePlan("a", (Use(CLAIM, given(VOLUME, "uid-data")),)), 0, id="volume claimed"),
        pytest.param(VolumePlan("a", (Use(CLAIM, given(VOLUME, "")),)), 1, id="volume meant for the claim"),
    ],
)
async def test_what_an_earlier_try_or_the_owner_wrote_is_kept(plan: VolumePlan, writes: int) -> None:
    stage = Stage(plan)
    late = {"resourceVersion": "1000001"}
    stage.claim(of="local", meta={**late, "annotations": {SELECTED: "a"}})
    stage.volume(claimRef={"namespace": "default", "name": "data", "uid": "uid-data"}, meta=late)
    running = await stage.started()
    assert len(stage.server.writes) == writes
    assert all("annotations" not in body["metadata"] for _, body in stage.server.writes)
    stage.claim(volume="v", meta={"resourceVersion": "1000002"})
    assert isinstance(await ended(running), Bound)


async def test_provisioner_that_gives_up_frees_the_devices_and_is_named() -> None:
    stage = Stage(NEW)
    running = await stage.started()
    stage.claim(of="local", meta={"resourceVersion": "1000001"})  # without the annotation
    failed = await failure(running)
    assert "could not be created for node a; the events of the claim say why" in failed.why
    assert failed.is_permanent
    assert stage.server.leases == {}
    assert stage.server.binds == []


async def test_volumes_that_are_never_bound_are_given_up_in_time() -> None:
    stage = Stage(NEW, wait_s=30)
    running = await stage.started()
    await asyncio.sleep(28)
    assert not running.done()
    await asyncio.sleep(2)
    failed = await failure(running)
    assert "not all of default/data were bound to volumes within 30 s" in failed.why
    assert stage.server.leases == {}


async def test_stop_ends_the_wait_at_once_and_later_ones_too() -> None:
    stage = Stage(NEW)
    running = await stage.started()
    stage.binder.stop()
    assert (await failure(running)).why == "the scheduler stops"
    assert (await failure(stage.start())).why == "the scheduler stops"
    assert stage.server.leases == {}


async def test_deleted_claim_ends_the_wait() -> None:
    stage = Stage(NEW)
    running = await stage.started()
    stage.claim()
    assert "default/data was deleted" in (await failure(running)).why


async def test_deleted_pod_ends_the_wait() -> None:
    stage = Stage(NEW)
    running = await stage.started()
    for change in stage.stores.pods.drop("default/p"):
        stage.volumes.on_pod(*change)
    assert (await failure(running)).why == "the pod was deleted"
    assert stage.server.leases == {}


async def test_deleted_node_ends_the_wait() -> None:
    stage = Stage(NEW)
    running = await stage.started()
    for change in stage.stores.nodes.drop("a"):
        stage.volumes.on_node(*change)
    assert "node a is gone" in (await failure(running)).why


async def test_volume_that_is_taken_away_ends_the_wait() -> None:
    stage = Stage(STATIC)
    running = await stage.started()
    stage.volume(meta={"resourceVersion": "1000001"})
    assert "PersistentVolume v was taken away" in (await failure(running)).why


async def test_lost_leadership_ends_the_bind() -> None:
    stage = Stage(NEW)
    running = await stage.started()
    stage.leads = False
    stage.bound_by_controller()
    assert (await failure(running)).why == "another scheduler leads now"
    assert (stage.server.leases, stage.server.binds) == ({}, [])


@pytest.mark.parametrize(("code", "is_permanent"), [(409, False), (403, True)])
@pytest.mark.parametrize("plan", [STATIC, NEW], ids=["volume", "claim"])
async def test_refused_write_frees_the_devices(plan: VolumePlan, code: int, is_permanent: bool) -> None:
    stage = Stage(plan)
    stage.server.refused = {"persistentvolumes": code, "persistentvolumeclaims": code}
    failed = await failure(stage.start())
    assert failed.is_permanent is is_permanent
    assert f"({code})" in failed.why
    assert stage.server.leases == {}


async def test_nothing_is_remembered_of_ended_waits() -> None:
    stage = Stage(STATIC)
    running = await stage.started()
    stage.bound_by_controller()
    await ended(running)
    assert stage.volumes._waiting == {}

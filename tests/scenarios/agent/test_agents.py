"""Agents with simulated devices on a real control plane, and the gpu-scheduler that relies on them."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest

from controlplane.api import Api, ApiError
from controlplane.cluster import Cluster
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.agent.heartbeat import Displaced
from tests.support.agent_fleet import REPORTS, Fleet, token
from tests.support.scale import Scale
from tests.support.scheduler_stage import Stage, pod, until

Json = dict[str, Any]
XID = {"xid": 79, "problem": "the driver reported XID 79"}
MERGE = "application/merge-patch+json"


def health(fleet: Fleet, node: str, device: int) -> str:
    try:
        return str(fleet.device(node, device).get("health", ""))
    except ApiError:
        return ""


def wait_reported(fleet: Fleet, nodes: list[str]) -> None:
    until(lambda: all(health(fleet, node, 0) == "Healthy" for node in nodes), "every agent has reported")


def test_unhealthy_device_gets_nothing_new_until_it_recovers(
    fleet: Fleet, agent_stage: Stage, scale: Scale, figure: Callable[[str], None]
) -> None:
    nodes = agent_stage.gpu_nodes(scale(test=4, accept=50), gpus=2)
    pause_s = scale(test=1, accept=5)
    for node in nodes:
        fleet.start(node, scan_seconds=pause_s, recovery_seconds=pause_s)
    wait_reported(fleet, nodes)
    agent_stage.scheduler(releaseSeconds=1)
    ill = fleet.hardware[nodes[0]]
    started = time.monotonic()
    ill.harm(1, **XID)
    until(lambda: health(fleet, nodes[0], 1) == "Unhealthy", "the report says so", within_s=10)
    figure(f"XID → Unhealthy after {time.monotonic() - started:.1f} s, {len(nodes)} agents")
    assert fleet.device(nodes[0], 1)["unhealthyReason"] == XID["problem"]

    wanted = [f"p-{n}" for n in range(2 * len(nodes))]
    agent_stage.create(*(pod(name, gpus=1) for name in wanted))
    until(lambda: len(agent_stage.bound()) == len(wanted) - 1, "all other devices are given")
    (waits,) = set(wanted) - set(agent_stage.bound())
    agent_stage.wait_event(waits, "FailedScheduling")
    assert f"{nodes[0]}:1" not in agent_stage.bound().values()
    until(lambda: milligpu(fleet.cluster, nodes[0]) == "1k", "the node offers what is left")

    ill.mend(1)
    assert agent_stage.wait_bound(waits) == {waits: f"{nodes[0]}:1"}
    until(lambda: milligpu(fleet.cluster, nodes[0]) == "2k", "the node offers both")


def test_new_agent_and_new_leader_go_on_damping_a_device_that_flaps(fleet: Fleet, agent_stage: Stage) -> None:
    """Both are killed between two illnesses. The second pod keeps its device: the first was evicted from it
    a moment ago. And the second recovery takes twice as long."""
    (node,) = agent_stage.gpu_nodes(1, gpus=1)
    settings: Json = {"simulate": "1xH100:80GiB", "scan_seconds": 0.2, "recovery_seconds": 1.0}
    hardware = fleet.start(node, **settings)
    wait_reported(fleet, [node])
    leader = agent_stage.scheduler(leaderElect=False, sweepSeconds=1, releaseSeconds=1, onUnhealthy="Evict")
    agent_stage.create(pod("first", gpus=1))
    agent_stage.wait_bound("first")
    agent_stage.create(pod("second", gpus=1))
    hardware.harm(0, **XID)
    until(lambda: "first" not in agent_stage.pods(), "it is evicted")
    hardware.mend(0)
    agent_stage.wait_bound("second")
    recovered = fleet.device(node, 0)
    assert recovered["recoveredAt"]
    assert "relapses" not in recovered

    fleet.kill(node)
    leader.kill()
    fleet.start(node, **settings)
    leader.start()
    hardware.harm(0, **XID)
    agent_stage.wait_event("second", f"DeviceUnhealthy: on {node}: device 0")
    ill = fleet.device(node, 0)
    assert (ill["relapses"], ill["recoveredAt"]) == (1, recovered["recoveredAt"])
    assert ill["unhealthySince"] >= ill["recoveredAt"]
    time.sleep(2)
    assert "deletionTimestamp" not in agent_stage.pod("second")["metadata"]
    hardware.mend(0)
    mended = time.monotonic()
    until(lambda: health(fleet, node, 0) == "Healthy", "it recovers again")
    assert time.monotonic() - mended >= 2


def milligpu(cluster: Cluster, node: str) -> str:
    status = cluster.api.request("GET", f"/api/v1/nodes/{node}")["status"]
    assert status["capacity"].get(names.MILLIGPU) == status["allocatable"].get(names.MILLIGPU)
    return str(status["allocatable"].get(names.MILLIGPU, ""))


def test_flapping_device_causes_few_writes_and_one_eviction(
    fleet: Fleet, agent_stage: Stage, scale: Scale, figure: Callable[[str], None]
) -> None:
    (node,) = agent_stage.gpu_nodes(1, gpus=2)
    hardware = fleet.start(node, scan_seconds=0.2)
    wait_reported(fleet, [node])
    agent_stage.scheduler(leaderElect=False, releaseSeconds=1, onUnhealthy="Evict")
    agent_stage.create(*(pod(f"p-{n}", gpus=1) for n in range(2)))
    (evicted,) = (name for name, at in agent_stage.wait_bound().items() if at == f"{node}:0")
    agent_stage.create(*(pod(f"next-{n}", gpus=1) for n in range(2)))
    flaps = scale(test=5, accept=60)
    with counted(fleet.cluster, node) as writes:
        for _ in range(flaps):
            hardware.harm(0, **XID)
            time.sleep(0.5)
            hardware.mend(0)
            time.sleep(0.5)
    assert health(fleet, node, 0) == "Unhealthy"
    until(lambda: evicted not in agent_stage.pods(), "it is evicted")
    assert len(agent_stage.pods()) == 3, "and nobody else is"
    assert list(agent_stage.bound().values()) == [f"{node}:1"]
    figure(f"{flaps} flaps, one each second: {len(writes)} writes of the report, one eviction")
    assert len(writes) == 1


@contextmanager
def counted(cluster: Cluster, node: str) -> Iterator[list[str]]:
    """Collect the writes to a node's report while the block runs."""
    before, writes = sum(1 for _ in _writes(cluster, node)), list[str]()
    yield writes
    time.sleep(1)  # the audit log is written a moment later
    writes += list(_writes(cluster, node))[before:]


def _writes(cluster: Cluster, node: str) -> Iterator[str]:
    for entry in cluster.audit.entries():
        if entry.resource.startswith("gpunodestatuses") and entry.name == node and entry.verb == "patch":
            yield entry.verb


def test_agent_writes_to_its_own_node_alone(fleet: Fleet, agent_stage: Stage) -> None:
    here, there = agent_stage.gpu_nodes(2, gpus=2)
    for node in (here, there):
        fleet.start(node)
    wait_reported(fleet, [here, there])
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/gpu-agent-{there}"
    forged: dict[str, Json] = {
        f"{REPORTS}/{there}/status": {"status": {"devices": []}},
        f"/api/v1/nodes/{there}/status": {"status": {"capacity": {names.MILLIGPU: "0"}}},
        lease: {"spec": {"holderIdentity": "me"}},
    }
    before = fleet.report(there)["status"]["devices"]
    with closing(Api(fleet.cluster.url, fleet.cluster.authority, token=token(fleet.cluster, here))) as agent:
        for path, body in forged.items():
            with pytest.raises(ApiError, match=r"alone|only the process") as refused:
                agent.request("PATCH", path, body, content_type=MERGE)
            assert refused.value.status == 403
            agent.request("PATCH", path.replace(there, here), body, content_type=MERGE)
    assert fleet.report(there)["status"]["devices"] == before


def test_gpu_that_two_nodes_report_is_given_on_neither(fleet: Fleet, agent_stage: Stage) -> None:
    """What it costs a cluster if an agent lies is tested in tests/apps/scheduler/test_device_owners.py."""
    first, second = agent_stage.gpu_nodes(2, gpus=2)
    hardware = fleet.start(first)
    write(fleet, *hardware.uuids)
    fleet.start(second, devices_file=str(fleet.folder / "devices.json"))
    wait_reported(fleet, [first, second])
    agent_stage.scheduler(sweepSeconds=1)
    agent_stage.create(pod("p", gpus=1))
    agent_stage.wait_event("p", "UUIDs another node reports as well")
    assert agent_stage.bound() == {}
    events = "/apis/events.k8s.io/v1/namespaces/default/events?fieldSelector=regarding.name="
    for node in (first, second):
        until(partial(told, fleet.cluster, events + node), f"{node} is told")
    fleet.cluster.kubectl("cordon", second)
    assert agent_stage.wait_bound("p")["p"].startswith(f"{first}:"), "an administrator said which is wrong"


def told(cluster: Cluster, path: str) -> bool:
    items = cluster.api.request("GET", path)["items"]
    return "DuplicateDevice" in {each["reason"] for each in items}


def test_id_stays_with_its_uuid_over_a_restart_with_a_device_less(fleet: Fleet, agent_stage: Stage) -> None:
    (node,) = agent_stage.gpu_nodes(1, gpus=3)
    write(fleet, "GPU-a", "GPU-b", "GPU-c")
    fleet.start(node, devices_file=str(fleet.folder / "devices.json"))
    wait_reported(fleet, [node])
    fleet.kill(node)
    write(fleet, "GPU-b", "GPU-c")
    fleet.start(node, devices_file=str(fleet.folder / "devices.json"))
    until(lambda: health(fleet, node, 0) == "Unhealthy", "the lost device is told")
    devices = {each["id"]: each["uuid"] for each in fleet.report(node)["status"]["devices"]}
    assert devices == {0: "GPU-a", 1: "GPU-b", 2: "GPU-c"}
    assert health(fleet, node, 1) == health(fleet, node, 2) == "Healthy"
    assert healthy(fleet, node) == {"GPU-a": 0.0, "GPU-b": 1.0, "GPU-c": 1.0}


def healthy(fleet: Fleet, node: str) -> dict[str, float]:
    """Return what the metrics say of each device."""
    found = (family for family in fleet.metrics[node].collect() if family.name == "gpu_agent_healthy")
    return {each.labels["uuid"]: each.value for family in found for each in family.samples}


def write(fleet: Fleet, *uuids: str) -> None:
    """Describe these devices in a file."""
    described = {"devices": [{"uuid": uuid} for uuid in uuids]}
    (fleet.folder / "devices.json").write_text(json.dumps(described))


def test_second_agent_of_a_node_waits_for_the_first(fleet: Fleet, agent_stage: Stage) -> None:
    (node,) = agent_stage.gpu_nodes(1, gpus=2)
    fleet.start(node)
    wait_reported(fleet, [node])
    fleet.start(node, identity="second")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/gpu-agent-{node}"

    def holder() -> str:
        return str(fleet.cluster.api.request("GET", lease)["spec"].get("holderIdentity", ""))

    time.sleep(2)
    assert holder() == f"agent-{node}"
    fleet.stop(node)
    until(lambda: holder() == "second", "the second takes over")


def test_agent_that_was_displaced_ends(fleet: Fleet, agent_stage: Stage) -> None:
    (node,) = agent_stage.gpu_nodes(1, gpus=2)
    fleet.start(node, heartbeat_seconds=1.0)
    wait_reported(fleet, [node])
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/gpu-agent-{node}"
    fleet.cluster.api.request("PATCH", lease, {"spec": {"holderIdentity": "other"}}, content_type=MERGE)

    def ended() -> bool:
        error = fleet.has_ended(node)
        return error is not None and "Displaced" in repr(error)

    until(ended, "it ends, so that its pod starts again and waits")
    assert Displaced.__name__ in repr(fleet.has_ended(node))

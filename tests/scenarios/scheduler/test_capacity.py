"""Capacity that everybody can count: `gpu.scheduling/milligpu` on nodes and in pods; GPUs reported twice."""

import json
from functools import partial

import pytest

from controlplane.api import ApiError, Json
from gpu_orchestrator.api import names
from gpu_orchestrator.api.quantity import whole
from tests.support.scheduler_stage import SYSTEM, Stage, claim, devices, holders, pod, until

MERGE = "application/merge-patch+json"
USER = f"system:serviceaccount:{SYSTEM}:gpu-scheduler"


def counted(stage: Stage, node: str) -> tuple[int | None, int | None]:
    """Return what the node's status shows in `capacity` and in `allocatable`; None where it shows nothing."""
    status = stage.cluster.api.request("GET", f"/api/v1/nodes/{node}")["status"]
    shown = [status[field].get(names.MILLIGPU) for field in ("capacity", "allocatable")]
    capacity, allocatable = [None if text is None else whole(text) for text in shown]
    return capacity, allocatable


def wait_counted(stage: Stage, node: str, number: int | None) -> None:
    until(lambda: counted(stage, node) == (number, number), f"{node} counts {number}")


def patch_node(stage: Stage, node: str, body: Json, subresource: str = "") -> None:
    stage.cluster.api.request("PATCH", f"/api/v1/nodes/{node}{subresource}", body, content_type=MERGE)


def counting(milligpu: int, **more: object) -> Json:
    """Return the resources of a pod as the webhook fills them in."""
    return {"requests": {names.MILLIGPU: str(milligpu)}, "limits": {names.MILLIGPU: str(milligpu)}, **more}


def test_node_status_shows_the_healthy_devices(stage: Stage) -> None:
    """By the device plugin's count, by a report whose agent is silent, and not where an agent lives."""
    plain, reported, tended = stage.gpu_nodes(3, gpus=8)
    found = devices(4)
    stage.report(reported, found, live=False)
    stage.report(tended, devices(2))
    patch_node(stage, tended, {"status": {"capacity": {names.MILLIGPU: "77"}}}, "/status")
    stage.scheduler(leaderElect=False, sweepSeconds=1)
    wait_counted(stage, plain, 8000)
    wait_counted(stage, reported, 4000)
    assert counted(stage, tended)[0] == 77, "its agent writes it"
    found[1]["health"] = "Unhealthy"
    stage.report(reported, found, live=False)
    wait_counted(stage, reported, 3000)
    patch_node(stage, plain, {"metadata": {"labels": {names.NODE_MODE: names.PLUGIN_MODE}}})
    wait_counted(stage, plain, None)
    stage.cluster.api.request("DELETE", f"{stage.leases_path}/gpu-agent-{tended}")
    wait_counted(stage, tended, 2000)
    managed = stage.cluster.api.request("GET", f"/api/v1/nodes/{reported}")["metadata"]["managedFields"]
    assert ("gpu-scheduler-capacity", "status") in {
        (each["manager"], each.get("subresource")) for each in managed
    }


def test_restart_and_takeover_write_no_number_again(bare_stage: Stage) -> None:
    made = bare_stage.gpu_nodes(3, prefix="first", gpus=2)
    settings: Json = {
        "sweepSeconds": 1,
        "leaseSeconds": 4,
        "renewSeconds": 3,
        "retrySeconds": 1,
    }

    def written() -> list[str]:
        entries = [each for each in bare_stage.cluster.audit.entries(USER) if each.user == USER]
        return [each.name for each in entries if (each.verb, each.resource) == ("patch", "nodes/status")]

    def add_node(number: int) -> None:
        """The next leader counts a new node after it has compared all the others."""
        (name,) = bare_stage.gpu_nodes(1, prefix=f"later{number}", gpus=2)
        made.append(name)
        wait_counted(bare_stage, name, 2000)

    leader = bare_stage.scheduler(**settings)
    for name in list(made):
        wait_counted(bare_stage, name, 2000)
    leader.stop()
    leader.start()
    add_node(0)
    bare_stage.scheduler(**settings)
    leader.stop()
    add_node(1)
    until(lambda: len(written()) >= len(made), "the audit log shows the last write")
    assert sorted(written()) == sorted(made)


def test_quota_and_node_count_what_the_leases_hold(stage: Stage) -> None:
    (node,) = stage.gpu_nodes(1, gpus=4)
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {f"requests.{names.MILLIGPU}": "2000"}}}
    quotas = f"/api/v1/namespaces/{stage.namespace}/resourcequotas"
    stage.cluster.api.request("POST", quotas, quota)
    until(lambda: stage.cluster.api.request("GET", f"{quotas}/gpus").get("status", {}).get("used"), "a quota")
    stage.scheduler(leaderElect=False, requireCapacity="Refuse")
    half: Json = {"exclusivity": "Shared", "share": 500}
    stage.create(claim("own", **half), claim("template", **half))
    stage.create(
        pod("whole", gpus=1, resources=counting(1000)),
        pod("by-claim", claim="own", resources=counting(500)),
        pod("by-template", claim_template="template", resources=counting(500)),
    )
    with pytest.raises(ApiError, match="exceeded quota"):
        stage.create(pod("beyond", gpus=1, resources=counting(1000)))
    stage.wait_bound()
    wait_counted(stage, node, 4000)
    assert held(stage) == 2000
    described = stage.cluster.kubectl("describe", "node", node).partition("Allocated resources:")[2]
    line = next(line for line in described.splitlines() if names.MILLIGPU in line)
    assert [whole(amount) for amount in line.split()[1:3]] == [2000, 2000]


def held(stage: Stage) -> int:
    """Return what the leases of this stage hold, in thousandths of GPUs."""
    shares: list[int] = [
        each["share"]
        for lease in stage.leases().values()
        if (listed := lease["metadata"]["annotations"].get("gpu.scheduling/holders"))
        for each in json.loads(listed)
    ]
    exclusive = [
        lease
        for lease in stage.leases().values()
        if "gpu.scheduling/holders" not in lease["metadata"]["annotations"]
    ]
    return sum(shares) + 1000 * sum(len(holders(lease)) for lease in exclusive)


@pytest.mark.open  # the policies would refuse the bare pod
def test_pod_that_requests_too_little_waits_or_is_warned_of(stage: Stage) -> None:
    stage.gpu_nodes(1, gpus=4)
    short = "requests 1000 gpu.scheduling/milligpu, and GpuClaim two counts for 2000: create the pod again"
    stage.create(claim("two", count=2))
    refusing = stage.scheduler(leaderElect=False, requireCapacity="Refuse")
    stage.create(
        pod("bare", gpus=1),
        pod("right", gpus=1, resources=counting(1000)),
        pod("short", claim="two", resources=counting(1000)),
    )
    stage.wait_bound("right")
    stage.wait_event("short", f"FailedScheduling: the pod {short}")
    stage.wait_event(
        "bare", "FailedScheduling: the pod requests 0 gpu.scheduling/milligpu, and its annotation"
    )
    assert set(stage.bound()) == {"right"}
    refusing.stop()
    stage.scheduler(leaderElect=False, requireCapacity="Warn", requireDeviceEnv="Ignore")
    stage.wait_bound()
    assert stage.wait_event("short", "Scheduled: bound to").count(short) == 1


def test_gpu_that_two_nodes_report_is_given_on_neither_until_one_is_cordoned(stage: Stage) -> None:
    first, second = stage.gpu_nodes(2, gpus=2)
    found = devices(2)
    stage.report(first, found)
    stage.report(second, found)
    stage.scheduler(leaderElect=False, sweepSeconds=1)
    stage.create(pod("there", gpus=1))
    stage.wait_event("there", "2 have GPUs whose UUIDs another node reports as well")
    events = "/apis/events.k8s.io/v1/namespaces/default/events?fieldSelector=regarding.name={}"

    def is_told(node: str, other: str) -> bool:
        found = stage.cluster.api.request("GET", events.format(node))["items"]
        told = f"device 0 ({other} reports it as well)"
        return any(each["reason"] == "DuplicateDevice" and told in each["note"] for each in found)

    for node, other in ((first, second), (second, first)):
        until(
            partial(is_told, node, other),
            "an event of the node tells it",
        )
    assert not stage.bound()
    stage.cluster.kubectl("cordon", first)
    assert stage.wait_bound("there")["there"].startswith(f"{second}:")

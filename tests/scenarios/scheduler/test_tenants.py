"""Tenants who annotate their pods, swap their claims and write long numbers: what a pod holds is what its
leases say, and nobody's text stops the scheduler."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from controlplane.api import Json
from controlplane.process import Process
from gpu_orchestrator.apps.scheduler.accounting.agent_liveness import LIVE_S
from tests.faults.proxy import Answer, Proxy
from tests.support import invariants
from tests.support.object_history import History
from tests.support.scheduler_stage import CLAIMS, Stage, claim, devices, holders, pod, until

pytestmark = pytest.mark.open  # what the policies refuse must not harm the scheduler behind them either

ALONE: dict[str, Any] = {"leaderElect": False, "sweepSeconds": 1, "releaseSeconds": 1}
ALLOCATED = "gpu.scheduling/allocated"
LONG = "9" * 5000


def annotate(stage: Stage, name: str, **annotations: str | None) -> None:
    """Change annotations of a pod as its owner may; None removes one."""
    changed = {f"gpu.scheduling/{word}": value for word, value in annotations.items()}
    body = {"metadata": {"annotations": changed}}
    stage.cluster.api.request(
        "PATCH", f"{stage.pods_path}/{name}", body, content_type="application/merge-patch+json"
    )


def leases_of(stage: Stage, name: str) -> set[str]:
    uid = stage.pod(name)["metadata"]["uid"]
    return {lease for lease, found in stage.leases().items() if uid in holders(found)}


def restart(process: Process) -> None:
    process.kill()
    process.start()


def test_changed_annotation_frees_no_device_and_takes_none(stage: Stage) -> None:
    """A bound pod's annotation is removed, and then names every device of the node."""
    (small,) = stage.gpu_nodes(1, gpus=1, prefix=f"{stage.namespace}-small", labels={"size": "small"})
    (large,) = stage.gpu_nodes(1, gpus=8, prefix=f"{stage.namespace}-large", labels={"size": "large"})
    process = stage.scheduler(**ALONE)
    with History(stage.cluster, stage.namespace) as history:
        stage.create(*(pod(size, gpus=1, nodeSelector={"size": size}) for size in ("small", "large")))
        stage.wait_bound("small", "large")
        given = leases_of(stage, "large")
        annotate(stage, "small", allocated=None)
        annotate(stage, "large", allocated=f"{large}:{','.join(map(str, range(8)))}")
        stage.create(pod("next", gpus=1, nodeSelector={"size": "small"}))
        for name in ("small", "large"):  # the sweep has looked at them twice
            until(partial(swept_or_bound, stage, name), "swept, or given twice")
        assert "next" not in stage.bound()
        assert leases_of(stage, "small") == {f"gpu-{small}-0"}
        assert leases_of(stage, "large") == given
        restart(process)
        stage.create(pod("seven", gpus=7, nodeSelector={"size": "large"}))
        stage.wait_bound("seven")
        assert "next" not in stage.bound()
        assert leases_of(stage, "small") == {f"gpu-{small}-0"}
        stage.delete("small", force=True)
        stage.wait_bound("next")
    invariants.check(history)


def swept_or_bound(stage: Stage, name: str) -> bool:
    return bool(conflicts(stage, name)) or "next" in stage.bound()


def conflicts(stage: Stage, name: str) -> list[str]:
    return [note for note in stage.events(name) if note.startswith("DeviceConflict: its annotation")]


def test_pod_with_a_node_and_a_forged_annotation_holds_nothing(stage: Stage) -> None:
    (node,) = stage.gpu_nodes(1, gpus=2)
    stage.create(
        *(
            pod(f"forged-{name}", nodeName=node, schedulerName=name, annotations={ALLOCATED: f"{node}:0,1"})
            for name in ("default-scheduler", stage.scheduler_name)
        )
    )
    stage.scheduler(**ALONE)
    stage.create(pod("honest", gpus=2))
    stage.wait_bound("honest")
    assert leases_of(stage, "honest") == {f"gpu-{node}-0", f"gpu-{node}-1"}


def test_lease_deleted_by_hand_is_restored_after_a_restart(stage: Stage) -> None:
    """Once while the scheduler that bound the pod runs, once under the next one, which knows only leases."""
    (node,) = stage.gpu_nodes(1, gpus=2)
    process = stage.scheduler(**ALONE)
    stage.create(claim("half", exclusivity="Shared", share=500), pod("p", claim_template="half"))
    stage.create(pod("q", gpus=1))
    stage.wait_bound("p", "q")
    for _ in range(2):
        before = {name: lease["metadata"]["uid"] for name, lease in stage.leases().items()}
        held = {name: entries(lease) for name, lease in stage.leases().items()}
        annotate(stage, "q", allocated=f"{node}:7")
        for name in before:
            stage.cluster.api.request("DELETE", f"{stage.leases_path}/{name}")
        until(lambda: len(stage.leases()) == 2, "both are back")
        assert {name: entries(lease) for name, lease in stage.leases().items()} == held
        assert not before.items() & {name: x["metadata"]["uid"] for name, x in stage.leases().items()}.items()
        restart(process)


def entries(lease: Json) -> Any:
    """Return who holds the device and how, without the times."""
    listed = lease["metadata"]["annotations"].get("gpu.scheduling/holders")
    if not listed:
        return lease["spec"]["holderIdentity"]
    return [{key: value for key, value in each.items() if key != "since"} for each in json.loads(listed)]


def test_long_numbers_neither_stop_the_scheduler_nor_hide_the_pod(stage: Stage) -> None:
    (node,) = stage.gpu_nodes(1, gpus=4)
    process = stage.scheduler(**ALONE)
    stage.create(claim("c"), pod("bound", claim="c"), pod("asking", gpus=LONG), pod("digits", gpus="٣"))
    stage.wait_bound("bound")
    annotate(stage, "bound", allocated=f"{node}:{LONG}")
    for name in ("asking", "digits"):
        stage.wait_event(name, "write a number from 1 to 64")
    until(lambda: conflicts(stage, "bound") or not process.is_running, "swept twice")
    assert process.is_running
    restart(process)
    stage.create(pod("next", gpus=1))
    stage.wait_bound("next")
    stage.delete("bound", force=True)
    until(lambda: len(stage.leases()) == 1 or not process.is_running, "its lease is gone, after a sweep")
    assert process.is_running


def test_plugin_pod_with_a_forged_annotation_still_bars_the_node(stage: Stage) -> None:
    """It uses a device that nobody reports. Its annotation claims to know which."""
    (node,) = stage.gpu_nodes(1, gpus=2)
    ordinary = {"resources": {"limits": {"nvidia.com/gpu": "1"}}, "schedulerName": "default-scheduler"}
    stage.create(pod("plugin", **ordinary))
    stage.wait_bound("plugin")
    annotate(stage, "plugin", allocated=f"{node}:1")
    stage.scheduler(**ALONE)
    stage.create(pod("claimed", gpus=1))
    stage.wait_event(
        "claimed", "1 has pods of a device plugin and no agent that reports which devices they use"
    )
    assert "claimed" not in stage.bound()


def test_swapped_claim_does_not_change_what_a_bound_pod_holds(stage: Stage) -> None:
    """After a restart, the claim of an exclusive pod is another one, and the claim of a sharer is gone."""
    first, second = stage.gpu_nodes(2, gpus=1)
    process = stage.scheduler(**ALONE)
    stage.create(claim("whole"), claim("tenth", exclusivity="Shared", share=100))
    stage.create(pod("alone", claim="whole", nodeSelector={"kubernetes.io/hostname": first}))
    stage.create(pod("sharer", claim_template="tenth", nodeSelector={"kubernetes.io/hostname": second}))
    stage.wait_bound("alone", "sharer")
    child = next(name for name in until(lambda: children(stage), "the sharer has a claim"))
    annotate(stage, "alone", claim="tenth")
    annotate(stage, "sharer", **{"claim-template": "none"})
    path = f"{CLAIMS.format(stage.namespace)}/{child}"
    body = {"metadata": {"finalizers": None}}
    process.kill()
    stage.cluster.api.request("PATCH", path, body, content_type="application/merge-patch+json")
    stage.cluster.api.request("DELETE", path)
    process.start()
    stage.create(pod("joins", claim_template="tenth", strategy="binPack"))
    assert stage.wait_bound("joins") == {"joins": f"{second}:0"}


def children(stage: Stage) -> list[str]:
    return [name for name in stage.claims() if name.startswith("sharer-")]


@pytest.fixture
def proxy(stage: Stage) -> Iterator[Proxy]:
    with Proxy(stage.kubeconfig, remember=100) as made:
        yield made


def test_bind_that_is_refused_again_and_again_reaches_the_pod(stage: Stage, proxy: Proxy) -> None:
    stage.gpu_nodes(1, gpus=1)
    proxy.on("create", "pods/binding", do=Answer(403), times=None)
    stage.scheduler(kubeconfig=proxy.kubeconfig, **ALONE)
    stage.create(pod("p", gpus=1))
    stage.wait_event("p", "(403)")
    condition = until(lambda: unscheduled(stage.pod("p")), "the condition has the reason")
    assert "(403)" in condition["message"]
    assert condition["reason"] == "Unschedulable"
    proxy.heal()
    stage.wait_bound("p")


def unscheduled(found: Json) -> Json | None:
    conditions = found["status"].get("conditions", [])
    return next((each for each in conditions if each["type"] == "PodScheduled" and "403" in str(each)), None)


def test_reported_use_by_holders_blocks_nobody_and_a_dead_agents_report_ends(stage: Stage) -> None:
    (node,) = stage.gpu_nodes(1, gpus=1)
    found = devices(1)
    stage.report(node, found)
    process = stage.scheduler(**ALONE)
    stage.create(claim("tenth", exclusivity="Shared", share=100), pod("p", claim_template="tenth"))
    stage.wait_bound("p")
    found[0]["inUseBy"] = [stage.pod("p")["metadata"]["uid"]]
    stage.report(node, found)
    restart(process)
    stage.create(pod("q", claim_template="tenth"))
    stage.wait_bound("q", within_s=LIVE_S / 2)  # the report still counts
    stage.delete("q", force=True)
    process.kill()  # from here on the agent gives no sign of life
    stage.cluster.api.request("DELETE", f"{stage.leases_path}/gpu-agent-{node}")
    process.start()
    stage.delete("p", force=True)
    until(lambda: not stage.leases(), "the leases are gone")
    label = {"metadata": {"labels": {"touched": "now"}}}
    stage.cluster.api.request(
        "PATCH", f"/api/v1/nodes/{node}", label, content_type="application/merge-patch+json"
    )
    stage.create(pod("whole", gpus=1))
    assert stage.wait_bound("whole") == {"whole": f"{node}:0"}

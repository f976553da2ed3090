"""Preemption on a real control plane: the fewest pods go, their grace is waited out, budgets hold."""

from collections.abc import Iterator

import pytest

from controlplane.api import Json
from tests.support.scheduler_stage import Stage, pod, until

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
def urgent(stage: Stage) -> Iterator[str]:
    """A priority class above pods without one, and `…-meek`, which is as high and preempts nothing."""
    name = f"{stage.namespace}-urgent"
    for each, policy in ((name, "PreemptLowerPriority"), (f"{name}-meek", "Never")):
        made = {"metadata": {"name": each}, "value": 1000, "preemptionPolicy": policy}
        stage.cluster.api.request("POST", CLASSES, made)
    yield name
    for each in (name, f"{name}-meek"):
        stage.cluster.api.request("DELETE", f"{CLASSES}/{each}")


def uids(stage: Stage) -> dict[str, str]:
    return {name: each["metadata"]["uid"] for name, each in stage.pods().items()}


def test_fewest_pods_make_room_and_the_pod_starts_when_they_have_ended(stage: Stage, urgent: str) -> None:
    """One pod with eight GPUs is fewer than eight with one each. It takes its time to end, and small pods
    that come meanwhile get nothing of the room."""
    (node,) = stage.gpu_nodes(1, gpus=16)
    stage.scheduler(releaseSeconds=0)
    slow = {"finalizers": ["example.com/slow"]}
    stage.create(pod("large", gpus=8, meta=slow), *(pod(f"small-{at}", gpus=1) for at in range(8)))
    stage.wait_bound()
    stage.create(pod("high", gpus=8, priorityClassName=urgent))
    until(lambda: "deletionTimestamp" in stage.pod("large")["metadata"], "the victim is evicted")
    stage.create(pod("late", gpus=1))
    stage.wait_event("late", "FailedScheduling")
    assert stage.pod("high")["status"].get("nominatedNodeName") == node
    assert "high" not in stage.bound()
    stage.patch("large", {"metadata": {"finalizers": None}})
    bound = stage.wait_bound("high")
    assert bound["high"].startswith(f"{node}:")
    assert set(stage.bound()) == {"high", *(f"small-{at}" for at in range(8))}
    stage.wait_event(
        "large", f"Preempted: evicted to make room for {stage.namespace}/high, which has priority"
    )
    stage.wait_event("high", f"Preempting: evicts {stage.namespace}/large, of lower priority")
    assert stage.holds_exactly()


def test_gang_evicts_what_is_in_its_way_on_all_nodes_and_starts_whole(stage: Stage, urgent: str) -> None:
    """Two of three nodes have one pod each, which is fewer than the two of the third. The gang starts when
    both victims have ended."""
    nodes = stage.gpu_nodes(3, gpus=8)
    stage.scheduler(releaseSeconds=0)
    slow = {"finalizers": ["example.com/slow"]}
    stage.create(*(pod(f"old-{at}", gpus=8, meta=slow) for at in range(2)))
    stage.wait_bound()
    stage.create(*(pod(f"small-{at}", gpus=4) for at in range(2)))
    stage.wait_bound()
    kept = {at.partition(":")[0] for name, at in stage.bound().items() if name.startswith("small")}
    terms = {"gpu.scheduling/gang": "train", "gpu.scheduling/gang-size": "2"}
    stage.create(*(pod(f"m-{at}", gpus=8, annotations=terms, priorityClassName=urgent) for at in range(2)))
    until(lambda: "deletionTimestamp" in stage.pod("old-0")["metadata"], "one victim is evicted")
    until(lambda: "deletionTimestamp" in stage.pod("old-1")["metadata"], "so is the other one")
    assert len(kept) == 1
    rooms = {stage.pod(f"m-{at}")["status"].get("nominatedNodeName") for at in range(2)}
    assert rooms == set(nodes) - kept
    for at in range(2):
        assert not {"m-0", "m-1"} & set(stage.bound())
        stage.patch(f"old-{at}", {"metadata": {"finalizers": None}})
    bound = stage.wait_bound("m-0", "m-1")
    assert {bound[f"m-{at}"].partition(":")[0] for at in range(2)} == set(nodes) - kept
    assert {"small-0", "small-1"} <= set(stage.bound())
    gang = f"gang {stage.namespace}/train"
    stage.wait_event("old-0", f"Preempted: evicted to make room for {gang}, which has priority 1000")
    assert stage.holds_exactly()


def test_budget_stops_preemption_with_a_message(stage: Stage, urgent: str) -> None:
    stage.gpu_nodes(1, gpus=2)
    stage.scheduler(releaseSeconds=0)
    guarded = [pod(f"kept-{at}", gpus=1, meta={"labels": {"app": "kept"}}) for at in range(2)]
    stage.create(*guarded)
    stage.wait_bound()
    budgets = f"/apis/policy/v1/namespaces/{stage.namespace}/poddisruptionbudgets"
    spec: Json = {"minAvailable": 2, "selector": {"matchLabels": {"app": "kept"}}}
    stage.cluster.api.request("POST", budgets, {"metadata": {"name": "keep"}, "spec": spec})
    until(lambda: stage.cluster.api.request("GET", f"{budgets}/keep").get("status"), "the budget counts")
    before = uids(stage)
    stage.create(pod("high", gpus=1, priorityClassName=urgent))
    stage.wait_event("high", f"disruption budgets forbid it: {stage.namespace}/keep on 1")
    assert {name: uid for name, uid in uids(stage).items() if name != "high"} == before
    stage.cluster.api.request("DELETE", f"{budgets}/keep")
    stage.delete("kept-0")
    stage.wait_bound("high")


def test_pod_that_may_not_preempt_waits(stage: Stage, urgent: str) -> None:
    stage.gpu_nodes(1, gpus=1)
    stage.scheduler(releaseSeconds=0)
    stage.create(pod("first", gpus=1))
    stage.wait_bound()
    stage.create(pod("meek", gpus=1, priorityClassName=f"{urgent}-meek"))
    stage.wait_event("meek", "FailedScheduling")
    assert set(stage.bound()) == {"first"}
    stage.create(pod("high", gpus=1, priorityClassName=urgent))
    stage.wait_bound("high")
    assert set(stage.bound()) == {"high"}

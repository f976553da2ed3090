"""What a claim tells while its pod waits, is bound and has ended, on a real control plane."""

from collections import Counter

from controlplane.api import Json
from tests.faults.proxy import Delay, Proxy
from tests.support.object_history import History
from tests.support.scheduler_stage import Stage, claim, holders, pod, until


def shows(stage: Stage, name: str, phase: str, text: str = "") -> Json:
    """Wait until the claim has this phase and this text in its message; return its status."""

    def found() -> Json | None:
        status: Json = stage.claim(name).get("status", {})
        return status if status.get("phase") == phase and text in status.get("message", "") else None

    try:
        return until(found, f"{name} is {phase}: {text}")
    except AssertionError as error:
        raise AssertionError(f"{error}; {stage.claim(name).get('status')}\n{stage.last_words()}") from None


def allocated(status: Json) -> Json:
    (condition,) = status["conditions"]
    assert condition["type"] == "Allocated"
    assert condition["observedGeneration"] == status["observedGeneration"] == 1
    return dict(condition)


def test_claim_tells_how_its_pod_fares(stage: Stage) -> None:
    (node,) = stage.gpu_nodes(1, gpus=2)
    stage.create(claim("three", 3), claim("one"), pod("p", claim="three"))
    stage.scheduler(releaseSeconds=0, sweepSeconds=1)
    waits = shows(stage, "three", "Pending", "pod p waits: 0/")
    assert "1 has fewer than 3 free GPUs" in waits["message"]
    assert (allocated(waits)["status"], allocated(waits)["reason"]) == ("False", "Waiting")
    shown = stage.cluster.kubectl("get", "gclaim", "three", "-n", stage.namespace).split()
    assert shown[-1] == "Pending"

    stage.cluster.kubectl("cordon", node)
    again = shows(stage, "three", "Pending", "1 is cordoned")
    assert allocated(again)["lastTransitionTime"] == allocated(waits)["lastTransitionTime"]
    stage.cluster.kubectl("uncordon", node)
    stage.delete("p")
    shows(stage, "three", "Pending", "no pod uses it")
    assert "status" not in stage.claim("one"), "a claim that no pod names has no phase"

    stage.create(pod("q", claim="one"))
    serves = shows(stage, "one", "Bound")
    assert (allocated(serves)["status"], allocated(serves)["message"]) == ("True", "serves pod q")
    stage.delete("q")
    left = shows(stage, "one", "Released")
    assert (allocated(left)["status"], allocated(left)["reason"]) == ("False", "Released")
    assert not {"nodeName", "gpuIds", "allocated", "podUID"} & left.keys()


def test_leases_deleted_while_no_scheduler_runs_are_restored(stage: Stage) -> None:
    """As if the namespace of the scheduler had been deleted: by the claim's status, and for a pod without a
    claim by its annotation."""
    stage.gpu_nodes(1, gpus=4)
    process = stage.scheduler(leaderElect=False, sweepSeconds=1)
    stage.create(claim("one"), pod("claimed", claim="one"), pod("bare", gpus=2))
    stage.wait_bound("claimed", "bare")
    shows(stage, "one", "Bound")
    held = {name: holders(lease) for name, lease in stage.leases().items()}
    process.kill()
    for name in held:
        stage.cluster.api.request("DELETE", f"{stage.leases_path}/{name}")
    stage.create(pod("next", gpus=2))
    process.start()
    until(lambda: {name: holders(lease) for name, lease in stage.leases().items()} == held, "they are back")
    stage.wait_event("next", "1 has fewer than 2 free GPUs")
    assert set(stage.bound()) == {"claimed", "bare"}


def test_claim_that_can_never_be_served_has_failed(stage: Stage) -> None:
    stage.gpu_nodes(1, gpus=2)
    linked = claim("slices", count=2, exclusivity="MIG", migProfile="1g.10gb")
    linked["spec"]["topology"] = {"mode": "Required", "minBandwidthGBps": 600}
    stage.create(linked, pod("p", claim="slices"))
    stage.scheduler()
    status = shows(stage, "slices", "Failed", "between MIG slices, which have no links; create another")
    assert allocated(status)["reason"] == "Unsupported"


def test_claim_is_reserved_while_a_bind_takes_long(stage: Stage) -> None:
    stage.gpu_nodes(1, gpus=2)
    with Proxy(stage.kubeconfig) as proxy:
        proxy.on("create", "pods/binding", do=Delay(4))
        stage.create(claim("slow"), pod("p", claim="slow"))
        stage.scheduler(kubeconfig=proxy.kubeconfig)
        status = shows(stage, "slow", "Reserved", "pod p is being bound")
        assert allocated(status)["status"] == "False"
        shows(stage, "slow", "Bound")


def test_claims_of_pods_that_fit_at_once_cost_two_writes(stage: Stage) -> None:
    """The reservation and the status. What claims tell of a wait must cost nothing where no pod waits."""
    claims = [f"c-{number}" for number in range(12)]
    stage.gpu_nodes(2, gpus=8)
    stage.scheduler(sweepSeconds=1)
    with History(stage.cluster, stage.namespace) as history:
        stage.create(*map(claim, claims))
        stage.create(*(pod(f"p-{name}", claim=name) for name in claims))
        for name in claims:
            shows(stage, name, "Bound")
    changes = Counter(each.object["metadata"]["name"] for each in history.changes if each.kind == "claims")
    assert changes == dict.fromkeys(claims, 3), "created, reserved, Bound"


def test_claim_of_a_waiting_pod_is_bound_beside_other_schedulers(stage: Stage) -> None:
    """Without a leader, a claim is reserved before the bind, and telling of the wait moves its version."""
    stage.gpu_nodes(1, gpus=2)
    stage.scheduler(leaderElect=False, releaseSeconds=0, sweepSeconds=1)
    stage.create(claim("first", 2), claim("next", 2), pod("a", claim="first"))
    stage.wait_bound("a")
    stage.create(pod("b", claim="next"))
    shows(stage, "next", "Pending", "pod b waits: 0/")
    stage.delete("a")
    stage.wait_bound("b")
    shows(stage, "next", "Bound")

"""Real work under the policies, with the shipped ServiceAccounts."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from controlplane.api import Json
from gpu_orchestrator.api import names
from tests.forgery import kinds
from tests.forgery.calls import MERGE, PODS, SYSTEM, TEAM
from tests.forgery.play import Play
from tests.support.operator_process import Operator
from tests.support.paths import ROOT
from tests.support.scheduler_stage import REFUSE, Stage, until


@contextmanager
def shipped(play: Play, namespace: str, folder: Path) -> Iterator[Stage]:
    """Run scheduler and operator as they are shipped, each with its own ServiceAccount and as leader."""
    cluster = play.cluster
    clear(play)
    scheduler, operator = (
        cluster.service_account_kubeconfig(SYSTEM, name) for name in (names.SCHEDULER, names.OPERATOR)
    )
    flags = ("--leader-elect", f"--leader-election-namespace={SYSTEM}")
    with ExitStack() as stack:
        stage = Stage(cluster, namespace, folder)
        stack.callback(stage.close)
        stage.scheduler(kubeconfig=scheduler, releaseSeconds=0, **REFUSE)
        stack.enter_context(Operator(operator, *flags, log=folder / "operator.log"))
        yield stage


def clear(play: Play) -> None:
    """Remove what the tables needed and work does not, and say what the nodes have, as their agents would."""
    for name in ("gpu-scheduler.gpu.scheduling", "gpu-gpu-node-0-0"):
        play.admin("DELETE", f"{kinds.LEASES}/{name}")
    play.admin("DELETE", PODS, {"gracePeriodSeconds": 0})
    play.admin("DELETE", f"{kinds.REPORTS}/gpu-node-1")
    amount = {names.MILLIGPU: "8000"}
    body = {"status": {"capacity": amount, "allocatable": amount}}
    for node in play.cluster.ready_nodes():
        play.cluster.api.request("PATCH", f"/api/v1/nodes/{node}/status", body, content_type=MERGE)


def give(play: Play, namespace: str) -> int:
    """Apply the shipped examples, and a claimed workload; return how many pods these have: a Deployment of
    six, two pods and that of the workload."""
    for name in ("claimed-deployment.yaml", "claimed-pod.yaml", "bare-gpus.yaml"):
        play.cluster.kubectl("apply", "-n", namespace, "-f", str(ROOT / "examples" / name))
    submit(play, namespace, "claimed", claim={})
    return 6 + 2 + 1


def submit(play: Play, namespace: str, name: str, **spec: Any) -> None:
    made = kinds.workload(name)
    play.admin("POST", kinds.WORKLOADS.replace(TEAM, namespace), {**made, "spec": {**made["spec"], **spec}})


def await_success(play: Play, namespace: str, name: str) -> None:
    def status() -> Json:
        path = f"{kinds.WORKLOADS.replace(TEAM, namespace)}/{name}"
        return dict(play.admin("GET", path).get("status", {}))

    try:
        until(lambda: status().get("phase") == "Succeeded", f"workload {name} has ended", 60)
    except AssertionError as error:
        raise AssertionError(f"{error}: {status()}") from None


def refused(play: Play) -> list[str]:
    """Return the requests of our ServiceAccounts that the audit log shows as refused."""
    return [
        f"{each.user} {each.verb} {each.resource} {each.namespace}/{each.name}: {each.code}"
        for each in play.cluster.audit.entries("system:serviceaccount:")
        if each.user in (kinds.SCHEDULER, kinds.OPERATOR) and each.code in (401, 403, 422)
    ]


def await_gone(play: Play, namespace: str, stage: Stage) -> None:
    """Delete the namespace, and wait until its claims, its workloads and all leases of its pods are gone. The
    first two leave only when scheduler and operator have removed their finalizers."""
    uids = {each["metadata"]["uid"] for each in stage.pods().values()}
    play.admin("DELETE", f"/api/v1/namespaces/{namespace}")
    until(lambda: not uids & _holders(stage), "the devices are free", 120)
    for path in (kinds.CLAIMS, kinds.WORKLOADS):
        until(partial(_is_empty, play, path.replace(TEAM, namespace)), f"{path} is empty", 120)


def _is_empty(play: Play, path: str) -> bool:
    return not play.admin("GET", path)["items"]


def _holders(stage: Stage) -> set[str]:
    return {each["spec"]["holderIdentity"] for each in stage.leases().values()}

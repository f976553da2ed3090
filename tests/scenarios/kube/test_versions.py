"""The manifests, the operator and the gpu-scheduler on each Kubernetes that they support.

`make test` runs all else on the newest one. `make accept` builds the older ones on demand, in minutes each.
"""

from contextlib import closing
from pathlib import Path

import pytest

from controlplane import toolbox
from controlplane.cluster import OPTIONAL, Cluster
from controlplane.toolbox import Toolbox
from gpu_orchestrator.api import names
from tests.support import installation
from tests.support.operator_process import ACCOUNT, SYSTEM, Operator, Site
from tests.support.paths import ROOT
from tests.support.scale import Scale
from tests.support.scheduler_stage import REFUSE, Stage, claim, example, pod, until

pytestmark = pytest.mark.real

VERSIONS = tuple(toolbox.kubernetes_versions())


def test_the_supported_versions_are_pinned() -> None:
    assert VERSIONS == ("1.34", "1.35", "1.36")


@pytest.mark.parametrize("version", VERSIONS)
def test_operator_and_scheduler_work(version: str, scale: Scale, tmp_path: Path) -> None:
    if scale.tier == "test":
        pytest.skip("built and run by make accept")
    with Cluster.start(parts=OPTIONAL, toolbox=Toolbox.of(version)) as cluster:
        served = cluster.api.request("GET", "/version")["gitVersion"]
        assert served == toolbox.pinned(toolbox.kubernetes_versions()[version])
        cluster.kubectl("apply", "-k", str(ROOT / "config/default"))
        cluster.kubectl("delete", "deployment", "--all", "-n", SYSTEM, "--cascade=foreground")
        with installation.webhook(cluster, tmp_path), closing(Stage(cluster, "default", tmp_path)) as stage:
            account = cluster.service_account_kubeconfig(SYSTEM, names.SCHEDULER)
            stage.scheduler(kubeconfig=account, releaseSeconds=1, sweepSeconds=1, **REFUSE)
            work_of_the_scheduler(stage)
            operator = cluster.service_account_kubeconfig(SYSTEM, ACCOUNT)
            with Operator(operator, log=tmp_path / "operator.log"):
                work_of_the_operator(Site(cluster))
        assert installation.refused(cluster) == []


def work_of_the_scheduler(stage: Stage) -> None:
    """A claim, a template, bare GPUs; a pod that waits, and devices that are free again."""
    (node,) = stage.gpu_nodes(1, gpus=4)
    stage.create(*example("claimed-pod.yaml"), *example("bare-gpus.yaml"), threads=1)  # claims come first
    stage.create(
        claim("half", exclusivity="Shared", share=500), pod("half", claim_template="half"), threads=1
    )
    stage.wait_bound("test-pod", "two-gpus", "half")
    until(lambda: stage.claim("test-claim").get("status", {}).get("phase") == "Bound", "the claim is Bound")
    until(lambda: stage.holds_exactly(), "every device has its lease")
    stage.create(claim("three", 3), pod("waits", claim="three"), threads=1)
    until(lambda: stage.claim("three").get("status", {}).get("phase") == "Pending", "the claim is Pending")
    stage.delete("test-pod", "two-gpus")
    assert stage.wait_bound("waits")["waits"].startswith(f"{node}:")
    until(lambda: stage.claim("test-claim")["status"]["phase"] == "Released", "the claim is Released")
    stage.delete("waits", "half")
    until(lambda: not stage.leases(), "every device is free")


def work_of_the_operator(site: Site) -> None:
    """A plain workload, one with a claim, one that waits and is deleted."""
    with closing(site):
        site.nodes(1, gpus=4)
        site.create("plain", gpus=2, run_for="100ms")
        site.until("plain", "Succeeded")
        site.create("claimed", gpus=2, run_for="100ms", claim={"devices": {"policy": "packed"}})
        site.until("claimed", "Succeeded")
        site.create("waits", gpus=8, retryPolicy={"maxRetries": 10, "backoffSeconds": 1})
        site.until("waits", "Pending")
        for name in ("plain", "claimed", "waits"):
            site.delete(name)
            site.gone(name)

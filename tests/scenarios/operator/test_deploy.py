"""The scripts that install and remove operator and gpu-scheduler, with and without a real cluster."""

import os
import subprocess
from pathlib import Path

import pytest

from controlplane.cluster import OPTIONAL, Cluster
from tests.conftest import NewCluster
from tests.support.operator_process import SYSTEM, eventually
from tests.support.paths import ROOT

Done = subprocess.CompletedProcess[str]
CLAIM = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim"}
RUNNING = "--field-selector=status.phase=Running"


def script(name: str, *words: str, cluster: Cluster | None = None, path: str = "") -> Done:
    tools = str(Path(cluster.tools["kubectl"]).parent) if cluster else ""
    environment = {
        "PATH": path or f"{tools}:/usr/bin:/bin",
        "HOME": str(cluster.folder if cluster else "/nowhere"),
    }
    if cluster:
        environment["KUBECONFIG"] = str(cluster.kubeconfig)
    command = ["bash", str(ROOT / "scripts" / name), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)


def count(cluster: Cluster, *what: str) -> int:
    return len(cluster.kubectl("get", *what, "--no-headers", "--ignore-not-found").splitlines())


def claim_a_device(cluster: Cluster) -> None:
    """Leave what the scheduler writes for a pod: the pod's claim, reserved, and the lease of its device."""
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    pods = "/api/v1/namespaces/default/pods"
    uid = cluster.api.request("POST", pods, {"metadata": {"name": "user"}, "spec": spec})["metadata"]["uid"]
    meta = {
        "name": "held",
        "finalizers": ["gpu.scheduling/in-use"],
        "labels": {"gpu.scheduling/pod-uid": uid},
        "annotations": {"gpu.scheduling/pod": "user"},
    }
    claims = "/apis/gpu.scheduling/v1/namespaces/default/gpuclaims"
    cluster.api.request("POST", claims, {**CLAIM, "metadata": meta, "spec": {"devices": {"count": 1}}})
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
    lease = {"name": "gpu-gpu-node-0-0", "labels": {"gpu.scheduling/managed": "true"}}
    cluster.api.request("POST", leases, {"metadata": lease, "spec": {"holderIdentity": uid}})


def test_install_update_and_remove(new_cluster: NewCluster) -> None:
    cluster = new_cluster(OPTIONAL)
    cluster.gpu_nodes(1)

    tried = script("deploy.sh", "--dry-run", cluster=cluster)
    assert tried.returncode == 0, tried.stderr
    assert count(cluster, "crd") == 0

    for _ in range(2):
        done = script("deploy.sh", "--image", "registry.example.com/gpu:1", cluster=cluster)
        assert done.returncode == 0, done.stderr
    assert "the nodes of this cluster are simulated (kwok)" in done.stdout
    assert "Run them yourself: gpu-orchestrator operator" in done.stdout
    assert "are installed" not in done.stdout
    eventually(lambda: count(cluster, "pods", "-n", SYSTEM, RUNNING) == 4, "all pods seem to run")
    pods = cluster.kubectl(
        "get",
        "pods",
        "-n",
        SYSTEM,
        "-o",
        "jsonpath={.items[*].spec.containers[*].image} {.items[*].status.phase}",
    )
    # Admitted under the restricted policy, and started (by the simulated kubelet).
    assert pods.split() == ["registry.example.com/gpu:1"] * 4 + ["Running"] * 4
    assert count(cluster, "priorityclass", "gpu-low", "gpu-normal", "gpu-high") == 3

    claim_a_device(cluster)
    kept = script("uninstall.sh", cluster=cluster)
    assert kept.returncode == 0, kept.stderr
    assert "stay" in kept.stdout
    assert count(cluster, "crd") == 3
    assert cluster.kubectl("get", "deployments", "-n", SYSTEM, "-o", "name").split() == [
        "deployment.apps/gpu-scheduler"
    ]
    assert count(cluster, "lease", "gpu-gpu-node-0-0", "-n", SYSTEM) == 1

    refused = script("uninstall.sh", "--all", cluster=cluster)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-2:] == [
        "uninstall: these GpuClaims are in use, so nothing more was removed; delete their pods first:",
        "default/held (pod user)",
    ]
    assert count(cluster, "deployment", "gpu-scheduler", "-n", SYSTEM) == 1

    cluster.kubectl("delete", "pod", "user", "--now")
    for _ in range(2):  # the pretended scheduler releases nothing, so the script does
        gone = script("uninstall.sh", "--all", "--patience", "1", cluster=cluster)
        assert gone.returncode == 0, gone.stderr
    assert count(cluster, "crd") == 0
    assert count(cluster, "ns", SYSTEM) == 0
    ours = cluster.kubectl(
        "get", "clusterroles,clusterrolebindings,priorityclasses,flowschemas", "-o", "name"
    )
    assert "gpu-" not in ours


def test_update_of_an_older_installation_and_removal_of_the_scheduler(new_cluster: NewCluster) -> None:
    """No priority class can change whether it preempts, so `kubectl apply` alone would fail. No node
    is simulated here, so the script would wait for the controllers; `--no-wait` leaves that out."""
    cluster = new_cluster()
    cluster.kubectl("create", "priorityclass", "gpu-high", "--value=100000")
    done = script("deploy.sh", "--no-wait", cluster=cluster)
    assert done.returncode == 0, done.stderr
    assert f"operator and gpu-scheduler are installed in namespace {SYSTEM}" in done.stdout
    policy = cluster.kubectl("get", "priorityclass", "gpu-high", "-o", "jsonpath={.preemptionPolicy}")
    assert policy == "Never"

    claim_a_device(cluster)
    gone = script("uninstall.sh", "--scheduler", cluster=cluster)
    assert gone.returncode == 0, gone.stderr
    assert count(cluster, "deployments", "-n", SYSTEM) == 0
    assert count(cluster, "lease", "gpu-gpu-node-0-0", "-n", SYSTEM) == 1
    assert count(cluster, "gpuclaim", "held") == 1


@pytest.mark.parametrize("name", ["deploy.sh", "uninstall.sh"])
def test_missing_kubectl_is_reported(name: str, tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "sed"):
        os.symlink(f"/usr/bin/{tool}", tmp_path / tool)
    done = script(name, path=str(tmp_path))
    assert done.returncode == 1
    assert "kubectl was not found; install it" in done.stderr


@pytest.mark.parametrize("name", ["deploy.sh", "uninstall.sh"])
def test_missing_cluster_is_reported(name: str, toolbox: object, operator_cluster: Cluster) -> None:
    tools = Path(operator_cluster.tools["kubectl"]).parent
    done = script(name, path=f"{tools}:/usr/bin:/bin")
    assert done.returncode == 1
    assert "no cluster answers" in done.stderr
    assert "kubectl config current-context" in done.stderr


@pytest.mark.parametrize("name", ["deploy.sh", "uninstall.sh"])
def test_unknown_option_is_refused(name: str) -> None:
    done = script(name, "--force")
    assert done.returncode == 1
    assert "unknown option --force" in done.stderr

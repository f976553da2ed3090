"""The scripts that install and remove the operator, with and without a real cluster."""

import os
import subprocess
from pathlib import Path

import pytest

from controlplane.cluster import OPTIONAL, Cluster
from tests.conftest import NewCluster
from tests.support.operator_process import SYSTEM, eventually
from tests.support.paths import ROOT

Done = subprocess.CompletedProcess[str]
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
    assert "Run it yourself: gpu-orchestrator operator" in done.stdout
    assert "is installed" not in done.stdout
    eventually(lambda: count(cluster, "pods", "-n", SYSTEM, RUNNING) == 2, "both pods seem to run")
    pods = cluster.kubectl(
        "get",
        "pods",
        "-n",
        SYSTEM,
        "-o",
        "jsonpath={.items[*].spec.containers[*].image} {.items[*].status.phase}",
    )
    # Admitted under the restricted policy, and started (by the simulated kubelet).
    assert pods.split() == ["registry.example.com/gpu:1"] * 2 + ["Running"] * 2
    assert count(cluster, "priorityclass", "gpu-low", "gpu-normal", "gpu-high") == 3

    kept = script("uninstall.sh", cluster=cluster)
    assert kept.returncode == 0, kept.stderr
    assert "stay" in kept.stdout
    assert count(cluster, "crd") == 3
    for _ in range(2):
        gone = script("uninstall.sh", "--all", cluster=cluster)
        assert gone.returncode == 0, gone.stderr
    assert count(cluster, "crd") == 0
    assert count(cluster, "ns", SYSTEM) == 0
    assert "gpu-orchestrator" not in cluster.kubectl("get", "clusterroles,clusterrolebindings")


def test_deploy_waits_for_the_operator_on_nodes_that_run_containers(new_cluster: NewCluster) -> None:
    """No node is simulated here, so the script waits for the operator; `--no-wait` leaves that out."""
    done = script("deploy.sh", "--no-wait", cluster=new_cluster())
    assert done.returncode == 0, done.stderr
    assert f"the operator is installed in namespace {SYSTEM}" in done.stdout


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

"""The scripts that install and remove operator, gpu-scheduler and agent, with and without a real cluster."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml

from controlplane.api import ApiError
from controlplane.cluster import OPTIONAL, Cluster
from controlplane.nodes import PRETENDS
from controlplane.toolbox import Toolbox
from gpu_orchestrator.api import deviceleases
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from tests.conftest import NewCluster
from tests.support.operator_process import SYSTEM, WORKLOADS, eventually
from tests.support.paths import ROOT

Done = subprocess.CompletedProcess[str]
CLAIM = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim"}
WORKLOAD = {"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload"}
NOW = "2026-01-01T00:00:00.000000Z"
KEPT_SETTINGS = "the settings of the gpu-scheduler (ConfigMap gpu-scheduler) stay as they are"
POLICIES = "validatingadmissionpolicies"
EVERYWHERE = (
    "clusterroles,clusterrolebindings,flowschemas,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "mutatingwebhookconfigurations,validatingwebhookconfigurations"
)
MILLIGPU = "gpu.scheduling/milligpu"
ALLOWED = "gpu.scheduling/allow-high-priority=true"
PODS = 7  # two of each Deployment, and the agent on the node


def script(
    name: str,
    *words: str,
    cluster: Cluster | None = None,
    path: str = "",
    root: Path = ROOT,
    kubeconfig: Path | None = None,
) -> Done:
    tools = str(Path(cluster.tools["kubectl"]).parent) if cluster else ""
    environment = {
        "PATH": path or f"{tools}:/usr/bin:/bin",
        "HOME": str(cluster.folder if cluster else "/nowhere"),
        "GOGC": os.environ["GOGC"],
    }
    if cluster:
        environment["KUBECONFIG"] = str(kubeconfig or cluster.kubeconfig)
    command = ["bash", str(root / "scripts" / name), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)


def count(cluster: Cluster, *what: str) -> int:
    return len(cluster.kubectl("get", *what, "--no-headers", "--ignore-not-found").splitlines())


def running(cluster: Cluster) -> int:
    """Return how many pods of ours run. Not by kubectl, which takes more CPU than they."""
    pods = cluster.api.request("GET", f"/api/v1/namespaces/{SYSTEM}/pods")["items"]
    return sum(each["status"]["phase"] == "Running" for each in pods)


def class_of(cluster: Cluster, fields: str) -> str:
    return cluster.kubectl("get", "priorityclass", "gpu-high", "-o", f"jsonpath={fields}")


def start_pod(cluster: Cluster, name: str) -> str:
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    pods = "/api/v1/namespaces/default/pods"
    made = cluster.api.request("POST", pods, {"metadata": {"name": name}, "spec": spec})
    return str(made["metadata"]["uid"])


def hold_devices(cluster: Cluster) -> None:
    """Leave what the scheduler writes for pods: a reserved claim of `user`, the lease of a device that
    `asker` has without a claim, and the lease of one that `sharer` has a share of."""
    meta = {
        "name": "held",
        "finalizers": ["gpu.scheduling/in-use"],
        "labels": {"gpu.scheduling/pod-uid": start_pod(cluster, "user")},
        "annotations": {"gpu.scheduling/pod": "--all"},  # a user of the namespace can write anything here
    }
    claims = "/apis/gpu.scheduling/v1/namespaces/default/gpuclaims"
    cluster.api.request("POST", claims, {**CLAIM, "metadata": meta, "spec": {"devices": {"count": 1}}})
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
    whole = Holder(start_pod(cluster, "asker"), "asker", "default", since=NOW)
    part = Holder(start_pod(cluster, "sharer"), "sharer", "default", 500, since=NOW)
    for lease in (
        deviceleases.exclusive(DeviceRef("gpu-node-0", 0), whole, SYSTEM),
        deviceleases.shared(DeviceRef("gpu-node-0", 1), [part], SYSTEM, NOW),
    ):
        cluster.api.request("POST", leases, msgspec.to_builtins(lease))


def leave_a_workload(cluster: Cluster) -> None:
    """Leave a workload that the operator, which is gone, did not finish with."""
    meta = {"name": "left", "finalizers": ["gpu.warp.dev/finalizer"]}
    body = {**WORKLOAD, "metadata": meta, "spec": {"modelName": "left", "gpuCount": 1}}
    cluster.api.request("POST", WORKLOADS.format("default"), body)


def forget_discovery(cluster: Cluster) -> None:
    """Make kubectl ask again which resources there are."""
    shutil.rmtree(cluster.folder / ".kube" / "cache")


def user_who_may_list(cluster: Cluster, folder: Path, resources: str) -> Path:
    """Return the kubeconfig of a user who may see these resources and no others."""
    cluster.kubectl("create", "clusterrole", "looker", "--verb=get,list", f"--resource={resources}")
    cluster.kubectl("create", "clusterrolebinding", "looker", "--clusterrole=looker", "--user=looker")
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    for each in config["users"]:
        each["user"]["as"] = "looker"
    written = folder / "looker.json"
    written.write_text(json.dumps(config))
    return written


def edited_copy(folder: Path) -> Path:
    """Return a copy of scripts and manifests in which an admin lets gpu-high preempt, and has agents that
    keep MPS daemons."""
    for each in ("scripts", "config"):
        shutil.copytree(ROOT / each, folder / each)
    classes = folder / "config" / "priority" / "priority_classes.yaml"
    name, never = "name: gpu-high\nvalue: 100000\npreemptionPolicy: ", "Never"
    text = classes.read_text()
    assert name + never in text
    classes.write_text(text.replace(name + never, name + "PreemptLowerPriority"))
    everything = folder / "config" / "default" / "kustomization.yaml"
    text = everything.read_text()
    assert "- ../agent\n" in text
    everything.write_text(text.replace("- ../agent\n", "- ../agent-mps\n"))
    return folder


def shipped_policies() -> list[str]:
    """Return the names of the ValidatingAdmissionPolicies; one of them limits the webhook's Secrets."""
    files = [file for folder in ("policy", "webhook") for file in (ROOT / "config" / folder).glob("*.yaml")]
    found = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    return [each["metadata"]["name"] for each in found if each["kind"] == "ValidatingAdmissionPolicy"]


def test_install_update_and_remove(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster(OPTIONAL)
    cluster.gpu_nodes(1, labels={"type": "metal"})

    tried = script("deploy.sh", "--dry-run", cluster=cluster)
    assert tried.returncode == 0, tried.stderr
    assert count(cluster, "crd") == 0

    first = script("deploy.sh", "--image", "registry.example.com/gpu:1", cluster=cluster)
    assert first.returncode == 0, first.stderr
    administrator_is_careless(cluster)
    edited = {"data": {"settings.yaml": "lock: binding\n"}}
    cluster.kubectl("create", "namespace", SYSTEM)
    mine = {"metadata": {"name": "gpu-scheduler"}, **edited}
    cluster.api.request("POST", f"/api/v1/namespaces/{SYSTEM}/configmaps", mine)
    done = script("deploy.sh", "--image", "registry.example.com/gpu:1", cluster=cluster)
    assert done.returncode == 0, done.stderr
    assert KEPT_SETTINGS not in first.stdout
    assert KEPT_SETTINGS in done.stdout
    assert "they do not say 'requireCapacity: Refuse'" in done.stdout
    assert "deployment.apps/gpu-scheduler serverside-applied" in done.stdout
    settings = cluster.kubectl("get", "configmap", "gpu-scheduler", "-n", SYSTEM, "-o", "jsonpath={.data}")
    assert json.loads(settings) == edited["data"]
    assert "the nodes of this cluster are simulated (kwok)" in done.stdout
    assert "run gpu-orchestrator operator and gpu-orchestrator scheduler yourself" in done.stdout
    assert "are installed" not in done.stdout
    eventually(lambda: running(cluster) == PODS, "all pods seem to run")
    pods = cluster.kubectl(
        "get",
        "pods",
        "-n",
        SYSTEM,
        "-o",
        "jsonpath={.items[*].spec.containers[*].image} {.items[*].status.phase}",
    )
    # Admitted, and started (by the simulated kubelet).
    assert pods.split() == ["registry.example.com/gpu:1"] * PODS + ["Running"] * PODS
    assert count(cluster, "priorityclass", "gpu-low", "gpu-normal", "gpu-high") == 3

    hold_devices(cluster)
    leave_a_workload(cluster)
    write_on_the_node(cluster)
    kept = script("uninstall.sh", cluster=cluster)
    assert kept.returncode == 0, kept.stderr
    assert "1 GPUWorkload(s) and 1 GpuClaim(s) stay" in kept.stdout
    assert f"uninstall.sh {SYSTEM} --all" in kept.stdout
    assert count(cluster, "crd") == 4
    assert cluster.kubectl("get", "deployments", "-n", SYSTEM, "-o", "name").split() == [
        "deployment.apps/gpu-scheduler",
        "deployment.apps/gpu-scheduler-webhook",
    ]
    assert count(cluster, POLICIES) == len(shipped_policies())
    assert count(cluster, "lease", "gpu-gpu-node-0-0", "-n", SYSTEM) == 1

    refused = script("uninstall.sh", "--all", "--patience", "1", cluster=cluster)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-4:] == [
        "uninstall: these pods have devices, so nothing more was removed; delete them first:",
        "default/asker",
        "default/sharer",
        "default/user",
    ]
    assert count(cluster, "gpuworkloads", "-A") == 0  # without the operator nobody else lets go of it
    seen = (
        "customresourcedefinitions,clusterrolebindings,gpuworkloads.gpu.warp.dev,deployments.apps,pods,leases"
    )
    looker = user_who_may_list(cluster, tmp_path, seen)
    blind = script("uninstall.sh", "--all", cluster=cluster, kubeconfig=looker)
    assert blind.returncode == 1
    assert blind.stderr.endswith("uninstall: could not list gpuclaims.gpu.scheduling; see above\n")
    assert count(cluster, "deployment", "gpu-scheduler", "-n", SYSTEM) == 1

    cluster.kubectl("delete", "pod", "user", "asker", "sharer", "--now")
    for _ in range(2):  # the pretended scheduler releases nothing, so the script does
        forget_discovery(cluster)
        gone = script("uninstall.sh", "--all", "--patience", "1", cluster=cluster)
        assert gone.returncode == 0, gone.stderr
    assert count(cluster, "crd") == 0
    assert count(cluster, "ns", SYSTEM) == 0
    assert marks(cluster) == []
    ours = cluster.kubectl("get", f"{EVERYWHERE},priorityclasses", "-o", "name")
    assert "gpu-" not in ours


def write_on_the_node(cluster: Cluster) -> None:
    """Leave what agent, scheduler and administrators write on a node and about it."""
    node = "/api/v1/nodes/gpu-node-0"
    counted = {"status": {each: {MILLIGPU: "8k"} for each in ("capacity", "allocatable")}}
    cluster.api.request("PATCH", f"{node}/status", counted, content_type="application/merge-patch+json")
    cluster.kubectl("label", "node", "gpu-node-0", "gpu.scheduling/agent=true", "gpu.scheduling/mode=claims")
    cluster.kubectl("taint", "node", "gpu-node-0", "gpu.scheduling/mismatch=:NoSchedule")
    report = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuNodeStatus", "metadata": {"name": "gpu-node-0"}}
    reports = "/apis/gpu.scheduling/v1/gpunodestatuses"
    cluster.api.request("POST", reports, {**report, "spec": {"nodeName": "gpu-node-0"}})
    lease = {"metadata": {"name": "gpu-agent-gpu-node-0"}}
    cluster.api.request("POST", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases", lease)


def marks(cluster: Cluster) -> list[str]:
    """Return which of that is left."""
    node = cluster.api.request("GET", "/api/v1/nodes/gpu-node-0")
    status = node["status"]
    found = [*node["metadata"]["labels"], *status.get("capacity", ()), *status.get("allocatable", ())]
    found += [each["key"] for each in node["spec"].get("taints", ())]
    return sorted(each for each in found if each.startswith("gpu.scheduling/"))


def administrator_is_careless(cluster: Cluster) -> None:
    """Apply it again, never start the webhook, and delete the namespace first: of all pods only those notice
    that ask for GPUs, and they are told why."""
    cluster.kubectl("apply", "-k", str(ROOT / "config" / "default"))
    eventually(lambda: running(cluster) == PODS, "pods of ours are let in")
    for space in (SYSTEM, "nowhere"):
        eventually(lambda: "is it down?" in refusal(cluster), "a claimed pod is refused with the reason")
        start_pod(cluster, f"bystander-of-{space}")
        lease = {"metadata": {"name": "gpu-n-0", "labels": {"gpu.scheduling/managed": "true"}}}
        if space == SYSTEM:
            cluster.api.request("POST", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases", lease)
            cluster.kubectl("delete", "namespace", SYSTEM, "--timeout=60s")
    cluster.kubectl("delete", "pods", "--all", "--now")


def refusal(cluster: Cluster) -> str:
    """Return why a pod that asks for a GPU is refused."""
    meta = {"name": "asks", "annotations": {"gpu.scheduling/gpus": "1"}}
    body = {"metadata": meta, "spec": {"containers": [{"name": "main", "image": "train"}]}}
    try:
        cluster.api.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", body)
    except ApiError as error:
        return str(error)
    return ""


def test_update_of_an_older_installation_and_removal_of_the_scheduler(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    """No priority class can change whether it preempts, so `kubectl apply` alone would fail. No node
    is simulated here, so the script would wait for the controllers; `--no-wait` leaves that out."""
    cluster = new_cluster()
    cluster.kubectl("create", "priorityclass", "gpu-high", "--value=100000")
    made = class_of(cluster, "{.metadata.uid}")
    wanted = script("deploy.sh", "--no-wait", cluster=cluster, root=edited_copy(tmp_path))
    assert wanted.returncode == 0, wanted.stderr
    assert class_of(cluster, "{.metadata.uid} {.preemptionPolicy}") == f"{made} PreemptLowerPriority"

    leave_a_workload_of_high_priority(cluster)
    done = script("deploy.sh", "--no-wait", cluster=cluster)
    assert done.returncode == 0, done.stderr
    assert f"policies and agent are installed in namespace {SYSTEM}" in done.stdout
    assert f"to allow them: kubectl label namespace default {ALLOWED}" in done.stdout
    assert class_of(cluster, "{.preemptionPolicy}") == "Never"
    assert "the agent keeps MPS daemons" in done.stdout
    assert '"--mps"' in agent_arguments(cluster)

    pretends = {"name": "gpu-node-0", "labels": PRETENDS}
    cluster.api.request("POST", "/api/v1/nodes", {"metadata": pretends})
    write_on_the_node(cluster)
    hold_devices(cluster)
    check_other_namespaces_are_refused(cluster)
    gone = script("uninstall.sh", "--scheduler", cluster=cluster)
    assert gone.returncode == 0, gone.stderr
    assert count(cluster, "deployments,daemonsets,configmaps,services,secrets", "-n", SYSTEM) == 0
    assert marks(cluster) == ["gpu.scheduling/agent", "gpu.scheduling/mode"], "an administrator wrote these"
    assert count(cluster, "gpunodestatuses") == 0
    assert count(cluster, "lease", "gpu-agent-gpu-node-0", "-n", SYSTEM) == 0
    left = [each for each in cluster.kubectl("get", EVERYWHERE, "-o", "name").split() if "gpu-" in each]
    assert [each.rpartition("/")[2] for each in left] == ["gpu-orchestrator-edit", "gpu-orchestrator-view"]
    assert count(cluster, "lease", "gpu-gpu-node-0-0", "-n", SYSTEM) == 1
    assert count(cluster, "gpuclaim", "held") == 1


def agent_arguments(cluster: Cluster) -> str:
    path = "jsonpath={.spec.template.spec.containers[*].args}"
    return cluster.kubectl("get", "daemonset", "gpu-scheduler-agent", "-n", SYSTEM, "-o", path)


def leave_a_workload_of_high_priority(cluster: Cluster) -> None:
    """Leave what an installation without policies had let in."""
    cluster.kubectl("label", "namespace", "default", ALLOWED)
    spec = {"modelName": "m", "gpuCount": 1, "priority": "high"}
    body = {**WORKLOAD, "metadata": {"name": "high"}, "spec": spec}
    cluster.api.request("POST", WORKLOADS.format("default"), body)
    cluster.kubectl("label", "namespace", "default", "gpu.scheduling/allow-high-priority-")


def check_other_namespaces_are_refused(cluster: Cluster) -> None:
    """A second installation would not see the leases of the first, and would give its devices again."""
    before = cluster.kubectl("get", "clusterroles,clusterrolebindings,flowschemas", "-o", "name")
    subjects = "jsonpath={.subjects[*].namespace}"
    for name, option in [
        ("deploy.sh", "--no-wait"),
        ("uninstall.sh", "--scheduler"),
        ("uninstall.sh", "--all"),
    ]:
        done = script(name, "elsewhere", option, cluster=cluster)
        assert done.returncode == 1
        assert f"in namespace {SYSTEM} (ClusterRoleBinding" in done.stderr
    assert cluster.kubectl("get", "clusterroles,clusterrolebindings,flowschemas", "-o", "name") == before
    assert cluster.kubectl("get", "clusterrolebinding", "gpu-scheduler", "-o", subjects) == SYSTEM
    assert count(cluster, "ns", "elsewhere") == 0
    assert count(cluster, "deployments", "-n", SYSTEM) == 3
    assert count(cluster, "crd") == 4


@pytest.mark.parametrize("name", ["deploy.sh", "uninstall.sh"])
def test_missing_kubectl_is_reported(name: str, tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "sed"):
        os.symlink(f"/usr/bin/{tool}", tmp_path / tool)
    done = script(name, path=str(tmp_path))
    assert done.returncode == 1
    assert "kubectl was not found; install it" in done.stderr


@pytest.mark.parametrize("name", ["deploy.sh", "uninstall.sh"])
def test_missing_cluster_is_reported(name: str, toolbox: Toolbox) -> None:
    tools = toolbox.get("kubectl")["kubectl"].parent
    done = script(name, path=f"{tools}:/usr/bin:/bin")
    assert done.returncode == 1
    assert "no cluster answers" in done.stderr
    assert "kubectl config current-context" in done.stderr


@pytest.mark.parametrize("name", ["deploy.sh", "uninstall.sh"])
def test_unknown_option_is_refused(name: str) -> None:
    done = script(name, "--force")
    assert done.returncode == 1
    assert "unknown option --force" in done.stderr

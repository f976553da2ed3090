"""The chart's own Deployments and DaemonSet on a real node: containers of the image, which is built here from
the steps of the Dockerfile, under the chart's ServiceAccounts. Then the quick start, as it is written.

There is no registry: the node has the images, and a policy of the cluster lets nobody pull. The API server
calls the webhook at its endpoints; pods reach Services through the node's stand-in for kube-proxy.
"""

import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpu_orchestrator
from controlplane.cluster import Cluster
from controlplane.process import Process
from controlplane.realnode.node import RealNode
from controlplane.toolbox import Toolbox
from gpu_orchestrator.api import names
from tests.support import documents, image
from tests.support.helm import SYSTEM, Helm
from tests.support.paths import ROOT
from tests.support.real_pods import processes
from tests.support.scheduler_stage import until
from tests.support.tracebacks import tracebacks

# The first time on a machine, the image is built for a minute and more.
pytestmark = pytest.mark.timeout(600)

Json = dict[str, Any]
HERE = "tests/scenarios/kube/test_real_release.py"
IMAGE = f"gpu-orchestrator:{gpu_orchestrator.__version__}"
PARTS = ("kube-controller-manager", "kube-scheduler")
PLACEHOLDER = "docker.io/library/busybox:1.37"
NOBODY = 65532
PODS = f"/api/v1/namespaces/{SYSTEM}/pods"
MANAGER = "gpu-orchestrator-cluster-manager"
METRICS = "svc/gpu-orchestrator-controller-manager-metrics"
NO_PULLING = """\
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: no-registry}
spec:
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >
        Object{spec: Object.spec{containers: object.spec.containers.map(each,
          Object.spec.containers{name: each.name, imagePullPolicy: "IfNotPresent"})}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: no-registry}
spec: {policyName: no-registry}
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "image.tar"
    image.build(path, IMAGE)
    return path


@pytest.fixture(scope="module")
def cluster(toolbox: Toolbox) -> Iterator[Cluster]:
    """A cluster whose only node is the real one."""
    with Cluster.start(parts=PARTS, toolbox=toolbox, dials_endpoints=True) as made:
        made.kubectl("apply", "-f", "-", stdin=NO_PULLING)
        yield made


@pytest.fixture(scope="module")
def node(archive: Path, real_node: RealNode) -> RealNode:
    """The real node as an ordinary one: it has the images and Services, and no taint."""
    real_node.serve(443, 8000)
    real_node.import_image(archive)
    real_node.ctr("images", "tag", "docker.io/library/busybox:latest", PLACEHOLDER)
    real_node.cluster.kubectl("taint", "nodes", real_node.name, "gpu-orchestrator/real-node-")
    return real_node


def test_quick_start_on_a_real_node(
    cluster: Cluster, node: RealNode, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    helm = Helm.of(cluster, tmp_path)
    install, claim, workloads, delete = documents.run_by(HERE, "docs/quickstart.md")
    typed = Typing(helm, cluster)

    typed.block(install)
    until(lambda: len(ready(cluster)) == 7, "every pod of the chart is ready")
    check_containers(cluster)
    check_security(cluster)

    printed = typed.block(claim)
    device = next(line for line in printed.splitlines() if line.startswith("CUDA_VISIBLE_DEVICES="))
    assert device.partition("=")[2].startswith("GPU-")
    assert f'"{names.ALLOCATED}":"{node.name}:' in printed
    assert "Bound" in printed

    printed = typed.block(workloads)
    assert "model llama2 got 2 GPU(s) on my-model-job-" in printed
    check_metrics(cluster, tmp_path)
    check_troubleshooting(typed)

    serve_a_task(cluster, node, helm)

    typed.block(delete)
    until(lambda: held(cluster) == [], "all devices are free again")
    assert tracebacks(logs(cluster)) == []

    helm.run("uninstall", "gpu-scheduler", "--namespace", SYSTEM, "--wait")
    until(lambda: cluster.api.request("GET", PODS)["items"] == [], "no pod is left")


def check_troubleshooting(typed: "Typing") -> None:
    """What docs/troubleshooting.md looks at shows that nothing is wrong here."""
    parts, pods, webhook, scheduler = documents.run_by(HERE, "docs/troubleshooting.md")
    printed = typed.block(parts)
    assert "gpu-orchestrator-controller-manager" in printed
    assert printed.rstrip().endswith("yes"), "the operator may read workloads"
    typed.block(pods)
    printed = typed.block(webhook)
    assert "caBundle: LS0" in printed
    assert "schedulerName: gpu-scheduler" in printed, "the dry run is filled in"
    assert "GpuClaimPlugin" in typed.block(scheduler)


class Typing:
    """A person in a copy of the tree, whose variables last from block to block."""

    def __init__(self, helm: Helm, cluster: Cluster) -> None:
        tools = [str(Path(path).parent) for path in cluster.toolbox.get("kubectl", "helm").values()]
        self._env = {**helm.environment, "PATH": ":".join([*tools, os.environ["PATH"]])}
        self._tree = helm.folder / "tree"
        for each in ("charts", "examples"):
            shutil.copytree(ROOT / each, self._tree / each)

    def block(self, block: documents.Block) -> str:
        return "\n".join(documents.type_in([block], cwd=self._tree, env=self._env))


def ready(cluster: Cluster) -> list[Json]:
    pods: list[Json] = cluster.api.request("GET", PODS)["items"]
    return [
        each
        for each in pods
        if any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in each["status"].get("conditions", ())
        )
    ]


def check_containers(cluster: Cluster) -> None:
    """Every process is of our image, has no rights of root but the agent's, and was never started again."""
    for pod in ready(cluster):
        (status,) = pod["status"]["containerStatuses"]
        assert (status["image"], status["restartCount"]) == (f"docker.io/library/{IMAGE}", 0)
        (pid,) = [each for each in processes(pod["metadata"]["uid"]) if is_ours(each)]
        about = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        is_agent = pod["spec"]["serviceAccountName"] == names.AGENT
        assert set(about["Uid"].split()) == {"0" if is_agent else str(NOBODY)}
        assert int(about["CapEff"], 16) == 0
        assert about["NoNewPrivs"] == "1"
        root = next(
            line for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines() if " / / " in line
        )
        assert "ro" in root.split()[5].split(",")


def is_ours(pid: int) -> bool:
    """Tell the component from the container that only keeps the pod's network."""
    return b"/gpu-orchestrator\0" in Path(f"/proc/{pid}/cmdline").read_bytes()


def check_security(cluster: Cluster) -> None:
    """Of what runs, Pod Security `restricted` would refuse the agent alone."""
    label = ("--overwrite", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=restricted")
    command = kubectl(cluster, "label", "--dry-run=server", *label)
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    violating = [
        line.split()[1].rstrip(":") for line in said.splitlines() if line.startswith("Warning: gpu-")
    ]
    assert [each.rpartition("-")[0] for each in violating] == [names.AGENT], said


def kubectl(cluster: Cluster, *words: str) -> list[str | Path]:
    return [cluster.tools["kubectl"], "--kubeconfig", cluster.kubeconfig, *words]


def check_metrics(cluster: Cluster, folder: Path) -> None:
    command = kubectl(cluster, "port-forward", "-n", SYSTEM, METRICS, ":8080")
    forward = Process("port-forward", command, folder, cluster.environment)
    forward.start()
    try:
        until(lambda: "->" in forward.log.read_text(), "the port is forwarded")
        port = forward.log.read_text().partition("127.0.0.1:")[2].split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        forward.stop()
    assert "warp_gpuworkload_reconcile_duration_seconds" in text


def serve_a_task(cluster: Cluster, node: RealNode, helm: Helm) -> None:
    """Run the cluster manager with the Valkey in its pod, a worker, and a task, which another pod of the
    manager still knows."""
    keys = {"api-key": "k" * 64, "worker-token": "w" * 64}
    given = [f"--from-literal={name}={value}" for name, value in keys.items()]
    cluster.kubectl("create", "secret", "generic", MANAGER, "-n", SYSTEM, *given)
    offer_volume(cluster, node, helm.folder / "volume")
    more = {"clusterManager": {"enabled": True}}
    helm.apply("upgrade", more, "--reuse-values", "--wait", "--timeout", "100s")
    check_security(cluster)
    spec = cluster.api.request("GET", f"/api/v1/namespaces/{SYSTEM}/services/{MANAGER}")["spec"]
    url = f"http://{spec['clusterIP']}:8000"
    worker = ("worker", "--server", url, "--simulate", "2xL4:24GiB", "--simulation", "/data/gpus")
    task = ("task", "submit", "echo", '{"hello": "world"}', "--memory", "4GB", "--wait")
    run(cluster, "worker", worker, {"GPU_ORCHESTRATOR_TOKEN": keys["worker-token"]})
    asking = {"GPU_ORCHESTRATOR_URL": url, "API_KEY": keys["api-key"]}
    assert "world" in said_by(cluster, "task", task, asking)

    cluster.kubectl("delete", "pod", f"{MANAGER}-0", "-n", SYSTEM)
    cluster.kubectl("rollout", "status", f"statefulset/{MANAGER}", "-n", SYSTEM, "--timeout=60s")
    assert "echo" in said_by(cluster, "list", ("task", "list"), asking)
    cluster.kubectl("delete", "pods", "worker", "task", "list", "--wait=false")


def offer_volume(cluster: Cluster, node: RealNode, folder: Path) -> None:
    """Offer this folder of the node as the volume that the store asks for."""
    folder.mkdir()
    here = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}]
    spec = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOnce"],
        "local": {"path": str(folder)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": here}]}},
    }
    cluster.api.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": "store"}, "spec": spec})


def said_by(cluster: Cluster, name: str, words: tuple[str, ...], env: dict[str, str]) -> str:
    """Return what one of our commands prints, which must succeed."""
    run(cluster, name, words, env)
    until(lambda: phase(cluster, name) in ("Succeeded", "Failed"), f"{name} has ended")
    text = cluster.kubectl("logs", name)
    assert phase(cluster, name) == "Succeeded", text
    return text


def run(cluster: Cluster, name: str, words: tuple[str, ...], env: dict[str, str]) -> None:
    """Run one of our commands in a pod, as its image does without any help."""
    given = [{"name": key, "value": value} for key, value in env.items()]
    container = {"name": "main", "image": IMAGE, "args": list(words), "env": given}
    spec = {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 1}
    body = {"metadata": {"name": name}, "spec": spec}
    cluster.api.request("POST", "/api/v1/namespaces/default/pods", body)


def phase(cluster: Cluster, name: str) -> str:
    path = f"/api/v1/namespaces/default/pods/{name}"
    return str(cluster.api.request("GET", path)["status"]["phase"])


def held(cluster: Cluster) -> list[str]:
    path = (
        f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases?labelSelector=gpu.scheduling/managed=true"
    )
    items = cluster.api.request("GET", path)["items"]
    return [each["metadata"]["name"] for each in items if each["spec"].get("holderIdentity")]


def logs(cluster: Cluster) -> str:
    return "\n".join(
        cluster.kubectl("logs", each["metadata"]["name"], "-n", SYSTEM) for each in ready(cluster)
    )

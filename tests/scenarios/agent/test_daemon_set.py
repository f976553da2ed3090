"""The shipped DaemonSet on a node with a real kubelet. In its container, with its token and the least it has,
the agent keeps the MPS daemons of shared claims. NVIDIA's control program is a stand-in; all else is real."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from controlplane.api import ApiError
from controlplane.cluster import Cluster, free_port
from controlplane.realnode.node import RealNode
from gpu_orchestrator.api import mps, names, sharing
from tests.support import installation, mps_program
from tests.support.agent_fleet import REPORTS
from tests.support.paths import ROOT
from tests.support.real_pods import container, pod, processes, python_spec
from tests.support.scheduler_stage import CLAIMS, REFUSE, Stage, claim, until
from tests.support.tracebacks import tracebacks
from tests.support.workers import is_alive

Json = dict[str, Any]
SYSTEM = names.NAMESPACE
BINDING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
DAEMON_SETS = f"/apis/apps/v1/namespaces/{SYSTEM}/daemonsets"
MERGE = "application/merge-patch+json"
DRIVER = {"count": 2, "model": "NVIDIA H100 80GB HBM3", "memory_mib": 81_920, "driver_version": "580.65"}
AGENT = """\
from gpu_orchestrator.apps.agent import mps_plan
from gpu_orchestrator.cli.main import main
mps_plan.GRACE_S = 1.0  # how long a daemon outlives its last pod
main()
"""
SHARE: Json = {"exclusivity": "Shared", "memoryMiB": 1024, "share": 250}
SHOWN = "that is all"
SHOW = (
    "env",
    "ls $CUDA_MPS_PIPE_DIRECTORY",
    "cat $CUDA_MPS_PIPE_DIRECTORY/told",
    f"echo {SHOWN}",
    "sleep infinity",
)


@dataclass(frozen=True)
class Site:
    stage: Stage
    node: RealNode

    @property
    def cluster(self) -> Cluster:
        return self.stage.cluster

    def folders(self) -> list[str] | None:
        """Return the daemons in the report; None if it tells of no MPS."""
        try:
            status = self.cluster.api.request("GET", f"{REPORTS}/{self.node.name}").get("status", {})
        except ApiError:
            return None
        found: Json | None = status.get("mps")
        return None if found is None else found.get("folders", [])

    def folder(self, name: str) -> Path:
        """Return the folder of a daemon: what is /run there is a folder here."""
        return self.node.folder / sharing.ROOT.lstrip("/") / sharing.OWNED / name

    def daemon(self, name: str) -> int:
        """Return the process number of a daemon; 0 if it does not listen."""
        try:
            pid = int((self.folder(name) / "pipe/control").read_text())
        except (FileNotFoundError, ValueError):
            return 0
        return pid if is_alive(pid) else 0

    def agent(self) -> Json:
        """Return the agent's pod on this node."""
        path = f"/api/v1/namespaces/{SYSTEM}/pods?fieldSelector=spec.nodeName={self.node.name}"
        (found,) = self.cluster.api.request("GET", path)["items"]
        made: Json = found
        return made

    def log(self) -> str:
        name = self.agent()["metadata"]["name"]
        return self.cluster.kubectl("logs", name, "-n", SYSTEM) + _previous(self.cluster, name)


def _previous(cluster: Cluster, name: str) -> str:
    """Return the log of the container before this one."""
    return cluster.kubectl("logs", name, "-n", SYSTEM, "--previous")


@pytest.fixture(scope="module")
def cluster(agent_cluster: Cluster) -> Cluster:
    """The one that the real node joins."""
    return agent_cluster


@pytest.fixture(scope="module")
def site(real_node: RealNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    cluster, folder = real_node.cluster, tmp_path_factory.mktemp("site")
    name = f"test-{uuid4().hex[:8]}"
    cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    with ExitStack() as stack:
        stack.enter_context(installation.webhook_in(cluster, folder, name, mps=True))
        stack.enter_context(_daemon_set(cluster, real_node, folder))
        stage = Stage(cluster, name, folder)
        stack.callback(stage.close)
        settings: Json = {**REFUSE, "releaseSeconds": 1, "agentSeconds": 1}
        stage.scheduler(**settings)
        yield Site(stage, real_node)
    cluster.api.request("DELETE", f"/api/v1/namespaces/{name}")


@contextmanager
def _daemon_set(cluster: Cluster, node: RealNode, folder: Path) -> Iterator[None]:
    """Run config/agent-mps on the node. Its image is not built here: the container has this Python, and this
    checkout from the host, which our policy forbids to pods of our namespace, so that is out of force."""
    made = _shipped(cluster)
    _dress(made["spec"]["template"]["spec"], node, folder, int(cluster.url.rpartition(":")[2]))
    binding = f"{BINDING}/gpu-orchestrator-own-pods"
    before = cluster.api.request("GET", binding)
    cluster.kubectl("apply", "-f", str(ROOT / "config/agent-mps/role.yaml"))
    cluster.api.request("DELETE", binding)
    label = {"metadata": {"labels": {"gpu.scheduling/agent": "true"}}}
    cluster.api.request("PATCH", f"/api/v1/nodes/{node.name}", label, content_type=MERGE)
    try:
        cluster.api.request("POST", DAEMON_SETS, made)
        yield
    finally:
        cluster.api.request("DELETE", f"{DAEMON_SETS}/{names.AGENT}", {"propagationPolicy": "Background"})
        again = {**before, "metadata": {"name": before["metadata"]["name"]}}
        cluster.api.request("POST", BINDING, again)
        cluster.kubectl("delete", "-f", str(ROOT / "config/agent-mps/role.yaml"))


def _shipped(cluster: Cluster) -> Json:
    made = cluster.kubectl("kustomize", str(ROOT / "config/agent-mps"))
    (found,) = [each for each in yaml.safe_load_all(made) if each["kind"] == "DaemonSet"]
    daemon_set: Json = found
    return daemon_set


def _dress(spec: Json, node: RealNode, folder: Path, port: int) -> None:
    """Give the pod what this place has: this Python, devices that a file describes, the stand-in, and the
    API server, which listens on the host's loopback alone."""
    programs = folder / "programs"
    programs.mkdir()
    mps_program.install(programs)
    described = programs / "devices.json"
    described.write_text(json.dumps({"devices": [DRIVER]}))
    devices = folder / "devices"
    devices.mkdir()
    python = python_spec(node, "-c", AGENT, mounts=[programs, devices])
    (here,), (agent,) = python["containers"], spec["containers"]
    metrics, probes = free_port(), free_port()
    agent["image"], agent["command"] = here["image"], here["command"]
    shipped = [each for each in agent["args"] if "bind-address" not in each]
    agent["args"] = [
        *shipped,
        f"--devices-file={described}",
        f"--devices-folder={devices}",
        f"--metrics-bind-address=127.0.0.1:{metrics}",
        f"--health-probe-bind-address=:{probes}",
    ]
    agent["env"] += [
        {"name": "PATH", "value": f"{programs}:/bin"},
        {"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
        {"name": "KUBERNETES_SERVICE_PORT", "value": str(port)},
    ]
    agent["ports"] = [{"name": "probes", "containerPort": probes}]
    agent["volumeMounts"] += here["volumeMounts"]
    spec["volumes"] += python["volumes"]
    spec["hostNetwork"] = True


def test_share_is_held_from_the_claim_to_the_container(site: Site, figure: Callable[[str], None]) -> None:
    """Webhook, gate of the scheduler, agent, container; and the end of agent and pod."""
    until(lambda: site.folders() == [], "the node can keep daemons")
    stage = site.stage
    site.cluster.api.request("POST", CLAIMS.format(stage.namespace), claim("quarter", **SHARE))
    body = pod("client", container("main", *SHOW), **site.node.pin)
    body["metadata"]["annotations"] = {names.CLAIM: "quarter"}
    site.cluster.api.request("POST", stage.pods_path, body)
    device = int(stage.wait_bound("client")["client"].rpartition(":")[2])
    folder = mps.folder_of(stage.namespace, [device], 1024, 250)
    assert site.folders() == [folder], "it was there before the pod was bound"

    lines = printed(site, "client").splitlines()
    told = dict(each.split("=", 1) for each in lines if each.startswith("CUDA_"))
    assert told[mps.PIPES] == sharing.ROOT
    assert told[mps.MEMORY] == "0=1024M"
    assert told[mps.PERCENT] == "25"
    assert "control" in lines
    mounts = mount_options(site, "client")
    assert mounts, "the folder is mounted"
    assert all("ro" in options for options in mounts), "no link of a tenant can lead a daemon astray"
    assert "set_default_device_pinned_mem_limit 0 1024M" in lines
    conditions = stage.claim("quarter")["status"].get("conditions", [])
    assert [each["status"] for each in conditions if each["type"] == "ShareEnforced"] == ["True"]

    first = site.daemon(folder)
    assert first in processes(site.agent()["metadata"]["uid"]), "in the agent's container"
    os.kill(main_process(site), signal.SIGKILL)
    until(lambda: not is_alive(first), "the daemon has ended with the killed agent")
    second = until(lambda: site.daemon(folder), "the next agent has started one")
    seen = site.cluster.kubectl(
        "exec", "client", "-n", stage.namespace, "--", "cat", f"{sharing.ROOT}/control"
    )
    assert int(seen) == second, "the running container sees the new daemon"

    stage.delete("client", force=True)
    until(lambda: not site.folder(folder).exists(), "the daemon went with its last pod")
    assert not is_alive(second)
    until(lambda: site.folders() == [], "and the report says so")
    assert tracebacks(site.log()) == []


def mount_options(site: Site, name: str) -> list[list[str]]:
    """Return how the kernel has mounted the folder of pipes in the containers of a pod."""
    pids = processes(site.stage.pod(name)["metadata"]["uid"])
    lines = [line.split() for pid in pids for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    return [line[5].split(",") for line in lines if line[4] == sharing.ROOT]


def printed(site: Site, name: str) -> str:
    """Return what a container has printed, as soon as that is all."""

    def whole() -> str | None:
        if (
            "running"
            not in site.stage.pod(name)["status"].get("containerStatuses", [{"state": {}}])[0]["state"]
        ):
            return None
        text = site.cluster.kubectl("logs", name, "-n", site.stage.namespace)
        return text if text.endswith(f"{SHOWN}\n") else None

    return until(whole, f"{name} has printed all")


def main_process(site: Site) -> int:
    """Return the agent itself; keepers and daemons are in its container, too."""
    words = [sys.executable, "-c", AGENT]
    start = "\0".join(words).encode()
    (found,) = [
        pid
        for pid in processes(site.agent()["metadata"]["uid"])
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(start)
    ]
    return found

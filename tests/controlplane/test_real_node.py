"""The real node runs containers as any node does, and leaves nothing on the machine, however it ends."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane import watchdog
from controlplane.api import Json
from controlplane.cluster import Cluster
from controlplane.realnode import machine
from controlplane.realnode.node import RealNode
from tests.support.paths import ROOT
from tests.support.real_pods import container, pod, python_spec
from tests.support.scheduler_stage import until

DEVICES = "gpu.scheduling/allocated"
FROM_ANNOTATION = {
    "name": "CUDA_VISIBLE_DEVICES",
    "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{DEVICES}']"}},
}


def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def phase(cluster: Cluster, namespace: str, name: str) -> str:
    return str(cluster.api.request("GET", f"{pods(namespace)}/{name}")["status"]["phase"])


def run(cluster: Cluster, namespace: str, made: Json, until_it: str = "Running") -> Json:
    """Create a pod and return it once it has reached a phase."""
    name = made["metadata"]["name"]
    cluster.api.request("POST", pods(namespace), made)
    until(lambda: phase(cluster, namespace, name) == until_it, f"{name} is {until_it}")
    return cluster.api.request("GET", f"{pods(namespace)}/{name}")


def test_node_is_ready(cluster: Cluster, real_node: RealNode, figure: Callable[[str], None]) -> None:
    assert real_node.name in cluster.ready_nodes()
    node = cluster.api.request("GET", f"/api/v1/nodes/{real_node.name}")
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")
    parts = (real_node.containerd, real_node.kubelet)
    memory = sum(part.memory_mb for part in parts)
    figure(f"real node Ready {real_node.ready_after_s:.1f} s after its start (20 s allowed), {memory:.0f} MB")


def test_annotation_of_the_binding_reaches_every_container(
    cluster: Cluster, real_node: RealNode, namespace: str
) -> None:
    """As the webhook and the gpu-scheduler give devices to a pod."""
    show = "echo CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"
    made = pod("bound", container("main", show, "sleep infinity", env=[FROM_ANNOTATION]))
    made["spec"] |= {
        "schedulerName": "by-hand",
        "initContainers": [container("init", show, env=[FROM_ANNOTATION])],
    }
    cluster.api.request("POST", pods(namespace), made)
    target = {"kind": "Node", "name": real_node.name}
    binding = {"metadata": {"name": "bound", "annotations": {DEVICES: "GPU-1,GPU-7"}}, "target": target}
    cluster.api.request("POST", f"{pods(namespace)}/bound/binding", binding)
    until(lambda: phase(cluster, namespace, "bound") == "Running", "the pod runs")

    for name in ("init", "main"):
        logged = cluster.kubectl("logs", "-n", namespace, "bound", "-c", name)
        assert logged == "CUDA_VISIBLE_DEVICES=GPU-1,GPU-7\n"
    inside = cluster.kubectl("exec", "-n", namespace, "bound", "--", "printenv", "CUDA_VISIBLE_DEVICES")
    assert inside == "GPU-1,GPU-7\n"


def test_python_in_a_container_uses_a_folder_of_the_host(
    cluster: Cluster, real_node: RealNode, namespace: str, tmp_path: Path
) -> None:
    """Its process is known on the host, in a cgroup that names the pod."""
    program = (
        "import pathlib, sys, time; import gpu_orchestrator.adapters.gpus.hold; "
        "pathlib.Path(sys.argv[1], 'here').write_text(sys.version); time.sleep(1000)"
    )
    made = pod(
        "python", **python_spec(real_node, "-c", program, str(tmp_path), mounts=[tmp_path]), **real_node.pin
    )
    uid = run(cluster, namespace, made)["metadata"]["uid"]
    until((tmp_path / "here").exists, "the program has started")
    assert (tmp_path / "here").read_text() == sys.version
    found = [pid for pid in watchdog.contained(real_node.guard.mark) if str(tmp_path) in command_of(pid)]
    assert len(found) == 1
    assert f"{real_node.cgroup}/kubepods/besteffort/pod{uid}/" in Path(f"/proc/{found[0]}/cgroup").read_text()


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_other_pods_stay_away(cluster: Cluster, real_node: RealNode, namespace: str) -> None:
    """Pods of other tests suit any node; here they would be run for real."""
    cluster.gpu_nodes(1, prefix="not-real", gpus=1)
    made = pod("anywhere", container("main"))
    made["spec"]["affinity"] = prefer(real_node.name)
    assert run(cluster, namespace, made)["spec"]["nodeName"] != real_node.name


def prefer(name: str) -> Json:
    rule = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}]}
    preferred = [{"weight": 100, "preference": rule}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def test_kubelet_offers_its_sockets(real_node: RealNode) -> None:
    for path in (real_node.pod_resources, real_node.device_plugins / "kubelet.sock"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_restarted_kubelet_keeps_the_containers(
    cluster: Cluster, real_node: RealNode, namespace: str
) -> None:
    run(cluster, namespace, pod("kept", container("main", "echo once", "sleep infinity"), **real_node.pin))
    real_node.kubelet.restart()
    until(lambda: logs(cluster, namespace, "kept") == "once\n", "the kubelet answers again")
    restarts = cluster.api.request("GET", f"{pods(namespace)}/kept")["status"]["containerStatuses"][0]
    assert restarts["restartCount"] == 0


def logs(cluster: Cluster, namespace: str, name: str) -> str | None:
    try:
        return cluster.kubectl("logs", "-n", namespace, name)
    except Exception:  # the kubelet is not listening yet
        return None


def test_closed_node_leaves_nothing(cluster: Cluster, real_node: RealNode, namespace: str) -> None:
    """A second node on the same machine is independent of the first."""
    before = settings()
    with cluster.real_node("second") as second:
        run(cluster, namespace, pod("left", container("main", "sleep infinity"), **second.pin))
        had = traces(second.guard.mark, second.folder)
        assert {kind for kind, found in had.items() if found} == KINDS
    until(
        lambda: not any(path_exists(each) for each in had["interfaces"]), "the kernel has removed the veths"
    )
    assert not any(traces(second.guard.mark, second.folder).values())
    assert settings() == before
    assert "second" not in cluster.ready_nodes()
    assert cluster.api.request("GET", f"/api/v1/nodes/{real_node.name}")


OWNER = """
import sys
from controlplane.cluster import Cluster
from tests.support.real_pods import container, pod
from tests.support.scheduler_stage import until
cluster = Cluster.start()
node = cluster.real_node()
pods = "/api/v1/namespaces/default/pods"
cluster.api.request("POST", pods, pod("left", container("main"), nodeName=node.name, **node.pin))
until(lambda: cluster.api.request("GET", f"{pods}/left")["status"]["phase"] == "Running", "it runs")
print(node.guard.mark, node.folder, flush=True)
sys.stdin.read()
"""


def test_killed_owner_leaves_nothing(cluster: Cluster, real_node: RealNode) -> None:
    before = settings()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert owner.stdout is not None
    mark, folder = owner.stdout.readline().split()
    had = traces(mark, Path(folder))
    assert {kind for kind, found in had.items() if found} == KINDS
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    until(lambda: not any(traces(mark, Path(folder)).values()), "the watchdog has cleaned up")
    until(
        lambda: not any(path_exists(each) for each in had["interfaces"]), "the kernel has removed the veths"
    )
    assert settings() == before


KINDS = {"processes", "containers", "cgroups", "interfaces", "mounts", "folder"}


def traces(mark: str, folder: Path) -> dict[str, list[object]]:
    """Return what there is of a node on this machine. Mounts are those in any process's namespace."""
    bridge = Path("/sys/class/net", watchdog.bridge_name(mark))
    return {
        "processes": [*watchdog.marked(mark)],
        "containers": [*watchdog.contained(mark)],
        "cgroups": [*watchdog.cgroups(mark)],
        "interfaces": [bridge, *(bridge.parent / path.name for path in bridge.glob("brif/*"))]
        if bridge.exists()
        else [],
        "mounts": [*mounts_below(folder)],
        "folder": [folder] if folder.exists() else [],
    }


def path_exists(path: object) -> bool:
    return Path(str(path)).exists()


def mounts_below(folder: Path) -> Iterator[Path]:
    for mounts in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            if str(folder) in mounts.read_text():
                yield mounts
        except OSError:  # the process has ended
            continue


TUNED = ("net/ipv4/ip_forward", "vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
FOLDERS = (
    "/run/netns",
    "/run/containerd",
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/log/pods",
    "/opt/containerd",
)


def settings() -> list[object]:
    """Return what else an ordinary kubelet and containerd would change on the machine."""
    tuned = [Path("/proc/sys", name).read_text() for name in TUNED]
    return [*tuned, *(path for path in FOLDERS if Path(path).exists())]


@pytest.mark.parametrize("program", machine.PROGRAMS)
def test_machine_without_a_needed_program_is_told(
    program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No test is skipped without the reason."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in machine.PROGRAMS:
        if name != program:
            (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.obstacle() == f"not on PATH: {program}"


@pytest.mark.real
@pytest.mark.parametrize(("settings", "outcome"), [({}, "1 skipped"), ({"CI": "true"}, "1 error")])
def test_tests_are_skipped_with_the_reason_but_not_in_ci(
    settings: dict[str, str], outcome: str, tmp_path: Path
) -> None:
    words = ["-q", "-p", "no:cacheprovider", __file__, "-k", test_kubelet_offers_its_sockets.__name__]
    here = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "PYTEST"))}
    environment = {**here, "PATH": str(tmp_path), **settings}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert "no real node can run on this machine: " in done.stdout
    assert outcome in done.stdout.splitlines()[-1]

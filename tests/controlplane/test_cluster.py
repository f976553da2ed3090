"""The local cluster behaves like a real one: nodes, Jobs, RBAC, restarts, audit."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane import nodes, watchdog
from controlplane.api import ApiError
from controlplane.cluster import OPTIONAL, Cluster, port_below
from controlplane.errors import ClusterError
from controlplane.toolbox import Toolbox
from tests.conftest import NewCluster
from tests.support.scale import Scale


@pytest.fixture(scope="module")
def second(toolbox: Toolbox) -> Iterator[Cluster]:
    """A small cluster besides the shared one. Its parts may be killed if the test starts them again."""
    with Cluster.start(toolbox=toolbox) as running:
        yield running


def gpu_job(name: str, *, gpus: int, **annotations: str) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }


def run_job(cluster: Cluster, namespace: str, job: dict[str, Any]) -> str:
    """Create a Job, and return the type of the condition with which it ends."""
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    cluster.api.request("POST", jobs, job)
    path = f"{jobs}/{job['metadata']['name']}"
    ended: list[str] = []

    def has_ended() -> bool:
        conditions = cluster.api.request("GET", path)["status"].get("conditions", [])
        ended[:] = [
            c["type"] for c in conditions if c["type"] in ("Complete", "Failed") and c["status"] == "True"
        ]
        return bool(ended)

    assert eventually(has_ended, within_s=60)
    return ended[0]


def eventually(check: Callable[[], bool], *, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_nodes_are_ready_with_gpus(cluster: Cluster) -> None:
    names = cluster.gpu_nodes(2, prefix="offer", gpus=4, labels={"zone": "a"}, islands=[[0, 1], [2, 3]])
    node = cluster.api.request("GET", f"/api/v1/nodes/{names[0]}")
    assert nodes.is_ready(node)
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    assert node["metadata"]["labels"]["zone"] == "a"
    assert '"islands": [[0, 1], [2, 3]]' in node["metadata"]["annotations"][nodes.DEVICES]


def test_gpu_job_completes(cluster: Cluster, namespace: str) -> None:
    cluster.gpu_nodes(1, prefix="complete", gpus=4)
    assert run_job(cluster, namespace, gpu_job("train", gpus=4)) == "Complete"
    pod = cluster.api.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"][0]
    assert pod["status"]["phase"] == "Succeeded"
    assert pod["spec"]["nodeName"] in cluster.ready_nodes()


def test_failing_job_fails(cluster: Cluster, namespace: str) -> None:
    cluster.gpu_nodes(1, prefix="fail", gpus=1)
    job = gpu_job("broken", gpus=1, **{nodes.OUTCOME: "fail", nodes.RUN_FOR: "100ms"})
    assert run_job(cluster, namespace, job) == "Failed"


def test_pod_runs_for_the_time_in_its_annotation(cluster: Cluster, namespace: str) -> None:
    cluster.gpu_nodes(1, prefix="long", gpus=1)
    assert run_job(cluster, namespace, gpu_job("timed", gpus=1, **{nodes.RUN_FOR: "3s"})) == "Complete"
    pod = cluster.api.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"][0]
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert 2 <= _seconds(ended["finishedAt"]) - _seconds(ended["startedAt"]) <= 60


def test_service_account_has_only_the_rights_of_its_role(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "serviceaccount", "reader", "-n", namespace)
    cluster.kubectl("create", "role", "reader", "-n", namespace, "--verb=get,list", "--resource=pods")
    cluster.kubectl(
        "create", "rolebinding", "reader", "-n", namespace,
        "--role=reader", f"--serviceaccount={namespace}:reader",
    )  # fmt: skip
    config = cluster.service_account_kubeconfig(namespace, "reader")
    cluster.kubectl("get", "pods", "-n", namespace, kubeconfig=config)
    with pytest.raises(ClusterError, match="secrets is forbidden"):
        cluster.kubectl("get", "secrets", "-n", namespace, kubeconfig=config)


def test_certificate_gives_user_name_and_groups(cluster: Cluster) -> None:
    config = cluster.kubeconfig_for("alice", ["research"])
    who = cluster.kubectl("auth", "whoami", kubeconfig=config)
    assert "alice" in who
    assert "research" in who


def test_killed_api_server_restarts_with_its_data(second: Cluster) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    second.api.request("POST", path, {"metadata": {"name": "by-server"}, "data": {"answer": "42"}})
    second.parts["kube-apiserver"].kill()
    assert not second.api.is_ready()
    second.parts["kube-apiserver"].start()
    assert second.api.request("GET", f"{path}/by-server")["data"] == {"answer": "42"}


def test_killed_etcd_restarts_with_its_data(second: Cluster) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    second.api.request("POST", path, {"metadata": {"name": "by-etcd"}})
    second.parts["etcd"].kill()
    second.parts["etcd"].start()
    second.parts["kube-apiserver"].wait_ready()
    assert second.api.request("GET", f"{path}/by-etcd")["metadata"]["name"] == "by-etcd"


def test_paused_part_does_nothing_until_resumed(cluster: Cluster) -> None:
    cluster.parts["kwok"].pause()
    try:
        names = cluster.gpu_nodes(1, prefix="paused", wait=False)
        with pytest.raises(ClusterError, match="1 nodes not Ready after 1 s, among them paused-0"):
            cluster.wait_nodes_ready(names, timeout_s=1)
    finally:
        cluster.parts["kwok"].resume()
    cluster.wait_nodes_ready(names)


def test_emptied_cluster_has_what_it_had(second: Cluster) -> None:
    """Finalizers hold nothing up, and what the API server needs itself is kept."""
    spaces, maps = "/api/v1/namespaces", "/api/v1/namespaces/{}/configmaps"
    second.api.request("POST", maps.format("default"), {"metadata": {"name": "kept"}})
    before = second.contents()
    second.api.request("POST", spaces, {"metadata": {"name": "held"}})
    held = {"metadata": {"name": "held", "finalizers": ["tests/nobody-removes-it"]}}
    for space in ("held", "default"):
        second.api.request("POST", maps.format(space), held)
    second.empty(before, [maps.format("held")])
    after = second.contents()
    assert before <= after
    assert not [key for key in after if b"held" in key]
    left = second.api.request("GET", maps.format("default"))["items"]
    assert "kept" in {each["metadata"]["name"] for each in left}
    assert "held" not in {
        each["metadata"]["name"] for each in [*left, *second.api.request("GET", spaces)["items"]]
    }
    assert not second.audit.requests()["admin", "create", "configmaps"]


def test_close_ends_all_that_has_its_mark_though_a_part_ended_before(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **cluster.environment}) as sleeper:
        os.kill(cluster.parts["etcd"].pid, signal.SIGKILL)
        assert eventually(lambda: not cluster.parts["etcd"].is_running, within_s=60)
        cluster.close()
        assert sleeper.wait(timeout=30) == -signal.SIGKILL
    assert not cluster.folder.exists()
    assert not watchdog.marked(cluster.guard.mark)


@pytest.mark.parametrize("limit", [32_768, 1024, 10_500])
def test_free_port_is_found_for_any_outgoing_range(limit: int) -> None:
    port = port_below(limit)
    assert 1024 <= port <= 65_535


def test_two_clusters_at_once_are_separate(cluster: Cluster, second: Cluster) -> None:
    second.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": "only-there"}})
    with pytest.raises(ApiError) as missing:
        cluster.api.request("GET", "/api/v1/namespaces/only-there")
    assert missing.value.status == 404


def test_audit_log_counts_requests_by_user_and_verb(second: Cluster) -> None:
    cluster = second
    bob = cluster.kubeconfig_for("bob", ["system:masters"])
    for _ in range(3):
        cluster.kubectl("get", "configmaps", kubeconfig=bob)
    cluster.kubectl("create", "configmap", "one", kubeconfig=bob)
    # A response may arrive before the server writes its audit line.
    assert eventually(lambda: bool(cluster.audit.requests("bob")["bob", "create", "configmaps"]), within_s=60)
    requests = cluster.audit.requests("bob")
    assert requests["bob", "list", "configmaps"] == 3
    assert requests["bob", "create", "configmaps"] == 1


OWNER = """
import sys
from controlplane.cluster import Cluster
cluster = Cluster.start(parts=["kwok"])
print(cluster.guard.mark, flush=True)
print(cluster.folder, flush=True)
sys.stdin.read()
"""


def test_killed_owner_leaves_no_process(toolbox: object) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    mark = owner.stdout.readline().strip()
    folder = Path(owner.stdout.readline().strip())
    assert eventually(lambda: len(watchdog.marked(mark)) == 3, within_s=60)  # the last part has just started
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    assert eventually(lambda: not watchdog.marked(mark) and not folder.exists(), within_s=60)


@pytest.mark.real
def test_many_nodes_become_ready(
    request: pytest.FixtureRequest, scale: Scale, figure: Callable[[str], None]
) -> None:
    cluster: Cluster = request.getfixturevalue(scale(test="cluster", accept="full_cluster"))
    started = time.monotonic()
    count = scale(test=60, accept=1000)
    names = cluster.gpu_nodes(count, prefix="many", wait=False)
    cluster.wait_nodes_ready(names, timeout_s=120)
    figure(f"{count} nodes Ready after {time.monotonic() - started:.1f} s, {cluster.memory_mb:.0f} MB in all")
    cluster.api.in_parallel(
        lambda each: cluster.api.request("DELETE", each["path"]),
        [{"path": f"/api/v1/nodes/{name}"} for name in names],
    )


@pytest.fixture
def full_cluster(new_cluster: NewCluster) -> Cluster:
    return new_cluster(parts=OPTIONAL)


def test_unknown_part_is_an_error() -> None:
    with pytest.raises(ClusterError, match="no such part: kubelet; there are kube-controller-manager"):
        Cluster.start(parts=("kubelet",))


def _seconds(timestamp: str) -> float:
    return time.mktime(time.strptime(timestamp, "%Y-%m-%dT%H:%M:%SZ"))

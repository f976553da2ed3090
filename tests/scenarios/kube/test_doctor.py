"""`gpu-orchestrator doctor` as users run it: each problem is one line with advice, and exit code 1."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controlplane import kubeconfig
from controlplane.cluster import Cluster, free_port
from controlplane.pki import Authority
from gpu_orchestrator.api import names, timestamps
from tests.conftest import NewCluster
from tests.support.command_line import User
from tests.support.doctor import doctor, of_walls
from tests.support.operator_process import eventually
from tests.support.paths import ROOT

CRDS = ROOT / "config" / "crd"


def test_healthy_cluster_passes(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-k", str(CRDS))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    code, good, bad = doctor(cluster.kubeconfig)
    assert (code, bad) == (0, [])
    assert any("server: https://" in line and ", v1." in line for line in good)
    assert any("gpuworkloads.gpu.warp.dev/v1alpha1" in line for line in good)


def test_missing_rbac_rules_are_reported(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-k", str(CRDS))
    code, _, bad = doctor(cluster.kubeconfig_for("nobody-special"), "--component", "operator")
    assert code == 1
    expected = (
        "failed  this identity may not patch gpuworkloads.gpu.warp.dev/status; grant verb 'patch' on "
        "'gpuworkloads/status' of API group gpu.warp.dev in a ClusterRole (see config/rbac)"
    )
    assert expected in bad
    assert any(
        line.endswith(
            "grant verb 'patch' on 'leases' of API group coordination.k8s.io in a Role in namespace "
            "gpu-orchestrator-system (see config/rbac)"
        )
        for line in bad
    )


def test_shipped_account_passes(guarded_cluster: Cluster) -> None:
    account = guarded_cluster.service_account_kubeconfig(names.NAMESPACE, names.OPERATOR)
    code, _, bad = doctor(account, "--component", "operator")
    assert (code, bad) == (0, [])


def test_expired_client_certificate_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    pair = cluster.authority.client("late", ["system:masters"], valid_s=-60)
    config = kubeconfig.with_certificate(tmp_path / "k", url=cluster.url, ca=cluster.ca_file, pair=pair)
    code, _, bad = doctor(config)
    assert code == 1
    assert len(bad) == 1
    assert "does not accept the client certificate of context 'local'" in bad[0]
    assert bad[0].endswith("UTC; renew it")


def test_unknown_token_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    config = kubeconfig.with_token(tmp_path / "k", url=cluster.url, ca=cluster.ca_file, token="rubbish")
    code, _, bad = doctor(config)
    assert code == 1
    assert len(bad) == 1
    assert "Unauthorized (401); renew the credentials of this context" in bad[0]


def test_server_with_another_ca_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    other = Authority(tmp_path).cert
    text = cluster.kubeconfig.read_text().replace(str(cluster.ca_file), str(other))
    config = tmp_path / "wrong-ca.kubeconfig"
    config.write_text(text)
    code, _, bad = doctor(config)
    assert code == 1
    assert len(bad) == 1
    assert "set certificate-authority-data to its CA" in bad[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "No such file or directory; check the path", id="no file"),
        pytest.param("{[", "is not valid YAML at line 1; fix it", id="not YAML"),
        pytest.param("current-context: prod", "has no context 'prod'; none is defined", id="no context"),
    ],
)
def test_unreadable_kubeconfig_is_reported(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    code, good, bad = doctor(path)
    assert (code, good, len(bad)) == (1, [], 1)
    assert message in bad[0]


@pytest.mark.parametrize(
    ("server", "token", "message"),
    [
        pytest.param("https://h:99999", "t", "it must be a URL such as", id="port too high"),
        pytest.param("https://h:abc", "t", "it must be a URL such as", id="port of letters"),
        pytest.param("https://[::1", "t", "it must be a URL such as", id="half a bracket"),
        pytest.param("https://127.0.0.1:1", "ab€c", "copy it again", id="token with an invalid character"),
    ],
)
def test_kubeconfig_with_invalid_values_is_reported(
    tmp_path: Path, server: str, token: str, message: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(
        "current-context: x\n"
        "contexts: [{name: x, context: {cluster: x, user: x}}]\n"
        f"users: [{{name: x, user: {{token: '{token}'}}}}]\n"
        f"clusters: [{{name: x, cluster: {{server: '{server}'}}}}]\n"
    )
    code, _, bad = doctor(path)
    assert (code, len(bad)) == (1, 1)
    assert message in bad[0]


def test_kubernetes_that_is_not_configured_is_no_failure(tmp_path: Path) -> None:
    done = User(tmp_path).run("doctor", GPU_ORCHESTRATOR_URL=f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "-       Kubernetes: no cluster is configured; pass --kubeconfig" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("failed  server: no cluster manager answers at")


def test_missing_crds_are_reported_and_a_leader_is_looked_for_where_one_is_deployed(
    new_cluster: NewCluster,
) -> None:
    cluster = new_cluster()
    code, _, bad = doctor(cluster.kubeconfig)
    assert code == 1
    assert len(bad) == 4
    assert all("kubectl apply -k config/crd" in line for line in bad)
    cluster.kubectl("apply", "-k", str(CRDS))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    code, good, bad = doctor(cluster.kubeconfig)
    assert (code, bad) == (0, [])
    assert "-       operator: not installed here, or never started" in good
    for part in ("namespace", "manager"):
        cluster.kubectl("apply", "-k", str(ROOT / "config" / part))
    code, _, (line,) = doctor(cluster.kubeconfig)
    assert code == 1
    assert "exists, but none has ever led, so GPUWorkloads wait" in line
    for renewed, code in ((datetime.now(UTC), 0), (datetime.now(UTC) - timedelta(minutes=9), 1)):
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": names.OPERATOR_LEASE, "namespace": names.NAMESPACE},
            "spec": {
                "holderIdentity": "pod-1",
                "leaseDurationSeconds": 15,
                "renewTime": timestamps.micro_time(renewed),
            },
        }
        path = cluster.folder / "lease.json"
        path.write_text(json.dumps(lease))
        cluster.kubectl("apply", "-f", str(path))
        found, good, bad = doctor(cluster.kubeconfig)
        assert found == code, bad
    assert "ok      operator: pod-1 leads" not in good
    assert "operator: pod-1 leads no more, its Lease was last renewed 9m ago" in bad[0]


def test_walls_that_fell_are_reported(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    _, good, bad = doctor(cluster.kubeconfig)
    assert of_walls(bad) == []
    assert "policies: not installed here" in of_walls(good)[0]
    cluster.kubectl("create", "serviceaccount", "default")  # without it no pod is looked at
    bare = "webhook: not installed here: a pod that asks for a GPU stays as it is"
    assert bare in of_walls(doctor(cluster.kubeconfig)[1])[-1]
    cluster.kubectl("apply", "-k", str(CRDS))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    high = {"modelName": "m", "gpuCount": 1, "priority": "high"}
    body = {
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "GPUWorkload",
        "metadata": {"name": "w"},
        "spec": high,
    }
    cluster.api.request("POST", "/apis/gpu.warp.dev/v1alpha1/namespaces/default/gpuworkloads", body)
    cluster.kubectl("apply", "-k", str(ROOT / "config" / "policy"))
    cluster.kubectl("apply", "-f", str(ROOT / "config" / "webhook" / "mutating.yaml"))
    cluster.kubectl("delete", "validatingadmissionpolicybinding", "gpu-orchestrator-leases")
    eventually(lambda: "is refused (dry run)" in " ".join(of_walls(doctor(cluster.kubeconfig)[2])), "refused")
    unbound, high_priority, half, without, tried = of_walls(doctor(cluster.kubeconfig)[2])
    assert unbound.startswith(
        "policies: 1 not bound, so nothing is refused (gpu-orchestrator-leases); install"
    )
    assert high_priority.endswith("kubectl label namespace default gpu.scheduling/allow-high-priority=true")
    assert half.startswith("webhook: gpu-scheduler-webhook is only a MutatingWebhookConfiguration here")
    assert without.startswith("webhook: it has made no certificate yet")
    assert tried.startswith("webhook: it does not answer: a pod that asks for a GPU is refused (dry run)")


def test_unreachable_server_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(
        "current-context: x\n"
        "contexts: [{name: x, context: {cluster: x}}]\n"
        f"clusters: [{{name: x, cluster: {{server: 'https://127.0.0.1:{free_port()}'}}}}]\n"
    )
    code, _, bad = doctor(path)
    assert (code, len(bad)) == (1, 1)
    assert "cannot reach https://127.0.0.1" in bad[0]
    assert "check that the API server runs" in bad[0]

"""The command line of each part of a cluster, and the small files they read.

All paths are inside the cluster's folder, which is also every part's working directory: etcd listens on a
unix socket there, so only this user can reach it, and it needs no port that another process could take.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane import audit
from controlplane.etcd import SOCKET as ETCD_SOCKET

if TYPE_CHECKING:
    from controlplane.cluster import Cluster

HERE = Path(__file__).parent
SERVICE_CIDR = "10.0.0.0/24"

GANG_GATES = "GenericWorkload=true,GangScheduling=true"
FIELD_GATES = "TopologyAwareWorkloadScheduling=true,WorkloadAwarePreemption=true"

Command = Sequence[str | Path]


@dataclass(frozen=True, slots=True)
class Options:
    parts: tuple[str, ...]
    node_lifecycle: bool
    dials_endpoints: bool = False
    native_gangs: bool = False

    @property
    def gates(self) -> list[str]:
        """Return what turns kube-scheduler's own gangs on, which are off by default."""
        return [f"--feature-gates={GANG_GATES}"] if self.native_gangs else []

    @property
    def api_gates(self) -> list[str]:
        """Return these, and what lets users write all fields of a PodGroup."""
        return [f"--feature-gates={GANG_GATES},{FIELD_GATES}"] if self.native_gangs else []


def all_parts(cluster: "Cluster", port: int, options: Options) -> dict[str, Command]:
    makers = {
        "kube-controller-manager": lambda: controller_manager(cluster, options),
        "kube-scheduler": lambda: scheduler(cluster, options),
        "kwok": lambda: kwok(cluster),
    }
    return {
        "etcd": etcd(cluster),
        "kube-apiserver": apiserver(cluster, port, options),
        **{name: makers[name]() for name in options.parts},
    }


def etcd(cluster: "Cluster") -> Command:
    client, peer = f"unix://{ETCD_SOCKET}", "unix://etcd-peer.sock:0"
    return [
        cluster.tools["etcd"],
        "--name=local",
        "--data-dir=etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=local={peer}",
        "--unsafe-no-fsync",  # no test needs the data longer; surviving a kill of etcd needs no fsync
        "--log-level=warn",
    ]


def apiserver(cluster: "Cluster", port: int, options: Options) -> Command:
    pki = cluster.authority
    serving = pki.server(
        "kube-apiserver", hosts=["127.0.0.1", "localhost", "10.0.0.1", "kubernetes.default.svc"]
    )
    to_kubelets = pki.client("kube-apiserver-kubelet-client", ["system:masters"])
    accounts = pki.service_account_key
    (cluster.folder / "audit-policy.yaml").write_text(audit.POLICY)
    return [
        cluster.tools["kube-apiserver"],
        f"--etcd-servers=unix://{ETCD_SOCKET}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={serving.cert}",
        f"--tls-private-key-file={serving.key}",
        f"--client-ca-file={pki.cert}",
        f"--kubelet-certificate-authority={pki.cert}",
        f"--kubelet-client-certificate={to_kubelets.cert}",
        f"--kubelet-client-key={to_kubelets.key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={accounts.cert}",
        f"--service-account-signing-key-file={accounts.key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",  # as kubeadm has it; otherwise no admission policy sees such a pod
        "--audit-log-path=audit.log",
        "--audit-policy-file=audit-policy.yaml",
        "--endpoint-reconciler-type=none",
        "--shutdown-delay-duration=0s",
        # Otherwise it calls webhooks at the address of their Service, to which the host has no way.
        *(["--enable-aggregator-routing"] if options.dials_endpoints else []),
        *(["--runtime-config=scheduling.k8s.io/v1alpha2=true"] if options.native_gangs else []),
        *options.api_gates,
        *_admission(options),
    ]


def _admission(options: Options) -> list[str]:
    off = []
    if "kube-controller-manager" not in options.parts:
        off.append(
            "ServiceAccount"
        )  # no controller creates default ServiceAccounts, so no pod would be admitted
    if "kube-controller-manager" not in options.parts or not options.node_lifecycle:
        off.append("TaintNodesByCondition")  # no controller removes the not-ready taint of a new node
    return [f"--disable-admission-plugins={','.join(off)}"] if off else []


def controller_manager(cluster: "Cluster", options: Options) -> Command:
    off = ["node-lifecycle-controller", "taint-eviction-controller"] if not options.node_lifecycle else []
    return [
        cluster.tools["kube-controller-manager"],
        *_as_user(cluster, "system:kube-controller-manager"),
        f"--root-ca-file={cluster.authority.cert}",
        f"--service-account-private-key-file={cluster.authority.service_account_key.key}",
        f"--controllers={','.join(['*', *(f'-{name}' for name in off)])}",
        "--leader-elect=false",
        "--secure-port=0",
        "--node-monitor-grace-period=40s",
        "--use-service-account-credentials=true",
        *options.gates,
    ]


def scheduler(cluster: "Cluster", options: Options) -> Command:
    return [
        cluster.tools["kube-scheduler"],
        *_as_user(cluster, "system:kube-scheduler"),
        "--leader-elect=false",
        "--secure-port=0",
        *options.gates,
    ]


def kwok(cluster: "Cluster") -> Command:
    shutil.copy(HERE / "stages.yaml", cluster.folder)
    return [
        cluster.tools["kwok"],
        f"--kubeconfig={cluster.kubeconfig_for('kwok', ['system:masters'])}",
        "--config=stages.yaml",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=40",
        "--server-address=",
    ]


def _as_user(cluster: "Cluster", user: str) -> list[str]:
    config = cluster.kubeconfig_for(user)
    # Without the client-side rate limits, so that benchmarks compare with these parts at their best.
    return [
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--kube-api-qps=5000",
        "--kube-api-burst=5000",
    ]

"""Configuration of a real node's kubelet. Paths are as the node sees them: /run and /var/lib are its own."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controlplane.realnode import containerd

if TYPE_CHECKING:
    from controlplane.pki import Pair

TAINT = "gpu-orchestrator/real-node"
"""Keeps away the pods of other tests, which suit any node: they would be run for real."""


@dataclass(frozen=True, slots=True)
class Settings:
    address: str
    port: int
    cgroup: str
    serving: "Pair"
    clients: Path  # the authority of those who may call the kubelet
    resolv_conf: Path


def config(settings: Settings) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{containerd.SOCKET}",
        **_server(settings),
        **_on_any_machine(settings),
        "registerWithTaints": [{"key": TAINT, "effect": "NoSchedule"}],
        # Tests wait for these.
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "2s",
    }


def _server(settings: Settings) -> dict[str, Any]:
    return {
        "address": settings.address,
        "port": settings.port,
        "healthzPort": 0,
        "tlsCertFile": str(settings.serving.cert),
        "tlsPrivateKeyFile": str(settings.serving.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(settings.clients)},
        },
        "authorization": {"mode": "Webhook"},
    }


def _on_any_machine(settings: Settings) -> dict[str, Any]:
    """Return what lets the kubelet run beside whatever else runs here, and leave nothing behind."""
    return {
        "cgroupRoot": settings.cgroup,
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "resolvConf": str(settings.resolv_conf),
        "clusterDNS": ["10.0.0.10"],  # nothing answers there; without it, every pod gets an event
        "clusterDomain": "cluster.local",
    }

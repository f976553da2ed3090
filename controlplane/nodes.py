"""Manifests of GPU nodes without machines: kwok keeps them Ready, or they are static, for benchmarks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# On a pod: how long it runs ("2s", "1m30s"; a Job's pod 1 s by default, others forever) and how it ends.
RUN_FOR = "sim.gpu-orchestrator/run-for"
OUTCOME = "sim.gpu-orchestrator/outcome"  # "fail", or anything else for success
# On a node: its devices, written by hand, for readers on nodes without an agent.
DEVICES = "gpu.scheduling/devices"
MANAGED_BY_KWOK = {"kwok.x-k8s.io/node": "fake"}
PRETENDS = {
    "type": "kwok"
}  # the label that kwokctl gives its nodes: DaemonSets that need a machine stay away


@dataclass(frozen=True)
class GpuNode:
    name: str
    gpus: int = 8
    resource: str = "nvidia.com/gpu"
    model: str = "NVIDIA-A100-SXM4-80GB"
    memory_mib: int = 81_920
    labels: Mapping[str, str] = field(default_factory=dict)
    islands: Sequence[Sequence[int]] = ()
    plugin: bool = True  # False: no device plugin reports its GPUs, only the annotation lists them
    bandwidth_gbps: int = 600
    static: bool = False  # always Ready without heartbeats: no writes, so no noise in a benchmark
    cpu: str = "96"
    memory: str = "1Ti"
    pods: str = "110"

    def manifest(self) -> dict[str, Any]:
        amounts = {"cpu": self.cpu, "memory": self.memory, "pods": self.pods, "ephemeral-storage": "1Ti"}
        if self.gpus and self.plugin:
            amounts[self.resource] = str(self.gpus)
        status: dict[str, Any] = {"capacity": amounts, "allocatable": amounts}
        if self.static:
            status["conditions"] = [{"type": "Ready", "status": "True", "reason": "Static"}]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": self._labels(), "annotations": self._annotations()},
            "status": status,
        }

    def _labels(self) -> dict[str, str]:
        about_gpus = {"nvidia.com/gpu.product": self.model, "nvidia.com/gpu.count": str(self.gpus)}
        return {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            **PRETENDS,
            **(about_gpus if self.gpus else {}),
            **self.labels,
        }

    def _annotations(self) -> dict[str, str]:
        annotations = {} if self.static else dict(MANAGED_BY_KWOK)
        if self.islands or not self.plugin:
            devices = {
                "count": self.gpus,
                "model": self.model,
                "memoryMiB": self.memory_mib,
                "bandwidthGBps": self.bandwidth_gbps,
                "islands": [list(island) for island in self.islands],
            }
            annotations[DEVICES] = json.dumps(devices)
        return annotations


def is_ready(node: dict[str, Any]) -> bool:
    """Return whether a node is Ready and has lost the taint that admission puts on every new node."""
    conditions = node.get("status", {}).get("conditions", [])
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    taints = node.get("spec", {}).get("taints", [])
    return ready and not any(taint["key"] == "node.kubernetes.io/not-ready" for taint in taints)

"""Which nodes have claimed pods: a device plugin knows nothing of claims and could give a claimed device a
second time, so `capacity` places no plain workload there.

The pod's owner must not be able to keep a node from others, nor to open one that is in use. A request for
`gpu.scheduling/milligpu` can do neither: it never changes, counts against the namespace's quota, and the
policies allow it to claimed pods alone, which get their node from the gpu-scheduler. Pods without it, bound
by an earlier release or where no webhook runs, count by the annotation that names their devices, and go on
counting when somebody removes it. A pod that has neither has no device, whichever scheduler it names.
"""

from gpu_orchestrator.api import claims, names
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.core.answer import Placement

CLAIMED = "have GPUs claimed through the gpu-scheduler, which plain workloads keep away from"


class ClaimedNodes:
    def __init__(self) -> None:
        self._pods: dict[str, set[str]] = {}

    def __contains__(self, node: str) -> bool:
        return node in self._pods

    def see(self, pod: Pod, held: Placement | None) -> bool:
        """Take in a pod and what it holds of its node; None if nothing, any longer or yet. Return True if
        this gave the node its first claimed pod, or took its last."""
        name, had = pod.spec.node_name, pod.spec.node_name in self._pods
        pods = self._pods.setdefault(name, set())
        if held is None:
            pods.discard(pod.metadata.uid)
        elif _is_claimed(pod, held):
            pods.add(pod.metadata.uid)
        if not pods:
            del self._pods[name]
        return bool(pods) != had


def _is_claimed(pod: Pod, held: Placement) -> bool:
    if pod.spec.scheduler_name in names.KUBE_SCHEDULER:
        return False  # it gives no devices, whatever the pod says
    return any(name == names.MILLIGPU for name, _ in held.resources) or bool(claims.given(pod))

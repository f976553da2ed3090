"""Whether a claimed pod requests the `gpu.scheduling/milligpu` that its GPUs count for.

The webhook fills the request in when the pod is created. A pod that came without it, or whose claim was
replaced since, would hold GPUs that no quota and no node counts. Used by the gpu-scheduler.
"""

from collections.abc import Callable

from gpu_orchestrator.api import capacity, claims, names
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Pod

Amounts = tuple[tuple[str, int], ...]
LargestMib = Callable[[str, str], int]
"""Memory of the largest known device of a vendor and a model, each empty for any; 0 if none is known."""


def uncounted(pod: Pod, claim: GpuClaim | None, requested: Amounts, largest_mib: LargestMib) -> str:
    """Return that the pod requests less than its GPUs count for, in a sentence; empty if it does not.
    `requested` is what it takes of each resource, `claim` the claim or template that it names. Raises
    `BadGpuRequest`."""
    has = next((amount for name, amount in requested if name == names.MILLIGPU), 0)
    needed = _counted(pod, claim, largest_mib)
    if has >= needed:
        return ""
    asked = f"GpuClaim {claims.shortened(claim.metadata.name)}" if claim else f"its annotation {names.GPUS}"
    return (
        f"the pod requests {has} {names.MILLIGPU}, and {asked} counts for {needed}: create the pod again, so "
        f"that the webhook fills in its request, or request {needed} in its first container"
    )


def depends_on_nodes(claim: GpuClaim | None) -> bool:
    """Return True if what the claim counts for changes with the devices of the cluster."""
    return claim is not None and capacity.needs_memory(claim.spec.devices)


def _counted(pod: Pod, claim: GpuClaim | None, largest_mib: LargestMib) -> int:
    if claim is None:
        return capacity.WHOLE_DEVICE * claims.annotated_gpus(pod)
    wish = claim.spec.devices
    largest = largest_mib(wish.vendor or "", wish.model) if capacity.needs_memory(wish) else 0
    return capacity.milligpu(wish, wish.count, largest_mib=largest)

"""What a pod of ours asks for, or in words why it cannot be served. Pure; the desk asks whenever the pod or
its claim changed.

What this scheduler does not implement is refused by name: a pod placed wrongly is worse than one that waits.
"""

from dataclasses import dataclass, replace

from gpu_orchestrator.api import claims, names, volumes
from gpu_orchestrator.api.claims import BadAsk
from gpu_orchestrator.api.gpuclaim import GpuClaim, GpuClaimSpec
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.pod import PodSpec
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.core.request import Request


def is_gated(pod: Pod) -> bool:
    """Somebody else holds the pod back; it does not ask yet."""
    return bool(pod.spec.scheduling_gates)


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """The pod cannot be served as it is; `why` is what its owner reads."""

    why: str


def request_of(
    pod: Pod, claim: GpuClaim | None, known: volumes.Known, user: Pod | None = None
) -> Request | Unschedulable:
    """The pod's request, or why there is none. `claim` is the one that `named_claim` names, if it exists;
    `user` is the pod that we let use the claim, whether the claim shows it yet or not."""
    if refused := _unfit(pod) or _unclaimed(pod, claim, user):
        return refused
    reach = volumes.reach(pod, known)
    if isinstance(reach, volumes.NotReady):
        return Unschedulable(reach.why)
    try:
        request = claims.request(pod, claim.spec if claim else None)
        if not reach:
            return request
        affinity = volumes.all_of(request.shape.affinity, reach)
        return replace(request, shape=replace(request.shape, affinity=affinity))
    except (BadAsk, BadQuantity, InvalidRequest) as error:
        return Unschedulable(f"the pod asks for what cannot be meant: {error}")


def _unfit(pod: Pod) -> Unschedulable | None:
    ways = [name for name in names.ASKING_ANNOTATIONS if name in pod.metadata.annotations]
    if not ways:
        return Unschedulable(
            "the pod names this scheduler and asks for no GPU; add one of the annotations "
            f"{', '.join(names.ASKING_ANNOTATIONS)} or use another schedulerName"
        )
    if len(ways) > 1:
        return Unschedulable(
            f"the pod asks in {len(ways)} ways at once ({', '.join(ways)}); keep one of the annotations"
        )
    if missing := unsupported(pod):
        return Unschedulable(f"the pod uses what this scheduler does not implement: {', '.join(missing)}")
    return None


def unsupported(pod: Pod) -> list[str]:
    """What the pod uses and we do not implement, in the words of its manifest."""
    spec, annotations = pod.spec, pod.metadata.annotations
    uses = {
        **_placement_rules(spec),
        "spec.resourceClaims": bool(spec.resource_claims),
        f"a request for {'/'.join(_gpu_resources(spec))} beside a claim": bool(_gpu_resources(spec)),
        f"a gang ({names.GANG})": names.GANG in annotations,
    }
    return [what for what, is_used in uses.items() if is_used]


def _placement_rules(spec: PodSpec) -> dict[str, bool]:
    spread = [
        each for each in spec.topology_spread_constraints if each.when_unsatisfiable != "ScheduleAnyway"
    ]
    return {
        "required podAffinity": bool(spec.affinity.pod_affinity.required),
        "required podAntiAffinity": bool(spec.affinity.pod_anti_affinity.required),
        "topologySpreadConstraints with DoNotSchedule": bool(spread),
        "ephemeral volumes": any(volume.ephemeral for volume in spec.volumes),
    }


def _gpu_resources(spec: PodSpec) -> list[str]:
    """Whole GPUs of a device plugin that the pod requests, by name."""
    every = [*spec.containers, *spec.init_containers]
    asked = [each.resources.limits | each.resources.requests for each in every]
    return sorted({name for each in asked for name in names.GPU_RESOURCES if each.get(name, "0") != "0"})


def _unclaimed(pod: Pod, claim: GpuClaim | None, user: Pod | None) -> Unschedulable | None:
    """Why the pod's claim does not serve it; None if it does or the pod needs none."""
    name = claims.named_claim(pod)
    if not name:
        return None
    kind = "template GpuClaim" if claims.is_template(pod) else "GpuClaim"
    if claim is None:
        return Unschedulable(f"{kind} {pod.metadata.namespace}/{name} does not exist; create it")
    if missing := _unsupported_claim(claim.spec):
        return Unschedulable(f"{kind} {name} asks for what this scheduler does not implement: {missing}")
    if claims.is_template(pod):
        return None
    if claim.metadata.deletion_timestamp:
        return Unschedulable(f"GpuClaim {name} is being deleted; create it anew")
    uid = user.metadata.uid if user else claims.served(claim)
    if uid and uid != pod.metadata.uid:
        who = user.metadata.name if user else _who(claim)
        return Unschedulable(
            f"GpuClaim {name} serves another pod ({who}); it is free when that pod has ended"
        )
    return None


def _unsupported_claim(spec: GpuClaimSpec) -> str:
    if spec.devices.exclusivity == "MIG":
        return "devices.exclusivity MIG"
    return f"gangRef {spec.gang_ref}" if spec.gang_ref else ""


def _who(claim: GpuClaim) -> str:
    return claim.metadata.annotations.get(names.LEASE_POD, "") or f"UID {claims.served(claim)}"

"""Turn a pod and its claim into a request for the engine, or into the reason why it cannot be scheduled.

Pure. The coordinator calls it whenever the pod or its claim has changed. A feature that this scheduler does
not implement is refused by name: a pod placed wrongly is worse than one that waits.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from gpu_orchestrator.api import (
    claims,
    first_consumer,
    gangs,
    names,
    neighbours,
    pod_limits,
    run_times,
    volumes,
)
from gpu_orchestrator.api.claims import BadGpuRequest
from gpu_orchestrator.api.gpuclaim import GpuClaim, GpuClaimSpec
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.pod import PodSpec
from gpu_orchestrator.api.podgroup import PodGroup
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.core.pod_rules import PodTerm
from gpu_orchestrator.core.request import Request


def is_gated(pod: Pod) -> bool:
    """Return True if a scheduling gate holds the pod back; it is not to be scheduled yet."""
    return bool(pod.spec.scheduling_gates)


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """The pod cannot be scheduled as it is; `why` is the message that its owner reads."""

    why: str


class Known(first_consumer.Known, neighbours.Namespaces, Protocol):
    """Looks up volumes, namespaces and PodGroups."""

    def group_of(self, pod: Pod) -> PodGroup | None: ...

    def no_group(self, pod: Pod) -> str: ...


@dataclass(frozen=True, slots=True)
class Others:
    """What other pods mean for this one. `claim_user` is the pod that its claim is assigned to, whether the
    claim shows it yet or not; `conflict` why it must wait for others; `shunned_by` the anti-affinity of
    others that matches it."""

    claim_user: Pod | None = None
    conflict: str = ""
    shunned_by: tuple[PodTerm, ...] = ()


NO_OTHERS = Others()


def request_of(
    pod: Pod,
    claim: GpuClaim | None,
    known: Known,
    others: Others = NO_OTHERS,
    *,
    enforced_run_times: bool = False,
) -> Request | Unschedulable:
    """Return the pod's request, or why there is none. `claim` is the one that `named_claim` names, if it
    exists. `enforced_run_times`: a run time that only the pod's annotation declares does not count."""
    if refused := _pod_problem(pod) or _claim_problem(pod, claim, others.claim_user):
        return refused
    group = known.group_of(pod)
    if gangs.group_name(pod) and group is None:
        return Unschedulable(known.no_group(pod))
    reach = first_consumer.reach(pod, known) if pod.spec.volumes else ()
    if isinstance(reach, volumes.NotReady):
        return Unschedulable(reach.why)
    if others.conflict:
        return Unschedulable(others.conflict)
    try:
        itself = neighbours.neighbour(pod, known)
        rules = neighbours.rules(pod, itself, known, others.shunned_by)
        request = claims.request(pod, claim.spec if claim else None, itself)
        if gang := gangs.terms(pod, claim.spec if claim else None, group):
            request = replace(request, gang=gang)
        if run_s := run_times.declared_s(pod, enforced_only=enforced_run_times):
            request = replace(request, run_s=run_s)
        if group is not None and group.spec.priority is not None:
            request = replace(request, priority=group.spec.priority)
        if not pod.spec.volumes and rules is None:
            return request
        attached = first_consumer.attached(pod, known) if pod.spec.volumes else ()
        return replace(request, shape=replace(request.shape, reach=reach, volumes=attached, rules=rules))
    except (BadGpuRequest, BadQuantity, InvalidRequest) as error:
        return Unschedulable(f"invalid GPU request: {error}")


def _pod_problem(pod: Pod) -> Unschedulable | None:
    ways = [name for name in names.ASKING_ANNOTATIONS if name in pod.metadata.annotations]
    if not ways:
        return Unschedulable(
            "the pod names this scheduler and asks for no GPU; add one of the annotations "
            f"{', '.join(names.ASKING_ANNOTATIONS)} or use another schedulerName"
        )
    if len(ways) > 1:
        return Unschedulable(
            f"the pod asks for GPUs in {len(ways)} ways at once ({', '.join(ways)}); "
            "keep one of the annotations"
        )
    if names.GPUS not in ways and not claims.named_claim(pod):
        return Unschedulable(f"{ways[0]} is empty; write the name of a GpuClaim")
    if (rules := neighbours.count_rules(pod)) > neighbours.MOST_RULES:
        return Unschedulable(
            f"the pod has {rules} rules about other pods (affinity, anti-affinity, spread); "
            f"this scheduler takes up to {neighbours.MOST_RULES}"
        )
    if neighbours.has_too_long_rule(pod):
        return Unschedulable(
            f"a rule of the pod about other pods lists more than {neighbours.MOST_NAMESPACES} namespaces, "
            f"{neighbours.MOST_EXPRESSIONS} conditions or {neighbours.MOST_VALUES} values of a condition; "
            "select fewer labels, or namespaces by namespaceSelector"
        )
    if found := pod_limits.excess(pod.spec):
        return Unschedulable(f"the pod's {found}")
    if missing := unsupported(pod):
        uses = ", ".join(missing)
        return Unschedulable(f"the pod uses features that this scheduler does not implement: {uses}")
    return None


def unsupported(pod: Pod) -> list[str]:
    """Return what the pod uses and this scheduler does not implement, as its manifest names it."""
    spec = pod.spec
    uses = {
        "spec.resourceClaims": bool(spec.resource_claims),
        f"a request for {'/'.join(_gpu_resources(spec))} beside a claim": bool(_gpu_resources(spec)),
    }
    return [what for what, is_used in uses.items() if is_used]


def _gpu_resources(spec: PodSpec) -> list[str]:
    """Return the names of device-plugin resources (GPUs, or parts of them) that the pod requests."""
    containers = [*spec.containers, *spec.init_containers]
    requested = [each.resources.limits | each.resources.requests for each in containers]
    return sorted({name for each in requested for name in each if _is_gpu(name, each[name])})


def _is_gpu(name: str, amount: str) -> bool:
    return names.is_gpu_resource(name) and amount != "0"


def _claim_problem(pod: Pod, claim: GpuClaim | None, user: Pod | None) -> Unschedulable | None:
    """Return why the pod cannot use its claim; None if it can, or if it needs no claim."""
    name = claims.shortened(claims.named_claim(pod))
    if not name:
        return None
    kind = "template GpuClaim" if claims.is_template(pod) else "GpuClaim"
    if claim is None:
        return Unschedulable(f"{kind} {pod.metadata.namespace}/{name} does not exist; create it")
    if missing := unsupported_claim(claim.spec):
        return Unschedulable(f"{kind} {name} asks for what no node has: {missing}")
    if claims.is_template(pod):
        return None
    if claim.metadata.deletion_timestamp:
        return Unschedulable(f"GpuClaim {name} is being deleted; create it again")
    uid = user.metadata.uid if user else claims.reserved_for(claim)
    if uid and uid != pod.metadata.uid:
        user_name = user.metadata.name if user else _user_name(claim)
        return Unschedulable(
            f"GpuClaim {name} serves another pod ({user_name}); it is free when that pod has ended"
        )
    return None


def unsupported_claim(spec: GpuClaimSpec) -> str:
    """Return what of a claim no node can ever have; empty if nothing."""
    devices, topology = spec.devices, spec.topology
    is_linked = topology.mode == "Required" and bool(topology.min_bandwidth_gbps) and devices.count > 1
    if devices.exclusivity == "MIG" and is_linked:
        return "topology.minBandwidthGBps between MIG slices, which have no links"
    return ""


def _user_name(claim: GpuClaim) -> str:
    return claim.metadata.annotations.get(names.LEASE_POD, "") or f"UID {claims.reserved_for(claim)}"

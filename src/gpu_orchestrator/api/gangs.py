"""Read from a pod, its claim and its PodGroup which gang it belongs to.

A pod says it by annotations, its claim by `gangRef` and `gangSize`, or it is in a PodGroup. Gangs of two
namespaces never meet: the namespace is a part of the name. Nor do a PodGroup and a gang by annotations.
"""

import hashlib
from dataclasses import replace

from gpu_orchestrator.api import names
from gpu_orchestrator.api.claims import BadGpuRequest, shortened
from gpu_orchestrator.api.gpuclaim import GpuClaimSpec
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.podgroup import PodGroup
from gpu_orchestrator.core.request import GangTerms

MOST_MEMBERS = 4096


def group_name(pod: Pod) -> str:
    """Return the name of the pod's PodGroup; empty if it is in none."""
    group = pod.spec.scheduling_group
    return group.pod_group_name if group else ""


def group_key(pod: Pod) -> str:
    """Return the key of the pod's PodGroup; empty if it is in none."""
    name = group_name(pod)
    return f"{pod.metadata.namespace}/{name}" if name else ""


def priority(pod: Pod, group: PodGroup | None) -> int:
    """Return the priority that counts: a PodGroup may have its own."""
    given = group.spec.priority if group else None
    return pod.spec.priority if given is None else given


def is_marked(pod: Pod) -> bool:
    """Return True if the pod carries the mark that its gang has begun."""
    return any(each.type == names.GANG_BEGUN and each.status == "True" for each in pod.status.conditions)


def terms(pod: Pod, claim: GpuClaimSpec | None, group: PodGroup | None = None) -> GangTerms | None:
    """Return the terms of the pod's gang; None if it belongs to none. `group` is its PodGroup. Raises
    `BadGpuRequest`."""
    if group_name(pod):
        return _of_group(pod, claim, group)
    if not (name := _named(pod, claim)):
        _check_alone(pod)
        return None
    return _annotated(pod, claim, name)


def _named(pod: Pod, claim: GpuClaimSpec | None) -> str:
    return pod.metadata.annotations.get(names.GANG, "") or (claim.gang_ref if claim else "")


def _annotated(pod: Pod, claim: GpuClaimSpec | None, name: str) -> GangTerms:
    size = _number(pod, names.GANG_SIZE) or (claim.gang_size if claim else None)
    if size is None:
        raise BadGpuRequest(
            f"gang {shortened(name)} has no size; add the annotation {names.GANG_SIZE}, the number of its "
            "members, or spec.gangSize to the claim"
        )
    least = _number(pod, names.GANG_MIN) or size
    if least > size:
        raise BadGpuRequest(
            f"{names.GANG_MIN} is {least}, and the gang has {size} members; write a number from 1 to {size}"
        )
    given = pod.metadata.annotations
    required, preferred = (
        given.get(each, "") for each in (names.TOPOLOGY_REQUIRED, names.TOPOLOGY_PREFERRED)
    )
    return GangTerms(f"{pod.metadata.namespace}/{_distinct(name)}", least, required, preferred)


def _of_group(pod: Pod, claim: GpuClaimSpec | None, group: PodGroup | None) -> GangTerms | None:
    """Return the terms of a PodGroup. Pods of one without a gang start one by one; if they must share a
    domain, each goes where the others are."""
    if group is None:
        raise BadGpuRequest(f"PodGroup {shortened(group_key(pod))} does not exist")
    found, given = _terms(group), pod.metadata.annotations
    _check_agrees(pod, claim, found)
    domain = found.domain or given.get(names.TOPOLOGY_REQUIRED, "")
    is_gang = group.spec.scheduling_policy.gang is not None
    near = given.get(names.TOPOLOGY_PREFERRED, "")
    return replace(found, domain=domain, near=near) if is_gang or domain else None


def _terms(group: PodGroup) -> GangTerms:
    meta, constraints = group.metadata, group.spec.scheduling_constraints
    topology = constraints.topology if constraints else []
    if len(topology) > 1:
        raise BadGpuRequest(
            f"PodGroup {meta.name} has {len(topology)} topology constraints; this scheduler takes one"
        )
    if not 1 <= group.least <= MOST_MEMBERS:
        raise BadGpuRequest(
            f"minCount of PodGroup {meta.name} is {group.least}; write a number from 1 to {MOST_MEMBERS}"
        )
    domain = topology[0].key if topology else ""
    return GangTerms(f"{meta.namespace}/{_distinct(meta.name)} (PodGroup)", group.least, domain)


def _check_agrees(pod: Pod, claim: GpuClaimSpec | None, group: GangTerms) -> None:
    """What a pod says of its gang beside its PodGroup must be the same."""
    name = _named(pod, claim)
    if not name:
        _check_alone(pod, but=(names.TOPOLOGY_REQUIRED, names.TOPOLOGY_PREFERRED))
    said, shown = _annotated(pod, claim, name) if name else group, shortened(group_name(pod))
    if (name or group_name(pod), said.least) != (group_name(pod), group.least):
        raise BadGpuRequest(
            f"the pod is in PodGroup {shown}, of which {group.least} pods start together, and its "
            f"annotations or its claim name gang {shortened(name)}, of which {said.least} do; remove them, "
            "or let them say the same"
        )
    required = pod.metadata.annotations.get(names.TOPOLOGY_REQUIRED, "")
    if required and group.domain and required != group.domain:
        raise BadGpuRequest(
            f"PodGroup {shown} wants all its pods in one {group.domain}, and the annotation "
            f"{names.TOPOLOGY_REQUIRED} says {shortened(required)}; remove it"
        )


def _distinct(name: str) -> str:
    """Return the name as it can be shown. Two long ones that begin alike stay two."""
    shown = shortened(name)
    return shown if shown == name else f"{shown}{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _check_alone(pod: Pod, but: tuple[str, ...] = ()) -> None:
    """Members that cannot be told from single pods would start one by one."""
    lost = [each for each in names.GANG_ANNOTATIONS if each in pod.metadata.annotations and each not in but]
    if lost:
        raise BadGpuRequest(
            f"{lost[0]} is for members of a gang; add the annotation {names.GANG}, or leave it out"
        )


def _number(pod: Pod, name: str) -> int | None:
    text = pod.metadata.annotations.get(name)
    if text is None:
        return None
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 8 else 0
    if not 1 <= number <= MOST_MEMBERS:
        raise BadGpuRequest(f"{name} is {shortened(text)!r}; write a number from 1 to {MOST_MEMBERS}")
    return number

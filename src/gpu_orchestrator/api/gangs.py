"""Read from a pod and its claim which gang it belongs to.

A pod says it by annotations, or its claim by `gangRef` and `gangSize`. Gangs of two namespaces never meet:
the namespace is a part of the name.
"""

import hashlib

from gpu_orchestrator.api import names
from gpu_orchestrator.api.claims import BadGpuRequest, shortened
from gpu_orchestrator.api.gpuclaim import GpuClaimSpec
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.core.request import GangTerms

MOST_MEMBERS = 4096


def terms(pod: Pod, claim: GpuClaimSpec | None) -> GangTerms | None:
    """Return the terms of the pod's gang; None if it belongs to none. Raises `BadGpuRequest`."""
    given = pod.metadata.annotations
    name = given.get(names.GANG, "") or (claim.gang_ref if claim else "")
    if not name:
        _check_alone(pod)
        return None
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
    required, preferred = (
        given.get(each, "") for each in (names.TOPOLOGY_REQUIRED, names.TOPOLOGY_PREFERRED)
    )
    return GangTerms(f"{pod.metadata.namespace}/{_distinct(name)}", least, required, preferred)


def _distinct(name: str) -> str:
    """Return the name as it can be shown. Two long ones that begin alike stay two."""
    shown = shortened(name)
    return shown if shown == name else f"{shown}{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _check_alone(pod: Pod) -> None:
    """Members that cannot be told from single pods would start one by one."""
    lost = [each for each in names.GANG_ANNOTATIONS if each in pod.metadata.annotations]
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

"""What the status of a claim says in each phase, and which status is to be written next. Pure.

    (none) ──its pod waits──▶ Pending ──bind takes long──▶ Reserved ──▶ Bound ──pod ended──▶ Released
                                 └──spec that is never served──▶ Failed

A pod that is bound at once skips Pending and Reserved: each would cost one more write per pod. A claim that
no pod names has no phase: only the pod says which scheduler is to serve it.
"""

from dataclasses import dataclass, field

import msgspec

from gpu_orchestrator.api import claims, conditions, names
from gpu_orchestrator.api.conditions import Truth
from gpu_orchestrator.api.gpuclaim import ClaimPhase, GpuClaim
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.core.answer import Placement

ALLOCATED = "Allocated"
DEVICES_HEALTHY = "DevicesHealthy"
SHARE_ENFORCED = "ShareEnforced"
UNSERVED: tuple[ClaimPhase, ...] = ("Pending", "Reserved", "Failed")


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be written: a status, and whether the reservation is removed."""

    status: Json | None = None
    release: bool = False


@dataclass(frozen=True, slots=True)
class Claimant:
    """The unbound pod that is to get the claim: its name, why it waits (empty if that is not known yet), and
    whether its bind has begun and takes long."""

    pod: str
    why: str = ""
    is_binding: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """The devices of a bound pod, their UUIDs if known, and the bandwidth between them. `unenforced` says why
    nothing holds the pod to its share of them; empty if MPS does."""

    placement: Placement
    uuids: list[str] = field(default_factory=list)
    gbps: int = 0
    unenforced: str = ""


def due(claim: GpuClaim, pod: Pod | None, *, given: Json | None, held: bool, now: str) -> Due | None:
    """Return what to write to a claim that is reserved for a pod; None if nothing. `pod` is None if it has
    ended. `given` is the status for a bound pod. `held`: an ended pod's devices are not free yet, or the pod
    is being bound."""
    meta, status = claim.metadata, claim.status
    if names.CLAIM_FINALIZER not in meta.finalizers:
        return None
    if pod is not None and pod.spec.node_name and claims.reserved_for(claim) == pod.metadata.uid:
        is_written = status.phase == "Bound" and status.pod_uid == pod.metadata.uid
        return None if is_written or given is None else Due(given)
    if pod is not None and not (meta.deletion_timestamp and not held):
        return None
    if pod is None and held:
        return None
    is_written = bool(meta.deletion_timestamp) or status.phase == "Released"
    return Due(None if is_written else released(claim, now), release=True)


def unbound(claim: GpuClaim, claimant: Claimant | None, *, problem: str, now: str) -> Json | None:
    """Return the status of a claim that no pod has yet; None if nothing is to be written. `claimant` is None
    if no pod names the claim. `problem` says what of its spec is never served; empty if all of it is."""
    status = claim.status
    if claimant is None and status.phase not in UNSERVED:
        return None
    if claimant and not (claimant.why or claimant.is_binding or problem or status.phase == "Reserved"):
        return None  # the next decision binds it, or says why it waits
    phase, reason, message = _state(claimant, problem)
    if phase == status.phase and message == status.message:
        return None
    return _status(claim, phase, message, _allocated(claim, "False", reason, message, now))


def _state(claimant: Claimant | None, problem: str) -> tuple[ClaimPhase, str, str]:
    """Return phase, reason and message."""
    if problem:
        return "Failed", "Unsupported", f"no node has {problem}; create another GpuClaim"
    if claimant is None:
        return "Pending", "Unused", "no pod uses it"
    if claimant.is_binding:
        return "Reserved", "Binding", f"devices were chosen; pod {claimant.pod} is being bound"
    return "Pending", "Waiting", f"pod {claimant.pod} waits: {claimant.why or 'it is scheduled again'}"


def bound(pod: Pod, claim: GpuClaim, given: Given, *, now: str) -> Json:
    """Return the status of a claim whose pod has its devices."""
    serves = f"serves pod {pod.metadata.name}"
    holds = [_allocated(claim, "True", "Bound", serves, now)]
    if claim.spec.devices.exclusivity == "Shared":
        holds.append(_share_enforced(claim, given.unenforced, now))
    return {
        **_status(claim, "Bound", None, *holds),
        "nodeName": pod.spec.node_name,
        "gpuIds": list(given.placement.devices),
        "allocated": claims.allocated(given.placement),
        "deviceUUIDs": given.uuids or None,
        "podUID": pod.metadata.uid,
        "bandwidthGBps": given.gbps or None,
    }


def health(claim: GpuClaim, unhealthy: str, now: str) -> Json | None:
    """Return the status of a bound claim that says which of its devices are unhealthy, or that all have
    recovered (empty); None if it says so already. Claims whose devices were always healthy say nothing:
    that would be one more condition in every write."""
    before = conditions.find(claim.status.conditions, DEVICES_HEALTHY)
    if claim.status.phase != "Bound" or (before is None and not unhealthy):
        return None
    truth: Truth = "False" if unhealthy else "True"
    reason = names.DEVICE_UNHEALTHY if unhealthy else names.DEVICES_RECOVERED
    message = unhealthy or "all devices are healthy again"
    if before and (before.status, before.message) == (truth, message):
        return None
    kept = [msgspec.to_builtins(each) for each in claim.status.conditions if each.type != DEVICES_HEALTHY]
    return {"conditions": [*kept, _condition(claim, DEVICES_HEALTHY, truth, reason, message, now=now)]}


def released(claim: GpuClaim, now: str) -> Json:
    message = "the pod it served has ended; the claim can be used again"
    return _status(claim, "Released", message, _allocated(claim, "False", "Released", message, now))


def _share_enforced(claim: GpuClaim, unenforced: str, now: str) -> Json:
    if not unenforced:
        held = "an MPS daemon holds the pod to its share"
        return _condition(claim, SHARE_ENFORCED, "True", "Mps", held, now=now)
    accounted = f"the share is counted, and nothing on the node holds the pod to it: {unenforced}"
    return _condition(claim, SHARE_ENFORCED, "False", "AccountedOnly", accounted, now=now)


def _status(claim: GpuClaim, phase: ClaimPhase, message: str | None, *holds: Json) -> Json:
    """Return a whole status, without devices: a patch removes what is None."""
    cleared = dict.fromkeys(("nodeName", "gpuIds", "allocated", "deviceUUIDs", "podUID", "bandwidthGBps"))
    return {
        **cleared,
        "phase": phase,
        "message": message,
        "observedGeneration": claim.metadata.generation,
        "conditions": list(holds),
    }


def _allocated(claim: GpuClaim, truth: Truth, reason: str, message: str, now: str) -> Json:
    return _condition(claim, ALLOCATED, truth, reason, message, now=now)


def _condition(claim: GpuClaim, kind: str, truth: Truth, reason: str, message: str, *, now: str) -> Json:
    """Return a condition. Its time is that of the last change between True and False."""
    before = conditions.find(claim.status.conditions, kind)
    since = before.last_transition_time if before and before.status == truth else ""
    return {
        "type": kind,
        "status": truth,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or now,
        "observedGeneration": claim.metadata.generation,
    }

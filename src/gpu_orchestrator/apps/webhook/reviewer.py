"""One AdmissionRequest → one AdmissionResponse. Only the search for a claim may wait; all else is pure."""

from collections.abc import Awaitable, Callable

import msgspec

from gpu_orchestrator.api import (
    admission,
    capacity,
    jsonpatch,
    names,
    queue_checks,
    request_checks,
    sharing,
)
from gpu_orchestrator.api.admission import NamedClaim, WholeGpus
from gpu_orchestrator.api.admission_policies.claimed_pods import MOST_CONTAINERS
from gpu_orchestrator.api.admissionreview import JSON_PATCH, AdmissionRequest, AdmissionResponse, Result
from gpu_orchestrator.api.capacity import WHOLE_DEVICE
from gpu_orchestrator.api.devices import DeviceWish
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS, GpuClaim
from gpu_orchestrator.api.gpuqueue import GPU_QUEUES, GpuQueue
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS, GPUWorkload
from gpu_orchestrator.api.pod import PODS
from gpu_orchestrator.api.request_checks import Findings
from gpu_orchestrator.api.wire import Json, Object, Resource
from gpu_orchestrator.apps.webhook.claim_reader import CannotRead

EPHEMERAL = "ephemeralcontainers"
COMES_NEW = (("CREATE", ""), ("UPDATE", EPHEMERAL))
"""Operation and subresource of the requests in which containers come new; a pod's others cannot change."""
MOST_LOOKED_AT = 1000
"""Containers of a pod without a claim, or of one that has collected them from `kubectl debug`."""
UNAVAILABLE = (503, "ServiceUnavailable")

FindClaim = Callable[[str, str], Awaitable[GpuClaim | None]]
LargestMib = Callable[[DeviceWish], int]
ListQueues = Callable[[], Awaitable[list[GpuQueue]]]


class BadReview(ValueError):
    """The request is not one that an API server sends; the message says why."""


class Reviewer:
    """`uses_mps`: prepare pods with shared claims as clients of the MPS daemons that the agents keep."""

    def __init__(
        self,
        find_claim: FindClaim,
        largest_mib: LargestMib,
        list_queues: ListQueues,
        *,
        uses_mps: bool = False,
    ) -> None:
        self._find_claim, self._largest_mib, self._uses_mps = find_claim, largest_mib, uses_mps
        self._list_queues = list_queues

    async def fill(self, asked: AdmissionRequest) -> AdmissionResponse:
        """Fill in a pod that claims GPUs."""
        pod = _new_pod(asked)
        if pod is None or not admission.is_claimed(pod):
            return _allowed(asked)
        is_new = asked.sub_resource != EPHEMERAL
        if why := admission.too_large(pod, MOST_CONTAINERS if is_new else MOST_LOOKED_AT):
            return _denied(asked, why)
        if asked.sub_resource == EPHEMERAL:
            return _patched(asked, pod, admission.filled_ephemeral(pod, _before(asked)))
        match admission.asked(pod):
            case WholeGpus(count):
                return _patched(asked, pod, admission.filled(pod, count * WHOLE_DEVICE))
            case NamedClaim() as named:
                return await self._claimed(asked, pod, named)
            case admission.Denied(why):
                return _denied(asked, why)
        return _allowed(asked)

    async def _claimed(self, asked: AdmissionRequest, pod: Json, named: NamedClaim) -> AdmissionResponse:
        if not names.is_object_name(asked.namespace):
            raise BadReview("request.namespace is not the name of a namespace")
        what = f"{'template ' if named.is_template else ''}GpuClaim {asked.namespace}/{named.name}"
        try:
            claim = await self._find_claim(asked.namespace, named.name)
        except CannotRead as error:
            return _denied(asked, f"{what} cannot be read now: {error}; try again", *UNAVAILABLE)
        if claim is None:
            return _denied(
                asked,
                f"{what} does not exist; create it first: what the pod counts for is read from it",
            )
        wish = claim.spec.devices
        milligpu = capacity.milligpu(wish, wish.count, largest_mib=self._largest_mib(wish))
        filled = admission.filled(pod, milligpu)
        if not self._uses_mps or not sharing.suits(wish):
            return _patched(asked, pod, filled)
        match sharing.client(filled, wish):
            case str(why):
                return _patched(asked, pod, filled, [f"nothing will hold the pod to its share: {why}"])
            case made:
                return _patched(asked, pod, made)

    async def hide(self, asked: AdmissionRequest) -> AdmissionResponse:
        """Hide all GPUs from a pod without a claim."""
        pod = _new_pod(asked)
        if pod is None:
            return _allowed(asked)
        if why := admission.too_large(pod, MOST_LOOKED_AT):
            return _denied(asked, why)
        if asked.sub_resource == EPHEMERAL:
            return _patched(asked, pod, admission.hidden_ephemeral(pod, _before(asked)))
        return _patched(asked, pod, admission.hidden(pod))

    async def validate(self, asked: AdmissionRequest) -> AdmissionResponse:
        """Check a new GpuClaim, or a GPUWorkload or GpuQueue whose spec is new."""
        if asked.sub_resource or asked.operation not in ("CREATE", "UPDATE"):
            return _allowed(asked)
        new = _object(asked)
        if _before(asked).get("spec") == new.get("spec"):
            return _allowed(asked)  # a finalizer must go, whatever the spec says
        try:
            found = await self._of_queue(new) if _is(asked, GPU_QUEUES) else _findings(asked, new)
        except msgspec.ValidationError as error:
            return _allowed(asked, warnings=[f"the webhook cannot check this: {error}"])
        if found.problems:
            return _denied(asked, "; ".join(found.problems))
        return _allowed(asked, warnings=list(found.warnings))

    async def _of_queue(self, new: Json) -> Findings:
        queue = msgspec.convert(new, GpuQueue)
        try:
            return queue_checks.of_queue(queue, await self._list_queues())
        except CannotRead as error:
            return Findings((), (f"the other queues cannot be read now: {error}",))


def _findings(asked: AdmissionRequest, new: Json) -> Findings:
    if _is(asked, GPU_CLAIMS):
        return request_checks.of_claim(msgspec.convert(new, GpuClaim).spec)
    if _is(asked, GPU_WORKLOADS):
        return request_checks.of_workload(msgspec.convert(new, GPUWorkload))
    return Findings()


def _new_pod(asked: AdmissionRequest) -> Json | None:
    """Return the pod if containers come new with this request; None if it is none of our business."""
    is_ours = _is(asked, PODS) and (asked.operation, asked.sub_resource) in COMES_NEW
    return _object(asked) if is_ours else None


def _is(asked: AdmissionRequest, resource: Resource[Object]) -> bool:
    kind = asked.kind
    return (kind.group, kind.version, kind.kind) == (resource.group, resource.version, resource.kind)


def _object(asked: AdmissionRequest) -> Json:
    if not isinstance(asked.object, dict):
        raise BadReview("request.object is not an object; send the one that is to be admitted")
    return asked.object


def _before(asked: AdmissionRequest) -> Json:
    return asked.old_object if isinstance(asked.old_object, dict) else {}


def _allowed(asked: AdmissionRequest, warnings: list[str] | None = None) -> AdmissionResponse:
    return AdmissionResponse(asked.uid, True, warnings=warnings or [])


def _patched(
    asked: AdmissionRequest, before: Json, after: Json, warnings: list[str] | None = None
) -> AdmissionResponse:
    patch = jsonpatch.patch(before, after)
    if not patch:
        return _allowed(asked, warnings)
    return AdmissionResponse(asked.uid, True, msgspec.json.encode(patch), JSON_PATCH, warnings=warnings or [])


def _denied(
    asked: AdmissionRequest, why: str, code: int = 403, reason: str = "Forbidden"
) -> AdmissionResponse:
    return AdmissionResponse(asked.uid, False, status=Result(why, code, reason))

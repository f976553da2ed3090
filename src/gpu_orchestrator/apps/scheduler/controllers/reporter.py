"""Write events and the PodScheduled condition. A claim's status is written by `controllers/claims`.

The executor and the sweep report here. A few writers send the reports later, so that no bind waits for a
report about another pod. A reason is written again only if it has changed: ten thousand pods that do not fit
cost ten thousand writes, not ten thousand a second.
"""

from collections.abc import Callable, Mapping, Sequence

import structlog

from gpu_orchestrator.adapters.kube.errors import Conflict, NotFound
from gpu_orchestrator.adapters.kube.events import Recorder, about
from gpu_orchestrator.adapters.kube.workqueue import WorkQueue
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import claims, deviceenv, names
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS, GpuClaim
from gpu_orchestrator.api.kubernetes import NODES, PODS, Node, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.actions import BindJob
from gpu_orchestrator.apps.scheduler.binding.pod_status import (
    SCHEDULED,
    UNSCHEDULABLE,
    PodStatusWriter,
    condition,
)
from gpu_orchestrator.core.device import Device

WRITERS = 4
MOST_SHOWN = 4
"""Devices that one event lists."""

log = structlog.get_logger()


class Reporter:
    """`pending_pod` returns the pod with this UID and why it waits; None if it does not wait any more.
    `refused` is called with each pod that gets another reason to wait: its claim shows it, too.
    `warns_of_env`: warn of bound pods whose containers do not take their devices from the annotations;
    `uncounted` returns what else to warn of: that a bound pod requests too little capacity."""

    def __init__(
        self,
        pod_status: PodStatusWriter,
        recorder: Recorder,
        pacer: Pacer,
        pending_pod: Callable[[str], tuple[Pod, str] | None],
        refused: Callable[[Pod], None] = lambda pod: None,
        *,
        warns_of_env: bool = False,
        uncounted: Callable[[BindJob], str] = lambda job: "",
    ) -> None:
        self._pod_status, self._recorder = pod_status, recorder
        self._pacer, self._pending_pod, self._refused = pacer, pending_pod, refused
        self._warns_of_env, self._uncounted = warns_of_env, uncounted
        self.queue: WorkQueue[str] = WorkQueue()

    def report_bound(self, job: BindJob) -> None:
        log.debug("pod bound", pod=key(job.pod), allocated=claims.allocated(job.placement))
        note = f"bound to {job.placement.node}, {_named(job.devices)}"
        # In the same event: one more for every such pod would be one more write for every such pod.
        unconfined = deviceenv.unconfined(job.pod.spec) if self._warns_of_env else ""
        warnings = [each for each in (unconfined, self._uncounted(job)) if each]
        kind, note = "Warning" if warnings else "Normal", "; ".join([note, *warnings])
        self._recorder.record(kind, about(PODS, job.pod), names.SCHEDULED, note, action="Binding")

    def report_refused(self, pod: Pod, why: str) -> None:
        self._recorder.warning(about(PODS, pod), names.FAILED_SCHEDULING, why, action="Scheduling")
        self.queue.add(pod.metadata.uid)
        self._refused(pod)

    def report_failed(self, job: BindJob, why: str) -> None:
        log.info("pod not bound", pod=key(job.pod), node=job.placement.node, why=why)

    def report_conflict(self, pod: Pod, why: str) -> None:
        log.error("device conflict", pod=key(pod), why=why)
        self._recorder.warning(about(PODS, pod), names.DEVICE_CONFLICT, why, action="Sweep")

    def report_claim(self, pod: Pod, why: str) -> None:
        self._recorder.warning(about(PODS, pod), names.CLAIM_CONFLICT, why, action="Reserving")

    def report_duplicates(self, node: Node, rivals: Mapping[int, str]) -> None:
        """Report which devices of a node are not given, each with a node that reports it as well."""
        shown = [f"device {device} ({rival} reports it as well)" for device, rival in rivals.items()]
        more = f" and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
        listed = f"{', '.join(shown[:MOST_SHOWN])}{more}"
        why = f"given to no pod: {listed}; cordon the node that is wrong, or delete its GpuNodeStatus"
        log.error("device reported twice", node=node.metadata.name, why=why)
        self._recorder.warning(about(NODES, node), names.DUPLICATE_DEVICE, why, action="Sweep")

    def report_health(self, pod: Pod, claim: GpuClaim | None, reason: str, why: str) -> None:
        """Report on pod and claim what became of the health of the pod's devices."""
        about_claim = about(GPU_CLAIMS, claim) if claim is not None else None
        kind = "Normal" if reason == names.DEVICES_RECOVERED else "Warning"
        for each in filter(None, (about(PODS, pod), about_claim)):
            self._recorder.record(kind, each, reason, why, action="Monitoring")

    def report_gang(self, pod: Pod, why: str) -> None:
        """Report on a member what became of its gang."""
        self._recorder.warning(about(PODS, pod), names.GANG_BROKEN, why, action="Evicting")

    def report_overrun(self, pod: Pod, reason: str, why: str) -> None:
        """Report on a pod that it runs longer than it declared, and others wait for that."""
        self._recorder.warning(about(PODS, pod), reason, why, action="Monitoring")

    def report_preemption(self, pod: Pod, reason: str, why: str) -> None:
        """Report on a pod that it evicts others, cannot, or was evicted for another."""
        kind = "Normal" if reason == names.PREEMPTS else "Warning"
        self._recorder.record(kind, about(PODS, pod), reason, why, action="Preempting")

    async def run(self) -> None:
        await self.queue.run(self._write, workers=WRITERS)

    async def _write(self, uid: str) -> None:
        await self._pacer.wait()
        found = self._pending_pod(uid)
        if found is None:
            return
        pod, why = found
        if _reported_reason(pod) == why:
            return
        try:
            await self._pod_status.write(pod, condition(pod, UNSCHEDULABLE, why))
        except NotFound:
            return
        except Conflict:
            self.queue.add_after(uid, 1.0)


def _named(devices: Sequence[Device]) -> str:
    """Return the devices as text: `devices 0,1 (GPU-a, GPU-b)`, or without UUIDs if they are not known."""
    ids, uuids = ",".join(str(each.id) for each in devices), [each.uuid for each in devices]
    known = f" ({', '.join(uuids)})" if all(uuids) else ""
    return f"device{'s' if len(devices) > 1 else ''} {ids}{known}"


def _reported_reason(pod: Pod) -> str:
    found = next((each for each in pod.status.conditions if each.type == SCHEDULED), None)
    return found.message if found and found.status == "False" and found.reason == UNSCHEDULABLE else ""

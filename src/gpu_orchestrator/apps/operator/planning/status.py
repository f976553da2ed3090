"""A workload's next status from its last. Each function returns the status after one step of its life.

    ┌──────────────◄── retry, resume ───────────────┐
    ▼                                               │
pending ──► scheduled ──► running ──► succeeded     │
  ▲ │ ▼         ▲  │         └──────► failed        │
  scheduling ───┘  │                                │
    └──────────────┴──── tries left ────────────────┘

A workload is `scheduling` while its pod waits for a scheduler to choose the node: the gpu-scheduler, or the
kube-scheduler among several nodes. Called by the other modules of `planning`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from gpu_orchestrator.api import conditions, names, timestamps
from gpu_orchestrator.api.conditions import Condition, Truth
from gpu_orchestrator.api.gpuworkload import (
    COMPLETE,
    FAILED,
    RUNNING,
    SCHEDULED,
    AssignedDevice,
    GPUWorkload,
    GPUWorkloadStatus,
)

# Reasons of the condition Scheduled while a workload is Pending. The first five differ in what it waits for:
# room, which any event may bring, or the end of its backoff, after a failed try or, for the last three,
# without one: the pod fits on no node as it is, the nodes that it was given did not take it, or others ended
# it.
UNSCHEDULABLE = "Unschedulable"
BACKING_OFF = "BackingOff"
POD_REFUSED = "PodRefused"
NODE_REFUSED = "NodeRefused"
DISPLACED = "Displaced"
SUSPENDED = "Suspended"
JOB_SUSPENDED = "JobSuspended"
UNKNOWN_STRATEGY = "UnknownStrategy"
ENTRUSTED = "AskedGpuScheduler"
LEFT_OPEN = "AskedKubeScheduler"

WAITS_FOR_GPU_SCHEDULER = f"its pod waits for the {names.SCHEDULER} to place it"

NOWHERE: dict[str, Any] = {"assigned_node": "", "assigned_nodes": [], "devices": [], "allocated": ""}

LONGEST = 1024
"""The most characters of a message."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a workload runs: its node, its Job, and its devices if they are known. Of a gang, `nodes` has
    those of all replicas, by their index."""

    node: str
    job_name: str
    devices: Sequence[AssignedDevice] = ()
    nodes: Sequence[str] = ()

    @property
    def ids(self) -> str:
        return ",".join(str(device.index) for device in self.devices)

    @property
    def where(self) -> str:
        """Return node and devices as text: `node-a (devices 0,1)`, or the nodes of a gang."""
        if self.nodes:
            return _listed(self.nodes)
        return (
            f"{self.node} (device{'s' if len(self.devices) > 1 else ''} {self.ids})"
            if self.devices
            else self.node
        )


MOST_LISTED = 4
"""Nodes of a gang that a message names."""


def _listed(nodes: Sequence[str]) -> str:
    different = list(dict.fromkeys(nodes))
    more = f" and {len(different) - MOST_LISTED} more" if len(different) > MOST_LISTED else ""
    return f"{', '.join(different[:MOST_LISTED])}{more}"


def pending(
    workload: GPUWorkload, now: datetime, reason: str, message: str, **changed: Any
) -> GPUWorkloadStatus:
    """Without a node. `changed` are further fields, such as the number of tries."""
    return _next(
        workload,
        now,
        {SCHEDULED: ("False", reason), RUNNING: ("False", reason)},
        phase="Pending",
        message=message,
        **NOWHERE,
        **{"job_name": "", "next_retry_time": "", **changed},
    )


def scheduling(
    workload: GPUWorkload,
    now: datetime,
    *,
    job_name: str,
    asked: str = ENTRUSTED,
    message: str = WAITS_FOR_GPU_SCHEDULER,
) -> GPUWorkloadStatus:
    """A scheduler chooses the node of its pod."""
    return _next(
        workload,
        now,
        {SCHEDULED: ("False", asked), RUNNING: ("False", asked)},
        phase="Scheduling",
        message=message,
        **NOWHERE,
        job_name=job_name,
        next_retry_time="",
    )


def left_open(workload: GPUWorkload, now: datetime, *, job_name: str, nodes: int) -> GPUWorkloadStatus:
    """The kube-scheduler chooses among several nodes, since only it can judge what the pod asks for."""
    message = f"its pod fits on {nodes} nodes, of which the kube-scheduler chooses one"
    message += _last_failure(workload.status)
    return scheduling(workload, now, job_name=job_name, asked=LEFT_OPEN, message=message)


def scheduled(workload: GPUWorkload, now: datetime, place: Place) -> GPUWorkloadStatus:
    return _next(
        workload,
        now,
        {SCHEDULED: ("True", "Placed"), RUNNING: ("False", "Starting")},
        phase="Scheduled",
        message=f"placed on {place.where}, its pod is about to start{_last_failure(workload.status)}",
        **_fields(place),
        next_retry_time="",
        last_schedule_time=timestamps.milliseconds(now),
    )


def _last_failure(old: GPUWorkloadStatus) -> str:
    """Return why the last try failed, as the end of a message; empty for the first try."""
    failed = _backs_off(old) or waits_for_room(old)
    return f"; before: {old.message}" if failed else ""


def running(workload: GPUWorkload, now: datetime, place: Place) -> GPUWorkloadStatus:
    placed_at = workload.status.last_schedule_time if workload.status.assigned_node == place.node else ""
    return _next(
        workload,
        now,
        {SCHEDULED: ("True", "Placed"), RUNNING: ("True", "PodRunning")},
        phase="Running",
        message=f"running on {place.where}",
        **_fields(place),
        next_retry_time="",
        start_time=workload.status.start_time or timestamps.milliseconds(now),
        last_schedule_time=placed_at or timestamps.milliseconds(now),
    )


def succeeded(workload: GPUWorkload, now: datetime, *, message: str, **changed: Any) -> GPUWorkloadStatus:
    states: dict[str, tuple[Truth, str]] = {
        SCHEDULED: ("True", "Placed"),
        RUNNING: ("False", "Finished"),
        COMPLETE: ("True", "JobSucceeded"),
    }
    return _next(workload, now, states, phase="Succeeded", message=message, next_retry_time="", **changed)


def failed(
    workload: GPUWorkload, now: datetime, reason: str, message: str, *, placed: bool, **changed: Any
) -> GPUWorkloadStatus:
    """`placed`: it had a node when it failed."""
    states: dict[str, tuple[Truth, str]] = {
        SCHEDULED: ("True" if placed else "False", reason),
        RUNNING: ("False", reason),
        COMPLETE: ("False", reason),
        FAILED: ("True", reason),
    }
    nowhere = {} if placed else {**NOWHERE, "job_name": ""}
    done = {"completion_time": timestamps.milliseconds(now), "next_retry_time": "", **nowhere, **changed}
    return _next(workload, now, states, phase="Failed", message=message, **done)


def ran_at(workload: GPUWorkload, place: Place) -> dict[str, Any]:
    """Return the fields of a status about a Job that has ended. Its devices are known from its run, unless
    the operator missed that and found them in an ended pod."""
    old = workload.status
    if old.job_name != place.job_name:
        return _fields(place)
    devices, nodes = place.devices or old.devices, place.nodes or old.assigned_nodes
    return _fields(Place(place.node, place.job_name, devices, nodes))


def _fields(place: Place) -> dict[str, Any]:
    return {
        "assigned_node": place.node,
        "assigned_nodes": list(place.nodes),
        "devices": list(place.devices),
        "allocated": f"{place.node}:{place.ids}" if place.devices else "",
        "job_name": place.job_name,
    }


def waits_for_room(status: GPUWorkloadStatus) -> bool:
    return _waits_for(status) == UNSCHEDULABLE


def _backs_off(status: GPUWorkloadStatus) -> bool:
    return _waits_for(status) in (BACKING_OFF, POD_REFUSED, NODE_REFUSED, DISPLACED)


def turn_began(status: GPUWorkloadStatus) -> datetime | None:
    """Return since when a workload waits for its next place, if its last one was of no use to it because no
    pod was admitted: others go first now. None if its creation counts."""
    return timestamps.parse_optional(status.next_retry_time) if _waits_for(status) == POD_REFUSED else None


def backs_off_until(status: GPUWorkloadStatus, now: datetime) -> datetime | None:
    """Return when the wait is over during which no place is sought; None if it is over."""
    again_at = timestamps.parse_optional(status.next_retry_time) if _backs_off(status) else None
    return again_at if again_at and now < again_at else None


def _waits_for(status: GPUWorkloadStatus) -> str:
    found = conditions.find(status.conditions, SCHEDULED)
    return found.reason if found and status.phase == "Pending" else ""


def _next(
    workload: GPUWorkload, now: datetime, states: dict[str, tuple[Truth, str]], **changed: Any
) -> GPUWorkloadStatus:
    old, generation = workload.status, workload.metadata.generation
    changed["message"] = shortened(changed["message"])
    kept = {each.type: each for each in old.conditions}
    for kind, (truth, reason) in states.items():
        new = Condition(kind, truth, reason, changed["message"], timestamps.milliseconds(now), generation)
        kept[kind] = _since(kept.get(kind), new)
    return replace(old, conditions=list(kept.values()), observed_generation=generation, **changed)


def shortened(message: str) -> str:
    """Cut a message that would make the API server reject the status; its own error texts may be long."""
    return message if len(message) <= LONGEST else f"{message[: LONGEST - 1]}…"


def _since(old: Condition | None, new: Condition) -> Condition:
    """Keep the time at which the condition's status last changed."""
    if old is None or old.status != new.status:
        return new
    return replace(new, last_transition_time=old.last_transition_time or new.last_transition_time)

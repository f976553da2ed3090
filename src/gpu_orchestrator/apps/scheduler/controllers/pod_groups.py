"""Write the conditions of PodGroups, as kube-scheduler does for its own: whether the group is scheduled, and
that its pods are about to be evicted together.

`PodGroupScheduled` is True once `minCount` pods have got nodes and stays so: pods that come later change
nothing. Until then it says why the group waits.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog

from gpu_orchestrator.adapters.kube.client import Client, Patch
from gpu_orchestrator.adapters.kube.errors import Conflict, NotFound
from gpu_orchestrator.adapters.kube.workqueue import WorkQueue
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import gangs
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.podgroup import (
    DISRUPTION_TARGET,
    POD_GROUPS,
    SCHEDULED,
    GroupCondition,
    PodGroup,
)
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.informers import Stores

WRITERS = 2
IS_SCHEDULED = "Scheduled"
UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"
PREEMPTED = "PreemptionByScheduler"
STARTS_OVER = "GangBroken"

log = structlog.get_logger()


class Reason(Protocol):
    def __call__(self, uid: str) -> tuple[str, bool]:
        """Return why a pod waits, and whether that is an error of ours; empty if it does not wait."""


class PodGroupController:
    """`reason` returns why a pod waits; `now` the time as Kubernetes writes it."""

    def __init__(
        self,
        client: Client,
        stores: Stores,
        pacer: Pacer,
        *,
        scheduler_name: str,
        reason: Reason,
        now: Callable[[], str],
    ) -> None:
        self._client, self._stores, self._pacer = client, stores, pacer
        self._name, self._reason, self._now = scheduler_name, reason, now
        self._bound: dict[str, set[str]] = {}
        """The pods that got nodes, by group, until the group is scheduled."""
        self._evicted: dict[str, tuple[str, str]] = {}
        """Reason and message of a group that was evicted, until they are written."""
        self.queue: WorkQueue[str] = WorkQueue()

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Count a pod that got its node."""
        if new is None or not new.spec.node_name or not (name := self._group_of(new)):
            return
        group = self._stores.pod_groups.get(name)
        if group is None or new.metadata.deletion_timestamp or _is_settled(group):
            return
        bound = self._bound.setdefault(name, set())
        bound.add(new.metadata.uid)
        if len(bound) >= group.least:
            self.queue.add(name)

    def on_pod_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None and old is not None:
            self._bound.pop(key(old), None)
            self._evicted.pop(key(old), None)
        elif new is not None and old is None:
            for pod in self._stores.pods.by("group", key(new)):
                self.on_pod(None, pod)
            self.queue.add(key(new))

    def refused(self, pod: Pod) -> None:
        """The pod has another reason to wait."""
        if name := self._group_of(pod):
            self.queue.add(name)

    def preempted(self, pod: Pod, why: str) -> None:
        """The pod is evicted for one of higher priority, and with it all others of its group if that says
        so."""
        group = self._stores.pod_groups.get(self._group_of(pod))
        if group is not None and group.is_evicted_whole:
            self._evict(group, PREEMPTED, why)

    def starts_over(self, pod: Pod, why: str) -> None:
        """The pod is evicted because others of its gang could not be bound."""
        if (group := self._stores.pod_groups.get(self._group_of(pod))) is not None:
            self._evict(group, STARTS_OVER, why)

    def _evict(self, group: PodGroup, reason: str, why: str) -> None:
        name = key(group)
        self._evicted[name] = reason, why
        self._bound.pop(name, None)
        self.queue.add(name)

    async def run(self) -> None:
        await self.queue.run(self._write, workers=WRITERS)

    def _group_of(self, pod: Pod) -> str:
        return gangs.group_key(pod) if pod.spec.scheduler_name == self._name else ""

    async def _write(self, name: str) -> None:
        await self._pacer.wait()
        group = self._stores.pod_groups.get(name)
        if group is None:
            return
        changed = [each for each in self._conditions(group) if not _is_said(group, each)]
        if not changed:
            return
        meta = group.metadata
        body = {
            "metadata": {"resourceVersion": meta.resource_version},
            "status": {"conditions": [self._dated(group, each) for each in changed]},
        }
        try:
            await self._client.patch(
                POD_GROUPS, meta.name, body, meta.namespace, kind=Patch.STRATEGIC, subresource="status"
            )
        except NotFound:
            return
        except Conflict:  # the watch will show what it is now
            self.queue.add_after(name, 1.0)
            return
        self._evicted.pop(name, None)
        log.info("pod group", group=name, conditions=[f"{each.type}={each.status}" for each in changed])

    def _conditions(self, group: PodGroup) -> list[GroupCondition]:
        """Return what is to be said of the group now, be it said already or not."""
        name, found = key(group), list[GroupCondition]()
        bound = len(self._bound.get(name, ()))
        if name in self._evicted:
            found.append(_condition(group, DISRUPTION_TARGET, "True", *self._evicted[name]))
        elif bound >= group.least and group.is_true(DISRUPTION_TARGET):
            found.append(_condition(group, DISRUPTION_TARGET, "False", IS_SCHEDULED, "its pods run again"))
        if group.is_true(SCHEDULED):
            return found
        if bound >= group.least:
            said = f"{bound} pods have got nodes"
            return [*found, _condition(group, SCHEDULED, "True", IS_SCHEDULED, said)]
        if waits := self._why(name):
            why, is_error = waits
            reason = SCHEDULER_ERROR if is_error else UNSCHEDULABLE
            found.append(_condition(group, SCHEDULED, "False", reason, why))
        return found

    def _why(self, name: str) -> tuple[str, bool] | None:
        for pod in self._stores.pods.by("group", name):
            if not pod.spec.node_name and pod.spec.scheduler_name == self._name:
                why, is_error = self._reason(pod.metadata.uid)
                if why:
                    return why, is_error
        return None

    def _dated(self, group: PodGroup, condition: GroupCondition) -> dict[str, object]:
        known = group.condition(condition.type)
        since = known.last_transition_time if known and known.status == condition.status else ""
        dated = {**msgspec.to_builtins(condition), "message": condition.message}
        return {**dated, "lastTransitionTime": since or self._now()}


def _is_settled(group: PodGroup) -> bool:
    return group.is_true(SCHEDULED) and not group.is_true(DISRUPTION_TARGET)


def _condition(group: PodGroup, type_: str, status: str, reason: str, message: str) -> GroupCondition:
    return GroupCondition(type_, status, reason, message, observed_generation=group.metadata.generation)


def _is_said(group: PodGroup, condition: GroupCondition) -> bool:
    known = group.condition(condition.type)
    return known is not None and msgspec.structs.replace(known, last_transition_time="") == condition

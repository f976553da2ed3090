"""Act on devices that become unhealthy while a pod has them: tell its owner, and evict it if that is wanted.

    Ignore   nothing
    Event    event on pod and claim, condition DevicesHealthy of the claim
    Evict    the same, and the pod is evicted, once, as its disruption budgets allow

The claim says which (`spec.onUnhealthy`), else the installation. The agents' reports and a pass at intervals
call `check`; what is due follows from report, pod and claim as they are, so that a new leader goes on where
the last one stopped. A pod is looked at every `EVERY_S` at most: a device that flaps costs a bounded number
of writes.

A device that falls ill again within `DAMPED` of its recovery evicts nobody until it has been ill for as
long: one that flaps would otherwise end one replacement after the other. Both times are in the agent's
report, by one clock, so that every leader comes to the same answer.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from gpu_orchestrator.adapters.breath import Breath
from gpu_orchestrator.adapters.kube import pods
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import BlockedByBudget, Permanent
from gpu_orchestrator.adapters.kube.workqueue import WorkQueue
from gpu_orchestrator.api import claims, conditions, inventory, names, timestamps
from gpu_orchestrator.api.devices import OnUnhealthy
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus, NodeDevice
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.binding import claim_status
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.metrics import Metrics

WORKERS = 4
EVERY_S = 10.0
DAMPED = timedelta(minutes=10)
# How long to wait before an eviction is asked for again that a budget forbids, or that failed.
BLOCKED_S = 15.0
FAILED_S = 300.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """`on_unhealthy` is for pods whose claim does not say it; `is_live` returns whether a node's agent is;
    `may_write` whether we lead; `now` is the time for conditions."""

    on_unhealthy: OnUnhealthy
    is_live: Callable[[str], bool]
    may_write: Callable[[], bool]
    now: Callable[[], str]
    clock: Callable[[], float]


class HealthController:
    def __init__(
        self,
        client: Client,
        coordinator: Coordinator,
        claim_writer: ClaimWriter,
        reporter: Reporter,
        config: HealthConfig,
        *,
        metrics: Metrics,
    ) -> None:
        self._client, self._coordinator, self._claim_writer = client, coordinator, claim_writer
        self._reporter, self._config, self._metrics = reporter, config, metrics
        self._queue: WorkQueue[str] = WorkQueue()
        self._checked: dict[str, float] = {}
        self._told: dict[str, str] = {}
        self._not_evicted: dict[str, str] = {}
        self._evicted: set[str] = set()

    def on_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        if inventory.unhealthy(old) != inventory.unhealthy(new) and (report := new or old):
            for uid in self._pods_on(report.spec.node_name):
                self.check(uid)

    def check(self, uid: str) -> None:
        """Queue a pod, now or when it may be looked at again."""
        due = self._checked.get(uid, -EVERY_S) + EVERY_S
        self._queue.add_after(uid, due - self._config.clock())

    async def run(self, every_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run(self._look, workers=WORKERS))
            while True:
                await self._check_all()
                await asyncio.sleep(every_s)

    async def _check_all(self) -> None:
        """Check every pod that has, or that its claim says to have, an unhealthy device: reports change while
        nobody leads, and pods are bound a moment after a device became unhealthy."""
        breath, ours = Breath(self._config.clock), self._coordinator.our_pods
        for uid in [uid for uid in self._checked if uid not in ours]:
            self._forget(uid)
        reports = self._coordinator.stores.node_statuses
        nodes = {each.spec.node_name for each in reports if inventory.unhealthy(each)}
        for pod in list(ours.values()):
            if pod.spec.node_name in nodes or self._shown(self._claim(pod)):
                self.check(pod.metadata.uid)
            await breath()

    def _forget(self, uid: str) -> None:
        for known in (self._checked, self._told, self._not_evicted):
            known.pop(uid, None)
        self._evicted.discard(uid)

    async def _look(self, uid: str) -> None:
        pod = self._coordinator.our_pods.get(uid)
        if pod is None or not pod.spec.node_name:
            return
        claim, unhealthy = self._claim(pod), self._unhealthy(pod)
        if not (unhealthy or uid in self._checked or self._shown(claim)):
            return
        self._checked[uid] = self._config.clock()
        wanted = self._wanted(pod)
        if wanted == "Ignore" or pod.metadata.deletion_timestamp:
            return
        await self._tell(pod, claim, _text(pod.spec.node_name, unhealthy))
        if wanted == "Evict" and unhealthy and uid not in self._evicted:
            await self._evict(pod, claim, unhealthy)

    async def _tell(self, pod: Pod, claim: GpuClaim | None, why: str) -> None:
        """Report a change on the pod, and in its claim if it has one."""
        uid = pod.metadata.uid
        before = self._told.get(uid, self._shown(claim))
        if why and why != before:
            self._metrics.unhealthy.labels("told").inc()
            log.warning("pod has an unhealthy device", pod=key(pod), why=why)
            self._reporter.report_health(pod, claim, names.DEVICE_UNHEALTHY, why)
        elif before and not why:
            recovered = "all devices of the pod are healthy again"
            self._reporter.report_health(pod, claim, names.DEVICES_RECOVERED, recovered)
        self._told[uid] = why
        status = claim_status.health(claim, why, self._config.now()) if claim else None
        if claim and status and not await self._claim_writer.write_at_version(claim, status):
            self._queue.add_after(uid, 1.0)  # the watch will show what has changed

    async def _evict(self, pod: Pod, claim: GpuClaim | None, unhealthy: dict[int, str]) -> None:
        node, uid = pod.spec.node_name, pod.metadata.uid
        if not self._config.may_write() or not self._config.is_live(node):
            return  # what a dead agent said last may be over; the next pass looks again
        due = _due(self._coordinator.stores.node_statuses.get(node))
        if not (why := _text(node, {device: unhealthy[device] for device in unhealthy if device in due})):
            return
        try:
            await pods.evict(self._client, pod)
        except BlockedByBudget as error:
            self._report_failure(pod, claim, "blocked", str(error), BLOCKED_S)
        except Permanent as error:
            self._report_failure(pod, claim, "failed", str(error), FAILED_S)
        else:
            self._evicted.add(uid)
            self._metrics.unhealthy.labels("evicted").inc()
            log.warning("pod evicted", pod=key(pod), why=why)
            self._reporter.report_health(pod, claim, names.EVICTED, why)

    def _report_failure(
        self, pod: Pod, claim: GpuClaim | None, action: str, error: str, delay_s: float
    ) -> None:
        """Count every failure and report it when it is another one; the pod is looked at again."""
        uid = pod.metadata.uid
        self._metrics.unhealthy.labels(action).inc()
        if self._not_evicted.get(uid) != error:
            self._not_evicted[uid] = error
            self._reporter.report_health(pod, claim, names.NOT_EVICTED, error)
        self._queue.add_after(uid, delay_s)

    def _pods_on(self, node: str) -> list[str]:
        """Return our bound pods on a node."""
        cluster, ours = self._coordinator.engine.cluster, self._coordinator.our_pods
        return [uid for uid in cluster.held_on(node) if uid in ours] if node in cluster else []

    def _unhealthy(self, pod: Pod) -> dict[int, str]:
        """Return the unhealthy devices of a bound pod, each with the reason."""
        found = inventory.unhealthy(self._coordinator.stores.node_statuses.get(pod.spec.node_name))
        if not found:
            return {}
        held = self._coordinator.holdings.devices_of(pod.metadata.uid)
        return {each: found[each] for each in held if each in found}

    def _claim(self, pod: Pod) -> GpuClaim | None:
        """Return the pod's own claim if it serves the pod."""
        name = claims.claim_name(pod)
        claim = self._coordinator.stores.claims.get(f"{pod.metadata.namespace}/{name}") if name else None
        return claim if claim is not None and claims.reserved_for(claim) == pod.metadata.uid else None

    def _wanted(self, pod: Pod) -> OnUnhealthy:
        spec = self._coordinator.stores.claim_spec(pod)
        return (spec.on_unhealthy if spec else None) or self._config.on_unhealthy

    def _shown(self, claim: GpuClaim | None) -> str:
        """Return what the claim says of unhealthy devices; empty if nothing."""
        found = conditions.find(claim.status.conditions, claim_status.DEVICES_HEALTHY) if claim else None
        return found.message if found and found.status == "False" else ""


def _due(report: GpuNodeStatus | None) -> set[int]:
    """Return the unhealthy devices whose pods may be evicted now."""
    if report is None:
        return set()
    observed = timestamps.parse_or_none(report.status.observed_at)
    return {each.id for each in report.status.devices if _is_due(each, observed)}


def _is_due(device: NodeDevice, observed: datetime | None) -> bool:
    """Return False for a relapse of a device: see above. An agent that does not tell the times damps the
    flapping alone."""
    since = timestamps.parse_or_none(device.unhealthy_since)
    recovered = timestamps.parse_or_none(device.recovered_at)
    if since is None or recovered is None or since - recovered >= DAMPED:
        return True
    return observed is not None and observed - since >= DAMPED


def _text(node: str, unhealthy: dict[int, str]) -> str:
    """Return what is wrong with the devices of a pod; empty if nothing is."""
    return f"on {node}: {'; '.join(_listed(unhealthy))}" if unhealthy else ""


def _listed(unhealthy: dict[int, str]) -> Iterable[str]:
    for device, why in sorted(unhealthy.items()):
        yield f"device {device} is unhealthy" + (f" ({why})" if why else "")

"""Bring every claim into line with its pod: check one claim and its pod as they are, and write what is due.

The watches call it after each bind and each end, and so does the sweep. It keeps no state, so a crash loses
nothing. A claim is first reserved for its pod; its status is written after the watch has shown that. Each of
the two steps has its own queue and writers: in one queue the first status would wait for the last
reservation.

A third queue writes into claims why their pods wait. It begins a second after the refusal, so that a pod that
is bound by then costs no write, and writes slowly: ten thousand waiting claims must not load the server.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isinf

import structlog

from gpu_orchestrator.adapters.kube.workqueue import NotYet, WorkQueue
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import claims, deviceleases, sharing
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Lease, Pod
from gpu_orchestrator.api.wire import Json, key
from gpu_orchestrator.apps.scheduler.actions import BindJob
from gpu_orchestrator.apps.scheduler.binding import claim_status
from gpu_orchestrator.apps.scheduler.binding.claim_status import Claimant, Due, Given
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter, Refused
from gpu_orchestrator.apps.scheduler.controllers.release import Releaser
from gpu_orchestrator.apps.scheduler.cycle import pod_request
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.topology import weakest_link

WRITERS = 8
RETRY_S = 0.2

# When and how fast the claims of waiting pods are told why: after the refusal, by few writers, with pauses.
EXPLAIN_AFTER_S = 1.0
EXPLAINERS = 2
EXPLAIN_PAUSE_S = 0.05
# A bind that takes longer shows in its claim as Reserved.
SLOW_BIND_S = 1.0

log = structlog.get_logger()


class ClaimController:
    """`report` is called with a bound pod and what keeps its claim from being reserved."""

    def __init__(
        self,
        writer: ClaimWriter,
        coordinator: Coordinator,
        releaser: Releaser,
        *,
        metrics: Metrics,
        pacer: Pacer,
        now: Callable[[], str],
        report: Callable[[Pod, str], None] = lambda pod, why: None,
    ) -> None:
        self._writer, self._coordinator, self._releaser = writer, coordinator, releaser
        self._report = report
        self._metrics, self._pacer, self._now = metrics, pacer, now
        self._to_reserve: WorkQueue[str] = WorkQueue()
        self._to_write: WorkQueue[str] = WorkQueue()
        self._to_explain: WorkQueue[str] = WorkQueue()
        self._slow_binds: set[str] = set()
        self._replaced: dict[str, str] = {}
        """By claim: the version that our last write replaced, until the watch shows another."""

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and (new is None or new.spec.node_name):
            self.check_pod(pod)

    def on_claim(self, old: GpuClaim | None, new: GpuClaim | None) -> None:
        if claim := new or old:
            self._replaced.pop(key(claim), None)
        if new is not None:
            # Not what it tells of a wait: two schedulers that see different reasons would answer each other.
            self._check_user(key(new))

    def on_lease(self, old: Lease | None, new: Lease | None) -> None:
        """Check the claims of a lease's holders: a claim is released when its pod's last lease is gone."""
        if new is None and old is not None and deviceleases.is_device(old):
            for holder in deviceleases.holders(old):
                self.freed(holder.uid)

    def freed(self, uid: str) -> None:
        """Check the claims of a pod whose devices are free."""
        for claim in self._coordinator.stores.claims.by("pod", uid):
            self.check(key(claim))

    def refused(self, pod: Pod) -> None:
        """Queue the claim of a pod that has another reason to wait. What to write, if anything, is found out
        later: once for all the pods that name the claim."""
        with self._edge_of(pod):
            if (name := claim_key(pod)) in self._coordinator.stores.claims:
                self._to_explain.add_after(name, EXPLAIN_AFTER_S)

    def check_pod(self, pod: Pod) -> None:
        if name := claim_key(pod):
            self.check(name)

    def check(self, name: str) -> None:
        """Queue the claim of this key if a write to it is due."""
        if not self._check_user(name) and self._unbound_status(name):
            self._to_explain.add_after(name, EXPLAIN_AFTER_S)

    def _check_user(self, name: str) -> bool:
        """Queue the claim if its pod's bind or end is to be written, and return True if so."""
        if self._version(name) == self._replaced.get(name):
            return True  # as long as the watch shows what we have replaced, the same write would seem due
        if self._unreserved_pod(name):
            self._to_reserve.add(name)
            return True
        if is_due := self._due(name) is not None:
            self._to_write.add(name)
        return is_due

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._to_reserve.run(self._reserve, workers=WRITERS))
            group.create_task(self._to_write.run(self._write, workers=WRITERS))
            group.create_task(self._to_explain.run(self._explain, workers=EXPLAINERS))
            group.create_task(self._watch_binds())

    async def _watch_binds(self) -> None:
        """Find the binds that take long, once a second: a timer for each bind would cost all of them."""
        before: dict[str, BindJob] = {}
        while True:
            await asyncio.sleep(SLOW_BIND_S)
            jobs = dict(self._coordinator.binding)
            slow = {uid for uid, job in jobs.items() if job.claim is not None and before.get(uid) is job}
            changed, self._slow_binds, before = slow ^ self._slow_binds, slow, jobs
            for uid in changed:
                if pod := self._coordinator.our_pods.get(uid):
                    with self._edge_of(pod):
                        self.check_pod(pod)

    @contextmanager
    def _edge_of(self, pod: Pod) -> Iterator[None]:
        """Keep what breaks our code at one pod's claim from the others, and from the decisions."""
        try:
            yield
        except Exception:
            self._metrics.error("claim")
            log.exception("claim could not be checked", pod=key(pod))

    async def _reserve(self, name: str) -> None:
        await self._pacer.wait()
        pod, version = self._unreserved_pod(name), self._version(name)
        claim = self._coordinator.stores.claim_of(pod) if pod else None
        if pod is None or claim is None or version == self._replaced.get(name):
            return
        answer = await self._writer.reserve(pod, claim)
        if isinstance(answer, Refused):
            if answer.is_for_user:
                self._report(pod, answer.why)
            raise NotYet(answer.why)
        self._note_written(name, version)

    async def _write(self, name: str) -> None:
        await self._pacer.wait()
        claim, due, version = self._coordinator.stores.claims.get(name), self._due(name), self._version(name)
        if claim is None or due is None or version == self._replaced.get(name):
            return
        if await self._writer.write(claim, due):
            self._note_written(name, version)
        else:
            self._to_write.add_after(name, RETRY_S)

    def _version(self, name: str) -> str:
        """Return the version that the watch shows; empty if there is no such claim."""
        claim = self._coordinator.stores.claims.get(name)
        return claim.metadata.resource_version if claim else ""

    def _note_written(self, name: str, replaced: str) -> None:
        if self._version(name) == replaced:  # else the watch has shown our write by now
            self._replaced[name] = replaced

    async def _explain(self, name: str) -> None:
        await self._pacer.wait()
        claim, status = self._coordinator.stores.claims.get(name), self._unbound_status(name)
        if claim is None or status is None or self._unreserved_pod(name):
            return
        if not await self._writer.write_at_version(claim, status):
            self._to_explain.add_after(name, EXPLAIN_AFTER_S)
        await asyncio.sleep(EXPLAIN_PAUSE_S)

    def _unbound_status(self, name: str) -> Json | None:
        """Return the status that a claim without a bound pod lacks."""
        claim = self._coordinator.stores.claims.get(name)
        if claim is None or claim.metadata.deletion_timestamp:
            return None
        pods = [pod for pod in self._coordinator.stores.pods.by("claim", name) if _names(pod, name)]
        first = min(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name), default=None)
        if (uid := claims.reserved_for(claim)) and (first is None or uid != first.metadata.uid):
            return None  # it serves another pod, or one that has ended
        claimant = self._claimant(first) if first else None
        if first and claimant is None:
            return None
        problem = pod_request.unsupported_claim(claim.spec)
        return claim_status.unbound(claim, claimant, problem=problem, now=self._now())

    def _claimant(self, pod: Pod) -> Claimant | None:
        """Return what is known of an unbound pod of ours; None if it is another's, bound, or about to be."""
        uid, coordinator = pod.metadata.uid, self._coordinator
        state = coordinator.state_of(uid)
        is_slow = state == "binding" and uid in self._slow_binds
        if pod.spec.node_name or uid not in coordinator.our_pods or not (state == "pending" or is_slow):
            return None
        return Claimant(pod.metadata.name, coordinator.pending.reason(uid), is_slow)

    def _unreserved_pod(self, name: str) -> Pod | None:
        """Return the bound pod whose claim, or child of its template, is not yet reserved for it."""
        claim = self._coordinator.stores.claims.get(name)
        for pod in self._coordinator.stores.pods.by("claim", name):
            if not self._is_bound_with(pod, name):
                continue
            if claim is None:
                return pod if claims.is_template(pod) and self._coordinator.stores.claim_of(pod) else None
            if not claim.metadata.deletion_timestamp and not claims.reserved_for(claim):
                return pod
        return None

    def _is_bound_with(self, pod: Pod, name: str) -> bool:
        is_ours = pod.metadata.uid in self._coordinator.our_pods
        return bool(pod.spec.node_name) and is_ours and _names(pod, name)

    def _due(self, name: str) -> Due | None:
        claim = self._coordinator.stores.claims.get(name)
        if claim is None:
            return None
        uid = claims.reserved_for(claim)
        pod, state = self._coordinator.our_pods.get(uid), self._coordinator.state_of(uid)
        if pod is not None and pod.metadata.namespace != claim.metadata.namespace:
            # The claim's owner wrote the UID of another's pod: tell nothing about that pod.
            return claim_status.due(claim, None, given=None, held=False, now=self._now())
        held = state in ("binding", "bound") or uid in self._releaser or uid in self._coordinator.lease_index
        given = self._given(pod, claim) if pod is not None and pod.spec.node_name else None
        return claim_status.due(claim, pod, given=given, held=held, now=self._now())

    def _given(self, pod: Pod, claim: GpuClaim) -> Json | None:
        """Return the status for a bound pod, with the devices that it holds, whatever its annotations say;
        None while they are not known."""
        uid, holdings = pod.metadata.uid, self._coordinator.holdings
        own = holdings.get(uid)
        devices = own.devices if own is not None and own.devices else holdings.devices_of(uid)
        if not devices:
            return None
        placement = Placement(uid, pod.spec.node_name, devices=devices)
        uuids = [device.uuid for device in self._coordinator.engine.cluster.devices(placement)]
        unenforced = sharing.unenforced(pod, claim.spec)
        given = Given(placement, uuids if all(uuids) else [], self._bandwidth(placement), unenforced)
        return claim_status.bound(pod, claim, given, now=self._now())

    def _bandwidth(self, placement: Placement) -> int:
        cluster = self._coordinator.engine.cluster
        if placement.node not in cluster:
            return 0
        topology = cluster.node(placement.node).topology
        at = [topology.position[each] for each in placement.devices if each in topology.position]
        gbps = weakest_link(topology, at)
        return 0 if isinf(gbps) else int(gbps)


def claim_key(pod: Pod) -> str:
    """Return the key of the pod's own claim; empty if it has none."""
    name = claims.claim_name(pod)
    return f"{pod.metadata.namespace}/{name}" if name else ""


def _names(pod: Pod, name: str) -> bool:
    """Return True if the claim of this key is the pod's own, and not only the template of it."""
    return name == claim_key(pod)

"""Connects the parts: looks at the devices again and again, and hands what it finds to those who write.

    look ──► memory (ids, health) ──┐
    kubelet, processes ──► usage ───┴──► survey ──► publisher ──► capacity
                             └──► mismatch ──► event, metric, taint

Looking never waits for the API server: metrics and health stay true while it is away.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gpu_orchestrator.adapters import cgroups
from gpu_orchestrator.adapters.background import wait_until_set
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import KubeError, NotFound
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.adapters.kubelet.pod_resources import PodResources
from gpu_orchestrator.api import sharing, translate
from gpu_orchestrator.api.gpunodestatus import GPU_NODE_STATUSES, GpuNodeStatus, GpuNodeStatusStatus
from gpu_orchestrator.api.kubernetes import NODES, Node
from gpu_orchestrator.api.seen_pod import SEEN_PODS, SeenPod
from gpu_orchestrator.api.wire import OwnerReference
from gpu_orchestrator.apps.agent import mismatch, survey, usage
from gpu_orchestrator.apps.agent.capacity import Capacity
from gpu_orchestrator.apps.agent.given_devices import Given
from gpu_orchestrator.apps.agent.health import Condition, Rules
from gpu_orchestrator.apps.agent.heartbeat import Heartbeat
from gpu_orchestrator.apps.agent.looker import Looker
from gpu_orchestrator.apps.agent.memory import Memory
from gpu_orchestrator.apps.agent.metrics import Metrics, Shown
from gpu_orchestrator.apps.agent.mismatch import Mismatches
from gpu_orchestrator.apps.agent.mps_daemons import MpsDaemons
from gpu_orchestrator.apps.agent.mps_leases import DeviceLeases
from gpu_orchestrator.apps.agent.publisher import NEVER, Publisher
from gpu_orchestrator.apps.agent.settings import Settings
from gpu_orchestrator.apps.agent.survey import Look
from gpu_orchestrator.apps.agent.taint import Tainter
from gpu_orchestrator.apps.agent.usage import Users

TURN_S = (240.0, 360.0)
"""How long a watch lasts: thousands of agents that watched again every half minute would be a load."""
ANSWER_S = 10.0
"""How long one look may take before it counts as failed; the look itself goes on."""
SILENT_S = 30.0
"""How long a driver may be silent before its devices count as unhealthy."""
RETRY_S = 5.0
LAST_REPORT_S = 3.0
"""How long an agent that stops tries to say that its MPS daemons end."""

log = structlog.get_logger()


class Agent:
    """A `Component` of `adapters/kube/process.py`."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        looker: Looker,
        *,
        identity: str,
        recorder: Recorder,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._client, self._settings, self._looker = client, settings, looker
        self._metrics, self._clock = metrics, clock
        self._rules = Rules(
            settings.temperature_limit_c, settings.recovery_seconds, settings.longest_recovery_seconds
        )
        here = settings.node_name
        self._pods = Watch(
            client, SEEN_PODS, fields=f"spec.nodeName={here}", indices={"uid": _uid}, turn_s=TURN_S
        )
        self._nodes = Watch(client, NODES, fields=f"metadata.name={here}", turn_s=TURN_S)
        self._given = Given(
            PodResources(settings.pod_resources_socket),
            uid_of=self._uid_of,
            is_known=lambda uid: self._pod(uid) is not None,
            living=lambda: asyncio.to_thread(cgroups.pods, Path(settings.root)),
            clock=clock,
        )
        self.publisher = Publisher(
            client,
            here,
            refresh_s=settings.refresh_seconds,
            clock=clock,
            owner=self._owner,
            metrics=metrics,
            written=self._on_written,
        )
        self._capacity = Capacity(
            client, self._node, lambda: self.publisher.report, metrics=metrics, clock=clock
        )
        self._nodes.on_change(lambda old, new: self._capacity.check())
        self._pods.on_change(self._on_pod)
        self._heartbeat = Heartbeat(
            client,
            here,
            settings.namespace,
            identity=identity,
            every_s=settings.heartbeat_seconds,
            clock=clock,
            owner=self._owner,
            is_current=self.publisher.is_current,
            covers=lambda: self.publisher.covers,
        )
        self._mismatches = Mismatches(
            client,
            settings,
            pod=self._pod,
            node=self._node,
            recorder=recorder,
            metrics=metrics,
            clock=clock,
        )
        self._tainter = Tainter(client, here, metrics) if settings.taint_on_mismatch else None
        self._mps = self._mps_daemons() if settings.mps else None
        self._seen: GpuNodeStatusStatus | None = None
        self._seen_at = NEVER
        self._memory = Memory()
        self._recalled: GpuNodeStatusStatus | None = None
        self._last: Look | None = None
        self._looked_at, self._observed = clock(), datetime.now(UTC)
        self._idle = ""
        self._stopped = asyncio.Event()

    def _mps_daemons(self) -> MpsDaemons:
        settings = self._settings
        return MpsDaemons(
            Path(settings.root, sharing.ROOT.lstrip("/")),
            lambda changed: DeviceLeases(self._client, settings.node_name, settings.namespace, changed),
            clock=self._clock,
            written=self._written_folders,
            told=self._offer,
            metrics=self._metrics,
            most=settings.mps_daemons,
        )

    @property
    def watches(self) -> Sequence[Watch[Any]]:
        return self._nodes, self._pods

    def stop(self) -> None:
        self._stopped.set()

    def unready(self) -> str:
        """Return what keeps the report from being current; empty if nothing does. An agent without devices
        is ready: it has nothing to report."""
        if self._idle:
            return ""
        if self._heartbeat.waits_for:
            return f"waiting for {self._heartbeat.waits_for}"
        if self._clock() - self._looked_at >= SILENT_S:
            return "the driver does not answer"
        return "" if self.publisher.is_current() else "no current report"

    async def work(self) -> None:
        if not await self._until_stopped(self._wait_for_devices()):
            return
        if not await self._until_stopped(self._heartbeat.acquire()):
            return
        try:
            if await self._until_stopped(self._recall()):
                await self._run()
        finally:
            await self._end_daemons()
            self._given.close()
            await self._heartbeat.release()

    async def _until_stopped(self, work: Any) -> bool:
        """Return True if the work ended, False if the process was asked to stop before."""
        task, stopped = asyncio.ensure_future(work), asyncio.create_task(self._stopped.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            await task
            return True
        task.cancel()
        await asyncio.wait({task})
        return False

    async def _wait_for_devices(self) -> None:
        """Do nothing on a node without devices: a report of none would hide what a device plugin counts. But
        a node that had some keeps its report, which then says that they are lost."""
        await self._recall()
        while not self._memory.ids:
            await self._scan()
            if self._memory.ids:
                break
            if not self._idle:
                self._idle = "no GPU, or no driver"
                log.info("no GPU here; looking again and again", why="; ".join(self._looker.notes))
            await asyncio.sleep(max(self._settings.scan_seconds, RETRY_S))
        self._idle = ""

    async def _recall(self) -> None:
        """Start from our own last report."""
        while True:
            try:
                report = await self._own_report()
            except KubeError as error:
                log.warning("own report not read", error=str(error))
                await asyncio.sleep(RETRY_S)
                continue
            self._memory = Memory.of(report, self._clock(), datetime.now(UTC))
            self._recalled = report.status if report else None
            self._given.recall(self._recalled)
            self._looked_at = self._clock()
            return

    async def _own_report(self) -> GpuNodeStatus | None:
        try:
            return await self._client.get(GPU_NODE_STATUSES, self._settings.node_name)
        except NotFound:
            return None

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._scan_again_and_again()),
                group.create_task(self.publisher.run(self._stopped)),
                group.create_task(self.publisher.guard(self._stopped)),
                group.create_task(self._capacity.run(self._stopped)),
                group.create_task(self._heartbeat.run(self._stopped)),
                group.create_task(self._mismatches.run()),
            ]
            if self._mps is not None:
                tasks.append(group.create_task(self._mps.run()))
            await self._stopped.wait()
            for task in tasks:
                task.cancel()

    async def _scan_again_and_again(self) -> None:
        while not self._stopped.is_set():
            started = self._clock()
            try:
                await self._scan()
                await self._take_in()
                if self._tainter is not None:
                    await self._tainter.set(bool(self._mismatches.found))
            except Exception:  # the edge of one round: MPS daemons and the pods on them end with this process
                self._metrics.error("look")
                self.publisher.fall_behind()
                log.exception("what was seen could not be taken in")
            left_s = self._settings.scan_seconds - (self._clock() - started)
            await wait_until_set(self._stopped, max(left_s, 0.05))

    async def _scan(self) -> None:
        """Look once, and take in what was seen. Never fails: a driver that does not answer is a finding."""
        started, rules = self._clock(), self._rules
        try:
            look = await self._looker.look(within_s=ANSWER_S)
        except Exception as error:  # the edge of one look
            self._metrics.error("look")
            silent_s = self._clock() - self._looked_at
            log.warning("look failed", error=repr(error), silent_s=round(silent_s))
            if silent_s >= SILENT_S:
                self._memory = self._memory.unread(silent_s, self._clock(), rules)
            return
        self._metrics.scans.observe(self._clock() - started)
        self._last, self._looked_at, self._observed = look, self._clock(), datetime.now(UTC)
        forget_s = self._settings.forget_seconds
        before = self._memory.conditions
        self._memory = self._memory.after(look, self._looked_at, rules=rules, forget_s=forget_s)
        self._log_changes(before)

    def _log_changes(self, before: Mapping[str, Condition]) -> None:
        for uuid, now in self._memory.conditions.items():
            old = before.get(uuid)
            if now.fault != (old.fault if old else None):
                reason = now.fault.reason if now.fault else ""
                log.warning("health of device", device=self._memory.ids[uuid], uuid=uuid, unhealthy=reason)

    async def _take_in(self) -> None:
        """Find out who uses the devices, and hand everything on."""
        look, ids = self._last, self._memory.ids
        if look is None:
            self._take_in_silence()
            return
        own = self._uid_of(self._settings.namespace, self._settings.pod_name)
        on_device = usage.of_processes(look, own)
        given = await self._given.users(look, on_device)
        users = usage.joined(on_device, given)
        may_use = mismatch.excused(given, on_device, self._given.unplaced)
        self._mismatches.observe(mismatch.uses(on_device, ids), mismatch.uses(may_use, ids))
        found = self._memory.findings(look, users)
        status = survey.survey(look, found, self._observed)
        self._memory = self._memory.with_published(status.devices)
        self._metrics.shown = Shown(look, ids, found.conditions, users, self._names(users), found.lost)
        if self._mps is not None:
            uuids = {each.id: each.uuid for each in status.devices if each.vendor == "nvidia"}
            self._mps.follow(uuids, status.driver)
        self._seen, self._seen_at = status, look.began
        self._offer()

    def _offer(self) -> None:
        """Offer what was seen last for publication, with the MPS daemons that listen now."""
        if self._seen is not None:
            report = self._mps.report if self._mps is not None else None
            self.publisher.offer(msgspec.structs.replace(self._seen, mps=report), self._seen_at)
            self._heartbeat.check()

    def _on_pod(self, old: SeenPod | None, new: SeenPod | None) -> None:
        """A pod that is gone without the kubelet's word that its containers have ended was deleted by force:
        the scheduler waits for our next look."""
        if new is None and old is not None and old.status.phase not in translate.TERMINAL:
            self._heartbeat.owe()

    def _on_written(self) -> None:
        self._heartbeat.check()
        self._capacity.check()
        if self._mps is not None:
            self._mps.check()

    def _written_folders(self) -> Collection[str]:
        """Return the MPS daemons in our last report."""
        written = self.publisher.published or self._recalled
        return written.mps.folders if written is not None and written.mps is not None else ()

    async def _end_daemons(self) -> None:
        """Say that the MPS daemons are not there any more, and end them. If another agent has the node, the
        report is that one's, and so are the daemons in it."""
        if self._mps is None:
            return
        try:
            if self._seen and self._mps.report and not self._heartbeat.is_displaced:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_REPORT_S):
                        await self.publisher.publish(msgspec.structs.replace(self._seen, mps=None))
        finally:
            await self._mps.close()

    def _take_in_silence(self) -> None:
        """The driver has not answered since we started. What was reported before stays, users included: their
        processes may be there still. Only the health is known to be bad, after a while."""
        before = self._seen or self._recalled
        if before is not None and self._clock() - self._looked_at >= SILENT_S:
            self._seen = survey.unseen(before, self._memory.conditions, datetime.now(UTC))
            self._metrics.shown = Shown(lost=tuple(self._seen.devices))
            self._offer()

    def _uid_of(self, namespace: str, name: str) -> str | None:
        pod = self._pods.store.get(f"{namespace}/{name}")
        return pod.metadata.uid if pod else None

    def _names(self, users: Users) -> dict[str, tuple[str, str]]:
        """Return namespace and name of the pods that use a device, by UID."""
        uids = {uid for found in users.values() for uid in found}
        pods = [pod for uid in uids if (pod := self._pod(uid))]
        return {pod.metadata.uid: (pod.metadata.namespace, pod.metadata.name) for pod in pods}

    def _pod(self, uid: str) -> SeenPod | None:
        return next(iter(self._pods.store.by("uid", uid)), None)

    def _node(self) -> Node | None:
        return self._nodes.store.get(self._settings.node_name)

    def _owner(self) -> list[OwnerReference]:
        """Return the Node as owner: what the agent writes is deleted with it."""
        node = self._node()
        return [OwnerReference("v1", "Node", node.metadata.name, node.metadata.uid)] if node else []


def _uid(pod: SeenPod) -> tuple[str]:
    return (pod.metadata.uid,)

"""Compare the pods that use a device with those that were given it, and raise an alarm where they differ.

A pod was given a device if the device's Lease names the pod, or if the kubelet gave it the device through a
device plugin. A plugin may have names of its own for devices; then nobody can say which ones its pods were
given, and no alarm is raised about them. The Lease is read when a pod is first seen on a device, and again
while they differ: no agent watches the leases of the whole cluster.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import structlog

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import KubeError, NotFound
from gpu_orchestrator.adapters.kube.events import Recorder, Reference, about
from gpu_orchestrator.api import claims, deviceleases, names
from gpu_orchestrator.api.kubernetes import LEASES, Node
from gpu_orchestrator.api.seen_pod import SEEN_PODS, SeenPod
from gpu_orchestrator.apps.agent import usage
from gpu_orchestrator.apps.agent.metrics import Metrics
from gpu_orchestrator.apps.agent.settings import Settings

AGAIN_S = 30.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Use:
    """A pod on a device."""

    uid: str
    device: int
    uuid: str


class Mismatches:
    """`pod` returns a pod by UID, `node` the agent's Node; None if they are not known."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        *,
        pod: Callable[[str], SeenPod | None],
        node: Callable[[], Node | None],
        recorder: Recorder,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._client, self._settings, self._pod, self._node = client, settings, pod, node
        self._recorder, self._metrics, self._clock = recorder, metrics, clock
        self._uses: frozenset[Use] = frozenset()
        self._given: frozenset[Use] = frozenset()
        self._checked: set[Use] = set()
        self._again_at: dict[Use, float] = {}
        self._changed = asyncio.Event()

    @property
    def found(self) -> Collection[Use]:
        """The uses that nobody decided."""
        return self._again_at.keys()

    def observe(self, uses: frozenset[Use], given: frozenset[Use]) -> None:
        """Take in who uses what now, and what the kubelet gave."""
        self._uses, self._given = uses, given
        self._checked &= uses
        self._again_at = {use: at for use, at in self._again_at.items() if use in uses}
        if any(self._is_due(use) for use in uses):
            self._changed.set()

    def _is_due(self, use: Use) -> bool:
        if use in self._given or use in self._checked:
            return False
        return self._clock() >= self._again_at.get(use, 0.0)

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            for use in sorted(self._uses, key=lambda use: (use.device, use.uid)):
                if self._is_due(use):
                    await self._check(use)

    async def _check(self, use: Use) -> None:
        pod = self._pod(use.uid)
        try:
            is_right = self._is_ignored(pod) or await self._is_given(use, pod)
        except KubeError as error:
            self._metrics.error("lease")
            log.warning("lease of device not read", device=use.device, error=str(error))
            return  # the next look asks again
        if is_right:
            self._again_at.pop(use, None)
            self._checked.add(use)
            return
        is_new = use not in self._again_at
        self._again_at[use] = self._clock() + AGAIN_S
        if is_new:
            self._raise_alarm(use, pod)

    def _is_ignored(self, pod: SeenPod | None) -> bool:
        return pod is not None and pod.metadata.namespace in self._settings.ignore_namespaces

    async def _is_given(self, use: Use, pod: SeenPod | None) -> bool:
        if self._settings.lock == "binding":
            return pod is not None and use.device in claims.given(pod)
        name = names.device_lease(self._settings.node_name, use.device)
        try:
            lease = await self._client.get(LEASES, name, self._settings.namespace)
        except NotFound:
            return False
        return any(hold.holder.uid == use.uid for hold in deviceleases.holds(lease))

    def _raise_alarm(self, use: Use, pod: SeenPod | None) -> None:
        self._metrics.mismatches.inc()
        log.warning("pod uses a device that it was not given", pod_uid=use.uid, device=use.device)
        what = f"GPU {use.device} ({use.uuid}) of {self._settings.node_name}"
        advice = "claim it, or keep the containers from other devices"
        if pod is not None:
            note = f"a process of this pod uses {what}, which it was not given; {advice}"
            self._recorder.warning(about(SEEN_PODS, pod), names.DEVICE_MISMATCH, note)
        elif node := self._node():
            note = f"a process of pod UID {use.uid}, which is not there any more, uses {what}; end it"
            self._recorder.warning(_reference(node), names.DEVICE_MISMATCH, note)


def excused(
    given: Mapping[str, frozenset[str]], on_device: Mapping[str, frozenset[str]], unplaced: frozenset[str]
) -> dict[str, frozenset[str]]:
    """Return what the kubelet gave, or may have given: all that the pods use of which that is not known."""
    may = {uuid: uids & unplaced for uuid, uids in on_device.items()}
    return usage.joined(given, may)


def uses(users: Mapping[str, frozenset[str]], ids: Mapping[str, int]) -> frozenset[Use]:
    return frozenset(Use(uid, ids[uuid], uuid) for uuid, uids in users.items() if uuid in ids for uid in uids)


def _reference(node: Node) -> Reference:
    return Reference("Node", node.metadata.name, uid=node.metadata.uid)

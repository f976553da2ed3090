"""Bind the volumes of a pod for the node of its decision, before the pod itself is bound.

    write the claim into each chosen volume,     ──▶ wait until kube-controller-manager ──▶ all bound
    and the node into each claim without one         has bound every claim
                                                      │ given up, deleted, out of time, or we stop
                                                      ▼
                                                    Unbound: the pod is scheduled again

The binder calls it between leases and bind. Nothing is taken back: a volume that names the claim, and a claim
that names the node, lead the next try there. The watches wake a job that waits; nothing is polled.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Conflict, KubeError, NotFound, Permanent
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api import volume_choice
from gpu_orchestrator.api.first_consumer import SELECTED_NODE, is_for, selected_node
from gpu_orchestrator.api.kubernetes import VOLUME_CLAIMS, Node, Pod, VolumeClaim
from gpu_orchestrator.api.volume_choice import Use, VolumePlan
from gpu_orchestrator.api.volumes import VOLUMES, NotReady, Volume
from gpu_orchestrator.api.wire import Json, Object, key

BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


@dataclass(frozen=True, slots=True)
class Unbound:
    """The volumes were not bound. `is_permanent`: the next try is likely to fail in the same way, so the pod
    is told."""

    why: str
    is_permanent: bool = True


@dataclass(frozen=True, slots=True)
class Written:
    """The claims and volumes with our own writes, which the watches may not show yet."""

    claims: Overlay[VolumeClaim]
    volumes: Overlay[Volume]

    def volume_claim(self, key: str) -> VolumeClaim | None:
        return self.claims.get(key)

    def volume(self, name: str) -> Volume | None:
        return self.volumes.get(name)


class VolumeBinder:
    """`wait_s` bounds the wait for one pod's volumes."""

    def __init__(
        self, client: Client, written: Written, pods: Store[Pod], nodes: Store[Node], *, wait_s: float
    ) -> None:
        self._client, self._written, self._pods, self._nodes = client, written, pods, nodes
        self._wait_s, self._is_stopped = wait_s, False
        self._waiting: dict[str, set[asyncio.Event]] = {}

    async def bind(self, pod: Pod, plan: VolumePlan) -> Unbound | None:
        """Bind the volumes; return why that failed, or None."""
        try:
            for use in plan.uses:
                await self._claim_volume(use)
            for claim in plan.provisions:
                await self._select_node(claim, plan.node)
        except KubeError as error:
            will_repeat = isinstance(error, Permanent) and not isinstance(error, Conflict | NotFound)
            return Unbound(str(error), is_permanent=will_repeat)
        return await self._wait(pod, plan)

    def stop(self) -> None:
        """End every wait, now and later: the scheduler stops."""
        self._is_stopped = True
        for events in self._waiting.values():
            _set_all(events)

    # --- handlers of the watches ---------------------------------------------------------------------------

    def on_volume_claim(self, old: VolumeClaim | None, new: VolumeClaim | None) -> None:
        self._written.claims.observe(old, new)
        if self._waiting and (claim := new or old):
            self._wake(_claim(key(claim)))

    def on_volume(self, old: Volume | None, new: Volume | None) -> None:
        self._written.volumes.observe(old, new)
        if self._waiting and (volume := new or old):
            named = volume.spec.claim_ref
            self._wake(_claim(f"{named.namespace}/{named.name}"))
            self._wake(_volume(volume.metadata.name))

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if self._waiting and (pod := new or old):
            self._wake(_pod(pod))

    def on_node(self, old: Node | None, new: Node | None) -> None:
        if self._waiting and new is None and old is not None:
            self._wake(_node(old.metadata.name))

    def _wake(self, what: str) -> None:
        _set_all(self._waiting.get(what, ()))

    # --- the writes ----------------------------------------------------------------------------------------

    async def _claim_volume(self, use: Use) -> None:
        """Write the claim into the volume, as kube-controller-manager would. Raise Conflict if the volume has
        changed since it was chosen: another claim may have it."""
        if is_for(use.volume, use.claim) and use.volume.spec.claim_ref.uid:
            return  # by an earlier try
        meta = use.claim.metadata
        reference = {
            "apiVersion": VOLUME_CLAIMS.api_version,
            "kind": VOLUME_CLAIMS.kind,
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        }
        body: Json = {"metadata": _version(use.volume), "spec": {"claimRef": reference}}
        if not is_for(use.volume, use.claim):  # not meant for the claim by its creator
            body["metadata"]["annotations"] = {BOUND_BY_CONTROLLER: "yes"}
        written = await self._client.patch(VOLUMES, use.volume.metadata.name, body)
        self._written.volumes.keep(written)

    async def _select_node(self, claim: VolumeClaim, node: str) -> None:
        """Ask for a volume for this node. Raise Conflict if the claim has changed since the decision."""
        if selected_node(claim) == node:
            return  # by an earlier try
        body: Json = {"metadata": {**_version(claim), "annotations": {SELECTED_NODE: node}}}
        meta = claim.metadata
        written = await self._client.patch(VOLUME_CLAIMS, meta.name, body, meta.namespace)
        self._written.claims.keep(written)

    # --- the wait ------------------------------------------------------------------------------------------

    async def _wait(self, pod: Pod, plan: VolumePlan) -> Unbound | None:
        with self._woken(pod, plan) as woken:
            try:
                async with asyncio.timeout(self._wait_s):
                    while (outcome := self._outcome(pod, plan)) is WAITING:
                        await woken.wait()
                        woken.clear()
            except TimeoutError:
                claims = ", ".join(map(key, plan.claims))
                return Unbound(
                    f"not all of {claims} were bound to volumes within {self._wait_s:g} s; the events of the "
                    "claims say why"
                )
        return outcome

    def _outcome(self, pod: Pod, plan: VolumePlan) -> Unbound | None:
        """Return `WAITING`, None if all volumes are bound, or why they will not be."""
        if self._is_stopped:
            return Unbound("the scheduler stops", is_permanent=False)
        shown = self._pods.get(key(pod))
        if shown is None or shown.metadata.uid != pod.metadata.uid or shown.metadata.deletion_timestamp:
            return Unbound("the pod was deleted", is_permanent=False)
        if shown.spec.node_name:
            return Unbound("the pod was bound by another scheduler", is_permanent=False)
        match volume_choice.progress(plan, self._nodes.get(plan.node), self._written):
            case NotReady(why):
                return Unbound(why)
            case "waiting":
                return WAITING
            case _:
                return None

    @contextmanager
    def _woken(self, pod: Pod, plan: VolumePlan) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever something changes that the job waits for."""
        woken = asyncio.Event()
        reasons = [_pod(pod), _node(plan.node), *(_claim(key(claim)) for claim in plan.claims)]
        reasons += [_volume(use.volume.metadata.name) for use in plan.uses]
        for each in reasons:
            self._waiting.setdefault(each, set()).add(woken)
        try:
            yield woken
        finally:
            for each in reasons:
                self._waiting[each].discard(woken)
                if not self._waiting[each]:
                    del self._waiting[each]


WAITING = Unbound("not bound yet")


def _set_all(events: Iterable[asyncio.Event]) -> None:
    for event in tuple(events):
        event.set()


def _version(obj: Object) -> dict[str, Any]:
    return {"resourceVersion": obj.metadata.resource_version}


def _claim(name: str) -> str:
    return f"claim {name}"


def _volume(name: str) -> str:
    return f"volume {name}"


def _pod(pod: Pod) -> str:
    return f"pod {pod.metadata.uid}"


def _node(name: str) -> str:
    return f"node {name}"

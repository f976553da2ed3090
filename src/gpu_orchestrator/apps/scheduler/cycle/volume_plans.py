"""Which volumes were chosen for pods that are being bound, and which pods to check when volumes change.

A volume that was chosen is promised until its job has an outcome, so that no other claim gets it meanwhile.
Volumes come by the hundred, and each may suit every claim of its class: so the pods of a class are listed on
the next tick, once for all changes of the class.
"""

from collections.abc import Callable, Iterable

import structlog

from gpu_orchestrator.api import first_consumer, volume_choice
from gpu_orchestrator.api.free_volumes import is_free
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.volume_choice import VolumePlan
from gpu_orchestrator.api.volumes import NotReady, StorageClass, Volume
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.actions import BindJob
from gpu_orchestrator.apps.scheduler.informers import Stores

log = structlog.get_logger()


class VolumePlans:
    """`recheck` is called with pods whose volumes may be found elsewhere than before; `wake` when
    `check_some` is to be called soon."""

    def __init__(
        self, stores: Stores, recheck: Callable[[Iterable[Pod]], None], wake: Callable[[], None]
    ) -> None:
        self._stores, self._recheck, self._wake = stores, recheck, wake
        self._plans: dict[str, VolumePlan] = {}
        self._changed_classes: dict[str, None] = {}

    def __len__(self) -> int:
        """Return how many pods are being bound whose volumes are bound first."""
        return len(self._plans)

    def make(self, pod: Pod, node_name: str) -> VolumePlan | NotReady | None:
        """Choose volumes for a pod on this node and promise them to it; None if it needs none to be bound."""
        if not pod.spec.volumes:
            return None
        if (node := self._stores.nodes.get(node_name)) is None:
            return NotReady(f"node {node_name} is gone")
        try:
            plan = volume_choice.choose(pod, node, self._stores)
        except Exception as error:  # the edge of one pod: the other decisions are carried out
            log.exception("volumes could not be chosen", pod=key(pod))
            return NotReady(f"its volumes could not be chosen: {error!r}")
        if isinstance(plan, VolumePlan):
            promised, uid = self._stores.promised, pod.metadata.uid
            self._plans[uid] = plan
            promised.volumes.update((each.volume.metadata.name, key(each.claim)) for each in plan.uses)
            promised.claims.update((key(claim), uid) for claim in plan.claims)
        return plan

    def forget(self, uid: str) -> None:
        """End the promises of a pod: its job has an outcome."""
        if (plan := self._plans.pop(uid, None)) is not None:
            for use in plan.uses:
                self._stores.promised.volumes.pop(use.volume.metadata.name, None)
            for claim in plan.claims:
                self._stores.promised.claims.pop(key(claim), None)

    def failed(self, job: BindJob) -> None:
        """Check the pods that could not have the claims or volumes of a job that failed."""
        if job.volumes is None:
            return
        for claim in job.volumes.claims:
            pods = self._stores.pods.by("volume", key(claim))
            self._recheck(each for each in pods if each.metadata.uid != job.pod.metadata.uid)
        for use in job.volumes.uses:
            self._class_changed(first_consumer.class_name(use.volume))

    # --- changes of volumes and classes --------------------------------------------------------------------

    def on_volume(self, old: Volume | None, new: Volume | None) -> None:
        """Check the pods whose claims may get this volume now. That one is gone they learn when they need
        it."""
        if new is None or not is_free(new):
            return
        if old is None or not is_free(old) or _offer(old) != _offer(new):
            self._class_changed(first_consumer.class_name(new))

    def on_storage_class(self, old: StorageClass | None, new: StorageClass | None) -> None:
        if changed := new or old:
            self._class_changed(changed.metadata.name)

    @property
    def has_more(self) -> bool:
        """True if the pods of a class are still to be checked."""
        return bool(self._changed_classes)

    def check_some(self) -> None:
        """Check the pods of one class; the others wait for the next tick."""
        if not self._changed_classes:
            return
        name = next(iter(self._changed_classes))
        del self._changed_classes[name]
        self._recheck(self._pods_of(name))
        if self._changed_classes:
            self._wake()

    def _class_changed(self, name: str) -> None:
        self._changed_classes[name] = None
        self._wake()

    def _pods_of(self, class_name: str) -> list[Pod]:
        """Return the pods that wait with a claim of this class."""
        claims = self._stores.volume_claims.by("class", class_name)
        found = (pod for claim in claims for pod in self._stores.pods.by("volume", key(claim)))
        return list({key(pod): pod for pod in found}.values())


def _offer(volume: Volume) -> tuple[object, ...]:
    """Return the part of a volume that decides which claims may get it, and where."""
    return volume.spec, volume.metadata.labels, first_consumer.class_name(volume)

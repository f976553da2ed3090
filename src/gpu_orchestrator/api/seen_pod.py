"""A pod as the node agent keeps it: who it is, where it is and whether it has ended.

Its owner can fill the rest of a pod with a megabyte, and bind any number of pods to a node without a
scheduler: kept whole, fifty of them would end an agent with its limit of memory.
"""

from msgspec.structs import force_setattr

from gpu_orchestrator.api import names
from gpu_orchestrator.api.pod import ANNOTATIONS
from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire, keep_annotations

_KEPT = {names.ALLOCATED: ANNOTATIONS[names.ALLOCATED]}


class SeenSpec(Wire, frozen=True, gc=False):
    node_name: str = ""


class SeenStatus(Wire, frozen=True, gc=False):
    phase: str = ""


class SeenPod(Wire, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: SeenSpec = SeenSpec()
    status: SeenStatus = SeenStatus()

    def __post_init__(self) -> None:
        meta = self.metadata
        keep_annotations(meta, _KEPT)
        if meta.labels:
            force_setattr(meta, "labels", {})
        if meta.finalizers:
            force_setattr(meta, "finalizers", [])
        if meta.owner_references:
            force_setattr(meta, "owner_references", [])


SEEN_PODS = Resource(SeenPod, "Pod", "pods")

"""Where a pod's volumes are, or can be if a claim is bound with the pod (WaitForFirstConsumer).

Pure. Called before the engine decides; `volume_choice` then picks the volumes for the node of the decision,
`free_volumes` knows which suit a claim, and `volume_places` combines the places of several claims.
"""

from collections.abc import Sequence
from typing import Protocol

from gpu_orchestrator.api import neighbours, quantity, volumes
from gpu_orchestrator.api.free_volumes import (
    FreeVolume,
    fitting,
    free_volume,
    requested,
    size_of,
    smallest_first,
)
from gpu_orchestrator.api.kubernetes import Pod, VolumeClaim
from gpu_orchestrator.api.volume_places import NOWHERE, Option, joined, on_node
from gpu_orchestrator.api.volumes import Alternatives, NotReady, StorageClass, Volume
from gpu_orchestrator.api.wire import key as key_of
from gpu_orchestrator.core.request import Expression, Term

SELECTED_NODE = "volume.kubernetes.io/selected-node"
CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"

MOST_WAITING = 32
"""How many claims of one pod may wait to be bound with it."""


class Known(volumes.Known, Protocol):
    """Looks up what claims can be bound to."""

    def storage_class(self, name: str) -> StorageClass | None: ...

    def free_volumes(self, class_name: str, claim: str) -> Sequence[FreeVolume]:
        """Return the volumes of a class that no claim has and none but this one was promised."""
        ...

    def volumes_for(self, claim: str) -> Sequence[Volume]:
        """Return the volumes that name this claim and are not bound yet."""
        ...

    def binding_for(self, claim: str) -> str:
        """Return the UID of the pod for which this claim is being bound; empty if for none."""
        ...


def class_name(obj: VolumeClaim | Volume) -> str:
    """Return the name of the storage class. The old annotation goes first, as in Kubernetes."""
    return obj.metadata.annotations.get(CLASS_ANNOTATION) or obj.spec.storage_class_name


def is_for(volume: Volume, claim: VolumeClaim) -> bool:
    """Return True if the volume names this claim."""
    named, meta = volume.spec.claim_ref, claim.metadata
    return (named.namespace, named.name) == (meta.namespace, meta.name) and named.uid in ("", meta.uid)


def selected_node(claim: VolumeClaim) -> str:
    """Return the node for which the claim's volume is being created."""
    return claim.metadata.annotations.get(SELECTED_NODE, "")


def reach(pod: Pod, known: Known) -> tuple[Alternatives, ...] | NotReady:
    """Return where the pod's volumes are or can be, as alternatives all of which must hold; or which volume
    is not ready."""
    sorted_claims = sort_claims(pod, known)
    if isinstance(sorted_claims, NotReady):
        return sorted_claims
    bound, waiting = sorted_claims
    found = [each for volume in bound for each in volumes.reach_of(volume)]
    if waiting:
        places = _places(waiting, known)
        if isinstance(places, NotReady):
            return places
        found.append(places)
    return tuple(dict.fromkeys(each for each in found if each))


def attached(pod: Pod, known: Known) -> tuple[tuple[str, str], ...]:
    """Return the volumes of a pod that count against its node's limits, by driver and handle. One that is
    still to be created counts for its provisioner."""
    waiting = [claim for claim in map(known.volume_claim, volumes.claims_of(pod)) if claim and _waits(claim)]
    coming = ((known.storage_class(class_name(claim)), key_of(claim)) for claim in waiting)
    new = {(made.provisioner, key) for made, key in coming if made and made.creates_volumes}
    return tuple(sorted({*volumes.attached(pod, known), *new}))


def _waits(claim: VolumeClaim) -> bool:
    return not claim.spec.volume_name and claim.status.phase != "Bound"


def sort_claims(pod: Pod, known: Known) -> tuple[list[Volume], list[VolumeClaim]] | NotReady:
    """Return the bound volumes of the pod, and its claims that wait for it, the smallest first."""
    bound: list[Volume] = []
    waiting: list[VolumeClaim] = []
    own = _ephemeral_claims(pod)
    for key in volumes.claims_of(pod):
        claim = known.volume_claim(key)
        if claim is None:
            return NotReady(_missing(key, is_ephemeral=key in own))
        problem = volumes.claim_problem(key, claim) or (
            _owner_problem(key, claim, pod) if key in own else None
        )
        if problem:
            return problem
        if volumes.is_bound(claim):
            volume = volumes.volume_of(key, claim, known)
            if isinstance(volume, NotReady):
                return volume
            bound.append(volume)
        elif problem := _waiting_problem(key, claim, pod, known):
            return problem
        else:
            waiting.append(claim)
    if len(waiting) > MOST_WAITING:
        return NotReady(
            f"{len(waiting)} PersistentVolumeClaims of the pod wait to be bound with it; "
            f"this scheduler takes up to {MOST_WAITING}"
        )
    return bound, sorted(waiting, key=size_of)


def _ephemeral_claims(pod: Pod) -> set[str]:
    meta = pod.metadata
    return {f"{meta.namespace}/{meta.name}-{each.name}" for each in pod.spec.volumes if each.ephemeral}


def _missing(key: str, *, is_ephemeral: bool) -> str:
    if is_ephemeral:
        return f"PersistentVolumeClaim {key} of an ephemeral volume does not exist yet; Kubernetes creates it"
    return f"PersistentVolumeClaim {key} does not exist; create it"


def _owner_problem(key: str, claim: VolumeClaim, pod: Pod) -> NotReady | None:
    owners = claim.metadata.owner_references
    if any(each.controller and each.uid == pod.metadata.uid for each in owners):
        return None
    return NotReady(
        f"PersistentVolumeClaim {key} has the name of an ephemeral volume of the pod and does not belong to "
        "the pod; delete one of the two"
    )


def _waiting_problem(key: str, claim: VolumeClaim, pod: Pod, known: Known) -> NotReady | None:
    """Return why an unbound claim cannot be bound for this pod; None if it can."""
    name, head = class_name(claim), f"PersistentVolumeClaim {key} is not bound"
    if claim.spec.volume_name:
        return NotReady(
            f"{head} to PersistentVolume {claim.spec.volume_name}, which it names; its events say why"
        )
    if not name:
        return NotReady(f"{head} and has no StorageClass; create a PersistentVolume for it, or name a class")
    made = known.storage_class(name)
    if made is None:
        return NotReady(f"{head}, and its StorageClass {name} does not exist; create it")
    if not made.waits_for_consumer:
        return NotReady(
            f"{head}; its StorageClass {name} binds claims before their pods, so its events say what it lacks"
        )
    if (user := known.binding_for(key)) and user != pod.metadata.uid:
        return NotReady(f"{head} yet; it is being bound for another pod")
    return _claim_limits(key, claim)


def _claim_limits(key: str, claim: VolumeClaim) -> NotReady | None:
    try:
        quantity.whole(requested(claim))
    except quantity.BadQuantity as error:
        return NotReady(f"PersistentVolumeClaim {key} cannot be read: {error}")
    if neighbours.is_long(claim.spec.selector):
        return NotReady(
            f"the selector of PersistentVolumeClaim {key} has more than {neighbours.MOST_EXPRESSIONS} "
            f"conditions or {neighbours.MOST_VALUES} values of a condition; select fewer labels"
        )
    return None


def _places(waiting: list[VolumeClaim], known: Known) -> Alternatives | NotReady:
    """Return where all of the claims can be bound at once. A claim whose volume can be created anywhere does
    not matter."""
    each_one: list[list[Option]] = []
    for claim in waiting:
        options = _options(claim, known)
        if not options:
            return NotReady(_nothing_fits(claim))
        if not any(option.is_everywhere for option in options):
            each_one.append(options)
    places = joined(each_one)
    if places == (NOWHERE,):
        keys = ", ".join(map(key_of, waiting))
        return NotReady(
            f"no node can reach free PersistentVolumes for all of {keys}; create volumes for them"
        )
    return places


def _nothing_fits(claim: VolumeClaim) -> str:
    modes, size = ",".join(claim.spec.access_modes), requested(claim)
    selected = " and the labels of its selector" if claim.spec.selector else ""
    return (
        f"no free PersistentVolume of StorageClass {class_name(claim)} has {size} and {modes}{selected}, as "
        f"PersistentVolumeClaim {key_of(claim)} asks, and the class creates none; create one, or ask for less"
    )


def _options(claim: VolumeClaim, known: Known) -> list[Option]:
    """Return the volumes that the claim can get, and where each can be reached; a volume that can be created
    has no name."""
    made = known.storage_class(class_name(claim))
    new = creatable(made) if made else []
    if node := selected_node(claim):
        here = on_node(node)
        return [Option(volumes.both((here,), option.where)) for option in new]
    if named := named_volume(claim, known):
        return [free_volume(named).place]
    if any(option.is_everywhere for option in new):
        return new
    return [*(each.place for each in smallest_first(suitable(claim, known))), *new]


def suitable(claim: VolumeClaim, known: Known) -> list[FreeVolume]:
    """Return the free volumes that the claim may get."""
    return fitting(claim, known.free_volumes(class_name(claim), key_of(claim)))


def creatable(made: StorageClass) -> list[Option]:
    if not made.creates_volumes:
        return []
    terms = (
        Term(tuple(Expression(each.key, "In", tuple(each.values)) for each in term.match_label_expressions))
        for term in made.allowed_topologies
    )
    return [Option((term,)) for term in terms] or [Option()]


def named_volume(claim: VolumeClaim, known: Known) -> Volume | None:
    """Return the volume that names this claim: its creator or an earlier try meant it for the claim."""
    return next((each for each in known.volumes_for(key_of(claim)) if is_for(each, claim)), None)

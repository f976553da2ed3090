"""Choose the volumes of a pod for the node of a decision, and follow how they are bound.

Pure. The coordinator calls `choose`; `volume_binder` writes the plan and asks for its `progress` until
kube-controller-manager has bound all claims of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpu_orchestrator.api import volumes
from gpu_orchestrator.api.first_consumer import (
    Known,
    class_name,
    creatable,
    is_for,
    named_volume,
    selected_node,
    sort_claims,
    suitable,
)
from gpu_orchestrator.api.free_volumes import smallest_first
from gpu_orchestrator.api.kubernetes import Node, Pod, VolumeClaim
from gpu_orchestrator.api.volume_places import holds_on, is_on
from gpu_orchestrator.api.volumes import NotReady, Volume
from gpu_orchestrator.api.wire import key as key_of


@dataclass(frozen=True, slots=True)
class Use:
    """An existing volume for a claim."""

    claim: VolumeClaim
    volume: Volume


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """How the claims of a pod are bound for this node: to existing volumes, or to new ones."""

    node: str
    uses: tuple[Use, ...] = ()
    provisions: tuple[VolumeClaim, ...] = ()

    @property
    def claims(self) -> tuple[VolumeClaim, ...]:
        return (*(each.claim for each in self.uses), *self.provisions)


def choose(pod: Pod, node: Node, known: Known) -> VolumePlan | NotReady | None:
    """Return which volumes the pod's claims get on this node; None if all are bound already."""
    sorted_claims = sort_claims(pod, known)
    if isinstance(sorted_claims, NotReady):
        return sorted_claims
    _, waiting = sorted_claims
    if not waiting:
        return None
    chosen = _match([_volumes_on(node, claim, known) for claim in waiting])
    uses, provisions = [], []
    for claim, volume in zip(waiting, chosen, strict=True):
        if volume is not None:
            uses.append(Use(claim, volume))
        elif _can_be_created(claim, node, known):
            provisions.append(claim)
        else:
            return NotReady(f"node {node.metadata.name} has no volume for {key_of(claim)} any longer")
    return VolumePlan(node.metadata.name, tuple(uses), tuple(provisions))


def _volumes_on(node: Node, claim: VolumeClaim, known: Known) -> list[Volume]:
    if selected_node(claim):
        return []
    if named := named_volume(claim, known):
        return [named] if reaches(node, named) else []
    here = [each for each in suitable(claim, known) if is_on(node, each.place)]
    return [each.volume for each in smallest_first(here)]


def _can_be_created(claim: VolumeClaim, node: Node, known: Known) -> bool:
    """Return True if the claim's volume can be created for this node. One that names the claim goes first,
    unless it is the very one that is being created for the node."""
    selected = selected_node(claim)
    if selected != node.metadata.name and (selected or named_volume(claim, known)):
        return False
    made = known.storage_class(class_name(claim))
    return any(holds_on(node, option.where) for option in (creatable(made) if made else ()))


def reaches(node: Node, volume: Volume) -> bool:
    return all(holds_on(node, each) for each in volumes.reach_of(volume))


def _match(offered: list[list[Volume]]) -> list[Volume | None]:
    """Give each claim one of the volumes offered to it, no volume twice. A claim takes the first free one; if
    all are taken, an earlier claim that has another choice moves."""
    taken: dict[str, int] = {}

    def take(claim: int, tried: set[str]) -> bool:
        for name in (each.metadata.name for each in offered[claim]):
            if name not in tried:
                tried.add(name)
                if name not in taken or take(taken[name], tried):
                    taken[name] = claim
                    return True
        return False

    for claim in range(len(offered)):
        take(claim, set())
    given = {claim: name for name, claim in taken.items()}
    return [
        next((each for each in offers if each.metadata.name == given.get(claim)), None)
        for claim, offers in enumerate(offered)
    ]


Progress: TypeAlias = Literal["bound", "waiting"] | NotReady


def progress(plan: VolumePlan, node: Node | None, known: volumes.Known) -> Progress:
    """Return whether all claims of the plan are bound, or why that will not happen on this node."""
    if node is None:
        return NotReady(f"node {plan.node} is gone")
    states = list(_progress_of_each(plan, node, known))
    failed = next((each for each in states if isinstance(each, NotReady)), None)
    return failed or ("waiting" if "waiting" in states else "bound")


def _progress_of_each(plan: VolumePlan, node: Node, known: volumes.Known) -> Iterator[Progress]:
    for use in plan.uses:
        yield _progress_of(use.claim, node, known, use.volume.metadata.name)
    for claim in plan.provisions:
        yield _progress_of(claim, node, known)


def _progress_of(meant: VolumeClaim, node: Node, known: volumes.Known, volume_name: str = "") -> Progress:
    key = key_of(meant)
    claim = known.volume_claim(key)
    if claim is None or claim.metadata.uid != meant.metadata.uid:
        return NotReady(f"PersistentVolumeClaim {key} was deleted")
    if problem := volumes.claim_problem(key, claim):
        return problem
    if volumes.is_bound(claim):
        return _progress_of_bound(claim, node, known)
    if volume_name:
        volume = known.volume(volume_name)
        if volume is None or not is_for(volume, claim):
            return NotReady(f"PersistentVolume {volume_name} was taken away from {key}")
    elif selected_node(claim) != node.metadata.name:
        return NotReady(
            f"the volume of PersistentVolumeClaim {key} could not be created for node {node.metadata.name}; "
            "the events of the claim say why"
        )
    return "waiting"


def _progress_of_bound(claim: VolumeClaim, node: Node, known: volumes.Known) -> Progress:
    volume = known.volume(claim.spec.volume_name)
    if volume is None:  # the watch of volumes may be behind that of claims
        return "waiting"
    if not reaches(node, volume):
        name = volume.metadata.name
        return NotReady(
            f"PersistentVolumeClaim {key_of(claim)} was bound to {name}, which node {node.metadata.name} "
            "cannot reach"
        )
    return "bound"

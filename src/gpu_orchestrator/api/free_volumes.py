"""Which of the free volumes of a class offer what a claim asks for.

Pure; called by `first_consumer`. A class may have thousands of free volumes and thousands of claims, so what
a volume offers is worked out once (`FreeVolume`), and what a claim asks for once per look at them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_orchestrator.api import neighbours, quantity, volumes
from gpu_orchestrator.api.kubernetes import VolumeClaim
from gpu_orchestrator.api.volume_places import Option, only_host
from gpu_orchestrator.api.volumes import Volume
from gpu_orchestrator.core.pod_rules import Neighbour, PodSelector


@dataclass(frozen=True, slots=True)
class FreeVolume:
    """What a volume offers. A `capacity` that cannot be read fits no claim."""

    volume: Volume
    place: Option
    capacity: int
    modes: frozenset[str]


def free_volume(volume: Volume) -> FreeVolume:
    where = volumes.all_of(volumes.reach_of(volume))
    place = Option(where, volume.metadata.name, only_host(where))
    return FreeVolume(volume, place, _capacity(volume), frozenset(volume.spec.access_modes))


def is_free(volume: Volume) -> bool:
    """Return True if any claim may get this volume."""
    is_leaving = bool(volume.metadata.deletion_timestamp)
    return volume.status.phase == "Available" and not volume.spec.claim_ref.name and not is_leaving


def fitting(claim: VolumeClaim, free: Iterable[FreeVolume]) -> list[FreeVolume]:
    """Return the volumes that the claim may get, in the order given."""
    asked, size, modes = claim.spec, size_of(claim), frozenset(claim.spec.access_modes)
    kind = asked.volume_mode, asked.volume_attributes_class_name
    found = (each for each in free if each.capacity >= size and modes <= each.modes)
    alike = (each for each in found if _kind(each.volume) == kind)
    if asked.selector is None:
        return list(alike)
    selector = PodSelector(labels=neighbours.conditions(asked.selector))
    return [each for each in alike if selector.matches(Neighbour("", each.volume.metadata.labels))]


def smallest_first(found: Iterable[FreeVolume]) -> list[FreeVolume]:
    return sorted(found, key=lambda each: (each.capacity, each.volume.metadata.name))


def _kind(volume: Volume) -> tuple[str, str]:
    return volume.spec.volume_mode, volume.spec.volume_attributes_class_name


def requested(claim: VolumeClaim) -> str:
    """Return the size that a claim asks for, as it is written."""
    return claim.spec.resources.requests.get("storage", "0")


def size_of(claim: VolumeClaim) -> int:
    return quantity.whole(requested(claim))


def _capacity(volume: Volume) -> int:
    try:
        return quantity.whole(volume.spec.capacity.get("storage", "0"))
    except quantity.BadQuantity:
        return -1

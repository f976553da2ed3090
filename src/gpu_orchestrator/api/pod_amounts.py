"""How much of each resource a pod takes from its node, counted as the kubelet does. Used by `translate`.

Thousands of pods ask for the same, so the answer is kept by what they ask for: a new leader counts a whole
cluster, and equal pods share one value.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from gpu_orchestrator.api import names, quantity
from gpu_orchestrator.api.pod import Container, PodSpec, Requirements
from gpu_orchestrator.core.limits import MOST_AMOUNT, within
from gpu_orchestrator.core.request import pairs

Amounts = dict[str, int]
Texts = tuple[tuple[str, str], ...]
"""Quantities by resource, as a value that can be looked up."""

REMEMBERED = 1024
MOST_TEXTS = 32
"""Quantities of a pod whose answer is kept: a user could fill the memory with pods that have thousands."""


class Wanted(NamedTuple):
    """What the containers ask for, the init containers (with True: a sidecar), the pod itself, and its
    overhead."""

    running: tuple[Texts, ...] = ()
    starting: tuple[tuple[bool, Texts], ...] = ()
    of_pod: Texts = ()
    overhead: Texts = ()


class Taken(NamedTuple):
    """GPUs by number, and everything else as the core counts it, the pod itself included (`pods`).
    `has_parts`: some of it may be a part of a GPU."""

    gpus: int
    resources: tuple[tuple[str, int], ...]
    has_parts: bool


def taken(spec: PodSpec) -> Taken:
    """Return what a pod with this spec takes. Raises `BadQuantity`."""
    wanted = _wanted(spec)
    return _taken(wanted) if _count(wanted) <= MOST_TEXTS else _taken.__wrapped__(wanted)


def amounts(quantities: Mapping[str, str]) -> Amounts:
    """Read quantities, without those that are zero. Raises `BadQuantity`."""
    read = {
        name: quantity.milli(text) if name == "cpu" else quantity.whole(text)
        for name, text in quantities.items()
    }
    return {name: amount for name, amount in read.items() if amount}


def without_gpus(all_of: Amounts) -> Amounts:
    return {name: amount for name, amount in all_of.items() if name not in names.VENDOR_OF}


def is_sidecar(container: Container) -> bool:
    """Return True if an init container keeps running beside the others."""
    return container.restart_policy == "Always"


def _wanted(spec: PodSpec) -> Wanted:
    return Wanted(
        tuple([_requests(each.resources) for each in spec.containers]),
        tuple([(is_sidecar(each), _requests(each.resources)) for each in spec.init_containers])
        if spec.init_containers
        else (),
        _requests(spec.resources) if spec.resources else (),
        tuple(spec.overhead.items()),
    )


def _requests(resources: Requirements) -> Texts:
    """A limit without a request is a request, too."""
    if not resources.limits:
        return tuple(resources.requests.items())
    return tuple({**resources.limits, **resources.requests}.items())


def _count(wanted: Wanted) -> int:
    started = sum([len(texts) for _, texts in wanted.starting])
    return sum(map(len, wanted.running)) + started + len(wanted.of_pod) + len(wanted.overhead)


@lru_cache(REMEMBERED)
def _taken(wanted: Wanted) -> Taken:
    total = _all_of(wanted)
    resources = pairs({**without_gpus(total), "pods": 1})
    has_parts = any(names.is_gpu_resource(name) for name, _ in resources)
    return Taken(sum(total.get(name, 0) for name in names.GPU_RESOURCES), resources, has_parts)


def _all_of(wanted: Wanted) -> Amounts:
    """Count containers and sidecars together, or an init container beside the sidecars that run before it,
    whichever is more. Pod-level requests go first; overhead is added."""
    running, peak = _sum(map(_read, wanted.running)), Amounts()
    started = Amounts()
    for is_sidecar, texts in wanted.starting:
        own = _read(texts)
        if is_sidecar:
            started = _sum((started, own))
            peak = _most(peak, started)
        else:
            peak = _most(peak, _sum((started, own)))
    total = _most(_sum((running, started)), peak)
    total |= _read(wanted.of_pod)
    return _sum((total, _read(wanted.overhead)))


def _read(texts: Texts) -> Amounts:
    return amounts(dict(texts))


def _sum(parts: Iterable[Amounts]) -> Amounts:
    total = Amounts()
    for part in parts:
        for name, amount in part.items():
            total[name] = within(total.get(name, 0) + amount, MOST_AMOUNT)
    return total


def _most(one: Amounts, other: Amounts) -> Amounts:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in (*one, *other)}

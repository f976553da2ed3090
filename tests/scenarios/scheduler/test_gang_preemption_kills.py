"""A scheduler that is killed while a gang preempts: the next one evicts no more than needed, and the gang
ends up whole."""

from collections.abc import Callable, Iterator

import pytest

from controlplane.process import Process
from tests.faults.proxy import Call, Cut, DropAnswer, Fault, Proxy
from tests.scenarios.scheduler.test_gangs import ALONE, members
from tests.support import invariants
from tests.support.object_history import History
from tests.support.scale import Scale
from tests.support.scheduler_stage import Stage, pod, until

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
MOMENTS: dict[str, Fault] = {"request": Cut(), "answer": DropAnswer()}

Kill = tuple[str, str, int, str]
"""Verb, resource, which one of these writes, and the moment. The first write of a member's status says why it
waits, the second one where room is kept for it."""


@pytest.fixture
def proxy(bare_stage: Stage) -> Iterator[Proxy]:
    with Proxy(bare_stage.kubeconfig, remember=1000) as made:
        yield made


@pytest.fixture
def urgent(bare_stage: Stage) -> Iterator[str]:
    name = f"{bare_stage.namespace}-urgent"
    made = {"metadata": {"name": name}, "value": 1000}
    bare_stage.cluster.api.request("POST", CLASSES, made)
    yield name
    bare_stage.cluster.api.request("DELETE", f"{CLASSES}/{name}")


EVERY = [
    *(("patch", "pods/status", nth, moment) for nth in (3, 4) for moment in MOMENTS),
    *(("create", "pods/eviction", nth, moment) for nth in (1, 2) for moment in MOMENTS),
    *(("create", "leases", nth, moment) for nth in (1, 2) for moment in MOMENTS),
    *(("create", "pods/binding", nth, moment) for nth in (1, 2) for moment in MOMENTS),
]
FEW = [("create", "pods/eviction", 1, "answer"), ("create", "pods/binding", 2, "request")]


def test_kill_while_a_gang_preempts_evicts_no_more_than_needed(
    bare_stage: Stage, proxy: Proxy, urgent: str, scale: Scale, figure: Callable[[str], None]
) -> None:
    """Three nodes are full, and two must be free. There is no kubelet: those evicted end when we say so. At
    small scale: between two evictions, and between two binds."""
    bare_stage.gpu_nodes(3, gpus=2)
    scheduler = bare_stage.scheduler(kubeconfig=proxy.kubeconfig, **ALONE)
    chosen: list[Kill] = scale(test=FEW, accept=EVERY)
    with History(bare_stage.cluster) as history:
        for number, kill in enumerate(chosen):
            old = [f"old-{number}-{at}" for at in range(3)]
            bare_stage.create(*(pod(name, gpus=2) for name in old))
            bare_stage.wait_bound(*old)
            play(bare_stage, proxy, scheduler, kill, f"g{number}", urgent, old)
            bare_stage.delete(*bare_stage.pods(), force=True)
            until(lambda: not bare_stage.leases(), "every lease is gone", 60)
    figure(f"{len(chosen)} kills")
    assert set(invariants.check(history).binds.values()) == {1}


def play(
    stage: Stage, proxy: Proxy, scheduler: Process, kill: Kill, gang: str, urgent: str, old: list[str]
) -> None:
    """Have the scheduler killed, start it again, and let those end that were evicted."""
    verb, resource, nth, moment = kill
    do = Call(lambda _: scheduler.kill(), at=moment, then=MOMENTS[moment])  # type: ignore[arg-type]
    proxy.on(verb, resource, nth=nth, do=do)
    stage.create(
        *(each | {"spec": each["spec"] | {"priorityClassName": urgent}} for each in members(gang, 2, 2))
    )
    if resource in ("leases", "pods/binding"):
        until(lambda: len(evicted(stage, old)) == 2, "two are evicted")
        end(stage, old)
    until(lambda: not scheduler.is_running, f"killed at {verb} {resource} {nth}, {moment}")
    proxy.heal()
    scheduler.start()
    if resource not in ("leases", "pods/binding"):
        until(lambda: rooms(stage, gang) == nodes_of(stage, old), "room is kept where two were evicted", 60)
        end(stage, old)
    stage.wait_bound(*(f"{gang}-{at}" for at in range(2)))
    until(stage.holds_exactly, "leases match the bound pods")
    (stays,) = [name for name in old if name in stage.pods()]
    assert "deletionTimestamp" not in stage.pod(stays)["metadata"], f"{stays} was evicted, too, at {kill}"


def evicted(stage: Stage, old: list[str]) -> list[str]:
    pods = stage.pods()
    return [name for name in old if name in pods and "deletionTimestamp" in pods[name]["metadata"]]


def end(stage: Stage, old: list[str]) -> None:
    """Do what the kubelets do when the containers have ended."""
    stage.delete(*evicted(stage, old), force=True)


def rooms(stage: Stage, gang: str) -> set[str | None]:
    """Return where room is shown to be kept for the gang."""
    return {stage.pod(f"{gang}-{at}")["status"].get("nominatedNodeName") for at in range(2)}


def nodes_of(stage: Stage, old: list[str]) -> set[str | None]:
    return {stage.pod(name)["spec"]["nodeName"] for name in evicted(stage, old)}

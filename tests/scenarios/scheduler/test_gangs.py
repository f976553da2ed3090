"""Gangs on a real control plane: all members start or none, also when the scheduler is killed at any
write."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controlplane.api import Json
from tests.faults.proxy import Call, Cut, DropAnswer, Fault, Proxy
from tests.support import invariants
from tests.support.object_history import History
from tests.support.scale import Scale
from tests.support.scheduler_stage import Stage, claim, pod, until

A = "gpu.scheduling/"
CLIQUE = "nvidia.com/gpu.clique"
ALONE: dict[str, Any] = {"leaderElect": False, "releaseSeconds": 1, "sweepSeconds": 2}


@pytest.fixture
def proxy(bare_stage: Stage) -> Iterator[Proxy]:
    with Proxy(bare_stage.kubeconfig, remember=1000) as made:
        yield made


def members(gang: str, count: int, gpus: int = 8, **more: Any) -> list[Json]:
    terms = {f"{A}gang": gang, f"{A}gang-size": str(count)}
    return [pod(f"{gang}-{at}", gpus=gpus, annotations=terms | more) for at in range(count)]


def test_gang_starts_whole_or_not_at_all(stage: Stage, figure: Callable[[str], None]) -> None:
    stage.gpu_nodes(3, gpus=8)
    stage.scheduler(releaseSeconds=1)
    stage.create(*members("four", 4))
    few = f"gang {stage.namespace}/four: 3 of 4 members fit together; for the next one 0/"
    stage.wait_event("four-0", few)
    assert stage.leases() == {}
    stage.create(*members("two", 2))
    assert set(stage.wait_bound("two-0", "two-1")) == {"two-0", "two-1"}
    began = time.monotonic()
    stage.gpu_nodes(3, gpus=8, prefix=f"{stage.namespace}-more")
    stage.wait_bound(*(f"four-{at}" for at in range(4)))
    figure(f"gang of 4×8 bound {time.monotonic() - began:.1f} s after its nodes came")
    assert stage.holds_exactly()


def test_members_with_claims_of_one_template_share_a_domain(stage: Stage) -> None:
    """A launcher with one GPU and workers with four, all in one NVLink domain although another one has more
    room. Any label may be named."""
    stage.gpu_nodes(2, gpus=8, prefix=f"{stage.namespace}-x", labels={CLIQUE: "x.0"})
    stage.gpu_nodes(1, gpus=8, prefix=f"{stage.namespace}-y", labels={CLIQUE: "y.0"})
    stage.scheduler()
    stage.create(claim("worker", count=4))
    terms = {f"{A}gang": "job", f"{A}gang-size": "3", f"{A}topology-required": CLIQUE}
    launcher = pod("launcher", gpus=1, annotations=terms)
    workers = [pod(f"worker-{at}", claim_template="worker", annotations=terms) for at in range(2)]
    stage.create(launcher, *workers)
    bound = stage.wait_bound()
    assert len({devices.partition(":")[0].rpartition("-")[0] for devices in bound.values()}) == 1
    assert {name: devices.count(",") + 1 for name, devices in bound.items()} == {
        "launcher": 1,
        "worker-0": 4,
        "worker-1": 4,
    }


def test_least_of_a_gang_starts_and_the_others_join_later(stage: Stage) -> None:
    stage.gpu_nodes(1, gpus=8)
    stage.scheduler(releaseSeconds=0)
    least: dict[str, Any] = {f"{A}gang-min": "2"}
    stage.create(*members("some", 3, **least))
    stage.wait_event("some-0", "1 of 2 members fit together")
    stage.gpu_nodes(1, gpus=8, prefix=f"{stage.namespace}-b")
    until(lambda: len(stage.bound()) == 2, "the least are bound")
    (late,) = stage.pods().keys() - stage.bound()
    stage.wait_event(late, "2 members have started, and there is no room for this one yet")
    stage.gpu_nodes(1, gpus=8, prefix=f"{stage.namespace}-c")
    stage.wait_bound()
    assert stage.holds_exactly()


def test_launcher_without_gpus_starts_with_its_workers(stage: Stage) -> None:
    """It is bound with them or not at all, holds no device and sees none."""
    stage.gpu_nodes(1, gpus=8)
    stage.scheduler(releaseSeconds=0)
    terms = {f"{A}gang": "job", f"{A}gang-size": "3"}
    launcher, *workers = (pod(f"m{at}", gpus=8 if at else 0, annotations=terms) for at in range(3))
    stage.create(launcher, *workers)
    stage.wait_event("m0", "2 of 3 members fit together")
    assert stage.bound() == {}
    stage.gpu_nodes(1, gpus=8, prefix=f"{stage.namespace}-more")
    bound = stage.wait_bound()
    assert [len(bound[f"m{at}"].partition(":")[2].split(",")) for at in (1, 2)] == [8, 8]
    assert bound["m0"].endswith(":")
    assert stage.pod("m0")["metadata"]["annotations"][f"{A}visible-devices"] == ""
    assert stage.holds_exactly()
    stage.delete("m0", force=True)
    until(lambda: "m0" not in stage.pods(), "the launcher is gone")
    assert stage.holds_exactly()


MOMENTS: dict[str, Fault] = {"request": Cut(), "answer": DropAnswer()}


def test_kill_at_every_write_of_a_gang_leaves_all_or_none(
    bare_stage: Stage, proxy: Proxy, scale: Scale, figure: Callable[[str], None]
) -> None:
    """Small scale: at the first and last lease, and at a middle binding."""
    every = [
        (resource, nth, moment)
        for resource in ("leases", "pods/binding")
        for nth in range(1, 5)
        for moment in MOMENTS
    ]
    few = [("leases", 4, "answer"), ("pods/binding", 1, "answer"), ("pods/binding", 3, "request")]
    chosen = scale(test=few, accept=every)
    bare_stage.gpu_nodes(4, gpus=2)
    scheduler = bare_stage.scheduler(kubeconfig=proxy.kubeconfig, **ALONE)
    with History(bare_stage.cluster) as history:
        for number, (resource, nth, moment) in enumerate(chosen):
            gang = f"g{number}"
            kill = Call(lambda _: scheduler.kill(), at=moment, then=MOMENTS[moment])  # type: ignore[arg-type]
            proxy.on("create", resource, nth=nth, do=kill)
            bare_stage.create(*members(gang, 4, gpus=2))
            until(lambda: not scheduler.is_running, f"killed at {resource} {nth}, {moment}")
            proxy.heal()
            scheduler.start()
            bare_stage.wait_bound(*(f"{gang}-{at}" for at in range(4)))
            until(bare_stage.holds_exactly, "leases match the bound pods")
            bare_stage.delete(*bare_stage.pods(), force=True)
            until(lambda: not bare_stage.leases(), "every lease is gone", 60)
    figure(f"{len(chosen)} kills")
    assert set(invariants.check(history).binds.values()) == {1}


def test_gang_that_has_begun_goes_on_after_a_restart_although_members_have_ended(
    bare_stage: Stage, proxy: Proxy, scale: Scale
) -> None:
    """Killed at the write of a mark, and again when the marks are written; then two of three members are
    gone, and one comes in their place. It looks like a gang that was bound by half, which is evicted."""
    every = [(nth, moment) for nth in range(1, 4) for moment in MOMENTS]
    bare_stage.gpu_nodes(3, gpus=2)
    scheduler = bare_stage.scheduler(kubeconfig=proxy.kubeconfig, gangSeconds=1, **ALONE)
    for number, (nth, moment) in enumerate(scale(test=[(2, "request")], accept=every)):
        names = [f"g{number}-{at}" for at in range(3)]
        kill = Call(lambda _: scheduler.kill(), at=moment, then=MOMENTS[moment])  # type: ignore[arg-type]
        proxy.on("patch", "pods/status", nth=nth, do=kill)
        bare_stage.create(*members(f"g{number}", 3, gpus=2))
        until(lambda: not scheduler.is_running, f"killed at mark {nth}, {moment}")
        proxy.heal()
        scheduler.start()
        until(lambda: all(is_marked(each) for each in bare_stage.pods().values()), "members are marked")
        scheduler.kill()
        bare_stage.delete(*names[1:], force=True)
        (again,) = (each for each in members(f"g{number}", 3, gpus=2) if each["metadata"]["name"] == names[1])
        bare_stage.create(again)
        scheduler.start()
        bare_stage.wait_bound(*names[:2])
        assert "deletionTimestamp" not in bare_stage.pod(names[0])["metadata"]
        bare_stage.delete(*bare_stage.pods(), force=True)
        until(lambda: not bare_stage.leases(), "every lease is gone", 60)


def is_marked(found: Json) -> bool:
    return "gpu.scheduling/gang-begun" in {each["type"] for each in found["status"].get("conditions", ())}


def test_gang_bound_in_part_starts_over_when_the_others_find_no_room(bare_stage: Stage, proxy: Proxy) -> None:
    """Killed between two binds; meanwhile a node has gone."""
    nodes = bare_stage.gpu_nodes(2, gpus=2)
    scheduler = bare_stage.scheduler(kubeconfig=proxy.kubeconfig, gangSeconds=2, **ALONE)
    proxy.on("create", "pods/binding", nth=2, do=Call(lambda _: scheduler.kill(), at="request", then=Cut()))
    bare_stage.create(*members("half", 2, gpus=2))
    until(lambda: not scheduler.is_running, "killed between the binds")
    proxy.heal()
    (first,) = until(bare_stage.bound, "one member is bound")
    used = bare_stage.bound()[first].partition(":")[0]
    lost = next(node for node in nodes if node != used)
    bare_stage.nodes.remove(lost)
    bare_stage.cluster.api.request("DELETE", f"/api/v1/nodes/{lost}")
    scheduler.start()
    bare_stage.wait_event(first, "GangBroken: gang ")
    until(lambda: "deletionTimestamp" in bare_stage.pod(first)["metadata"], "the bound member is evicted")
    bare_stage.delete(first, force=True)  # as its kubelet does when its containers have ended
    until(lambda: not bare_stage.leases(), "its devices are free", 60)
    bare_stage.gpu_nodes(1, gpus=2, prefix="late")
    bare_stage.create(*(each for each in members("half", 2, gpus=2) if each["metadata"]["name"] == first))
    assert len(bare_stage.wait_bound("half-0", "half-1")) == 2

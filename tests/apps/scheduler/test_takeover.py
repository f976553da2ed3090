"""A new leader takes in the initial state in slices, and knows all of it before it decides."""

import asyncio
import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu_orchestrator.adapters.breath import Breath
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import deviceleases
from gpu_orchestrator.api.deviceleases import DeviceRef, Hold, Holder
from gpu_orchestrator.api.kubernetes import Lease, Node
from gpu_orchestrator.apps.scheduler.informers import Watches
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.apps.scheduler.scheduler import Scheduler
from gpu_orchestrator.apps.scheduler.settings import Settings
from gpu_orchestrator.policies.registry import Registry
from tests.support.scheduler_objects import node, pod
from tests.support.scripted_transport import Scripted

NODES, GPUS = 20, 8


class EveryStep(Breath):
    """Gives the loop back after every step, however fast it was."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock, slice_s=0.0)


def new_leader(metrics: Metrics | None = None, **settings: Any) -> tuple[Scheduler, Watches]:
    client, clock = Client(Scripted()), asyncio.get_running_loop().time
    watches = Watches(client, "system")
    made = Scheduler(
        client,
        Settings(namespace="system", **settings),
        watches,
        Recorder(client, "gpu-scheduler", capacity=10, writers=1),
        metrics or Metrics(),
        pacer=Pacer(clock),
        registry=Registry(),
        rng=random.Random(1),
        may_write=lambda: True,
    )
    return made, watches


def fill(watches: Watches) -> int:
    """Put nodes and bound pods with their leases into the stores; return how many objects there are."""
    for number in range(NODES):
        name = f"node-{number}"
        watches.nodes.store.put(node(name, GPUS))
        for device in range(GPUS):
            bound = pod(f"{name}-{device}", node=name, gpus=1, allocated=f"{name}:{device}")
            watches.pods.store.put(bound)
            holder = Holder(bound.metadata.uid, bound.metadata.name, "default", since="t")
            watches.leases.store.put(deviceleases.exclusive(DeviceRef(name, device), holder, "system"))
    return NODES + 2 * NODES * GPUS


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Set the garbage collector back: a new leader changes it for the whole process."""
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


async def test_metrics_show_failed_handlers_and_pods_that_are_held_back() -> None:
    def fail(old: Node | None, new: Node | None) -> None:
        raise ValueError(new)

    metrics = Metrics()
    scheduler, watches = new_leader(metrics, max_waiting_shapes=2)
    for number in range(5):
        watches.pods.store.put(pod(f"p{number}", gpus=number + 1))
    watches.nodes.store.put(node("a", 0))
    watches.nodes.on_change(fail)
    scheduler.stop()
    await scheduler.work()
    sample = metrics.registry.get_sample_value
    assert sample("gpu_scheduler_errors_total", {"part": "watch"}) == 1
    assert sample("gpu_scheduler_pending_pods", {"state": "held back"}) == 3


async def test_other_tasks_run_while_the_initial_state_is_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_orchestrator.apps.scheduler.scheduler.Breath", EveryStep)
    scheduler, watches = new_leader()
    objects, turns = fill(watches), 0
    watches.pods.store.put(pod("waits", gpus=1))

    async def renew() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    renewing = asyncio.create_task(renew())
    scheduler.stop()
    await scheduler.work()
    renewing.cancel()
    assert turns >= objects
    cluster = scheduler.coordinator.engine.cluster
    assert [cluster.free_gpus(f"node-{number}") for number in range(NODES)] == [0] * NODES
    assert (
        scheduler.coordinator.pending.reason("uid-waits")
        == f"0/{NODES} nodes fit: {NODES} have no wholly free GPU"
    )


async def test_new_leader_reads_each_lease_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full cluster has tens of thousands, and nothing is bound before all of them are known."""
    read, original = list[str](), deviceleases.holds

    def holds(lease: Lease) -> list[Hold]:
        read.append(lease.metadata.name)
        return original(lease)

    monkeypatch.setattr(deviceleases, "holds", holds)
    scheduler, watches = new_leader()
    fill(watches)
    scheduler.stop()
    await scheduler.work()
    assert sorted(read) == sorted(lease.metadata.name for lease in watches.leases.store)
    holdings = scheduler.coordinator.holdings
    assert all(len(holdings.devices_of(each.metadata.uid)) == 1 for each in watches.pods.store)


async def test_pods_of_a_full_cluster_share_what_they_ask_for() -> None:
    scheduler, watches = new_leader()
    fill(watches)
    scheduler.stop()
    await scheduler.work()
    cluster = scheduler.coordinator.engine.cluster
    held = [each for number in range(NODES) for each in cluster.held_on(f"node-{number}").values()]
    assert len({id(each.resources) for each in held if each.resources}) == 1
    assert len({id(each.topology) for each in cluster}) == 1

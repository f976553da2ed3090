"""What is held at takeover is counted once, whatever changes while it is being counted."""

from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api import deviceleases
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from gpu_orchestrator.apps.scheduler.cycle import initial_holdings
from gpu_orchestrator.apps.scheduler.cycle.initial_holdings import InitialHoldings
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.engine.events import Event, PlacementObserved, RequestRemoved
from tests.support.examples import cases
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import node, pod


class Counted:
    """What the engine would have counted."""

    def __init__(self) -> None:
        self.held: dict[str, Placement] = {}
        self.received = 0

    def handle_all(self, batch: list[PlacementObserved]) -> None:
        for event in batch:
            self.handle(event)

    def handle(self, event: Event) -> None:
        self.received += 1
        match event:
            case PlacementObserved(placement):
                self.held[placement.key] = placement
            case RequestRemoved(key):
                self.held.pop(key, None)
            case _:
                raise AssertionError(event)


@cases(150)
@given(seed=st.integers(0, 2**32))
def test_engine_counts_what_is_held_in_the_end(seed: int) -> None:
    rng, initial, counted, truth = Random(seed), InitialHoldings(), Counted(), dict[str, Placement]()

    def change() -> None:
        key = rng.choice("abcdefgh")
        if rng.random() < 0.6:
            truth[key] = Placement(key, f"node-{rng.randrange(9)}")
            observed = PlacementObserved(truth[key])
            if not initial.keep(observed):
                counted.handle(observed)
        else:
            truth.pop(key, None)
            removed = RequestRemoved(key)
            if not initial.keep(removed):
                counted.handle(removed)

    for _ in range(rng.randrange(20)):
        change()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(initial_holdings, "BATCH", 2)
        sending = initial.send(counted.handle_all)
        for _ in islice(sending, rng.randrange(5)):
            change()
            change()
        list(sending)
    assert counted.held == truth


def test_lease_that_its_pod_explains_costs_the_engine_nothing() -> None:
    initial, counted = InitialHoldings(), Counted()
    assert initial.keep(PlacementObserved(Placement("lease/a", "node")))
    assert initial.keep(PlacementObserved(Placement("pod", "node")))
    assert initial.keep(RequestRemoved("lease/a"))
    list(initial.send(counted.handle_all))
    assert (counted.received, set(counted.held)) == (1, {"pod"})


def test_devices_held_at_takeover_are_not_given_again() -> None:
    world = World(node("a", 2), opened=False)
    holder = Holder(pod("runs").metadata.uid, "runs", "default", since="t")
    world.lease(deviceleases.exclusive(DeviceRef("a", 0), holder, "system"))
    world.pod(pod("runs", node="a", gpus=1, allocated="a:0"))
    world.pod(pod("waits", gpus=1))
    world.coordinator.open()
    assert [job.placement.devices for job in world.executor.jobs] == [(1,)]

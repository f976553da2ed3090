"""No device is given twice: a full cluster at full speed, and two schedulers at the same pods."""

import pytest

from tests.support import invariants
from tests.support.object_history import History
from tests.support.scale import Scale
from tests.support.scheduler_stage import Stage, claim, pod, until

PACKED = {"strategy": "binPack"}


@pytest.mark.open  # it measures the scheduler, not the API server
def test_cluster_is_filled_to_the_last_device(bare_stage: Stage, scale: Scale) -> None:
    """8 nodes of 100 devices (small scale: 25), a pod for each device at once, again and again."""
    turns, each = scale(test=2, accept=20), scale(test=25, accept=100)
    full = 8 * each
    bare_stage.gpu_nodes(8, gpus=each, pods="200")
    bare_stage.scheduler(leaderElect=False, releaseSeconds=0)
    with History(bare_stage.cluster) as history:
        for turn in range(turns):
            pods = [f"t{turn}-{number}" for number in range(full)]
            bare_stage.create(*(pod(name, gpus=1) for name in pods), threads=4)
            given = bare_stage.wait_bound(*pods, within_s=100)
            assert len(set(given.values())) == full
            bare_stage.delete(*pods, force=True)
        until(lambda: not bare_stage.leases(), "every lease is gone", 60)
    world = invariants.check(history)
    assert list(world.binds.values()) == [1] * full * turns


def test_two_active_schedulers_give_no_device_twice(bare_stage: Stage, scale: Scale) -> None:
    """Exclusive and shared claims are mixed, and nearly every device is needed. Both schedulers pack, so they
    choose the same devices. A few nodes are spare, because pods in arbitrary order do not pack perfectly."""
    nodes = scale(test=4, accept=20)
    bare_stage.gpu_nodes(nodes + 1 + nodes // 10, gpus=8, islands=[range(8)])
    bare_stage.create(
        claim("pair", 2),
        claim("half", 1, exclusivity="Shared", share=500, memoryMiB=40_960),
        claim("tenth", 1, exclusivity="Shared", share=100, memoryMiB=8_192),
    )
    for _ in range(2):
        bare_stage.scheduler(leaderElect=False, releaseSeconds=0, sweepSeconds=5)
    pods = []
    for node in range(nodes):  # the devices of a node: 3 single, 4 in pairs, 1 in shares
        pods += [pod(f"one-{node}-{n}", gpus=1, **PACKED) for n in range(3)]
        pods += [pod(f"pair-{node}-{n}", claim_template="pair", **PACKED) for n in range(2)]
        pods += [pod(f"half-{node}", claim_template="half", **PACKED)]
        pods += [pod(f"tenth-{node}-{n}", claim_template="tenth", **PACKED) for n in range(5)]
    with History(bare_stage.cluster) as history:
        bare_stage.create(*pods, threads=4)
        bare_stage.wait_bound(within_s=90)
        until(lambda: bare_stage.holds_exactly(), "leases match the bound pods", 60)
    world = invariants.check(history)
    assert list(world.binds.values()) == [1] * len(pods)

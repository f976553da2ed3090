"""Device leases under any interleaving: never two exclusive holders, shares never oversold, and a scheduler
that loses never deletes the lease of one that wins."""

import asyncio
import json
import random

import looptime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from gpu_orchestrator.api.kubernetes import Lease
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases, HeldByOther, LeaseHold
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from tests.support.lease_server import LeaseServer
from tests.support.scheduler_harness import Shown

DEVICE = DeviceRef("a", 0, memory_mib=1000)
moments = iter(range(1_000_000))


def scheduler(server: LeaseServer) -> DeviceLeases:
    """Return another process, which knows of the others only what the server answers."""
    known: Overlay[Lease] = Overlay(Shown(Store()))
    return DeviceLeases(
        Client(server), "system", known, metrics=Metrics(), now=lambda: f"moment {next(moments)}"
    )


def whole(uid: str) -> Holder:
    return Holder(uid, uid, "default", since=f"moment {next(moments)}")


def share(uid: str, milli: int, mib: int = 0) -> Holder:
    return Holder(uid, uid, "default", milli, mib, f"moment {next(moments)}")


class Holding:
    """Holds acquired and not yet released; checks the invariants at every step."""

    def __init__(self) -> None:
        self.now: list[LeaseHold] = []

    def add(self, hold: LeaseHold) -> None:
        self.now.append(hold)
        uids = {each.holder.uid for each in self.now}
        if any(each.exclusive for each in self.now):
            assert len(uids) == 1, f"exclusive beside others: {self.now}"
        shares = {each.holder.uid: each.holder for each in self.now if not each.exclusive}
        assert sum(each.share for each in shares.values()) <= 1000
        assert sum(each.memory_mib for each in shares.values()) <= DEVICE.memory_mib


async def acquire_and_release(leases: DeviceLeases, holding: Holding, uid: str, rng: random.Random) -> None:
    for _ in range(4):
        exclusive = rng.random() < 0.4
        holder = whole(uid) if exclusive else share(uid, rng.choice((200, 500)), rng.choice((0, 400)))
        hold = await leases.acquire(DEVICE, holder, exclusive=exclusive)
        if isinstance(hold, HeldByOther):
            continue
        holding.add(hold)
        await asyncio.sleep(rng.random() / 50)
        holding.now.remove(hold)
        assert await leases.release(hold)


@given(seed=st.integers(0, 1_000_000), processes=st.integers(1, 3), pods=st.integers(2, 6))
@settings(max_examples=40)
def test_invariants_hold_under_any_interleaving(seed: int, processes: int, pods: int) -> None:
    async def play() -> None:
        server, rng, holding = LeaseServer(seed), random.Random(seed), Holding()
        schedulers = [scheduler(server) for _ in range(processes)]
        async with asyncio.TaskGroup() as group:
            for number in range(pods):
                group.create_task(acquire_and_release(rng.choice(schedulers), holding, f"pod-{number}", rng))
        assert server.leases == {}

    loop = looptime.new_event_loop(start=0)
    try:
        loop.run_until_complete(play())
    finally:
        loop.close()


@pytest.mark.looptime
async def test_lease_taken_over_is_not_deleted_by_its_creator() -> None:
    server = LeaseServer(1)
    first, second = scheduler(server), scheduler(server)
    made = await first.acquire(DEVICE, whole("p"), exclusive=True)
    taken_over = await second.acquire(DEVICE, whole("p"), exclusive=True)
    assert isinstance(made, LeaseHold)
    assert isinstance(taken_over, LeaseHold)
    assert not await first.release(made)
    assert "gpu-a-0" in server.leases
    assert await second.release(taken_over)
    assert server.leases == {}


@pytest.mark.looptime
async def test_rewritten_entry_is_not_removed_by_the_creator_of_the_old_one() -> None:
    server = LeaseServer(1)
    first, second = scheduler(server), scheduler(server)
    made = await first.acquire(DEVICE, share("p", 500), exclusive=False)
    rewritten = await second.acquire(DEVICE, share("p", 500), exclusive=False)
    assert isinstance(made, LeaseHold)
    assert isinstance(rewritten, LeaseHold)
    assert not await first.release(made)
    assert len(json.loads(server.leases["gpu-a-0"]["metadata"]["annotations"]["gpu.scheduling/holders"])) == 1


@pytest.mark.looptime
async def test_failed_acquire_names_the_holder() -> None:
    server = LeaseServer(1)
    await scheduler(server).acquire(DEVICE, whole("p"), exclusive=True)
    refused = await scheduler(server).acquire(DEVICE, whole("q"), exclusive=True)
    assert str(refused) == "device 0 of a is held by default/p"


@pytest.mark.looptime
@pytest.mark.parametrize("holder", [whole("p"), share("p", 500)], ids=["whole", "share"])
async def test_unrelated_lease_is_not_changed(holder: Holder) -> None:
    """The heartbeat of the agent on `node-3` has the lease name of device 3 of `agent-node`."""
    server, ref = LeaseServer(1), DeviceRef("agent-node", 3)
    sign = {"metadata": {"name": "gpu-agent-node-3", "uid": "u", "resourceVersion": "7"}}
    server.leases["gpu-agent-node-3"] = sign | {"spec": {"holderIdentity": holder.uid}}
    before = json.dumps(server.leases)
    refused = await scheduler(server).acquire(ref, holder, exclusive=not holder.share)
    assert isinstance(refused, HeldByOther)
    assert "Lease gpu-agent-node-3 exists and is not a device lease" in str(refused)
    assert json.dumps(server.leases) == before

"""A GPU that several nodes report belongs to exactly one of them, whatever the order of the reports."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.apps.scheduler.accounting.device_owners import DeviceOwners
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import node, pod, report

NODES = ("a", "b", "c", "d")


def reported(name: str, *uuids: str, created: str = "2026-01-01T00:00:00Z") -> GpuNodeStatus:
    made = report(name, *({"id": at, "uuid": uuid} for at, uuid in enumerate(uuids)))
    return structs.replace(made, metadata=structs.replace(made.metadata, creation_timestamp=created))


def test_gpu_belongs_to_the_node_whose_report_was_created_first() -> None:
    owners = DeviceOwners()
    assert owners.observe("a", reported("a", "x", "y", created="2026-01-02T00:00:00Z")) == set()
    assert owners.observe("b", reported("b", "z", "x", created="2026-01-01T00:00:00Z")) == {"a"}
    assert (owners.duplicates("a"), owners.duplicates("b")) == ({0: "b"}, {})
    assert owners.observe("b", reported("b", "z", "x", created="2026-01-01T00:00:00Z")) == set(), "no news"
    assert owners.observe("b", None) == {"a"}
    assert owners.duplicates("a") == {}


@pytest.mark.parametrize("uuid", ["", "x"], ids=["without a UUID", "listed twice by one node"])
def test_devices_of_one_node(uuid: str) -> None:
    owners = DeviceOwners()
    owners.observe("a", reported("a", uuid, uuid))
    assert owners.duplicates("a") == ({1: "a"} if uuid else {})


@given(st.integers(), st.integers(1, 40))
def test_each_gpu_has_one_owner_and_all_changes_are_told(seed: int, steps: int) -> None:
    rng, owners, now = Random(seed), DeviceOwners(), dict[str, GpuNodeStatus]()
    for _ in range(steps):
        before = {name: owners.duplicates(name) for name in NODES}
        name, uuids = rng.choice(NODES), rng.choices(["", "u", "v", "w", "x"], k=rng.randrange(4))
        if rng.random() < 0.2:
            now.pop(name, None)
        else:
            now[name] = reported(name, *uuids, created=f"2026-01-0{rng.randrange(1, 4)}T00:00:00Z")
        told = owners.observe(name, now.get(name))
        changed = {each for each in NODES if owners.duplicates(each) != before[each]}
        assert changed <= {name, *told}
        assert given_devices(owners, now) == expected_owners(now)


def given_devices(owners: DeviceOwners, now: dict[str, GpuNodeStatus]) -> dict[str, list[str]]:
    """Return the nodes on which each GPU may be given."""
    found: dict[str, list[str]] = {}
    for name, each in now.items():
        for device in each.status.devices:
            if device.uuid and device.id not in owners.duplicates(name):
                found.setdefault(device.uuid, []).append(name)
    return found


def expected_owners(now: dict[str, GpuNodeStatus]) -> dict[str, list[str]]:
    ranked = sorted(now, key=lambda name: (now[name].metadata.creation_timestamp, name))
    owner = {device.uuid: name for name in reversed(ranked) for device in now[name].status.devices}
    return {uuid: [name] for uuid, name in owner.items() if uuid}


def test_duplicate_is_given_as_soon_as_its_owner_is_gone() -> None:
    """The owner and the other node change for the engine at once: no decision sees the GPU on both."""
    world = World(node("a", 0), node("b", 0))
    world.report(reported("b", "x"))
    world.report(reported("a", "x"))
    world.pod(pod("p", gpus=1))
    assert [job.placement.node for job in world.executor.jobs] == ["a"]
    assert world.coordinator.nodes.duplicates == {"b": {0: "a"}}
    world.pod(pod("q", gpus=1))
    assert "1 has GPUs whose UUIDs another node reports as well" in world.executor.refused["q"]
    for change in world.nodes.drop("a"):
        world.coordinator.nodes.on_node(*change)
    assert [job.placement.node for job in world.executor.jobs] == ["a", "b"]
    assert world.coordinator.nodes.duplicates == {}

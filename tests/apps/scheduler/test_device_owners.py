"""A GPU that several nodes report is given on one of them or on none, whatever the order of the reports."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.apps.scheduler.accounting.device_owners import DeviceOwners
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import node, pod, report

NODES = ("a", "b", "c", "d")


def reported(name: str, *uuids: str) -> GpuNodeStatus:
    return report(name, *({"id": at, "uuid": uuid} for at, uuid in enumerate(uuids)))


def owners_of(reports: dict[str, str], *, fallen: str = "") -> DeviceOwners:
    """Return the owners after each node has reported the UUIDs that are the letters of its text."""
    owners = DeviceOwners(lambda name: name not in fallen)
    for name, uuids in reports.items():
        owners.observe(name, reported(name, *uuids))
    return owners


@pytest.mark.parametrize(
    ("reports", "fallen", "duplicates"),
    [
        pytest.param({"a": "xy", "b": "zx"}, "", {"a": {0: "b"}, "b": {1: "a"}}, id="neither has it"),
        pytest.param({"a": "xy", "b": "zx"}, "a", {"a": {0: "b"}}, id="the report that stands wins"),
        pytest.param({"a": "x", "b": "x"}, "ab", {"a": {0: "b"}, "b": {0: "a"}}, id="none stands"),
        pytest.param(
            {"a": "uv", "b": "xy", "c": "uvxyz"},
            "",
            {"c": {0: "a", 1: "a", 2: "b", 3: "b"}},
            id="an agent that copies from many bars none of them",
        ),
        pytest.param(
            {"a": "x", "b": "x", "c": "x"},
            "",
            {"a": {0: "b"}, "b": {0: "a"}, "c": {0: "a"}},
            id="one file of devices on all nodes",
        ),
    ],
)
def test_which_devices_are_in_dispute(
    reports: dict[str, str], fallen: str, duplicates: dict[str, dict[int, str]]
) -> None:
    owners = owners_of(reports, fallen=fallen)
    assert {name: found for name in reports if (found := owners.duplicates(name))} == duplicates


def test_dispute_ends_with_the_other_report() -> None:
    owners = owners_of({"a": "xy", "b": "zx"})
    assert owners.disputed() == ["a", "b"]
    assert owners.observe("b", reported("b", "z", "x")) == set(), "no news"
    assert owners.observe("b", reported("b", "z")) == {"a"}
    assert (owners.duplicates("a"), owners.disputed()) == ({}, [])


def test_agent_that_comes_to_life_or_falls_silent_settles_a_dispute() -> None:
    silent = {"b"}
    owners = DeviceOwners(lambda name: name not in silent)
    owners.observe("a", reported("a", "x"))
    owners.observe("b", reported("b", "x"))
    assert (owners.duplicates("a"), owners.duplicates("b")) == ({}, {0: "a"})
    silent.clear()
    assert owners.restand("b") == {"a", "b"}
    assert (owners.duplicates("a"), owners.duplicates("b")) == ({0: "b"}, {0: "a"})
    assert owners.restand("b") == set(), "no news"


def test_many_nodes_with_the_same_devices_do_not_concern_each_other() -> None:
    """Every agent of a cluster may have been given one file of simulated devices."""
    owners = DeviceOwners(lambda name: True)
    told = [len(owners.observe(f"n{at}", reported(f"n{at}", *"abcdefgh"))) for at in range(500)]
    assert max(told) <= 3
    assert all(len(owners.duplicates(f"n{at}")) == 8 for at in range(500))


@pytest.mark.parametrize("uuid", ["", "x"], ids=["without a UUID", "listed twice by one node"])
def test_devices_of_one_node(uuid: str) -> None:
    owners = DeviceOwners(lambda name: True)
    owners.observe("a", reported("a", uuid, uuid))
    assert owners.duplicates("a") == ({1: "a"} if uuid else {})


@given(st.integers(), st.integers(1, 40))
def test_owners_follow_from_the_reports_and_all_changes_are_told(seed: int, steps: int) -> None:
    rng, now, silent = Random(seed), dict[str, GpuNodeStatus](), set[str]()
    owners = DeviceOwners(lambda name: name not in silent)
    for _ in range(steps):
        before = {name: owners.duplicates(name).keys() for name in NODES}
        name, uuids = rng.choice(NODES), rng.choices(["", "u", "v", "w", "x"], k=rng.randrange(4))
        if rng.random() < 0.3:
            silent ^= {name}
            told = owners.restand(name)
        elif rng.random() < 0.3:
            now.pop(name, None)
            told = owners.observe(name, None)
        else:
            now[name] = reported(name, *uuids)
            told = owners.observe(name, now[name])
        changed = {each for each in NODES if owners.duplicates(each).keys() != before[each]}
        assert changed <= {name, *told}
        assert given_devices(owners, now) == expected_owners(now, silent)


def given_devices(owners: DeviceOwners, now: dict[str, GpuNodeStatus]) -> dict[str, list[str]]:
    """Return the nodes on which each GPU may be given."""
    found: dict[str, list[str]] = {}
    for name, each in now.items():
        for device in each.status.devices:
            if device.uuid and device.id not in owners.duplicates(name):
                found.setdefault(device.uuid, []).append(name)
    return found


def expected_owners(now: dict[str, GpuNodeStatus], silent: set[str]) -> dict[str, list[str]]:
    has = {name: {each.uuid for each in report.status.devices} - {""} for name, report in now.items()}
    rivals = {name: [each for each in has if each != name and has[each] & has[name]] for name in has}
    weakness = {name: (name in silent, len(rivals[name]) > 1) for name in has}
    found: dict[str, list[str]] = {}
    for uuid in set().union(*has.values()):
        reporters = [name for name in has if uuid in has[name]]
        best = min(weakness[name] for name in reporters)
        winners = [name for name in reporters if weakness[name] == best]
        if len(winners) == 1:
            found[uuid] = winners
    return found


def test_gpu_of_two_nodes_is_given_as_soon_as_one_report_is_out_of_the_way() -> None:
    """All nodes of a dispute change for the engine at once: no decision sees the GPU on both."""
    world = World(node("a", 0), node("b", 0))
    world.report(reported("b", "x"))
    world.report(reported("a", "x"))
    world.pod(pod("p", gpus=1))
    assert world.coordinator.nodes.duplicates == {"a": {0: "b"}, "b": {0: "a"}}
    assert "2 have GPUs whose UUIDs another node reports as well" in world.executor.refused["p"]
    world.silent.add("b")
    world.coordinator.nodes.recount_silent()
    assert [job.placement.node for job in world.executor.jobs] == ["a"]
    world.silent.clear()
    world.coordinator.nodes.on_agent("b")
    world.pod(pod("q", gpus=1))
    assert world.coordinator.nodes.duplicates == {"a": {0: "b"}, "b": {0: "a"}}
    world.node(node("a", 0, unschedulable=True))
    assert [job.placement.node for job in world.executor.jobs] == ["a", "b"]
    for change in world.nodes.drop("a"):
        world.coordinator.nodes.on_node(*change)
    assert world.coordinator.nodes.duplicates == {}

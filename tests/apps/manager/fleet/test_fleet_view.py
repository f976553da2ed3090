"""What is updated worker by worker equals what is computed from scratch, after any changes."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.adapters.store.workers import Stamp
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.device_gauges import DeviceGauges
from gpu_orchestrator.apps.manager.fleet.fleet_view import NOTHING, FleetView, HeldCluster, totals_of
from gpu_orchestrator.apps.manager.fleet.nodes import DeviceGrant, MemoryPolicy, WorkerState, node_of
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from tests.support import scripted_worker

MEMORY = MemoryPolicy()
NAMES = ("a", "b", "c")


def worker(name: str, devices: int, others: int, state: str, done: int) -> WorkerState:
    hello = scripted_worker.hello(name, devices=tuple(map(scripted_worker.device, range(devices))))
    return WorkerState(
        hello,
        online=state == "online",
        left=state == "left",
        cordoned=others % 2 == 1,
        readings=tuple(scripted_worker.reading(index, others_gib=others) for index in range(devices)),
        score=rows.score_of(done, 3),
    )


def placement(worker: str, number: int, device: int, gib: int) -> Placement:
    grant = DeviceGrant((session.Given(device, f"uuid-{device}"),), gib * 1024)
    return rows.placement_of(f"t{number}", worker, grant)


states = st.builds(
    worker,
    name=st.sampled_from(NAMES),
    devices=st.integers(1, 3),
    others=st.integers(0, 4),
    state=st.sampled_from(("online", "online", "offline", "left")),
    done=st.integers(0, 20),
)
held = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=3)
steps = st.lists(st.tuples(states, held) | st.sampled_from(NAMES), max_size=12)
"""A worker that changed and what it holds, or the name of one that is removed."""


def rebuilt(workers: Mapping[str, WorkerState], holds: Mapping[str, list[Placement]]) -> Cluster:
    """Return the cluster as it would be built from nothing."""
    built = Cluster()
    for name, each in workers.items():
        if not each.left:
            reserved = rows.reserved_on(each, MEMORY, holds[name])
            built.set_node(node_of(each, MEMORY, reserved))
            for one in holds[name]:
                built.account(one)
    return built


def facts(cluster: Cluster) -> dict[str, object]:
    return {
        node.name: (node, cluster.held_on(node.name), _free(cluster, node.name, len(node.devices)))
        for node in cluster
    }


def _free(cluster: Cluster, name: str, devices: int) -> list[int]:
    return [int(mib) for mib in cluster.usage.free_mib[cluster.row(name)][:devices]]


@given(steps)
async def test_updates_one_by_one_equal_a_recount(changes: list[tuple[WorkerState, dict] | str]) -> None:  # type: ignore[type-arg]
    view, full, gauges = FleetView(MEMORY), HeldCluster(MEMORY), DeviceGauges(MEMORY)
    holds: dict[str, list[Placement]] = {}
    stamps: dict[str, Stamp] = {}
    for number, change in enumerate(changes):
        if isinstance(change, str):
            stamps.pop(change, None)
        else:
            state, placed = change
            name, count = state.hello.name, len(state.hello.devices)
            holds[name] = [placement(name, key, at % count, gib) for key, (at, gib) in placed.items()]
            stamps[name] = Stamp(str(number), str(number), 0, 0)
            assert name in view.outdated(stamps)
            view.put(state, stamps[name].row)
        view.keep_only(stamps)
        for name in full.outdated(view.workers, stamps):
            full.put(view.workers[name], stamps[name].held, holds[name])
        fresh = rebuilt(view.workers, holds)
        totals = NOTHING
        for each in view.workers.values():
            totals = totals.plus(totals_of(each))
        assert view.totals == totals
        assert facts(full.cluster) == facts(fresh)
        assert view.free_mib(full.cluster) == view.free_mib(fresh)
        assert {node.name for node in view.empty} == set(view.workers)
        shown = await gauges.text(view.workers, full.cluster)
        assert shown == await DeviceGauges(MEMORY).text(view.workers, full.cluster)


async def test_only_changed_workers_are_read_and_rendered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    view, full, gauges = FleetView(MEMORY), HeldCluster(MEMORY), DeviceGauges(MEMORY)
    stamps = {name: Stamp("1", "1", 0, 0) for name in NAMES}
    for name in NAMES:
        view.put(worker(name, 1, 0, "online", 0), "1")
    for name in full.outdated(view.workers, stamps):
        full.put(view.workers[name], "1", ())
    await gauges.text(view.workers, full.cluster)
    stamps["b"] = Stamp("2", "1", 0, 0)
    assert view.outdated(stamps) == ["b"]
    view.put(worker("b", 1, 3, "online", 0), "2")
    stamps["c"] = Stamp("1", "2", 0, 0)
    assert sorted(full.outdated(view.workers, stamps)) == ["b", "c"]
    full.put(view.workers["b"], "1", ())
    rendered: list[str] = []
    lines = DeviceGauges._lines

    def noted(self: DeviceGauges, name: str, worker: WorkerState, cluster: Cluster) -> tuple[str, ...]:
        rendered.append(name)
        return lines(self, name, worker, cluster)

    monkeypatch.setattr(DeviceGauges, "_lines", noted)
    await gauges.text(view.workers, full.cluster)
    assert rendered == ["b"]


def test_score_counts_only_as_far_as_it_is_shown() -> None:
    view = FleetView(MEMORY)
    view.put(worker("a", 1, 0, "online", 1000), "1")
    assert not view.rescore("a", 1001, 3)
    assert view.rescore("a", 1001, 500)
    assert view.outdated({"a": Stamp("1", "1", 0, 0)}) == []


grants = st.builds(
    lambda devices, gib, exclusive: DeviceGrant(
        tuple(session.Given(index, f"uuid-{index}") for index in devices), gib * 1024, exclusive
    ),
    devices=st.sets(st.integers(0, 3), max_size=3),
    gib=st.integers(0, 4),
    exclusive=st.booleans(),
)


@given(states, st.lists(grants, max_size=5))
def test_reserved_memory_is_summed_as_for_placements(known: WorkerState, given: list[DeviceGrant]) -> None:
    texts = [rows.encode(grant) for grant in given]
    placements = rows.placements_on("a", [(f"t{number}", text) for number, text in enumerate(texts)])
    expected = {index: each.mib for index, each in rows.reserved_on(known, MEMORY, placements).items()}
    assert rows.reserved_mib(known, MEMORY, texts) == expected

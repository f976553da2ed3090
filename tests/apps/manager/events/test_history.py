"""Tests of the history of the cluster: rings of fixed size, and points with what was added."""

import pytest

from gpu_orchestrator.adapters.store.history import RINGS, Bucket
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.apps.manager.events import history
from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState
from tests.apps.manager.conftest import Site
from tests.support import scripted_worker
from tests.support.fleet import eventually


def bucket(number: int, completed: int, queued: float = 0, samples: int = 1) -> Bucket:
    return Bucket(number, samples, {"queued": queued}, {"queued": queued}, {"completed": completed})


def test_counters_become_increments() -> None:
    shown = history.body(RINGS["1h"], [bucket(1, 10), bucket(2, 15), bucket(4, 15), bucket(5, 3)])
    assert [each.completed for each in shown.points] == [0, 5, 0, 0], "a recreated store adds nothing"
    assert shown.points[0].timestamp == "1970-01-01T00:00:10.000Z"


def test_gauges_show_mean_and_maximum() -> None:
    (point,) = history.body(RINGS["1h"], [Bucket(1, 4, {"queued": 10}, {"queued": 7}, {})]).points
    assert (point.queued_tasks, point.queued_tasks_max) == (2.5, 7)


def test_only_online_workers_are_measured() -> None:
    online = WorkerState(
        scripted_worker.hello("a"), readings=(scripted_worker.reading(0, others_gib=6, utilization=50.0),)
    )
    measured = history.measure([online, WorkerState(scripted_worker.hello("b"), online=False)])
    assert (measured["workers"], measured["gpus"], measured["gpu_utilization"]) == (1, 2, 50.0)
    assert measured["memory_used"] == 6 * 2**30


def test_rings_cover_their_timeframe() -> None:
    for name, seconds in {"1h": 3600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}.items():
        assert RINGS[name].bucket_s * RINGS[name].buckets == seconds


@pytest.mark.real
async def test_only_the_leader_writes_history_and_the_api_shows_it(site: Site) -> None:
    await site.join()

    async def is_written() -> bool:
        _, shown = await site.call("GET", "/cluster/metrics?timeframe=30d")
        return bool(shown["points"])

    await eventually(is_written, 60)
    store = site.running.manager.store
    other = Store(Database(store.database.url), owner="other")
    assert not await other.history.record({"workers": 99}), "only the leader may write"
    await other.database.close()
    _, shown = await site.call("GET", "/cluster/metrics")
    assert (shown["timeframe"], shown["resolution_seconds"]) == ("1h", 10)
    assert (await site.call("GET", "/cluster/metrics?timeframe=2y"))[0] == 422

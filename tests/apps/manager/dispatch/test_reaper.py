"""Which workers are removed when leases expire, and when the reaper pauses instead."""

import pytest

from gpu_orchestrator.adapters.store.records import ExpiredLease
from gpu_orchestrator.apps.manager.dispatch.reaper import Reaper

LEASE_MS = 10_000


def silent(*names: str) -> list[ExpiredLease]:
    return [ExpiredLease(name, 1, 0) for name in names]


def lost(*names: str) -> list[ExpiredLease]:
    return [ExpiredLease(name, 1, 1) for name in names]


@pytest.mark.parametrize(
    ("expired", "workers", "gone"),
    [
        pytest.param(silent("a"), 4, {"a"}, id="one of four"),
        pytest.param(silent("a", "b"), 4, {"a", "b"}, id="half of four"),
        pytest.param(silent("a", "b", "c"), 4, set(), id="most of four"),
        pytest.param(silent("a", "b", "c"), 3, {"a", "b", "c"}, id="three are too few to compare"),
        pytest.param(lost("a", "b", "c", "d"), 4, {"a", "b", "c", "d"}, id="lost connections are removed"),
        pytest.param([*silent("a", "b", "c"), *lost("d")], 4, {"d"}, id="both at once"),
    ],
)
def test_removed_workers(expired: list[ExpiredLease], workers: int, gone: set[str]) -> None:
    _, departures = Reaper(LEASE_MS).judge(expired, workers, 1_000)
    assert {each.name for each in departures} == gone


def test_silent_workers_are_removed_after_one_paused_lease() -> None:
    reaper, departures = Reaper(LEASE_MS).judge(silent("a", "b", "c"), 4, 1_000)
    assert (reaper.pauses, departures) == (1, [])
    reaper, departures = reaper.judge(silent("a", "b", "c"), 4, 1_000 + LEASE_MS - 1)
    assert departures == []
    reaper, departures = reaper.judge(silent("a", "b", "c"), 4, 1_000 + LEASE_MS)
    assert len(departures) == 3
    assert reaper.pauses == 1


def test_workers_silent_one_after_another_count_together() -> None:
    reaper = Reaper(LEASE_MS)
    reaper, first = reaper.judge(silent("a"), 4, 1_000)
    reaper, second = reaper.judge(silent("b"), 3, 2_000)
    reaper, third = reaper.judge(silent("c"), 2, 3_000)
    assert (len(first), len(second), len(third)) == (1, 1, 0)
    reaper, _ = reaper.judge([], 2, 4_000)
    _, later = reaper.judge(silent("c"), 2, 20_000)
    assert len(later) == 1


def test_round_without_silent_workers_ends_the_pause() -> None:
    reaper, _ = Reaper(LEASE_MS).judge(silent("a", "b", "c"), 4, 1_000)
    reaper, _ = reaper.judge([], 4, 2_000)
    _, departures = reaper.judge(silent("a"), 4, 3_000)
    assert [each.name for each in departures] == ["a"]

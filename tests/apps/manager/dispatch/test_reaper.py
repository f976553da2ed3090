"""Who is taken off when leases are over, and when we rather suspect ourselves."""

import pytest

from gpu_orchestrator.adapters.store.records import Over
from gpu_orchestrator.apps.manager.dispatch.reaper import Reaper

LEASE_MS = 10_000


def silent(*names: str) -> list[Over]:
    return [Over(name, 1, 0) for name in names]


def lost(*names: str) -> list[Over]:
    return [Over(name, 1, 1) for name in names]


@pytest.mark.parametrize(
    ("over", "workers", "gone"),
    [
        pytest.param(silent("a"), 4, {"a"}, id="one of four"),
        pytest.param(silent("a", "b"), 4, {"a", "b"}, id="half of four"),
        pytest.param(silent("a", "b", "c"), 4, set(), id="most of four"),
        pytest.param(silent("a", "b", "c"), 3, {"a", "b", "c"}, id="three are too few to compare"),
        pytest.param(lost("a", "b", "c", "d"), 4, {"a", "b", "c", "d"}, id="lost connections are believed"),
        pytest.param([*silent("a", "b", "c"), *lost("d")], 4, {"d"}, id="both at once"),
    ],
)
def test_who_is_taken_off(over: list[Over], workers: int, gone: set[str]) -> None:
    _, departures = Reaper(LEASE_MS).judge(over, workers, 1_000)
    assert {each.name for each in departures} == gone


def test_after_one_lease_silence_is_believed() -> None:
    reaper, departures = Reaper(LEASE_MS).judge(silent("a", "b", "c"), 4, 1_000)
    assert (reaper.pauses, departures) == (1, [])
    reaper, departures = reaper.judge(silent("a", "b", "c"), 4, 1_000 + LEASE_MS - 1)
    assert departures == []
    reaper, departures = reaper.judge(silent("a", "b", "c"), 4, 1_000 + LEASE_MS)
    assert len(departures) == 3
    assert reaper.pauses == 1


def test_falling_silent_one_after_another_is_falling_silent_together() -> None:
    reaper = Reaper(LEASE_MS)
    reaper, first = reaper.judge(silent("a"), 4, 1_000)
    reaper, second = reaper.judge(silent("b"), 3, 2_000)
    reaper, third = reaper.judge(silent("c"), 2, 3_000)
    assert (len(first), len(second), len(third)) == (1, 1, 0)
    reaper, _ = reaper.judge([], 2, 4_000)
    _, later = reaper.judge(silent("c"), 2, 20_000)
    assert len(later) == 1


def test_whoever_is_heard_again_ends_the_pause() -> None:
    reaper, _ = Reaper(LEASE_MS).judge(silent("a", "b", "c"), 4, 1_000)
    reaper, _ = reaper.judge([], 4, 2_000)
    _, departures = reaper.judge(silent("a"), 4, 3_000)
    assert [each.name for each in departures] == ["a"]

"""Tests of the sliding windows that limit the rate of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api.rates import Rate, by_route, rates
from gpu_orchestrator.apps.manager.access.sliding_window import SLOTS, Meter, Window
from tests.support.examples import cases

GAPS = st.lists(st.floats(0.0, 40.0), min_size=1, max_size=200)


@cases(200)
@given(gaps=GAPS, most=st.integers(1, 12), start=st.floats(0, 1e6))
def test_no_window_exceeds_its_limit_and_refusals_give_the_right_wait(
    gaps: list[float], most: int, start: float
) -> None:
    meter, admitted, now = Meter([Rate(most, 60.0)]), [], start
    for gap in gaps:
        now += gap
        wait_s = meter.take(now)
        if not wait_s:
            admitted.append(now)
        assert sum(at > now - 60.0 for at in admitted) <= most
        assert 0 <= wait_s <= 60.0 * (SLOTS + 1) / SLOTS + 1e-6
    assert not (wait_s and meter.take(now + wait_s + 1e-6)), "a client that waits as told is admitted"


@cases(100)
@given(gaps=GAPS, most=st.integers(1, 12))
def test_rate_below_the_limit_is_never_refused(gaps: list[float], most: int) -> None:
    meter, now = Meter([Rate(most, 60.0)]), 0.0
    for gap in gaps:
        now += gap + 61.0 / most
        assert meter.take(now) == 0.0


def test_strictest_window_decides_and_refusals_are_not_counted() -> None:
    meter = Meter(rates(per_minute=2, per_hour=3))
    assert [meter.take(1.0), meter.take(2.0)] == [0.0, 0.0]
    assert meter.take(3.0) == pytest.approx(59.0), "the slot of the first request and sixty more"
    assert meter.take(70.0) == 0.0
    assert meter.take(71.0) == pytest.approx(3600 + 60 - 71)


def test_cost_above_the_limit_needs_an_empty_window() -> None:
    meter = Meter([Rate(10, 60.0)])
    assert meter.take(0.0) == 0.0
    assert meter.take(1.0, cost=50) == pytest.approx(60.0)
    assert meter.take(61.0, cost=50) == 0.0
    assert meter.take(62.0) > 0


def test_meter_without_rates_admits_everything() -> None:
    meter = Meter(rates(0, 0))
    assert all(meter.take(0.0) == 0.0 for _ in range(1000))
    assert meter.is_idle(0.0)


@cases(100)
@given(requests=st.lists(st.tuples(st.sampled_from([0, 1]), st.floats(0, 3.0)), max_size=120))
def test_two_processes_agree_on_the_admitted_requests(requests: list[tuple[int, float]]) -> None:
    """Each sends its counts after every five requests; both then have every admitted request once."""
    windows, shared, admitted, now = [Window(Rate(20, 60.0)) for _ in range(2)], dict[int, int](), [0, 0], 0.0
    for number, (which, gap) in enumerate(requests):
        now += gap
        if not windows[which].wait_s(now, 1):
            windows[which].add(now, 1)
            admitted[which] += 1
        if number % 5 == 0:
            _sync(windows, shared)
    _sync(windows, shared)
    assert sum(shared.values()) == sum(admitted)
    assert not any(window.unsent for window in windows)
    assert windows[0].wait_s(now, 1) == windows[1].wait_s(now, 1)


def _sync(windows: list[Window], shared: dict[int, int]) -> None:
    for window in windows:
        sent = [number for pair in window.unsent.items() for number in pair]
        for slot, count in zip(sent[::2], sent[1::2], strict=True):
            shared[slot] = shared.get(slot, 0) + count
        window.forget_sent(sent)
    for window in windows:
        window.merge(shared)


def test_requests_admitted_during_a_sync_stay_unsent() -> None:
    window = Window(Rate(10, 60.0))
    window.add(1.0, 3)
    sent = [number for pair in window.unsent.items() for number in pair]
    window.add(1.5, 1)
    window.forget_sent(sent)
    window.merge({1: 5})
    assert (window.unsent, window.wait_s(2.0, 4)) == ({1: 1}, 0.0)
    assert window.wait_s(2.0, 5) > 0, "three of ours, two of theirs, and the unsent one"


@pytest.mark.parametrize("back_s", [2.0, 100.0, 3600.0])
def test_clock_set_back_neither_frees_nor_blocks_the_window(back_s: float) -> None:
    meter = Meter([Rate(1, 60.0)])
    assert meter.take(10_000.0) == 0.0
    now = 10_000.0 - back_s
    assert 0 < meter.take(now) <= 61.0 + min(back_s, 5.0)
    assert meter.take(now + 61.0 + min(back_s, 5.0)) == 0.0


def test_rates_by_route() -> None:
    text = " POST /tasks=300/m,5000/h; GET /tasks/{task_id}=none;"
    assert by_route(text) == {
        "POST /tasks": (Rate(300, 60.0), Rate(5000, 3600.0)),
        "GET /tasks/{task_id}": (),
    }
    assert by_route("") == {}


@pytest.mark.parametrize("text", ["POST /tasks", "/tasks=3/m", "POST /tasks=3/s", "POST /tasks=0/m", ";;"])
def test_malformed_route_rates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read|would allow no request"):
        by_route(text)

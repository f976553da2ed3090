"""Which moments are run, which are passed over, and which comes next."""

import pytest

from gpu_orchestrator.apps.manager.schedules import cron, moments
from gpu_orchestrator.apps.manager.schedules.moments import LATE_MS, MOST_AT_ONCE, Due, Missed

MINUTE = 60_000
EACH_MINUTE = cron.read("* * * * *")


@pytest.mark.parametrize(
    ("missed", "promised", "now", "expected"),
    [
        pytest.param("run_once", 5, 5.01, Due((5,), 0, 6), id="on time"),
        pytest.param("skip", 5, 5.9, Due((5,), 0, 6), id="a little late"),
        pytest.param("run_once", 5, 8.5, Due((8,), 3, 9), id="the latest alone"),
        pytest.param("run_all", 5, 8.5, Due((5, 6, 7, 8), 0, 9), id="all in order"),
        pytest.param("skip", 5, 8.5, Due((8,), 3, 9), id="the last is not late"),
        pytest.param("run_once", 5, 5, Due((5,), 0, 6), id="to the millisecond"),
    ],
)
def test_moments_that_are_due(missed: Missed, promised: int, now: float, expected: Due) -> None:
    found = moments.due(EACH_MINUTE, promised * MINUTE, int(now * MINUTE), missed)
    run = tuple(at // MINUTE for at in found.run)
    assert Due(run, found.passed_over, found.following // MINUTE) == expected


def test_late_moment_is_skipped_if_wished() -> None:
    daily, day = cron.read("@daily"), 86_400_000
    late = moments.due(daily, 3 * day, 3 * day + LATE_MS + 1, "skip")
    assert late == Due((), 1, 4 * day)
    assert moments.due(daily, 3 * day, 3 * day + LATE_MS, "skip").run == (3 * day,)
    assert moments.due(daily, 3 * day, 3 * day + LATE_MS + 1, "run_once").run == (3 * day,)


@pytest.mark.parametrize("missed", ["run_once", "run_all", "skip"])
def test_long_absence_costs_no_more_than_its_bound(missed: Missed) -> None:
    found = moments.due(cron.read("@every 1s"), 0, 365 * 86_400_000, missed)
    assert len(found.run) == (MOST_AT_ONCE if missed == "run_all" else 1)
    assert len(found.run) + found.passed_over == MOST_AT_ONCE + 1
    assert found.run[-1] == 365 * 86_400_000


def test_promised_moment_counts_when_the_rules_of_its_zone_have_changed() -> None:
    odd = 5 * MINUTE + 17
    assert moments.due(EACH_MINUTE, odd, odd + 10, "run_once") == Due((odd,), 0, 6 * MINUTE)


def test_jitter_is_constant_and_spread() -> None:
    delays = {moments.delay_ms(f"s{number}", 1000) for number in range(200)}
    assert max(delays) <= 1000
    assert len(delays) > 150
    assert moments.delay_ms("s1", 1000) == moments.delay_ms("s1", 1000)
    assert moments.delay_ms("s1", 0) == 0


def test_task_of_a_moment_is_always_the_same() -> None:
    assert moments.task_id("s", 1) == moments.task_id("s", 1)
    assert len({moments.task_id(name, at) for name in "ab" for at in range(3)}) == 6

"""Readings over time → healthy or not."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api.gpunodestatus import NodeDevice
from gpu_orchestrator.apps.agent import health
from gpu_orchestrator.apps.agent.health import HEALTHY, Condition, Fault, Rules
from tests.support.agent_builders import reading

RULES = Rules(temperature_c=95.0, recovery_s=60.0, longest_s=1800.0)
ILL = Fault(3, "XID 79")


def after(*looks: tuple[float, Fault | None], known: Condition = HEALTHY) -> Condition:
    """Return the condition after these looks, each at its time."""
    for now, fault in looks:
        known = health.step(known, fault, now, RULES)
    return known


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({}, None, id="all is well"),
        pytest.param({"xid": 79}, "XID 79", id="XID"),
        pytest.param({"xid": 79, "problem": "XID 79; reset it"}, "XID 79; reset it", id="XID with advice"),
        pytest.param({"problem": "GPU is lost"}, "GPU is lost", id="lost"),
        pytest.param({"ecc_errors": 1}, "uncorrectable memory errors", id="ECC"),
        pytest.param({"ecc_errors": 0, "ecc_corrected": 9}, None, id="corrected ECC"),
        pytest.param({"temperature_c": 94.9}, None, id="warm"),
        pytest.param({"temperature_c": 95.0}, "95 °C", id="hot"),
        pytest.param({"temperature_c": None}, None, id="temperature not known"),
    ],
)
def test_what_is_wrong_with_a_reading(values: dict[str, Any], words: str | None) -> None:
    found = health.fault(reading(**values), HEALTHY, RULES)
    assert (words is None) == (found is None)
    assert found is None or (words or "") in found.reason


def test_hot_device_must_cool_down_further_than_it_had_to_heat_up() -> None:
    hot = Condition(Fault(1, "hot"), 0.0)
    assert health.fault(reading(temperature_c=91.0), hot, RULES)
    assert not health.fault(reading(temperature_c=89.9), hot, RULES)


def test_no_limit_of_temperature() -> None:
    assert not health.fault(reading(temperature_c=200.0), HEALTHY, Rules(temperature_c=0.0))


def test_device_without_a_reading_is_lost() -> None:
    found = health.faults(["GPU-0", "GPU-1"], {"GPU-0": reading()}, {}, RULES)
    assert found["GPU-0"] is None
    assert found["GPU-1"] == Fault(3, health.LOST)


def test_failure_counts_at_once() -> None:
    assert after((10.0, ILL)).fault == ILL


def test_recovery_takes_passing_checks_for_a_while() -> None:
    looks = [(0.0, ILL), (5.0, None), (64.9, None)]
    assert not after(*looks).is_healthy
    assert after(*looks, (65.0, None)).is_healthy


def test_failure_during_recovery_starts_it_again() -> None:
    looks = [(0.0, ILL), (5.0, None), (60.0, ILL), (61.0, None), (120.0, None)]
    assert not after(*looks).is_healthy
    assert after(*looks, (121.0, None)).is_healthy


def test_each_relapse_doubles_the_recovery_up_to_a_limit() -> None:
    known, now, waited = HEALTHY, 0.0, []
    for _ in range(8):
        known, now = health.step(known, ILL, now, RULES), now + 1
        known, began = health.step(known, None, now, RULES), now
        while not known.is_healthy:
            now += 1
            known = health.step(known, None, now, RULES)
        waited.append(now - began)
    assert waited == [60, 120, 240, 480, 960, 1800, 1800, 1800]


def test_device_that_was_well_for_an_hour_recovers_quickly_again() -> None:
    once = after((0.0, ILL), (1.0, None), (61.0, None), (62.0, ILL), (63.0, None), (183.0, None))
    assert once.is_healthy
    again = after((183.0 + health.STEADY_S, ILL), (4000.0, None), (4060.0, None), known=once)
    assert again.is_healthy


def test_reason_changes_only_to_a_graver_one() -> None:
    hot, ecc = Fault(1, "hot"), Fault(2, "ECC")
    assert after((0.0, hot), (1.0, ecc), (2.0, hot)).fault == ecc
    assert after((0.0, hot), (1.0, Fault(1, "hotter"))).fault == hot


def test_verdict_of_the_last_report_stays_until_checks_pass() -> None:
    device = NodeDevice(0, health="Unhealthy", unhealthy_reason="XID 79")
    known = health.resumed(device, 100.0, datetime.now(UTC))
    assert not after((159.0, None), known=known).is_healthy
    assert after((160.0, None), known=known).is_healthy


@given(st.lists(st.booleans(), max_size=600))
def test_changes_are_bounded_however_a_device_flaps(flaps: list[bool]) -> None:
    """One look each second. Every healthy phase needs a recovery before it, and those get longer."""
    known, changes = HEALTHY, 0
    for now, is_ill in enumerate(flaps):
        new = health.step(known, ILL if is_ill else None, float(now), RULES)
        changes += new.is_healthy != known.is_healthy
        known = new
        if is_ill:
            assert not known.is_healthy
    assert changes <= 2 * (1 + len(flaps) // int(RULES.recovery_s))


def test_sixty_flaps_a_minute_are_one_change() -> None:
    known, changes = HEALTHY, 0
    for half in range(2 * 60 * 10):  # ten minutes, twice a second
        new = health.step(known, ILL if half % 2 else None, half / 2, RULES)
        changes += new.is_healthy != known.is_healthy
        known = new
    assert changes == 1

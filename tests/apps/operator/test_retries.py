"""Waits between tries double each time, with ten percent of jitter, up to five minutes."""

import random
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as some

from gpu_orchestrator.api.gpuworkload import RetryPolicy
from gpu_orchestrator.apps.operator.planning import retries
from tests.support.operator_builders import NOW


@given(some.integers(1, 300), some.integers(0, 9), some.integers())
def test_wait_doubles_within_ten_percent_up_to_five_minutes(base: int, doublings: int, seed: int) -> None:
    delay = retries.delay_s(base, doublings, random.Random(seed))
    exact = base * 2**doublings
    assert min(exact * 0.9, 300) <= delay <= min(exact * 1.1, 300)


def test_jitter_spreads_the_waits() -> None:
    rng = random.Random(1)
    waits = [retries.delay_s(100, 0, rng) for _ in range(1000)]
    assert min(waits) < 91
    assert max(waits) > 109
    assert 99 < sum(waits) / len(waits) < 101


def test_no_retry_after_the_last_try() -> None:
    policy = RetryPolicy(max_retries=3, backoff_seconds=10)
    first = retries.next_try(policy, 1, NOW, random.Random(1))
    assert first is not None
    assert timedelta(seconds=9) <= first - NOW <= timedelta(seconds=11)
    assert retries.next_try(policy, 3, NOW, random.Random(1)) is None

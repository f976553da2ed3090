"""The curve of every retry: delays without jitter, and what jitter takes away."""

import random
from collections.abc import Callable

import pytest

from gpu_orchestrator.adapters.kube import retry
from gpu_orchestrator.apps.manager.events import callbacks
from gpu_orchestrator.apps.manager.tasks import outcomes
from gpu_orchestrator.apps.worker.session import servers
from gpu_orchestrator.engine.backoff import Backoff, delay_s, jittered


class Drawn(random.Random):
    """Always draws this number."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def random(self) -> float:
        return self.number


@pytest.mark.parametrize(
    ("attempt", "delay"),
    [
        pytest.param(0, 1, id="first failure"),
        pytest.param(1, 2, id="doubles"),
        pytest.param(3, 8, id="doubles again"),
        pytest.param(4, 10, id="never more than the cap"),
        pytest.param(10_000, 10, id="after any number of failures"),
        pytest.param(-3, 1, id="negative attempt"),
    ],
)
def test_delay_doubles_up_to_the_cap(attempt: int, delay: float) -> None:
    assert delay_s(attempt, base_s=1.0, cap_s=10.0) == delay
    assert Backoff().delay(attempt) == delay


@pytest.mark.parametrize(
    ("part", "drawn", "wait_s"),
    [
        pytest.param(0.0, 0.3, 8.0, id="no jitter"),
        pytest.param(0.5, 0.0, 4.0, id="half, shortest"),
        pytest.param(0.5, 0.5, 6.0, id="half, middle"),
        pytest.param(1.0, 0.0, 0.0, id="full, shortest"),
        pytest.param(1.0, 0.25, 2.0, id="full, a quarter"),
    ],
)
def test_jitter_takes_away_up_to_its_part(part: float, drawn: float, wait_s: float) -> None:
    assert jittered(8.0, part, Drawn(drawn)) == wait_s


def engine(attempt: int) -> float:
    return Backoff(first_s=0.1, most_s=2.0).delay(attempt)


def kube(attempt: int) -> float:
    return retry.Backoff(rng=Drawn(1.0)).delay_s(attempt, at_least_s=3.0)


def outcome(attempt: int) -> float:
    return delay_s(attempt, base_s=outcomes.FIRST_RETRY_S, cap_s=outcomes.LONGEST_RETRY_S)


def callback(attempt: int) -> float:
    return delay_s(attempt, base_s=1.0, cap_s=callbacks.LONGEST_WAIT_S)


def worker(attempt: int) -> float:
    return delay_s(attempt, base_s=servers.SHORTEST_WAIT_S, cap_s=servers.LONGEST_WAIT_S)


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        pytest.param(engine, [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0], id="dispatcher"),
        pytest.param(kube, [3.1, 3.2, 3.4, 3.8, 4.6, 6.2, 8.0], id="kube client"),
        pytest.param(outcome, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0], id="failed attempt"),
        pytest.param(callback, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600], id="callback"),
        pytest.param(worker, [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0], id="worker reconnects"),
    ],
)
def test_curve_of_each_caller(curve: Callable[[int], float], expected: list[float]) -> None:
    assert [curve(attempt) for attempt in range(len(expected))] == pytest.approx(expected)


def test_failed_attempts_wait_half_to_all_of_their_delay() -> None:
    waits = [outcomes._retry_ms(3) for _ in range(200)]
    assert 400 <= min(waits) < 500 < 700 < max(waits) <= 800

"""The backoff queue: requests rest longer with each attempt, and those that left are skipped."""

from gpu_orchestrator.core.request import request
from gpu_orchestrator.engine.backoff import Backoff
from gpu_orchestrator.engine.backoff_queue import BackoffQueue
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.policies.registry import Registry


def waiting(name: str) -> Waiting:
    asked = request(name)
    return Waiting(asked, Registry().policy_of(asked), 0.0, 0, 0, "", (0.0,))


def test_requests_come_back_when_their_backoff_is_over() -> None:
    queue, once, twice = BackoffQueue(Backoff(first_s=1, most_s=10)), waiting("once"), waiting("twice")
    twice.attempts = 1
    queue.push(twice, 0.0)
    queue.push(once, 0.0)
    assert queue.next_at() == 1.0
    assert queue.pop_rested(0.5) == []
    assert queue.pop_rested(1.0) == [once]
    assert (once.rests_until, once.attempts) == (None, 1)
    assert queue.next_at() == 2.0
    assert queue.pop_rested(9.0) == [twice]
    assert queue.next_at() is None


def test_equal_times_come_back_in_the_order_of_their_failures() -> None:
    queue, both = BackoffQueue(Backoff()), [waiting("b"), waiting("a")]
    for each in both:
        queue.push(each, 0.0)
    assert queue.pop_rested(1.0) == both


def test_a_request_that_left_is_skipped() -> None:
    queue, gone, stays = BackoffQueue(Backoff()), waiting("gone"), waiting("stays")
    queue.push(gone, 0.0)
    queue.push(stays, 5.0)
    gone.rests_until = None
    assert queue.next_at() == 6.0
    assert queue.pop_rested(6.0) == [stays]

"""Callers that wait for a task get its row, or nothing when their time is up."""

from gpu_orchestrator.apps.manager.tasks.completion import CompletionWaiters, within


async def test_all_waiters_of_a_task_get_its_row() -> None:
    waiters = CompletionWaiters()
    ended = [waiters.join("a"), waiters.join("a")]
    other = waiters.join("b")
    assert "a" in waiters
    waiters.ended("a", {"state": "completed"})
    waiters.ended("a", {"state": "too late"})
    assert [await within(each, 5) for each in ended] == [{"state": "completed"}] * 2
    assert not other.done()


async def test_waiter_gets_nothing_after_timeout() -> None:
    waiters = CompletionWaiters()
    ended = waiters.join("a")
    assert await within(ended, 0.01) is None
    waiters.ended("a", {"state": "completed"})
    waiters.leave("a", ended)
    assert "a" not in waiters


async def test_leaving_waiter_does_not_affect_others() -> None:
    waiters = CompletionWaiters()
    first, second = waiters.join("a"), waiters.join("a")
    waiters.leave("a", first)
    assert "a" in waiters
    waiters.ended("a", {"state": "completed"})
    assert second.done()
    assert not first.done()

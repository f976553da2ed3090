"""Who waits for the end of a task is told it, or looks for himself when time is up."""

from gpu_orchestrator.apps.manager.tasks.completion import CompletionWaiters, within


async def test_all_who_wait_for_a_task_are_told_its_row() -> None:
    waiters = CompletionWaiters()
    ended = [waiters.join("a"), waiters.join("a")]
    other = waiters.join("b")
    assert "a" in waiters
    waiters.ended("a", {"state": "completed"})
    waiters.ended("a", {"state": "too late"})
    assert [await within(each, 5) for each in ended] == [{"state": "completed"}] * 2
    assert not other.done()


async def test_who_is_not_told_in_time_gets_nothing() -> None:
    waiters = CompletionWaiters()
    ended = waiters.join("a")
    assert await within(ended, 0.01) is None
    waiters.ended("a", {"state": "completed"})
    waiters.leave("a", ended)
    assert "a" not in waiters


async def test_one_who_leaves_takes_nobody_with_him() -> None:
    waiters = CompletionWaiters()
    first, second = waiters.join("a"), waiters.join("a")
    waiters.leave("a", first)
    assert "a" in waiters
    waiters.ended("a", {"state": "completed"})
    assert second.done()
    assert not first.done()

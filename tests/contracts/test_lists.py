"""Lists of tasks in the store: filters, ids by their start, places in the queue."""

import asyncio

import pytest

from gpu_orchestrator.adapters.store import task_lists
from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.task_lists import Filter
from gpu_orchestrator.api import task
from gpu_orchestrator.api.task import TaskSpec
from tests.support.store_calls import give, join

pytestmark = pytest.mark.real


def new(name: str, owner: str = "ann", **spec: object) -> NewTask:
    made = TaskSpec(**{"task_type": "echo", "tenant": owner, **spec})  # type: ignore[arg-type]
    return NewTask(name, task.encode(made), "{}", tenant=owner, level=task.level(made.priority))


async def found(store: Store, **wanted: object) -> list[str]:
    page = await store.tasks.search(Filter(**wanted), offset=0, limit=100)  # type: ignore[arg-type]
    assert (page.total, page.complete) == (len(page.ids), 1)
    return sorted(page.ids)


async def test_filters_match_type_labels_and_owner(store: Store) -> None:
    odd = 'say "hi"/ünt'
    await store.tasks.submit(
        [
            new("a", labels={"team": "x", "run": "1"}),
            new("b", labels={"team": "y"}),
            new("c", labels={"note": "team", "x": "team"}, task_type="sleep"),
            new("d", labels={"team": odd, odd: "1"}, task_type="a/b"),
            new("e", owner="bob", labels={"team": "x"}),
            new("f"),
        ]
    )
    assert await found(store, labels=(("team",),)) == ["a", "b", "d", "e"]
    assert await found(store, labels=(("team", "x"),)) == ["a", "e"]
    assert await found(store, labels=(("team", "x"), ("run", "1"))) == ["a"]
    assert await found(store, labels=(("team", odd),)) == ["d"]
    assert await found(store, labels=((odd, "1"),)) == ["d"]
    assert await found(store, task_type="sleep") == ["c"]
    assert await found(store, task_type="a/b") == ["d"]
    assert await found(store, task_type="team") == []
    assert await found(store, owner="ann", labels=(("team", "x"),)) == ["a"]
    assert await found(store, states=("running",), task_type="echo") == []


async def test_since_leaves_out_older_tasks(store: Store) -> None:
    await store.tasks.submit([new("old")])
    (row,) = await store.tasks.fetch(["old"])
    assert row is not None
    while (await store.tasks.counts()).now_ms <= int(row["created"]):  # noqa: ASYNC110 - the store's own clock
        await asyncio.sleep(0.001)
    await store.tasks.submit([new("young", labels={"a": "b"})])
    later = int(row["created"]) + 1
    assert await found(store, since_ms=later) == ["young"]
    assert await found(store, since_ms=later, labels=(("a", "b"),)) == ["young"]
    assert await found(store, since_ms=-60_000) == ["old", "young"]
    page = await store.tasks.search(Filter(since_ms=later), offset=1, limit=10)
    assert (page.total, page.ids) == (1, ())


async def test_search_that_ends_early_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_lists, "MOST_SEARCHED", 40)
    monkeypatch.setattr(task_lists, "SEARCHED_AT_ONCE", 20)
    names = [f"t{number:02}" for number in range(39)]
    await store.tasks.submit([new(name, labels={"n": name[-1]}) for name in names])
    wanted = Filter(labels=(("n",),))
    page = await store.tasks.search(wanted, offset=5, limit=10)
    assert (page.total, page.ids, page.complete) == (39, tuple(sorted(names, reverse=True)[5:15]), 1)
    assert (await store.tasks.search(Filter(), offset=10, limit=10)).total == 39
    await store.tasks.submit([new("one-more"), new("and-one-more")])
    assert (await store.tasks.search(wanted, offset=0, limit=10)).complete == 0
    assert (await store.tasks.search(Filter(), offset=0, limit=10)).complete == 1, "lists are complete"


async def test_search_follows_a_moment_with_more_tasks_than_one_call_reads(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_lists, "SEARCHED_AT_ONCE", 7)
    names = {f"t{number:03}" for number in range(100)}
    await store.tasks.submit([new(name, task_type="sleep") for name in sorted(names)])  # all in the same ms
    await store.tasks.cancel(sorted(names)[:30])
    page = await store.tasks.search(Filter(task_type="sleep"), offset=0, limit=1000)
    assert (page.total, set(page.ids)) == (100, names)


async def test_large_labels_are_read_a_part_per_call(store: Store) -> None:
    """Each task may have 64 kB of labels. A thousand at once would keep other clients waiting."""
    fat = {f"k{number}": "x" * 1000 for number in range(63)}
    names = {f"t{number:03}" for number in range(150)}
    for name in sorted(names):
        await store.tasks.submit(
            [new(name, labels={**fat, "name": name}, priority=75 if name < "t1" else 25)]
        )
    wanted = Filter(labels=(("name",),))
    one_call = ("queued", "", 0, "", wanted.labels, (0, 0), 1000)
    found, at, cost = await store.tasks._fenced.read(task_lists._SEARCH, *one_call)
    assert len(found) < 100
    assert at
    assert cost > 30 * len(found), "so a whole search reads fewer of them"
    page = await store.tasks.search(wanted, offset=0, limit=1000)
    assert (page.total, set(page.ids), page.complete) == (150, names, 1)
    positions = await store.tasks.positions(sorted(names))
    assert max(positions[name] for name in names if name < "t1") <= 100
    epoch = await join(store, "w")
    for name in names:
        await give(store, name, "w", epoch)
    page = await store.tasks.search(Filter(worker="w", labels=(("name",),)), offset=0, limit=1000)
    assert 100 < page.total < 150
    assert not page.complete
    page = await store.tasks.search(Filter(worker="w"), offset=0, limit=1000)
    assert (page.total, page.complete) == (150, 1), "no label is asked for, so none is read"


async def test_id_is_found_by_its_start_among_the_tasks_of_its_owner(store: Store) -> None:
    await store.tasks.submit([new("abcd1"), new("abcd2"), new("abce1", owner="bob"), new("zabcd")])
    await store.tasks.cancel(["abcd2"])
    assert sorted(await store.tasks.find("abcd", most=10)) == ["abcd1", "abcd2"]
    assert sorted(await store.tasks.find("abc", most=10)) == ["abcd1", "abcd2", "abce1"]
    assert len(await store.tasks.find("abc", most=2)) == 2
    assert await store.tasks.find("abce", owner="ann", most=10) == []
    assert await store.tasks.find("abce", owner="bob", most=10) == ["abce1"]


async def test_id_is_found_among_more_tasks_than_one_call_reads(store: Store) -> None:
    for first in range(0, 25_000, 1000):  # in one call, a busy machine would not answer in time
        await store.tasks.submit([new(f"{number:06}-x") for number in range(first, first + 1000)])
    assert await store.tasks.find("024999", most=2) == ["024999-x"]
    assert await store.tasks.find("none", most=2) == []


async def submitted_in_order(store: Store, *given: NewTask) -> None:
    for each in given:
        await store.tasks.submit([each])


async def test_positions_follow_priority_and_age(store: Store) -> None:
    await submitted_in_order(store, new("a1"), new("a2"), new("a3"))
    assert await store.tasks.positions(["a3", "a1", "unknown"]) == {"a3": 3, "a1": 1}
    await submitted_in_order(
        store, new("low", priority=25), new("high", priority=75), new("more", priority=60)
    )
    names = ["high", "more", "a1", "a2", "a3", "low"]
    assert await store.tasks.positions(names) == {name: at for at, name in enumerate(names, 1)}
    await store.tasks.cancel(["high"])
    assert (await store.tasks.positions(["more", "high"])) == {"more": 1}


async def test_positions_in_a_long_queue_stay_within_what_counts_allow(store: Store) -> None:
    low = [new(f"low{number:04}", priority=25) for number in range(600)]
    high = [new(f"high{number:04}", priority=75) for number in range(10)]
    await store.tasks.submit(low)
    await store.tasks.submit(high)
    found = await store.tasks.positions([each.id for each in (*low, *high)])
    assert all(1 <= found[each.id] <= 10 for each in high)
    assert all(11 <= found[each.id] <= 610 for each in low)
    assert found["low0000"] == 11
    assert found["low0000"] < found["low0599"]

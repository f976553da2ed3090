"""At most one elector leads, and the next one takes over, quickly after a release. Time is virtual."""

import asyncio
from contextlib import suppress

import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.election import Elector, Lost, Times
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.api.kubernetes import LEASES, Lease, LeaseSpec
from gpu_orchestrator.api.wire import ObjectMeta
from tests.support.election_lease import LeaseServer, Line

pytestmark = pytest.mark.looptime


def elector(line: Line, identity: str, **options: object) -> Elector:
    clock = asyncio.get_running_loop().time
    return Elector(Client(line), "x", "ns", identity=identity, clock=clock, **options)  # type: ignore[arg-type]


async def forever() -> None:
    await asyncio.Event().wait()


async def start(elector: Elector) -> "asyncio.Task[None]":
    task = asyncio.create_task(elector.lead(forever))
    await asyncio.sleep(0.1)
    return task


async def end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, Lost):
        await task


async def until_leading(elector: Elector) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(100):
        while not elector.is_leader:  # noqa: ASYNC110  # time is virtual
            await asyncio.sleep(0.1)
    return loop.time() - began


async def test_first_leads_and_second_waits() -> None:
    server = LeaseServer()
    a, b = elector(Line(server), "a"), elector(Line(server), "b")
    first, second = await start(a), await start(b)
    await asyncio.sleep(60)
    assert a.is_leader
    assert not b.is_leader
    assert b.holder == "a"
    await end(first)
    await end(second)


async def test_released_lease_has_a_new_leader_within_three_seconds() -> None:
    server = LeaseServer()
    a, b = elector(Line(server), "a"), elector(Line(server), "b")
    first, second = await start(a), await start(b)
    await asyncio.sleep(30)
    await end(first)
    assert not a.is_leader
    assert await until_leading(b) < 3
    await end(second)


def shown(holder: str, name: str = "x") -> Lease:
    return Lease(ObjectMeta(name=name, namespace="ns"), LeaseSpec(holder_identity=holder))


@pytest.mark.parametrize(
    ("old", "new", "is_woken"),
    [
        pytest.param(shown("a"), shown(""), True, id="released"),
        pytest.param(shown("a"), None, True, id="deleted"),
        pytest.param(shown("a"), shown("a"), False, id="renewed"),
        pytest.param(shown("a", "y"), shown("", "y"), False, id="another lease"),
    ],
)
async def test_watch_of_leases_wakes_who_waits(old: Lease, new: Lease | None, is_woken: bool) -> None:
    server, watch = LeaseServer(), Watch(Client(Line(LeaseServer())), LEASES, namespace="ns")
    a, b = elector(Line(server), "a"), elector(Line(server), "b", leases=watch, times=Times(50, 40, 30))
    first, second = await start(a), await start(b)
    await end(first)
    watch.store.put(old)
    report(watch, old, new)
    await asyncio.sleep(1.0)
    assert b.is_leader is is_woken
    assert await until_leading(b) < 40
    await end(second)


async def test_lease_that_another_takes_first_is_not_fought_for() -> None:
    """Of two that are woken at once, one leads, and the other goes on waiting as before."""
    server, watch = LeaseServer(), Watch(Client(Line(LeaseServer())), LEASES, namespace="ns")
    a = elector(Line(server), "a")
    others = [elector(Line(server, slowest_s=0.2), name, leases=watch) for name in "bc"]
    first, *tasks = [await start(each) for each in (a, *others)]
    await end(first)
    report(watch, shown("a"), shown(""))
    await asyncio.sleep(1.5)
    assert sum(each.is_leader for each in others) == 1
    for task in tasks:
        await end(task)


def report(watch: Watch[Lease], old: Lease | None, new: Lease | None) -> None:
    watch._handlers.notify([(old, new)])


@pytest.mark.parametrize("after_s", [0.05 * step for step in range(1, 100)])
@pytest.mark.parametrize("slowest_s", [0.0, 0.5])
async def test_cancel_at_any_moment_leaves_no_holder(after_s: float, slowest_s: float) -> None:
    """Even while an attempt is being written, or while its answer is on the way."""
    server = LeaseServer()
    line = Line(server, slowest_s=slowest_s, commit_s=0.3)
    task = asyncio.create_task(elector(line, "a").lead(forever))
    await asyncio.sleep(after_s)
    await end(task)
    await asyncio.sleep(1)  # until the server has handled every request
    assert server.lease is None or server.lease["spec"]["holderIdentity"] == ""


async def test_cancel_after_lost_answer_leaves_no_holder() -> None:
    """The elector does not know that it got the lease, and waits for its next try."""
    server = LeaseServer()
    line = Line(server)
    task = asyncio.create_task(elector(line, "a").lead(forever))
    line.loses_answers = True
    await asyncio.sleep(1)
    line.loses_answers = False
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "a"
    await end(task)
    assert server.lease["spec"]["holderIdentity"] == ""


async def test_cancelled_standby_ends_at_once_without_an_answer() -> None:
    server, loop = LeaseServer(), asyncio.get_running_loop()
    line = Line(server)
    first, second = await start(elector(Line(server), "a")), await start(elector(line, "b"))
    await asyncio.sleep(4.5)
    line.is_cut, began = True, loop.time()
    await end(second)
    assert loop.time() == began
    await end(first)


async def test_vanished_leader_is_replaced_only_after_the_lease_expires() -> None:
    server = LeaseServer()
    line = Line(server)
    a, b = elector(line, "a"), elector(Line(server), "b")
    first, second = await start(a), await start(b)
    await asyncio.sleep(30)
    line.is_cut = True
    waited_s = await until_leading(b)
    assert 12 < waited_s < 20
    assert not a.is_leader
    with pytest.raises(Lost):
        await first
    await end(second)


async def test_disconnected_leader_stops_work_before_the_lease_expires() -> None:
    server, stopped_at = LeaseServer(), 0.0
    loop, line = asyncio.get_running_loop(), Line(server)

    async def work() -> None:
        nonlocal stopped_at
        try:
            await forever()
        finally:
            await asyncio.sleep(1)  # cleanup takes time
            stopped_at = loop.time()

    task = asyncio.create_task(elector(line, "a").lead(work))
    await asyncio.sleep(30)
    line.is_cut = True
    cut_at = loop.time()
    with pytest.raises(Lost):
        await task
    assert cut_at + 8 < stopped_at < cut_at + 13


async def test_one_slow_answer_keeps_leadership() -> None:
    line = Line(LeaseServer())
    a = elector(line, "a")
    task = await start(a)
    for _ in range(20):
        line.is_cut = True
        await asyncio.sleep(3)
        line.is_cut = False
        await asyncio.sleep(10)
        assert a.is_leader
    await end(task)


async def test_work_that_ignores_cancel_aborts_the_process() -> None:
    line, aborted, release = Line(LeaseServer()), asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()

    task = asyncio.create_task(elector(line, "a", abort=aborted.set).lead(stubborn))
    await asyncio.sleep(10)
    line.is_cut = True
    async with asyncio.timeout(16):
        await aborted.wait()
    release.set()
    with suppress(Lost, asyncio.InvalidStateError):
        await task


async def test_finished_work_releases_the_lease() -> None:
    server = LeaseServer()
    await elector(Line(server), "a").lead(lambda: asyncio.sleep(5))
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == ""


async def test_failed_work_releases_the_lease_and_raises() -> None:
    server = LeaseServer()

    async def fail() -> None:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        await elector(Line(server), "a").lead(fail)
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == ""


async def test_holder_changed_by_another_raises_lost() -> None:
    server = LeaseServer()
    a = elector(Line(server), "a")
    task = await start(a)
    assert server.lease is not None
    server.lease["spec"]["holderIdentity"] = "someone"
    server.lease["metadata"]["resourceVersion"] = "1000"
    with pytest.raises(Lost, match="someone"):
        async with asyncio.timeout(4):
            await task


async def test_deleted_lease_is_created_again() -> None:
    server = LeaseServer()
    line = Line(server)
    a = elector(line, "a")
    task = await start(a)
    server.lease = None
    await asyncio.sleep(15)
    assert a.is_leader
    assert (await Client(line).get(LEASES, "x", "ns")).spec.holder_identity == "a"
    await end(task)


async def test_renew_times_of_other_clocks_are_ignored() -> None:
    """A holder whose clock is an hour behind is still the holder."""
    server = LeaseServer()
    a, b = elector(Line(server), "a"), elector(Line(server), "b")
    first = await start(a)
    second = await start(b)
    for _ in range(20):
        await asyncio.sleep(2)
        assert server.lease is not None
        server.lease["spec"]["renewTime"] = f"2001-01-01T00:00:{server.writes % 60:02d}.000000Z"
    assert not b.is_leader
    await end(first)
    await end(second)


def test_times_in_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="lease_s > renew_s > retry_s > 0"):
        Times(lease_s=10, renew_s=10)

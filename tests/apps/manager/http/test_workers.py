"""Tests of worker sessions with a real manager: epochs, leases, resuming, cordon, drain and removal."""

import asyncio
from collections.abc import Sequence

import aiohttp
import pytest

from gpu_orchestrator.adapters.store.records import Departure
from gpu_orchestrator.api import session
from tests.apps.manager.conftest import KEY, TOKEN, NewSite, Site
from tests.support import scripted_worker
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.real


async def test_worker_is_shown_with_its_devices_and_history(site: Site) -> None:
    worker = await site.join(labels={"rack": "a"})
    await worker.send(
        session.Report(
            (scripted_worker.reading(0, others_gib=6, temperature_c=61), scripted_worker.reading(1)), 1024
        )
    )
    await site.submit(resources={"gpu_memory": "10GiB"})
    assign = await worker.take()
    await worker.finish(assign)
    status, shown = await site.call("GET", "/workers/w")
    assert (status, shown["status"], shown["labels"]) == (200, "online", {"rack": "a"})
    assert shown["gpu_info"][0]["memory_total"] == "24GB"
    assert shown["gpu_info"][0]["memory_used_bytes"] == 6 * 2**30
    assert shown["gpu_info"][0]["temperature"] == 61
    assert shown["task_history"]["completed_today"] == 1
    _, page = await site.call("GET", "/workers?gpu_type=l4")
    assert (page["total"], page["online"], len(page["workers"])) == (1, 1, 1)
    _, none = await site.call("GET", "/workers?gpu_type=h200")
    assert none["workers"] == []


async def test_reconnect_repeats_a_missed_assignment(site: Site) -> None:
    worker = await site.join()
    await site.submit()
    assign = await worker.take()
    await worker.vanish()
    again = await site.stack.enter_async_context(
        scripted_worker.joined(site.running.url, TOKEN, scripted_worker.hello("w", resume_epoch=1))
    )
    welcome = await again.receive(session.Welcome)
    assert (welcome.resumed, welcome.epoch) == (True, 1)
    repeated = await again.receive(session.Assign)
    assert repeated == assign
    assert await again.finish(repeated)


async def test_reconnect_does_not_repeat_a_running_assignment(site: Site) -> None:
    worker = await site.join()
    name = await site.submit()
    await worker.take()
    await worker.vanish()
    running = (session.Attempt(name, 1),)
    again = await site.stack.enter_async_context(
        scripted_worker.joined(
            site.running.url, TOKEN, scripted_worker.hello("w", resume_epoch=1, running=running)
        )
    )
    await again.receive(session.Welcome)
    await again.send(session.Renew(1))
    await again.receive(session.Renewed)
    assert not [each for each in again.received if isinstance(each, session.Assign)]
    await again.send(session.Done(name, 1))
    assert (await site.wait(name))["status"] == "completed"


async def test_restarted_worker_gets_the_task_as_a_new_attempt(site: Site) -> None:
    worker = await site.join()
    name = await site.submit()
    await worker.take()
    await worker.vanish()
    await site.missed("w")
    again = await site.join(instance="w-2")
    assign = await again.take()
    assert (assign.task, assign.attempt) == (name, 2)


async def test_leaving_workers_do_not_end_the_leader_term(site: Site) -> None:
    """The worker disconnects while its message is being stored."""
    async with asyncio.timeout(30):
        while not (terms := await _metric(site, "leader_terms_total")):
            pass
    for number in range(5):
        worker = await site.join(f"w{number}")
        await worker.send(session.Leaving())
        await worker.socket.close()
        await site.missed(f"w{number}")
    assert await _metric(site, "leader_terms_total") == terms


async def test_stale_result_is_dropped_and_counted(site: Site) -> None:
    """Of an attempt lost with its worker's epoch, of an ended attempt, and of an unknown task."""
    worker = await site.join()
    name = await site.submit()
    first = await worker.take()
    await worker.vanish()
    await site.missed("w")
    again = await site.join(instance="w-2")
    second = await again.take()
    assert not await again.finish(first, "from before")
    assert await _metric(site, "stale_results_total") == 1
    assert await again.finish(second, "the one")
    assert not await again.finish(second, "said twice")
    assert not await again.finish(session.Assign("unknown", 1, "echo"), "of nothing")
    assert await _metric(site, "stale_results_total") == 3
    ended = await site.task(name)
    assert (ended["status"], ended["attempt"], ended["result"]) == ("completed", 2, "the one")
    _, shown = await site.call("GET", "/cluster/status")
    assert shown["committed"] == 1


async def test_lost_connection_requeues_after_the_grace_period(new_site: NewSite) -> None:
    site = await new_site(worker_lease=20)
    first, second = await site.join("a"), await site.join("b")
    name = await site.submit(resources={"gpus": 0})
    for worker in (first, second):
        if worker.name == await _worker_of(site, name):
            await worker.take()
            await worker.vanish()
            other = second if worker is first else first
    began = asyncio.get_running_loop().time()
    assign = await other.take()
    assert (assign.task, assign.attempt) == (name, 2)
    assert asyncio.get_running_loop().time() - began < 15, "the lease alone would have lasted longer"


async def test_silent_worker_loses_its_lease_and_its_late_result(new_site: NewSite) -> None:
    site = await new_site(worker_lease=4)
    silent = await site.join("a", max_concurrent=1)
    name = await site.submit(resources={"gpus": 0})
    assign = await silent.take()
    other = await site.join("b")
    keeping = asyncio.create_task(_renew(other))
    again = await other.take()
    assert (again.task, again.attempt) == (name, 2)
    await silent.send(session.Done(name, 1))
    ack = await silent.receive(session.Ack)
    assert (ack.task, ack.accepted) == (assign.task, False)
    assert await other.finish(again, "good")
    assert (await site.task(name))["result"] == "good"
    await silent.send(session.Renew(1))
    goodbye = await silent.receive(session.Goodbye)
    assert goodbye.fenced
    keeping.cancel()


async def test_lease_expiry_pauses_when_most_workers_go_silent(new_site: NewSite) -> None:
    site = await new_site(worker_lease=3)
    began = asyncio.get_running_loop().time()
    workers = [await site.join(name) for name in "abcd"]
    name = await site.submit(resources={"gpus": 0})
    await _reaches(site, "reaper_pauses_total", 1)
    before = await _metric(site, "lease_expirations_total")
    assert before <= 2, "the first two of four workers may expire"
    await _reaches(site, "lease_expirations_total", 4)
    assert asyncio.get_running_loop().time() - began >= 6, "one lease, and another one of pause"
    assert (await site.task(name))["status"] == "queued"
    assert len(workers) == 4


async def _reaches(site: Site, metric: str, value: float) -> None:
    async with asyncio.timeout(60):
        while await _metric(site, metric) < value:  # noqa: ASYNC110 - polled over HTTP
            await asyncio.sleep(0.05)


async def _metric(site: Site, name: str) -> float:
    async with site.http.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def test_second_worker_with_the_same_name_is_refused(site: Site) -> None:
    await site.join()
    async with scripted_worker.joined(
        site.running.url, TOKEN, scripted_worker.hello("w", instance="other")
    ) as second:
        goodbye = await second.receive(session.Goodbye)
    assert "another --name" in goodbye.reason
    assert goodbye.retry


async def test_worker_above_max_workers_is_refused(new_site: NewSite) -> None:
    site = await new_site(max_workers=1)
    await site.join("a")
    async with scripted_worker.joined(site.running.url, TOKEN, scripted_worker.hello("b")) as second:
        assert "MAX_WORKERS" in (await second.receive(session.Goodbye)).reason


async def test_cordoned_worker_gets_no_task_until_uncordoned(site: Site) -> None:
    worker = await site.join()
    assert (await site.call("POST", "/workers/w/cordon"))[1]["status"] == "cordoned"
    name = await site.submit()
    _, explained = await site.call("GET", f"/tasks/{name}/explain")
    assert explained["would_go_to"] is None
    assert (await site.call("POST", "/workers/w/uncordon"))[0] == 200
    assert (await worker.take()).task == name
    assert (await site.call("POST", "/workers/nobody/cordon"))[0] == 404


async def test_concurrent_device_cordons_all_apply(site: Site) -> None:
    await site.join(devices=tuple(scripted_worker.device(index) for index in range(8)))

    async def all_at_once(action: str) -> list[bool]:
        paths = [f"/workers/w/devices/{index}/{action}" for index in range(8)]
        answers = await asyncio.gather(*(site.call("POST", path) for path in paths))
        assert [status for status, _ in answers] == [200] * 8
        _, shown = await site.call("GET", "/workers/w")
        return [gpu["cordoned"] for gpu in shown["gpu_info"]]

    assert await all_at_once("cordon") == [True] * 8
    assert await all_at_once("uncordon") == [False] * 8


async def test_tasks_of_a_removed_worker_run_elsewhere_at_once(site: Site) -> None:
    worker = await site.join("a", max_concurrent=1)
    name = await site.submit(resources={"gpus": 0})
    await worker.take()
    other = await site.join("b")
    status, answer = await site.call("DELETE", "/workers/a?drain=false")
    assert (status, answer["status"]) == (200, "removed")
    assert (await worker.receive(session.Goodbye)).fenced
    assert (await other.take()).task == name


async def test_worker_that_rejoins_during_its_removal_stays(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.join()
    workers, again = site.running.manager.store.workers, list[scripted_worker.ScriptedWorker]()
    leave = workers.leave

    async def too_late(departures: Sequence[Departure]) -> tuple[bool, ...]:
        again.append(await site.join())
        return await leave(departures)

    monkeypatch.setattr(workers, "leave", too_late)
    status, answer = await site.call("DELETE", "/workers/w?drain=false")
    assert (status, "joined again" in answer["error"]["message"]) == (409, True)
    assert (await site.call("GET", "/workers/w"))[1]["status"] == "online"
    await again[0].send(session.Renew(1))
    await again[0].receive(session.Renewed)
    assert not [each for each in again[0].received if isinstance(each, session.Goodbye)]


async def test_drain_and_restart_reach_the_worker(site: Site) -> None:
    worker = await site.join()
    await site.call("POST", "/workers/w/drain")
    assert not (await worker.receive(session.Drain)).leave
    await site.call("POST", "/workers/w/restart")
    assert (await worker.receive(session.Drain)).leave
    assert (await site.call("GET", "/workers/w"))[1]["status"] == "draining"
    await site.call("POST", "/workers/w/uncordon")
    assert (await site.call("GET", "/workers/w"))[1]["status"] == "online"


@pytest.mark.parametrize(("key", "status"), [("", 401), ("x" * 64, 401), (TOKEN, 403)])
async def test_api_needs_a_key_except_for_health_and_metrics(site: Site, key: str, status: int) -> None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(site.running.url, headers=headers) as http:
        for method, path in (("GET", "/tasks"), ("POST", "/tasks"), ("GET", "/workers")):
            async with http.request(method, path) as answer:
                assert answer.status == status
                assert (await answer.json())["error"]["code"] in ("unauthorized", "forbidden")
        for path in ("/health", "/health/live", "/health/ready", "/metrics"):
            async with http.get(path) as answer:
                assert answer.status == 200


async def test_worker_can_poll_without_a_websocket(new_site: NewSite) -> None:
    site = await new_site(worker_lease=6)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(site.running.url, headers=headers) as http:

        async def poll(epoch: int, *messages: session.Message) -> list[session.ToWorker]:
            path = f"/workers/w/heartbeat?epoch={epoch}&timeout=5"
            async with http.post(path, data=session.frame(*messages)) as answer:
                assert answer.status == 200, await answer.text()
                return session.read_by_worker(await answer.read())

        async with http.post("/workers", data=session.frame(scripted_worker.hello("w"))[1:-1]) as answer:
            assert answer.status == 201, await answer.text()
            joined = await answer.json()
        assert (joined["worker_id"], joined["lease_seconds"]) == ("w", 6)
        name = await site.submit()
        (assign,) = await poll(joined["epoch"])
        assert isinstance(assign, session.Assign)
        received = await poll(joined["epoch"], session.Done(name, assign.attempt), session.Renew(1))
        received += await poll(joined["epoch"]) if len(received) < 2 else []
        assert {type(each) for each in received} == {session.Ack, session.Renewed}
        assert (await site.wait(name))["status"] == "completed"
        async with http.post(
            "/workers", data=session.frame(scripted_worker.hello("w", instance="x"))[1:-1]
        ) as answer:
            assert answer.status == 409
        async with http.post("/workers/w/heartbeat?epoch=99", data=b"[]") as answer:
            assert answer.status == 409
        async with http.get("/workers") as answer:
            assert answer.status == 403
    await site.missed("w")


async def test_worker_with_a_wrong_token_cannot_join(site: Site) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
        async with scripted_worker.joined(site.running.url, "guess", scripted_worker.hello("w")):
            pass
    async with scripted_worker.joined(site.running.url, KEY, scripted_worker.hello("w")) as worker:
        assert (await worker.receive(session.Welcome)).worker_id == "w"


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        pytest.param(
            (scripted_worker.device(0), scripted_worker.device(0)),
            "two devices have the same id: [0, 0]",
            id="twice",
        ),
        pytest.param(tuple(map(scripted_worker.device, range(1025))), "Expected `int` <= 1023", id="many"),
        pytest.param(
            (scripted_worker.device(0, gib=10**400),),
            "Expected `int` <= 2147483648",
            id="a huge number",
        ),
    ],
)
async def test_worker_with_invalid_devices_is_refused_with_the_reason(
    site: Site, devices: tuple[session.Device, ...], text: str
) -> None:
    async with scripted_worker.joined(
        site.running.url, TOKEN, scripted_worker.hello("odd", devices=devices)
    ) as odd:
        goodbye = await odd.receive(session.Goodbye)
    assert text in goodbye.reason
    assert not goodbye.retry
    good = await site.join()
    name = await site.submit()
    assert (await good.take()).task == name


async def test_worker_that_sends_an_unknown_message_is_disconnected(site: Site) -> None:
    worker = await site.join()
    await worker.socket.send_bytes(b'[{"type": "Sing"}]')
    assert "not understood" in (await worker.receive(session.Goodbye)).reason
    await site.missed("w")


async def _worker_of(site: Site, name: str) -> str:
    async with asyncio.timeout(30):
        while not (shown := await site.task(name))["assigned_worker"]:
            pass
    return str(shown["assigned_worker"])


async def _renew(worker: scripted_worker.ScriptedWorker) -> None:
    for number in range(1, 1000):
        await worker.send(session.Renew(number))
        await worker.receive(session.Renewed)
        await asyncio.sleep(0.3)


async def test_abandoned_heartbeat_loses_no_message(site: Site) -> None:
    """Messages for the worker wait for its next heartbeat if the last one was abandoned."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(site.running.url, headers=headers) as http:
        async with http.post("/workers", data=session.frame(scripted_worker.hello("w"))[1:-1]) as answer:
            epoch = (await answer.json())["epoch"]
        path = f"/workers/w/heartbeat?epoch={epoch}&timeout=30"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await http.post(path, data=b"[]")
        name = await site.submit()
        async with asyncio.timeout(25), http.post(path, data=b"[]") as answer:  # less than it may wait
            received = session.read_by_worker(await answer.read())
        assigned = [each for each in received if isinstance(each, session.Assign)]
        assert [(each.task, each.attempt) for each in assigned] == [(name, 1)]


async def test_worker_that_rejoins_gets_the_lost_assignment_again(site: Site) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(site.running.url, headers=headers) as http:

        async def assigned_after_joining(epoch: int) -> list[str]:
            """Register the worker and return the tasks that its heartbeats then assign."""
            hello = scripted_worker.hello("w", resume_epoch=epoch)
            async with http.post("/workers", data=session.frame(hello)[1:-1]) as answer:
                assert (await answer.json())["epoch"] == 1
            async with asyncio.timeout(30):
                while True:
                    async with http.post("/workers/w/heartbeat?epoch=1&timeout=5", data=b"[]") as answer:
                        received = session.read_by_worker(await answer.read())
                    if given := [each.task for each in received if isinstance(each, session.Assign)]:
                        return given

        name = await site.submit()
        assert await assigned_after_joining(0) == [name]
        assert await assigned_after_joining(1) == [name]


async def test_worker_where_tasks_fail_rests_and_comes_back_with_one_task(new_site: NewSite) -> None:
    site = await new_site(circuit_pause=1)
    ill, well = await site.join("ill", max_concurrent=8), await site.join("well", max_concurrent=8)
    await site.call("POST", "/workers/well/cordon")
    broken = session.TaskError("RuntimeError", "CUDA error: unspecified launch failure")
    for _ in range(5):
        await site.submit(resources={"gpus": 0})
        assign = await ill.take()
        await ill.send(session.Failed(assign.task, assign.attempt, broken))
        assert await ill.acked(assign)
    await _shows(site, "resting", "half_open")
    first, second = [await site.submit(resources={"gpus": 0}) for _ in range(2)]
    await _shows(site, "half_open")
    assign = await ill.take()
    assert assign.task == first
    assert (await site.task(second))["status"] == "queued", "one at a time"
    assert not any(isinstance(each, session.Assign) for each in well.received)
    await ill.finish(assign)
    assert (await ill.take()).task == second
    await _shows(site, "closed")


async def _shows(site: Site, *wanted: str) -> None:
    """Wait until the worker `ill` shows one of these as its status or its circuit."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            shown = (await site.call("GET", "/workers/ill"))[1]
            if {shown["status"], shown["circuit"]} & {*wanted}:
                return
            await asyncio.sleep(0.05)

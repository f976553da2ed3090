"""The proxy against a small server: each fault has its effect, and other requests pass unchanged."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.faults.component import component
from tests.faults.proxy import (
    Answer,
    Call,
    Cut,
    CutWatch,
    Delay,
    DropAnswer,
    DropEvents,
    Fault,
    Gone,
    HoldWatch,
    Proxy,
    RepeatEvents,
)
from tests.faults.small_server import SmallServer, small_server

MAPS = "/api/v1/namespaces/a/configmaps"
WATCH = f"{MAPS}?watch=true"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SmallServer]:
    async with small_server(tmp_path) as server:
        yield server


@pytest.fixture
async def proxy(server: SmallServer) -> AsyncIterator[Proxy]:
    proxy = Proxy(server.kubeconfig)
    proxy.__enter__()
    yield proxy
    # Closing waits for connections to this test's own loop to end, so it must not block that loop.
    await asyncio.to_thread(proxy.__exit__, None, None, None)


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[aiohttp.ClientSession]:
    async with component(proxy.kubeconfig) as client:
        yield client


async def test_request_without_trigger_passes_unchanged(
    server: SmallServer, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    proxy.on("patch", "configmaps", name="other", do=Cut())
    async with client.patch(f"{MAPS}/x?fieldManager=a%26b", data=b'{"a":1}') as answer:
        body = await answer.json()
    assert body == {"echo": '{"a":1}', "path": f"{MAPS}/x?fieldManager=a%26b"}
    assert server.requests == [("PATCH", f"{MAPS}/x?fieldManager=a%26b", "")]
    assert proxy.requests == [("patch", "configmaps", "x", 200)]


async def test_token_is_passed_through(tmp_path: Path) -> None:
    async with small_server(tmp_path, token="secret") as server:
        with Proxy(server.kubeconfig) as proxy:
            async with component(proxy.kubeconfig) as client, client.get(MAPS):
                pass
    assert server.requests == [("GET", MAPS, "Bearer secret")]


async def test_answer_fault_replaces_the_server(
    server: SmallServer, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    trigger = proxy.on("create", "configmaps", name="x", do=Answer(429, retry_after=1))
    async with client.post(MAPS, json={"metadata": {"name": "x"}}) as answer:
        body = await answer.json()
    assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
    assert (body["kind"], body["code"], body["reason"]) == ("Status", 429, "TooManyRequests")
    assert (server.requests, trigger.hits) == ([], 1)


async def test_answer_fault_can_serve_an_older_list(proxy: Proxy, client: aiohttp.ClientSession) -> None:
    older = {"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": []}
    proxy.on("list", "configmaps", do=Answer(200, body=older))
    async with client.get(MAPS) as answer:
        assert await answer.json() == older


@pytest.mark.parametrize(
    ("fault", "received"),
    [pytest.param(Cut(), 0, id="cut"), pytest.param(DropAnswer(), 1, id="answer dropped")],
)
async def test_cut_and_drop_answer_break_the_connection(
    fault: Fault, received: int, server: SmallServer, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    trigger = proxy.on("create", "configmaps", do=fault)
    with pytest.raises(aiohttp.ClientError):
        await client.post(MAPS, json={})
    await trigger.wait_for_hit()
    assert len(server.requests) == received
    async with client.post(MAPS, json={}) as answer:
        assert answer.status == 200


async def test_fault_applies_from_the_nth_request_for_times_requests(
    proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    trigger = proxy.on("get", "configmaps", nth=2, times=2, do=Answer(500))
    statuses = []
    for _ in range(4):
        async with client.get(f"{MAPS}/x") as answer:
            statuses.append(answer.status)
    assert (statuses, trigger.hits) == ([200, 500, 500, 200], 2)


async def test_timeout_names_the_matched_requests(proxy: Proxy, client: aiohttp.ClientSession) -> None:
    trigger = proxy.on("get", "configmaps", nth=5, do=Answer(500))
    async with client.get(f"{MAPS}/x"):
        pass
    with pytest.raises(TimeoutError, match="1 requests matched, the fault was due from number 5"):
        await trigger.wait_for_hit(timeout=0)


async def test_delay_is_followed_by_its_next_fault(proxy: Proxy, client: aiohttp.ClientSession) -> None:
    proxy.on("get", "configmaps", do=Delay(0.2, then=Answer(503)))
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with client.get(f"{MAPS}/x") as answer:
        assert (answer.status, loop.time() - began >= 0.2) == (503, True)


async def test_callback_runs_before_the_server_receives_the_request(
    server: SmallServer, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    seen: list[tuple[str, int]] = []
    proxy.on("get", "configmaps", do=Call(lambda call: seen.append((call.name, len(server.requests)))))
    async with client.get(f"{MAPS}/x") as answer:
        assert answer.status == 200
    assert seen == [("x", 0)]


async def test_callback_runs_between_server_and_component(
    server: SmallServer, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    seen: list[int] = []
    fault = Call(lambda _: seen.append(len(server.requests)), at="answer", then=DropAnswer())
    trigger = proxy.on("create", "configmaps", do=fault)
    with pytest.raises(aiohttp.ClientError):
        await client.post(MAPS, json={})
    await trigger.wait_for_hit()
    assert seen == [1]


async def test_callback_runs_after_the_component_has_the_answer(
    proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    answered = threading.Event()
    trigger = proxy.on("create", "configmaps", do=Call(lambda _: answered.wait(10), at="done"))
    async with client.post(MAPS, json={}) as answer:
        await answer.read()
    answered.set()
    await trigger.wait_for_hit()


async def test_failing_callback_fails_the_test(server: SmallServer) -> None:
    async def scenario() -> None:
        with Proxy(server.kubeconfig) as proxy:
            proxy.on("create", "configmaps", do=Call(lambda _: 1 / 0))
            async with component(proxy.kubeconfig) as client:
                with pytest.raises(aiohttp.ClientError):
                    await client.post(MAPS, json={})

    with pytest.raises(ZeroDivisionError):
        await scenario()


def event(name: str, kind: str = "ADDED", size: int = 0) -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": name}, "data": {"x": "y" * size}}}


async def names(answer: aiohttp.ClientResponse, count: int) -> list[str]:
    """Return the names of the next `count` events."""
    return [
        json.loads(await answer.content.readuntil(b"\n"))["object"]["metadata"]["name"] for _ in range(count)
    ]


async def until_cut(answer: aiohttp.ClientResponse) -> bytes:
    """Return the bytes before the connection breaks; fail if it ends cleanly."""
    got = b""
    try:
        async for chunk in answer.content.iter_any():
            got += chunk
    except aiohttp.ClientPayloadError:
        return got
    raise AssertionError(f"the answer ended cleanly after {got!r}")


async def test_watch_is_streamed_without_delay(
    server: SmallServer, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    async with client.get(WATCH) as answer:
        for name in ("a", "b"):
            server.events.put_nowait(event(name))
            assert await names(answer, 1) == [name]
    assert proxy.requests == [("watch", "configmaps", "", 200)]


async def test_large_frame_is_passed_on(
    server: SmallServer, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    large = event("large", size=2_000_000)
    server.events.put_nowait(large)
    server.events.put_nowait(None)
    proxy.on("watch", "configmaps", do=DropEvents(match=lambda event: event["object"] is None))
    async with client.get(WATCH) as answer:
        assert json.loads(await answer.read()) == large


async def test_stream_fault_passes_a_list_unchanged(proxy: Proxy, client: aiohttp.ClientSession) -> None:
    proxy.on("*", "*", do=RepeatEvents(match=lambda _: False))
    async with client.get(MAPS) as answer:
        assert (await answer.json())["path"] == MAPS


async def test_drop_answer_breaks_a_watch(proxy: Proxy, client: aiohttp.ClientSession) -> None:
    trigger = proxy.on("watch", "configmaps", times=None, do=DropAnswer())
    with pytest.raises(aiohttp.ClientError):
        await client.get(WATCH)
    await trigger.wait_for_hit()


def test_answer_after_the_servers_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="is after the server has answered"):
        Call(print, at="answer", then=Answer(500))


async def test_watch_is_held_until_released(
    server: SmallServer, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    hold = HoldWatch(after_events=1)
    trigger = proxy.on("watch", "configmaps", do=hold)
    for name in ("a", "b"):
        server.events.put_nowait(event(name))
    async with client.get(WATCH) as answer:
        assert await names(answer, 1) == ["a"]
        await trigger.wait_for_hit()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(names(answer, 1), 0.2)
        hold.release()
        assert await names(answer, 1) == ["b"]


@pytest.mark.parametrize("mid_frame", [True, False])
async def test_watch_is_cut_after_an_event(
    mid_frame: bool, server: SmallServer, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    proxy.on("watch", "configmaps", do=CutWatch(after_events=1, mid_frame=mid_frame))
    for name in ("a", "b"):
        server.events.put_nowait(event(name))
    async with client.get(WATCH) as answer:
        first, rest = await answer.content.readuntil(b"\n"), await until_cut(answer)
    assert json.loads(first) == event("a")
    assert bool(rest) is mid_frame


async def test_events_are_dropped_and_repeated(
    server: SmallServer, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    drop = proxy.on("watch", "configmaps", do=DropEvents(lambda e: e["type"] == "DELETED", count=1))
    repeat = proxy.on("watch", "configmaps", nth=2, do=RepeatEvents(count=1))
    for _ in range(2):
        for item in (event("a"), event("b", "DELETED"), event("c", "DELETED"), None):
            server.events.put_nowait(item)
    async with client.get(WATCH) as answer:
        assert await names(answer, 2) == ["a", "c"]
    async with client.get(WATCH) as answer:
        assert await names(answer, 4) == ["a", "a", "b", "c"]
    assert (drop.hits, repeat.hits) == (1, 1)


async def test_gone_is_served_as_answer_and_as_event(
    server: SmallServer, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    proxy.on("watch", "configmaps", do=Gone())
    proxy.on("watch", "configmaps", nth=2, do=Gone(as_event=True, after_events=1))
    server.events.put_nowait(event("a"))
    async with client.get(WATCH) as answer:
        assert (answer.status, (await answer.json())["reason"]) == (410, "Expired")
    async with client.get(WATCH) as answer:
        lines = [json.loads(line) for line in (await answer.read()).splitlines()]
    assert [line["type"] for line in lines] == ["ADDED", "ERROR"]
    assert lines[1]["object"]["code"] == 410


async def test_cut_watches_cuts_open_watches(
    server: SmallServer, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    server.events.put_nowait(event("a"))
    async with client.get(WATCH) as answer:
        await names(answer, 1)
        assert await asyncio.to_thread(proxy.cut_watches, "pods") == 0
        assert await asyncio.to_thread(proxy.cut_watches, "configmaps") == 1
        assert await until_cut(answer) == b""


async def test_many_concurrent_connections_are_served(proxy: Proxy, client: aiohttp.ClientSession) -> None:
    async def get(number: int) -> int:
        async with client.get(f"{MAPS}/{number}") as answer:
            await answer.read()
            return answer.status

    assert await asyncio.gather(*(get(number) for number in range(200))) == [200] * 200
    # A set: the client sends a GET again, if the loaded proxy closed the idle connection that it had chosen.
    assert {int(sent.name) for sent in proxy.requests} == set(range(200))


async def test_proxy_closes_at_once_with_open_and_held_watches(server: SmallServer) -> None:
    proxy = Proxy(server.kubeconfig)
    proxy.__enter__()
    trigger = proxy.on("watch", "configmaps", do=HoldWatch())
    async with component(proxy.kubeconfig) as client, client.get(WATCH), client.get(f"{WATCH}&second=1"):
        await trigger.wait_for_hit()
        await asyncio.wait_for(asyncio.to_thread(proxy.__exit__, None, None, None), 15)

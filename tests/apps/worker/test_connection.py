"""The worker's WebSocket alone, against a scripted server."""

import asyncio

import aiohttp
import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.session import connection
from gpu_orchestrator.apps.worker.session.connection import Connection, NotWanted
from tests.support.scripted_server import TOKEN, Peer

HELLO = session.Hello("w", "instance")


def connected(peer: Peer, received: list[session.ToWorker], token: str = TOKEN) -> Connection:
    return Connection(token, received.append)


async def test_server_without_answer_times_out(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 0.1)
    peer.welcomes = False
    async with aiohttp.ClientSession() as http:
        with pytest.raises(TimeoutError):
            await connected(peer, []).run(http, f"{peer.url}/workers/w/session", lambda: HELLO)


async def test_unknown_token_is_not_retried(peer: Peer) -> None:
    async with aiohttp.ClientSession() as http:
        with pytest.raises(NotWanted, match="the token was refused by http://127"):
            await connected(peer, [], token="wrong").run(http, f"{peer.url}/workers/w/session", lambda: HELLO)


async def until_received(received: list[session.ToWorker]) -> None:
    async with asyncio.timeout(60):
        while not received:  # noqa: ASYNC110 - the connection passes messages to a callback
            await asyncio.sleep(0)


async def test_messages_before_the_first_answer_are_dropped(peer: Peer) -> None:
    received: list[session.ToWorker] = []
    client = connected(peer, received)
    client.send(session.Leaving("too early"))
    async with aiohttp.ClientSession() as http:
        running = asyncio.create_task(client.run(http, f"{peer.url}/workers/w/session", lambda: HELLO))
        await peer.receive(session.Hello)
        await until_received(received)
        client.send(session.Leaving("in time"))
        assert (await peer.receive(session.Leaving)).reason == "in time"
        client.close()
        client.send(session.Leaving("too late"))
        await running
    assert [type(message) for message in peer.received] == [session.Hello, session.Leaving]


async def test_started_is_omitted_when_the_outcome_is_in_the_same_frame(peer: Peer) -> None:
    received: list[session.ToWorker] = []
    client = connected(peer, received)
    async with aiohttp.ClientSession() as http:
        running = asyncio.create_task(client.run(http, f"{peer.url}/workers/w/session", lambda: HELLO))
        await peer.receive(session.Hello)
        await until_received(received)
        for message in (session.Started("a", 1), session.Done("a", 1), session.Started("b", 1)):
            client.send(message)
        await peer.receive(session.Started, "b")
        client.close()
        await running
    assert [type(m) for m in peer.received] == [session.Hello, session.Done, session.Started]

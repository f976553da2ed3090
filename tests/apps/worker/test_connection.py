"""The WebSocket on its own, against a scripted server."""

import asyncio

import aiohttp
import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.session import connection
from gpu_orchestrator.apps.worker.session.connection import Connection, NotWanted
from tests.support.scripted_server import TOKEN, Peer

HELLO = session.Hello("w", "instance")


def connected(peer: Peer, heard: list[session.ToWorker], token: str = TOKEN) -> Connection:
    return Connection(f"{peer.url}/workers/w/session", token, heard.append)


async def test_a_server_that_never_answers_is_given_up(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 0.1)
    peer.welcomes = False
    async with aiohttp.ClientSession() as http:
        with pytest.raises(TimeoutError):
            await connected(peer, []).talk(http, lambda: HELLO)


async def test_an_unknown_token_is_final(peer: Peer) -> None:
    async with aiohttp.ClientSession() as http:
        with pytest.raises(NotWanted, match="answered 401"):
            await connected(peer, [], token="wrong").talk(http, lambda: HELLO)


async def until_heard(heard: list[session.ToWorker]) -> None:
    async with asyncio.timeout(10):
        while not heard:  # noqa: ASYNC110 - the link hears in a callback
            await asyncio.sleep(0)


async def test_nothing_is_said_before_the_server_answered(peer: Peer) -> None:
    heard: list[session.ToWorker] = []
    spoken = connected(peer, heard)
    spoken.say(session.Leaving("too early"))
    async with aiohttp.ClientSession() as http:
        talking = asyncio.create_task(spoken.talk(http, lambda: HELLO))
        await peer.hear(session.Hello)
        await until_heard(heard)
        spoken.say(session.Leaving("in time"))
        assert (await peer.hear(session.Leaving)).reason == "in time"
        spoken.hang_up()
        spoken.say(session.Leaving("too late"))
        await talking
    assert [type(message) for message in peer.heard] == [session.Hello, session.Leaving]


async def test_a_beginning_is_left_out_when_its_end_goes_along(peer: Peer) -> None:
    heard: list[session.ToWorker] = []
    spoken = connected(peer, heard)
    async with aiohttp.ClientSession() as http:
        talking = asyncio.create_task(spoken.talk(http, lambda: HELLO))
        await peer.hear(session.Hello)
        await until_heard(heard)
        for message in (session.Started("a", 1), session.Done("a", 1), session.Started("b", 1)):
            spoken.say(message)
        await peer.hear(session.Started, "b")
        spoken.hang_up()
        await talking
    assert [type(m) for m in peer.heard] == [session.Hello, session.Done, session.Started]

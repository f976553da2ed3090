"""The agent alone, against a scripted server: how long it goes on trying to join."""

import asyncio
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.gpus.simulated import Simulated
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker import agent
from gpu_orchestrator.apps.worker.agent import Agent
from gpu_orchestrator.apps.worker.session.connection import NotWanted
from gpu_orchestrator.apps.worker.settings import Settings
from tests.support import scripted_server
from tests.support.scripted_server import TOKEN, Peer

TAKEN = "a worker of this name is connected; start this one with another --name"
pytestmark = pytest.mark.real


def new_agent(peer: Peer, folder: Path, token: str = TOKEN) -> Agent:
    return Agent(Settings(servers=(peer.url,), token=token, name="w"), Simulated(folder / "gpus", "1"))


async def test_refused_worker_ends_with_the_reason(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "REFUSED_S", 0.3)
    peer.goodbye = session.Goodbye(TAKEN, refused=True)
    async with asyncio.timeout(30):
        with pytest.raises(NotWanted, match=TAKEN):
            await new_agent(peer, tmp_path).run()
    assert peer.connections > 1, "the name may be held by a worker that has just died"


async def test_worker_that_is_refused_for_a_moment_joins(peer: Peer, tmp_path: Path) -> None:
    peer.goodbye = session.Goodbye(TAKEN, refused=True)
    running = asyncio.create_task(new_agent(peer, tmp_path).run())
    await peer.receive(session.Hello)
    peer.goodbye = None
    await peer.receive(session.Report)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_server_that_ends_is_waited_for(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "REFUSED_S", 0.0)
    peer.goodbye = session.Goodbye("the store does not answer")
    running = asyncio.create_task(new_agent(peer, tmp_path).run())
    await peer.receive(session.Hello, after=2)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_token_that_is_refused_later_ends_the_worker(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "REFUSED_S", 0.3)
    running = asyncio.create_task(new_agent(peer, tmp_path).run())
    await peer.receive(session.Report)
    monkeypatch.setattr(scripted_server, "TOKEN", "another")
    await peer.drop()
    async with asyncio.timeout(30):
        with pytest.raises(NotWanted, match="the token was refused"):
            await running

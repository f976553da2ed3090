"""The agent alone, against a scripted server: how long it goes on trying to join."""

import asyncio
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.gpus.simulated import Simulated
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker import agent
from gpu_orchestrator.apps.worker.agent import Agent
from gpu_orchestrator.apps.worker.session import connection
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


def settings(*servers: str, **more: str) -> Settings:
    return Settings(servers=servers, token=TOKEN, name="w", **more)  # type: ignore[arg-type]


async def test_worker_goes_on_at_another_server_with_its_session(tmp_path: Path) -> None:
    """The first server ends as planned; the second one uses the same store, so the epoch is known there."""
    async with scripted_server.serving() as first, scripted_server.serving() as second:
        running = asyncio.create_task(
            Agent(settings(first.url, second.url), Simulated(tmp_path / "gpus", "1")).run()
        )
        await first.receive(session.Report)
        await first.assign("t", "sleep", {"seconds": 60})
        await first.receive(session.Started)
        second.epoch = first.epoch
        await first.send(session.Goodbye("the server ends", hold_s=60.0))
        hello = await second.receive(session.Hello)
        assert (hello.resume_epoch, hello.running) == (first.epoch, (session.Attempt("t", 1),))
        assert (await second.receive(session.Started)).task == "t"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_server_that_does_not_know_the_token_is_passed_over(tmp_path: Path) -> None:
    async with scripted_server.serving() as good, scripted_server.serving() as other:
        both = Settings(servers=(f"{other.url}/wrong", good.url), token=TOKEN, name="w")
        running = asyncio.create_task(Agent(both, Simulated(tmp_path / "gpus", "1")).run())
        await good.receive(session.Report)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("on_disconnect", ["stop", "keep"])
async def test_running_task_after_the_lease(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disconnect: str
) -> None:
    """No renewal is answered for longer than a lease. Then the server is back, and has the attempt still."""
    monkeypatch.setattr(connection, "ANSWER_S", 0.3)
    peer.lease_s, peer.renew_every_s = 2.0, 0.3
    running = asyncio.create_task(
        Agent(settings(peer.url, on_disconnect=on_disconnect), Simulated(tmp_path / "gpus", "1")).run()
    )
    await peer.receive(session.Report)
    peer.lease_s = 60.0
    await peer.assign("t", "sleep", {"seconds": 60})
    await peer.receive(session.Started)
    peer.renews = peer.welcomes = False
    await asyncio.sleep(3.0)  # longer than the lease; nothing tells when it is over
    hellos = sum(isinstance(each, session.Hello) for each in peer.received)
    peer.renews = peer.welcomes = True
    hello = await peer.receive(session.Hello, after=hellos)
    assert hello.on_disconnect == on_disconnect
    assert hello.running == ((session.Attempt("t", 1),) if on_disconnect == "keep" else ())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

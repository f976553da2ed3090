"""What a client is told when its stream of events or of a log ends."""

import asyncio

import pytest

from gpu_orchestrator.adapters.store.errors import Unreachable
from gpu_orchestrator.apps.manager.events.event_feed import WatchEnded
from gpu_orchestrator.apps.manager.http.event_streams import end_reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(WatchEnded("this key was revoked"), "this key was revoked", id="ended by the server"),
        pytest.param(
            Unreachable("the store at unix:///srv/data/store.sock does not answer"),
            "the store does not answer; resume from the last id",
            id="a lost store, without its address",
        ),
        pytest.param(
            TimeoutError(), "the client did not read for 30 s; resume from the last id", id="slow client"
        ),
    ],
)
async def test_end_of_a_stream_is_explained(error: Exception, reason: str) -> None:
    sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    sent.set_exception(error)
    assert end_reason(sent) == reason

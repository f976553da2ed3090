"""A kind that the API server may not serve is watched once it does."""

import asyncio
from contextlib import suppress

import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.optional import OptionalWatch
from gpu_orchestrator.adapters.kube.transport.base import Answer
from tests.support.kube_objects import MISSING, ConfigMap, config_map
from tests.support.scripted_transport import HANG, Line, Scripted, answer, bookmark, event, refusal

pytestmark = pytest.mark.looptime

SERVED = answer({"resources": [{"name": "missings"}]})
LISTED: Line = [event("ADDED", config_map("a")), bookmark(5, end=True), HANG]


def allowed(*, it_is: bool) -> Answer:
    return answer({"status": {"allowed": it_is}})


async def states(*script: Line) -> list[str]:
    """Return why the kind was not watched, in turn, until the watch shows an object."""
    watch: OptionalWatch[ConfigMap] = OptionalWatch(Client(Scripted(*script)), MISSING)
    said, shows = list[str](), asyncio.Event()
    watch.on_change(lambda old, new: shows.set())
    watch.on_switch(lambda: said.append(watch.absent))
    running = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(3600):
            await watch.synced()
            await shows.wait()
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return said


async def test_kind_that_is_served_is_watched_at_once() -> None:
    assert await states(SERVED, allowed(it_is=True), LISTED) == []


async def test_absent_kind_counts_as_synced_and_is_looked_for_again() -> None:
    script: list[Line] = [refusal(404, "NotFound"), SERVED, allowed(it_is=False)]
    script += [SERVED, allowed(it_is=True), LISTED]
    assert await states(*script) == [
        "the API server does not serve missings of no.such.group/v1",
        "the scheduler may not watch missings.no.such.group",
        "",
    ]


async def test_kind_that_goes_away_is_asked_for_again() -> None:
    gone = refusal(403, "Forbidden", "no")
    script: list[Line] = [SERVED, allowed(it_is=True), gone, SERVED, allowed(it_is=True), LISTED]
    assert await states(*script) == []

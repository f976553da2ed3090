"""OpenAI's routes with a scripted worker: what happens when it fails, and when the server has no room."""

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.http import openai_answer
from tests.apps.manager.conftest import NewSite, Site
from tests.apps.manager.http.test_stream import sends
from tests.apps.manager.models.test_model_routes import join
from tests.support.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.real

ASKED: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}
LOST = session.TaskError("Odd", "again", retryable=True)


def asking(site: Site, **rest: Any) -> Any:
    return site.http.post("/v1/chat/completions", json=ASKED | rest)


async def event(answer: aiohttp.ClientResponse) -> Any:
    """Return the next event, as its data is written."""
    line = (await answer.content.readuntil(b"\n\n")).decode().removesuffix("\n\n")
    return msgspec.json.decode(line.removeprefix("data: ")) if line.startswith("data: {") else line


def delta(chunk: Any) -> Any:
    return chunk["choices"][0]["delta"]


async def again(worker: ScriptedWorker, assign: session.Assign) -> session.Assign:
    """Lose the attempt, and take the next."""
    await worker.send(session.Failed(assign.task, assign.attempt, LOST))
    return await worker.take()


async def test_stream_does_not_begin_again(site: Site) -> None:
    """Before the first words another attempt goes unnoticed; after them it would say something else."""
    worker = await join(site)
    asked = asyncio.ensure_future(asking(site))
    assign = await again(worker, await worker.take())
    await sends(worker, assign, 0, {"text": "a"})
    async with await asked as answer:
        assert delta(await event(answer)) == {"role": "assistant", "content": ""}
        assert delta(await event(answer)) == {"content": "a"}
        await worker.send(session.Failed(assign.task, assign.attempt, LOST))
        assert (await event(answer))["error"]["code"] == "answer_interrupted"
        assert await answer.content.read() == b""
    assert (await worker.receive(session.Cancel)).task == assign.task


async def test_stream_shows_signs_of_life_while_it_waits(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_answer, "KEEPALIVE_S", 0.1)
    worker = await join(site)
    async with asking(site) as answer:
        assert (answer.status, await event(answer)) == (200, ": waiting")
        assign = await worker.take()
        await worker.finish(assign, {"text": 3})
        while (shown := await event(answer)) == ": waiting":
            pass
        assert shown["error"]["code"] == "wrong_kind_of_model"


async def test_request_without_room_leaves_no_task_behind(new_site: NewSite) -> None:
    site = await new_site(max_watchers=0)
    worker = await join(site)
    await worker.close()
    async with asking(site) as answer:
        assert (answer.status, (await answer.json())["error"]["type"]) == (503, "server_error")
        assert int(answer.headers["Retry-After"]) > 0
    (left,) = (await site.call("GET", "/tasks"))[1]["tasks"]
    assert left["status"] == "cancelled"


async def test_server_that_ends_gives_the_answer_up(site: Site) -> None:
    worker = await join(site)
    asked = asyncio.ensure_future(asking(site, stream=False))
    assign = await worker.take()
    site.running.manager.feed.disconnect(lambda _: True, "the server is shutting down")
    async with await asked as answer:
        assert (answer.status, (await answer.json())["error"]["message"]) == (
            503,
            "the server is shutting down",
        )
    assert (await worker.receive(session.Cancel)).task == assign.task

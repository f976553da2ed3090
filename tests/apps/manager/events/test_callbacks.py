"""Tests of callbacks: at least once after the commit, signed, across restarts, only to allowed hosts."""

import asyncio
import base64
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gpu_orchestrator.apps.manager.events import callbacks
from gpu_orchestrator.apps.manager.events.signing import MARK
from tests.apps.manager.conftest import NewSite, Site
from tests.support.fleet import eventually
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.real
SECRET = MARK + base64.b64encode(b"s" * 32).decode()
OPEN = {"callback_hosts": "127.0.0.1", "callback_networks": "127.0.0.0/8", "callback_secret": SECRET}


class Receiver:
    """Answers with these statuses in turn, then with 200. A 0 is answered only when the test ends."""

    def __init__(self, *answers: int) -> None:
        self.answers, self.url = list(answers), ""
        self.got: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()
        self.ends = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        self.got.put_nowait(
            ({name.lower(): value for name, value in request.headers.items()}, await request.read())
        )
        status = self.answers.pop(0) if self.answers else 200
        if not status:
            await self.ends.wait()
        return web.Response(status=status, headers={"Location": "/elsewhere"} if status == 302 else {})

    async def next(self) -> tuple[dict[str, str], bytes]:
        async with asyncio.timeout(20):
            return await self.got.get()


@asynccontextmanager
async def receiving(*answers: int) -> AsyncIterator[Receiver]:
    receiver, app = Receiver(*answers), web.Application()
    app.router.add_post("/hook", receiver.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield receiver
    finally:
        receiver.ends.set()
        await runner.cleanup()


def verify(headers: dict[str, str], body: bytes, key: bytes = b"s" * 32) -> None:
    """Verify the signature as a receiver would."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = hmac.new(key, signed, sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(expected).decode()}"


async def callback_becomes(site: Site, name: str, state: str) -> None:
    async def shown() -> bool:
        return bool((await site.task(name))["callback"].startswith(state))

    await eventually(shown, 60)


async def test_callback_is_signed_and_has_the_result(new_site: NewSite) -> None:
    site = await new_site(**OPEN)
    worker = await site.join()
    async with receiving() as receiver:
        name = await site.submit(callback_url=receiver.url)
        await worker.finish(await worker.take(), {"answer": 42})
        headers, body = await receiver.next()
        verify(headers, body)
        payload = _json(body)
        assert (payload["type"], payload["data"]["task_id"]) == ("task.completed", name)
        assert payload["data"]["result"] == {"answer": 42}
        assert headers["x-correlation-id"] == payload["data"]["correlation_id"]
        await callback_becomes(site, name, "delivered")


async def test_callback_is_retried_until_accepted(new_site: NewSite) -> None:
    """Errors and redirects do not count as accepted; every retry has the same id."""
    site = await new_site(**OPEN)
    site.running.manager.callback_sender._config = _quickly(site)
    worker = await site.join()
    async with receiving(503, 302) as receiver:
        name = await site.submit(callback_url=receiver.url)
        await worker.finish(await worker.take())
        got = [await receiver.next() for _ in range(3)]
        assert len({headers["webhook-id"] for headers, _ in got}) == 1
        for headers, body in got:
            verify(headers, body)
        await callback_becomes(site, name, "delivered")
        assert receiver.got.empty(), (
            "the redirect was not followed, and an accepted callback is not sent again"
        )


async def test_dead_receiver_does_not_delay_the_others(
    new_site: NewSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More callbacks of a receiver that never answers are due than may be under way in all."""
    monkeypatch.setattr(callbacks, "TIMEOUT_S", PATIENCE_S)
    site = await new_site(**OPEN)
    worker = await site.join(max_concurrent=100)
    many = callbacks.AT_ONCE + 10
    async with receiving(*[0] * many) as dead, receiving() as good:
        for url in [dead.url] * many + [good.url]:
            await site.submit(callback_url=url, resources={"gpus": 0})
        assigns = [await worker.take() for _ in range(many + 1)]
        for assign in assigns:
            await worker.finish(assign)
        async with asyncio.timeout(callbacks.TIMEOUT_S * 0.9):
            await good.got.get()
        assert dead.got.qsize() <= callbacks.AT_ONCE_PER_HOST


async def test_callback_has_a_large_result_up_to_what_is_shown(new_site: NewSite) -> None:
    site = await new_site(**OPEN, result_shown_kb=300)
    worker = await site.join()
    async with receiving() as receiver:
        for size in (200_000, 400_000):
            await site.submit(callback_url=receiver.url)
            await worker.finish(await worker.take(), "x" * size)
        by_size = {}
        for _ in range(2):
            data = _json((await receiver.next())[1])["data"]
            by_size[data["result_bytes"]] = data
    assert by_size[200_002]["result"] == "x" * 200_000
    assert (by_size[400_002]["result"], by_size[400_002]["result_url"][:7]) == (None, "/tasks/")


async def test_receiver_that_answers_410_is_given_up(new_site: NewSite) -> None:
    site = await new_site(**OPEN)
    worker = await site.join()
    async with receiving(410) as receiver:
        name = await site.submit(callback_url=receiver.url)
        await worker.finish(await worker.take())
        await callback_becomes(site, name, "given up")
    _, page = await site.call("GET", "/cluster/events?after=0")
    (failed,) = [each for each in page["events"] if each["event"] == "callback_failed"]
    assert failed["data"]["task_id"] == name


async def test_due_callback_survives_a_restart(new_site: NewSite, tmp_path: Path) -> None:
    """The task ends while callbacks are off; a server started on the same data delivers."""
    async with receiving() as receiver:
        first = await new_site("first", **OPEN)
        first.running.manager.callback_sender._leads = lambda: False
        worker = await first.join()
        name = await first.submit(callback_url=receiver.url)
        await worker.finish(await worker.take(), 1)
        await worker.close()
        assert first.running.embedded is not None
        second = await new_site("second", redis_url=first.running.embedded.url, **OPEN)
        await first.running.manager.stop()
        _, body = await receiver.next()
        assert _json(body)["data"]["task_id"] == name
        await callback_becomes(second, name, "delivered")


async def test_next_leader_repeats_a_callback_interrupted_by_shutdown(
    new_site: NewSite,
) -> None:
    async with receiving(0) as receiver:
        first = await new_site("first", **OPEN)
        assert first.running.embedded is not None
        second = await new_site("second", redis_url=first.running.embedded.url, **OPEN)
        name = await first.submit(callback_url=receiver.url)
        await first.call("DELETE", f"/tasks/{name}")
        before, _ = await receiver.next()
        await first.running.manager.stop()
        after, _ = await receiver.next()
        assert before["webhook-id"] == after["webhook-id"]
        await callback_becomes(second, name, "delivered")


async def test_own_secret_signs_the_owners_callbacks(new_site: NewSite) -> None:
    site = await new_site(**OPEN)
    _, made = await site.call("POST", "/callbacks/secret")
    async with receiving() as receiver:
        name = await site.submit(callback_url=receiver.url)
        await site.call("DELETE", f"/tasks/{name}")
        verify(*await receiver.next(), base64.b64decode(made["secret"].removeprefix(MARK)))


async def test_cancelled_task_sends_a_callback(new_site: NewSite) -> None:
    site = await new_site(**OPEN)
    async with receiving() as receiver:
        name = await site.submit(callback_url=receiver.url)
        await site.call("DELETE", f"/tasks/{name}")
        _, body = await receiver.next()
        assert _json(body)["type"] == "task.cancelled"


@pytest.mark.parametrize(
    ("settings", "url", "text"),
    [
        pytest.param({}, "https://example.org/", "CALLBACK_HOSTS", id="off"),
        pytest.param({"callback_hosts": "*"}, "http://2130706433/", "private", id="private"),
        pytest.param({"callback_hosts": "a.org"}, "http://b.org/", "not among", id="not listed"),
        pytest.param({"callback_hosts": "*"}, "file:///etc/passwd", "http://", id="no http"),
    ],
)
async def test_callback_url_that_is_not_allowed_is_refused(
    new_site: NewSite, settings: dict[str, str], url: str, text: str
) -> None:
    site = await new_site(**settings)
    status, answer = await site.call("POST", "/tasks", {"task_type": "echo", "callback_url": url})
    assert (status, text in answer["error"]["message"]) == (422, True), answer


def _json(body: bytes) -> Any:
    return msgspec.json.decode(body)


def _quickly(site: Site) -> callbacks.CallbackConfig:
    return callbacks.CallbackConfig(
        site.running.manager.signing.find,
        site.running.manager.allowed,
        site.running.manager.results.whole,
        first_wait_s=0.05,
    )

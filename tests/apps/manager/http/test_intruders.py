"""Tests of hostile input: pickles, other origins, malformed bodies and ids, probing for routes."""

import asyncio
import pickle
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs
from yarl import URL

from gpu_orchestrator.api import session
from tests.apps.manager.conftest import TOKEN, NewSite, Site
from tests.support import scripted_worker
from tests.support.paths import ROOT

pytestmark = pytest.mark.real
SRC = ROOT / "src"


class Bomb:
    """Creates a folder when a process unpickles it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.mkdir, (self.mark,))


@pytest.fixture(params=[0, 2, pickle.HIGHEST_PROTOCOL])
def bomb(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    return pickle.dumps(Bomb(tmp_path / "exploded"), protocol=request.param)


async def test_pickle_is_refused_on_every_route_and_never_loaded(
    site: Site, tmp_path: Path, bomb: bytes
) -> None:
    kind = {"Content-Type": "application/python-pickle"}
    worker = {**kind, "Authorization": f"Bearer {TOKEN}"}
    for path, headers in {
        "/tasks": kind,
        "/tasks/batch": kind,
        "/keys": kind,
        "/workers": worker,
        "/workers/w/heartbeat?epoch=1": worker,
    }.items():
        async with site.http.post(path, data=bomb, headers=headers) as answer:
            assert answer.status in (400, 422), (path, await answer.text())
            assert "error" in await answer.json()
    async with scripted_worker.joined(site.running.url, TOKEN, scripted_worker.hello("w")) as joined:
        await joined.receive(session.Welcome)
        await joined.socket.send_bytes(bomb)
        assert "not understood" in (await joined.receive(session.Goodbye)).reason
    assert not (tmp_path / "exploded").exists()
    assert (await site.call("GET", "/tasks"))[1]["total"] == 0


def test_source_imports_no_module_that_unpickles() -> None:
    forbidden = ("pickle", "marshal", "shelve", "dill")
    for path in SRC.rglob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split()
            assert not (words[:1] in (["import"], ["from"]) and words[1].split(".")[0] in forbidden), path


async def test_cors_allows_only_listed_origins(new_site: NewSite) -> None:
    site: Site = await new_site(cors_origins=("https://good.example",))
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with aiohttp.ClientSession(site.running.url) as browser:
        async with browser.options("/tasks", headers={**asked, "Origin": "https://good.example"}) as answer:
            assert answer.status == 200
            assert answer.headers["Access-Control-Allow-Origin"] == "https://good.example"
        async with browser.options("/tasks", headers={**asked, "Origin": "https://bad.example"}) as answer:
            assert answer.status == 400
            assert "Access-Control-Allow-Origin" not in answer.headers
    async with site.http.get("/tasks", headers={"Origin": "https://good.example"}) as answer:
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, "https://good.example")
    async with site.http.get("/tasks", headers={"Origin": "https://bad.example"}) as answer:
        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
async def test_listening_without_tls_beyond_loopback_logs_a_warning(
    new_site: NewSite, host: str, warned: bool
) -> None:
    with capture_logs() as logged:
        await new_site(api_host=host)
    assert any(each["event"] == "keys travel in clear" for each in logged) == warned


async def test_cors_is_off_by_default(site: Site) -> None:
    async with site.http.get("/tasks", headers={"Origin": "https://good.example"}) as answer:
        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        pytest.param(b'{"task_type":"echo","parameters":"\xff"}', 400, "is not valid JSON", id="no UTF-8"),
        pytest.param(
            b'{"task_type":"echo","parameters":%b}' % (b"[" * 500 + b"]" * 500), 422, "deep", id="deep"
        ),
        pytest.param(
            b'{"task_type":"echo","parameters":%b}' % (b"[" * 99_999), 400, "is not valid JSON", id="abysmal"
        ),
        pytest.param(
            b'{"task_type":"echo","labels":{"a":"%b"}}' % (b"x" * 1001), 422, "1000", id="long label"
        ),
        pytest.param(
            b'{"task_type":"echo","resources":{"gpu_memory":"%b"}}' % (b"9" * 9999),
            422,
            "40",
            id="long amount",
        ),
    ],
)
async def test_unreadable_body_is_refused_and_stores_nothing(
    site: Site, body: bytes, status: int, why: str
) -> None:
    async with site.http.post("/tasks", data=body) as answer:
        assert (answer.status, why in (await answer.json())["error"]["message"]) == (status, True)
    assert (await site.call("GET", "/tasks"))[1]["total"] == 0


@pytest.mark.parametrize(
    "after", ["99999999999999999999-1", "1-99999999999999999999", "9223372036854775808-1", "\u0663-\u0663"]
)
async def test_impossible_event_ids_are_refused(site: Site, after: str) -> None:
    for path in ("/cluster/events", "/events"):
        async with site.http.get(path, params={"after": after}) as answer:
            assert answer.status == 422, await answer.text()


@pytest.mark.parametrize("path", ["/tasks/", "/api/v1/keys/", "/health/", "/tasks%2f"])
async def test_trailing_slash_does_not_redirect(site: Site, path: str) -> None:
    """A redirect would show clients without a key which routes exist, and send TLS clients to plain http."""
    url = URL(site.running.url + path, encoded=True)
    async with aiohttp.ClientSession() as keyless, keyless.get(url, allow_redirects=False) as answer:
        assert (answer.status, "Location" in answer.headers) == (401, False)


async def test_store_error_hides_the_store_address_from_clients(site: Site, tmp_path: Path) -> None:
    assert site.running.embedded is not None
    await site.running.embedded.stop()
    with capture_logs() as logged:
        for path, status in {"/health": 200, "/health/ready": 503, "/tasks": 503}.items():
            async with site.http.get(path) as answer:
                text = await answer.text()
                assert (answer.status, "the store does not answer" in text) == (status, True)
                assert str(tmp_path) not in text
    assert any(str(tmp_path) in entry.get("error", "") for entry in logged), (
        "the operator finds it in the log"
    )


async def test_silent_strangers_do_not_keep_out_workers_and_callers_with_a_key(new_site: NewSite) -> None:
    site: Site = await new_site(max_connections=64)
    worker = await site.join("w")
    port = int(site.running.url.rpartition(":")[2])
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
    try:
        async with aiohttp.ClientSession(site.running.url, headers=site.http.headers) as another:
            async with another.get("/limits") as answer:
                assert answer.status == 200
            await site.call("GET", "/limits")  # its connection may have been idle for too long meanwhile
            connections = site.running.manager.connections
            assert connections.strangers <= 32
            assert connections.known >= 3, "the worker, the first caller and this one"
        task = await site.submit("echo", resources={"gpus": 0})
        assert await worker.finish(await worker.take())
        assert (await site.wait(task))["status"] == "completed"
        ended = [reader.at_eof() or await eof_soon(reader) for reader, _ in silent[:200]]
        assert all(ended), "the oldest went first"
        metrics = await (await site.http.get("/metrics")).text()
        assert 'http_connections_closed_total{reason="room"}' in metrics
        assert 'http_connections{kind="known"}' in metrics
    finally:
        for _, writer in silent:
            writer.transport.abort()


async def eof_soon(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), 60) == b""
    except ConnectionError:
        return True

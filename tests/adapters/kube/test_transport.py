"""Both transports on real sockets and real TLS, against a small server in the test."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.auth.config import Config
from gpu_orchestrator.adapters.kube.auth.credentials import Fixed, Identity
from gpu_orchestrator.adapters.kube.auth.tls import Trust
from gpu_orchestrator.adapters.kube.transport.base import HttpTransport, Request
from gpu_orchestrator.adapters.kube.transport.pooled import PooledTransport
from tests.support.kube_certificates import Authority, Pair

AUTHORITY = Authority()
SERVER = AUTHORITY.pair("server")
GET = Request("GET", "/version")


class Server:
    """Answers with `body`; stores the requests' headers and their connections."""

    def __init__(self) -> None:
        self.body = b"{}"
        self.headers: list[dict[str, str]] = []
        self.connections: set[object] = set()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        assert request.transport is not None
        self.connections.add(request.transport.get_extra_info("peername"))
        return web.Response(body=self.body)


@asynccontextmanager
async def serving(tmp_path: Path, pair: Pair = SERVER) -> AsyncIterator[Server]:
    (tmp_path / "pair.pem").write_bytes(pair.certificate_pem + pair.key_pem)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "pair.pem")
    server = Server()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    assert runner.addresses
    server.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def opened(
    kind: type[HttpTransport], url: str, *, max_bytes: int = 1 << 20, **options: object
) -> AsyncIterator[HttpTransport]:
    trust = Trust(AUTHORITY.pem.decode())
    made = kind(Config(url, **{"trust": trust, **options}), max_bytes=max_bytes)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.close()


Open = Callable[..., AbstractAsyncContextManager[HttpTransport]]


@pytest.fixture(params=[HttpTransport, PooledTransport])
def transport(request: pytest.FixtureRequest) -> Open:
    return partial(opened, request.param)


async def test_one_connection_serves_many_requests(transport: Open, tmp_path: Path) -> None:
    async with serving(tmp_path) as server, transport(server.url) as sender:
        for _ in range(20):
            assert (await sender.send(GET, timeout_s=5)).body == b"{}"
    assert len(server.connections) == 1


async def test_requests_send_token_and_impersonation(transport: Open, tmp_path: Path) -> None:
    credentials = Fixed(Identity(token="secret"))
    headers = (("Impersonate-User", "bob"),)
    async with (
        serving(tmp_path) as server,
        transport(server.url, credentials=credentials, headers=headers) as sender,
    ):
        await sender.send(GET, timeout_s=5)
    (seen,) = server.headers
    assert seen["Authorization"] == "Bearer secret"
    assert seen["Impersonate-User"] == "bob"
    assert seen["User-Agent"].startswith("gpu-orchestrator/")


async def test_answer_over_the_limit_is_refused(transport: Open, tmp_path: Path) -> None:
    async with serving(tmp_path) as server, transport(server.url, max_bytes=1 << 20) as sender:
        server.body = b"x" * (1 << 20)
        assert len((await sender.send(GET, timeout_s=5)).body) == 1 << 20
        server.body += b"x"
        with pytest.raises(errors.BadAnswer, match="larger than 1 MiB"):
            await sender.send(GET, timeout_s=5)


async def test_server_name_that_does_not_match_is_refused(transport: Open, tmp_path: Path) -> None:
    trust = Trust(AUTHORITY.pem.decode(), server_name="elsewhere")
    async with serving(tmp_path) as server, transport(server.url, trust=trust) as sender:
        with pytest.raises(errors.Untrusted, match="is for another name"):
            await sender.send(GET, timeout_s=5)


async def test_skip_verify_accepts_any_certificate(transport: Open, tmp_path: Path) -> None:
    trust = Trust(skip_verify=True)
    async with serving(tmp_path) as server, transport(server.url, trust=trust) as sender:
        assert (await sender.send(GET, timeout_s=5)).status == 200


async def test_expired_server_certificate_is_named(transport: Open, tmp_path: Path) -> None:
    pair = AUTHORITY.pair("server", ends=datetime.now(UTC) - timedelta(hours=1))
    async with serving(tmp_path, pair) as server, transport(server.url) as sender:
        with pytest.raises(errors.Untrusted, match=r"has expired.*renew the API server's certificate"):
            await sender.send(GET, timeout_s=5)


async def test_unknown_authority_is_named(transport: Open, tmp_path: Path) -> None:
    async with serving(tmp_path, Authority().pair("server")) as server, transport(server.url) as sender:
        with pytest.raises(errors.Untrusted, match="unknown authority"):
            await sender.send(GET, timeout_s=5)


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def talking(talk: Talk) -> AsyncIterator[str]:
    """Start a bare server and yield its address. Wait for its connections to end."""
    calls = list["asyncio.Task[None] | None"]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(asyncio.current_task())
        try:
            await talk(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*filter(None, calls))


async def test_plain_http_instead_of_tls_is_named(transport: Open) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with talking(talk) as address, transport(f"https://{address}") as sender:
        with pytest.raises(errors.Untrusted, match="that the address speaks TLS"):
            await sender.send(GET, timeout_s=5)


async def test_timeout_is_a_lost_answer(transport: Open) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with talking(say_nothing) as address, transport(f"http://{address}") as sender:
        with pytest.raises(errors.LostAnswer, match="no answer from"):
            await sender.send(GET, timeout_s=0.1)


async def test_requests_go_through_a_proxy(transport: Open, tmp_path: Path) -> None:
    addresses = list[str]()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A CONNECT proxy in a few lines."""
        addresses.append((await reader.readuntil(b"\r\n\r\n")).decode().split()[1])
        from_server, to_server = await asyncio.open_connection(*addresses[0].split(":"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(pump(reader, to_server), pump(from_server, writer))

    async with (
        serving(tmp_path) as server,
        talking(connect) as address,
        transport(server.url, proxy=f"http://{address}") as sender,
    ):
        assert (await sender.send(GET, timeout_s=5)).status == 200
    assert addresses == [server.url.removeprefix("https://")]


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("token", ["ab€c", "ab\nc"])
async def test_token_with_invalid_characters_is_refused(transport: Open, token: str) -> None:
    message = r"of this configuration contains a .*; (copy|fix) it"
    async with transport("https://127.0.0.1:1", credentials=Fixed(Identity(token=token))) as sender:
        with pytest.raises(errors.ConfigError, match=message):
            await sender.send(GET, timeout_s=5)
        with pytest.raises(errors.ConfigError, match=message):
            async with sender.stream(GET, timeout_s=5):
                pass


async def test_header_with_a_line_break_is_refused(transport: Open) -> None:
    with pytest.raises(
        errors.ConfigError, match="the Impersonate-User of this configuration contains a line"
    ):
        async with transport("https://127.0.0.1:1", headers=(("Impersonate-User", "a\nb"),)):
            pass


async def test_impersonated_user_is_sent_as_utf_8(transport: Open, tmp_path: Path) -> None:
    headers = (("Impersonate-User", "жук"),)
    async with serving(tmp_path) as server, transport(server.url, headers=headers) as sender:
        await sender.send(GET, timeout_s=5)
    (seen,) = server.headers
    assert seen["Impersonate-User"] == "жук"

"""The real server over TLS: bounds on bodies, heads, slow clients and connections; certificates; the end."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_orchestrator.adapters import tls
from gpu_orchestrator.adapters.serving import BadAddress
from gpu_orchestrator.apps.webhook import app, server
from gpu_orchestrator.apps.webhook.certificate import FileCertificate
from gpu_orchestrator.apps.webhook.server import Connections
from tests.support.admission_reviews import review
from tests.support.kube_certificates import Authority, Pair
from tests.support.pod_json import pod
from tests.support.review_app import Site

pytestmark = pytest.mark.real
LIMIT_S = 60
REVIEW = json.dumps(review(pod(annotations={"gpu.scheduling/gpus": "1"}))).encode()

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Running:
    port: int
    site: Site
    folder: Path
    certificate: FileCertificate
    connections: Connections

    def write(self, pair: Pair) -> None:
        (self.folder / "tls.crt").write_bytes(pair.certificate_pem)
        (self.folder / "tls.key").write_bytes(pair.key_pem)

    async def open(self, source: str = "127.0.0.1") -> Streams:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        here = (source, 0)
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context, local_addr=here)

    async def serial(self) -> str:
        """Return the number of the certificate that a new connection gets."""
        _, writer = await self.open()
        found = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        return str(found)

    def closed(self, reason: str) -> float:
        name = "gpu_webhook_connections_closed_total"
        return self.site.metrics.registry.get_sample_value(name, {"reason": reason}) or 0.0


@asynccontextmanager
async def running(folder: Path, *, most: int = 100) -> AsyncIterator[Running]:
    authority, site = Authority(), Site()
    pair = authority.pair("webhook")
    (folder / "ca.crt").write_bytes(authority.pem)
    (folder / "tls.crt").write_bytes(pair.certificate_pem)
    (folder / "tls.key").write_bytes(pair.key_pem)
    certificate = FileCertificate(str(folder / "tls.crt"), str(folder / "tls.key"))
    connections = Connections(most, site.metrics, head_s=LIMIT_S)
    made = server.make(site.app(), await certificate.ready(), connections)
    with server.listen("127.0.0.1:0") as listening:
        port = listening.getsockname()[1]
        task = asyncio.create_task(made.serve(sockets=[listening]))
        try:
            async with asyncio.timeout(LIMIT_S):
                yield Running(port, site, folder, certificate, connections)
        finally:
            made.should_exit = True
            await task


def request(body: bytes, path: str = "/mutate") -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body)) + body


async def answer(streams: Streams) -> tuple[int, bytes]:
    head = await streams[0].readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length"))
    return int(head.split()[1]), await streams[0].readexactly(int(length.split(b":")[1]))


async def ends(streams: Streams) -> bool:
    """Wait until the server has closed the connection."""
    try:
        return await streams[0].read() == b""
    except (ConnectionError, ssl.SSLError):
        return True


async def close(streams: Streams) -> None:
    streams[1].close()
    await _quietly(streams[1].wait_closed())


async def _quietly(waiting: Awaitable[None]) -> None:
    try:
        await waiting
    except (ConnectionError, ssl.SSLError):
        return


async def test_reviews_share_a_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as found:
        streams = await found.open()
        for _ in range(3):
            streams[1].write(request(REVIEW))
            status, body = await answer(streams)
            assert status == 200
            assert b'"patchType":"JSONPatch"' in body
        await close(streams)


async def test_body_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    """A little too much is read first, so that the client hears the answer; far too much is not."""
    little, much = app.LARGEST_BYTES + 1, app.DISCARDED_BYTES + 1
    head_of_much = request(b"").replace(b"length: 0", b"length: %d" % much)
    async with running(tmp_path) as found:
        for sent in (request(b" " * little), head_of_much):
            streams = await found.open()
            streams[1].write(sent)
            assert (await answer(streams))[0] == 413
            await close(streams)


async def test_silent_and_slow_clients_are_cut_off(tmp_path: Path) -> None:
    async with running(tmp_path) as found:
        used, lines = await found.open(), await found.open()
        for each in (used, lines):
            each[1].write(request(REVIEW))
            assert (await answer(each))[0] == 200
        found.connections.head_s = 0.3
        silent, slow = await found.open(), await found.open()
        slow[1].write(b"POST /mutate HT")
        lines[1].write(b"\r\n\r\n")
        for each in (silent, slow, lines):
            assert await ends(each)
        assert found.closed("slow") == 3
        used[1].write(request(REVIEW))
        assert (await answer(used))[0] == 200, "between requests a connection may rest"
        for each in (silent, slow, lines, used):
            await close(each)


async def test_endless_head_is_cut_off(tmp_path: Path) -> None:
    async with running(tmp_path) as found:
        streams = await found.open()
        streams[1].write(b"POST /mutate HTTP/1.1\r\n" + b"a: %s\r\n" % (b"x" * 1000) * 500)
        assert await ends(streams)
        assert found.closed("head") == 1
        await close(streams)


async def test_new_connection_takes_the_place_of_an_idle_one(tmp_path: Path) -> None:
    async with running(tmp_path, most=3) as found:
        idle = [await found.open() for _ in range(3)]
        one_more = await found.open()
        one_more[1].write(request(REVIEW))
        assert (await answer(one_more))[0] == 200
        assert await ends(idle[0])
        assert found.closed("room") == 1
        assert len(found.connections) == 3
        for each in (*idle, one_more):
            await close(each)


async def test_connections_that_owe_their_body_give_way(tmp_path: Path) -> None:
    """Heads without bodies would otherwise keep the API server out until their time is over."""
    async with running(tmp_path, most=3) as found:
        began = [await found.open() for _ in range(3)]
        for each in began:
            each[1].write(request(b"12345")[:-4])
            await each[1].drain()
        await until_busy(found, 3)
        server_of_all = await found.open()
        server_of_all[1].write(request(REVIEW))
        assert (await answer(server_of_all))[0] == 200
        assert await ends(began[0])
        for each in (*began, server_of_all):
            await close(each)


async def until_busy(found: Running, count: int) -> None:
    """Wait until the server has read the heads of so many requests."""
    while sum(each.is_busy for each in found.connections) < count:  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0)


async def test_address_with_the_most_connections_gives_way(tmp_path: Path) -> None:
    """The API server's connection is the oldest, and rests between two requests."""
    async with running(tmp_path, most=3) as found:
        api_server = await found.open(source="127.0.0.2")
        api_server[1].write(request(REVIEW))
        assert (await answer(api_server))[0] == 200
        flood = [await found.open() for _ in range(6)]
        for each in flood[:4]:
            assert await ends(each)
        api_server[1].write(request(REVIEW))
        assert (await answer(api_server))[0] == 200
        for each in (*flood, api_server):
            await close(each)


async def test_renewed_certificate_is_served_to_new_connections(tmp_path: Path) -> None:
    authority = Authority()
    async with running(tmp_path) as found:
        (tmp_path / "ca.crt").write_bytes((tmp_path / "ca.crt").read_bytes() + authority.pem)
        before, kept = await found.serial(), await found.open()
        pairs = authority.pair("webhook"), authority.pair("webhook")
        found.write(Pair(pairs[0].certificate_pem, pairs[1].key_pem))
        found.certificate.look()
        assert await found.serial() == before, "files that do not fit together change nothing"
        found.write(pairs[0])
        found.certificate.look()
        assert await found.serial() != before
        kept[1].write(request(REVIEW))
        assert (await answer(kept))[0] == 200, "open connections go on"
        (tmp_path / "tls.key").unlink()
        found.certificate.look()
        assert await found.serial() != before, "a missing file changes nothing, either"
        await close(kept)


async def test_draining_server_asks_clients_to_go(tmp_path: Path) -> None:
    async with running(tmp_path) as found:
        found.site.is_draining = True
        streams = await found.open()
        streams[1].write(request(REVIEW))
        assert (await answer(streams))[0] == 200
        assert await ends(streams)
        await close(streams)


def test_bad_files_and_addresses_are_named(tmp_path: Path) -> None:
    with pytest.raises(tls.BadCertificate, match=r"--tls-cert-file=.*give a PEM file"):
        FileCertificate(str(tmp_path / "none"), str(tmp_path / "none"))
    with pytest.raises(BadAddress, match="needs an address"):
        server.listen("0")
    with (
        server.listen("127.0.0.1:0") as taken,
        pytest.raises(BadAddress, match="give another --bind-address"),
    ):
        server.listen(f"127.0.0.1:{taken.getsockname()[1]}")
    with server.listen(":0") as everywhere:
        assert everywhere.getsockname()[0] in ("::", "0.0.0.0")

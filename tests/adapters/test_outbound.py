"""Addresses that users name: private ones are refused in every spelling, behind names, after redirects."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from gpu_orchestrator.adapters.outbound import requests
from gpu_orchestrator.adapters.outbound.addresses import Allowed, Forbidden, address_in, check_address

ANY = Allowed.of("*", "")
PRIVATE = {
    "plain": "127.0.0.1",
    "short": "127.1",
    "decimal": "2130706433",
    "hex": "0x7f000001",
    "hex parts": "0x7f.0x0.0x0.0x1",
    "octal": "0177.0.0.1",
    "octal whole": "017700000001",
    "mixed": "0x7f.1",
    "nothing": "0",
    "any address": "0.0.0.0",
    "trailing dot": "127.0.0.1.",
    "full width": "１２７.0.0.1",
    "circled": "①②⑦.⓪.⓪.①",
    "private": "10.0.0.1",
    "private hex": "0xA000001",
    "metadata": "169.254.169.254",
    "metadata decimal": "2852039166",
    "carrier": "100.64.0.1",
    "multicast": "224.0.0.1",
    "broadcast": "255.255.255.255",
    "loopback": "[::1]",
    "unspecified": "[::]",
    "mapped": "[::ffff:127.0.0.1]",
    "mapped hex": "[::ffff:7f00:1]",
    "compatible": "[::127.0.0.1]",
    "translated": "[64:ff9b::7f00:1]",
    "local translation": "[64:ff9b:1::7f00:1]",
    "6to4": "[2002:7f00:1::]",
    "teredo": "[2001:0:7f00:1::]",
    "link local": "[fe80::1]",
    "link local zone": "[fe80::1%25eth0]",
    "unique local": "[fd00::1]",
    "site local": "[fec0::1]",
    "metadata v6": "[fd00:ec2::254]",
}


@pytest.mark.parametrize("host", PRIVATE.values(), ids=PRIVATE.keys())
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_private_address_is_refused_in_every_spelling(host: str, scheme: str) -> None:
    with pytest.raises(Forbidden, match="private or reserved"):
        requests.check_url(f"{scheme}://{host}:8080/hook", ANY)


@pytest.mark.parametrize(
    "url",
    [
        "http://93.184.216.34/",
        "https://[2606:2800:220:1::1]:8443/x",
        "http://[::ffff:93.184.216.34]/",
        "http://[64:ff9b::5db8:d822]/",
        "https://example.org/hook?x=1",
    ],
)
def test_public_addresses_are_allowed(url: str) -> None:
    assert requests.check_url(url, ANY).host


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "file:///etc/passwd",
        "gopher://example.org/",
        "//example.org/",
        "example.org",
        "http://",
        "http:///x",
        "http://user@example.org/",
        "http://:secret@example.org/",
        "http://example.org:99999/",
        "http://example.org\\@127.0.0.1/",
        "http://example.org/a b",
        "http://example.org/\r\nHost: x",
        "http://example.org/" + "x" * 2000,
        "http://[::1",
    ],
)
def test_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(Forbidden):
        requests.check_url(url, ANY)


@pytest.mark.parametrize(
    ("hosts", "host", "expected"),
    [
        ("example.org", "example.org", True),
        ("example.org", "EXAMPLE.ORG.", True),
        ("example.org", "a.example.org", False),
        ("example.org", "example.org.evil.net", False),
        ("*.example.org", "a.example.org", True),
        ("*.example.org", "a.b.example.org", True),
        ("*.example.org", "example.org", False),
        ("*.example.org", "evilexample.org", False),
        ("a.net, b.net", "b.net", True),
        ("", "example.org", False),
    ],
)
def test_allowed_hosts(hosts: str, host: str, expected: bool) -> None:
    assert Allowed.of(hosts, "").has_host(host) is expected


def test_allowed_network_can_be_reached() -> None:
    allowed = Allowed.of("*", "10.1.0.0/16, fd00::/8")
    for host in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::7"):
        check_address(ip_address(host), allowed)
    with pytest.raises(Forbidden):
        check_address(ip_address("10.2.0.1"), allowed)


@pytest.mark.parametrize("host", ["example.org", "0x.org", "1.example", "localhost", "0xg", "1.2.3.4.5"])
def test_name_is_not_an_address(host: str) -> None:
    assert address_in(host) is None


class Fake(AbstractResolver):
    """Answers with a different address each time, as in a DNS rebinding attack."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked += 1
        given = self.answers.pop(0)
        return [
            ResolveResult(hostname=host, host=each, port=port, family=socket.AF_INET, proto=0, flags=0)
            for each in given
        ]

    async def close(self) -> None: ...


class Receiver:
    def __init__(self) -> None:
        self.got: list[str] = []
        self.redirect = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.got.append(request.path)
        if self.redirect:
            return web.Response(status=307, headers={"Location": self.redirect})
        return web.Response(text="taken")


@asynccontextmanager
async def receiving(address: str, port: int = 0) -> AsyncIterator[tuple[Receiver, int]]:
    receiver, app = Receiver(), web.Application()
    app.router.add_route("*", "/{any:.*}", receiver.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, address, port)
    await site.start()
    try:
        yield receiver, runner.addresses[0][1]
    finally:
        await runner.cleanup()


OTHER = "127.0.0.2"
"""Stands for a public address: the only one of this machine that is allowed."""
ALLOWED = Allowed.of("*", f"{OTHER}/32")


async def test_name_is_resolved_once_and_that_address_is_used() -> None:
    resolver = Fake([OTHER], ["127.0.0.1"])
    async with (
        receiving(OTHER) as (good, port),
        receiving("127.0.0.1", port) as (victim, _),
        requests.session(ALLOWED, timeout_s=10, resolver=resolver) as http,
    ):
        async with http.post(f"http://rebind.example:{port}/first", allow_redirects=False) as answer:
            assert answer.status == 200
        assert (good.got, resolver.asked) == (["/first"], 1)
        with pytest.raises((aiohttp.ClientError, Forbidden), match="private"):
            await http.post(f"http://rebind.example:{port}/second", allow_redirects=False)
        assert victim.got == []


async def test_one_private_address_among_others_is_refused() -> None:
    resolver = Fake([OTHER, "127.0.0.1"])
    async with (
        receiving(OTHER) as (good, port),
        requests.session(ALLOWED, timeout_s=10, resolver=resolver) as http,
    ):
        with pytest.raises((aiohttp.ClientError, Forbidden), match="private"):
            await http.post(f"http://mixed.example:{port}/", allow_redirects=False)
        assert good.got == []


async def test_last_check_is_where_the_socket_is_made() -> None:
    """Even if the caller forgot to check the URL: a literal address never reaches the resolver."""
    async with (
        receiving("127.0.0.1") as (victim, port),
        requests.session(ALLOWED, timeout_s=10) as http,
    ):
        for host in ("127.0.0.1", "[::ffff:127.0.0.1]", "2130706433", "localhost"):
            with pytest.raises((aiohttp.ClientError, Forbidden)):
                await http.get(f"http://{host}:{port}/")
        assert victim.got == []


async def test_followed_redirect_is_refused_at_the_socket() -> None:
    async with (
        receiving(OTHER) as (good, port),
        receiving("127.0.0.1") as (victim, inner),
        requests.session(ALLOWED, timeout_s=10) as http,
    ):
        good.redirect = f"http://127.0.0.1:{inner}/secret"
        async with http.post(f"http://{OTHER}:{port}/", allow_redirects=False) as answer:
            assert answer.status == 307
        with pytest.raises((aiohttp.ClientError, Forbidden)):
            await http.post(f"http://{OTHER}:{port}/", allow_redirects=True)
        await asyncio.sleep(0)
        assert victim.got == []

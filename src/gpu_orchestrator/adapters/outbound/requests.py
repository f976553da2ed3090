"""Requests to addresses that users name, such as callbacks: only to hosts that an operator allowed, and never
to a private address, however it is spelt and whatever a name resolves to.

A name is resolved once and the connection goes to the address that was checked; the last check is where the
socket is made, so no request can bypass it. Redirects are not followed.
"""

import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gpu_orchestrator.adapters.outbound.addresses import Allowed, Forbidden, address_in, check_address

LONGEST_URL = 2000


def check_url(text: str, allowed: Allowed) -> URL:
    """Return the URL if its form, its host and any address in it are allowed; raise `Forbidden`."""
    url = _parsed(text)
    host = url.host or ""
    if not allowed.has_host(host):
        raise Forbidden(f"{host} is not among the hosts that an operator allowed")
    if (literal := address_in(host)) is not None:
        check_address(literal, allowed)
    return url


def session(
    allowed: Allowed, *, timeout_s: float, resolver: AbstractResolver | None = None
) -> aiohttp.ClientSession:
    """Return a session for requests to checked URLs; send them with `allow_redirects=False`."""

    def make(info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, where = info
        check_address(ipaddress.ip_address(str(where[0]).partition("%")[0]), allowed)
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    connector = aiohttp.TCPConnector(
        resolver=Checked(resolver or aiohttp.ThreadedResolver(), allowed),
        socket_factory=make,
        use_dns_cache=False,
        limit=100,
        force_close=True,
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


class Checked(AbstractResolver):
    """A resolver that returns allowed addresses only: a name with one private address among public ones is
    refused, because it may be an attack."""

    def __init__(self, resolver: AbstractResolver, allowed: Allowed) -> None:
        self._resolver, self._allowed = resolver, allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found: Sequence[ResolveResult] = await self._resolver.resolve(host, port, family)
        for each in found:
            check_address(ipaddress.ip_address(each["host"].partition("%")[0]), self._allowed)
        return list(found)

    async def close(self) -> None:
        await self._resolver.close()


def _parsed(text: str) -> URL:
    if len(text) > LONGEST_URL or not text.isprintable() or " " in text or "\\" in text:
        raise Forbidden(
            f"a URL has no spaces, backslashes or unprintable characters and at most {LONGEST_URL}"
        )
    try:
        url = URL(text)
        host, port = url.host, url.port
    except ValueError as error:
        raise Forbidden(f"this is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not host or not port:
        raise Forbidden("a URL begins with http:// or https:// and names a host")
    if url.user is not None or url.password is not None:
        raise Forbidden("a URL may not carry a user or a password")
    return url

"""Open connections to the primary: look its address up again, log in, and check that it is one.

A name may stand for several servers, and Sentinels may disagree for a moment. So each candidate is tried in
turn until one says that it is a primary and serves."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from gpu_orchestrator.adapters.store.valkey.address import Address, BadAddress, Login, Place
from gpu_orchestrator.adapters.store.valkey.resp import Connection, Lost, Refused, StillLoading

KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))
SENTINEL_S = 1.0
"""How long a Sentinel may take to answer before the next one is asked."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection to a primary. `history` names what its server has written since it became one, by this
    process; empty unless it was asked for."""

    connection: Connection
    place: Place
    history: str = ""


@dataclass(slots=True)
class Dialer:
    """`with_history`: read the history of each server, for `Durability`."""

    address: Address
    with_history: bool = False
    _sentinels: list[Place] = field(default_factory=list)

    async def open(self, answer_s: float) -> Opened:
        """Return a connection to a primary; raises `Lost` or `Refused`."""
        problems: list[Exception] = []
        async for place in self._candidates(problems):
            try:
                return await self._open(place, answer_s)
            except (Lost, Refused) as error:
                problems.append(error)
        raise _worst(problems)

    async def _candidates(self, problems: list[Exception]) -> AsyncIterator[Place]:
        """Yield where the primary may be, and add why others are not asked."""
        if not self.address.primary:
            for place in await _resolved(self.address.places[0]):
                yield place
            return
        self._sentinels = self._sentinels or list(self.address.places)
        named: set[Place] = set()
        for sentinel in tuple(self._sentinels):
            try:
                place = await self._ask(sentinel)
            except (Lost, Refused) as error:
                problems.append(Lost(f"the Sentinel at {sentinel}: {error}"))
                self._sentinels.append(self._sentinels.pop(self._sentinels.index(sentinel)))  # ask it last
                continue
            if place not in named:
                named.add(place)
                yield place

    async def _ask(self, sentinel: Place) -> Place:
        connection = await self.connect(sentinel, SENTINEL_S, self.address.sentinel_login)
        try:
            found = await connection.execute("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.address.primary)
        finally:
            connection.abort()
        if not found:
            raise Lost(f"it knows no primary {self.address.primary}; give the name of `sentinel monitor`")
        return Place(found[0].decode(), int(found[1]))

    async def _open(self, place: Place, answer_s: float) -> Opened:
        connection = await self.connect(place, answer_s, self.address.login)
        try:
            await _check_primary(connection, place)
            info = await connection.execute("INFO", "server", "replication") if self.with_history else b""
        except BaseException:
            connection.abort()
            raise
        return Opened(connection, place, history_in(info) if info else "")

    async def connect(self, place: Place, answer_s: float, login: Login) -> Connection:
        """Return a connection that has logged in; raises `Lost` or `Refused`."""
        try:
            async with asyncio.timeout(answer_s):
                connection = await self._transport(place, answer_s)
                try:
                    await _log_in(connection, login)
                except BaseException:
                    connection.abort()  # else every wrong password would leak a socket
                    raise
        except (OSError, TimeoutError, BadAddress) as error:
            raise Lost(str(error) or f"{place} does not answer") from error
        return connection

    async def _transport(self, place: Place, answer_s: float) -> Connection:
        loop = asyncio.get_running_loop()

        def protocol() -> Connection:
            return Connection(answer_s)

        if place.path:
            return (await loop.create_unix_connection(protocol, place.path))[1]
        tls = self.address.tls
        name = (tls.server_name or self._named(place)) if tls else None
        transport, made = await loop.create_connection(
            protocol, place.host, place.port, ssl=tls.context() if tls else None, server_hostname=name
        )
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            raw.setsockopt(socket.IPPROTO_TCP, option, value)
        return made

    def _named(self, place: Place) -> str:
        """Return the name that a certificate must have: as configured, not the address it was looked up
        to."""
        return place.host if self.address.primary else self.address.places[0].host


async def _log_in(connection: Connection, login: Login) -> None:
    if login.password:
        user = (login.user,) if login.user else ()
        await connection.execute("AUTH", *user, login.password)
    if login.database:
        await connection.execute("SELECT", login.database)


async def _check_primary(connection: Connection, place: Place) -> None:
    """Raise `Lost` if the server is a replica or still reads its file."""
    try:
        role = await connection.execute("ROLE")
    except Refused:  # hosted servers may hide it; a write will show it
        role = None
    if isinstance(role, list) and role[0] != b"master":
        raise Lost(f"{place} is a replica, not a primary")
    try:
        await connection.execute("PING")
    except Refused as refused:
        if refused.code != "LOADING":
            raise
        raise StillLoading(await _loaded_percent(connection)) from refused


async def _loaded_percent(connection: Connection) -> float:
    try:
        return float(info_of(await connection.execute("INFO", "persistence"))["loading_loaded_perc"])
    except (Refused, KeyError, ValueError):
        return 0.0


async def _resolved(place: Place) -> list[Place]:
    """Return every address of a name, as of now: after a failover it may stand for another server."""
    if place.path:
        return [place]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Lost(f"{place.host} cannot be looked up: {error.strerror or error}") from error
    return list(dict.fromkeys(Place(str(each[4][0]), place.port) for each in found))


def _worst(problems: list[Exception]) -> Exception:
    """Return the error that tells most: a server that reads its file will serve, a refusal must be read."""
    for kind in (StillLoading, Refused):
        for each in problems:
            if isinstance(each, kind):
                return each
    return Lost("; ".join(dict.fromkeys(map(str, problems))) or "its name has no address")


def info_of(text: bytes) -> dict[str, str]:
    """Return the answer to INFO by name."""
    pairs = (line.partition(":") for line in text.decode().splitlines())
    return {name: value for name, separator, value in pairs if separator}


def history_in(info: bytes) -> str:
    """Name what a server has written as a primary. The name changes when the server starts, is demoted or
    promoted, so a write made under one name is still there while the server has that name."""
    found = info_of(info)
    return f"{found.get('run_id', '')}:{found.get('master_replid', '')}"

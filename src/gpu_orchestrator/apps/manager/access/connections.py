"""The open connections of this process, and which of them must go when there are too many.

A connection belongs to a stranger until a request on it has shown a valid key. Strangers may take half of all
connections, and a part of these from one address; beyond that a new connection takes the place of the oldest
one that waits for nothing from us. So no number of strangers keeps out workers and callers with a key.

new ──admit──▶ stranger ──recognise──▶ known
                  └── leave, or evicted ──┴──▶ gone
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Literal, Protocol

from gpu_orchestrator.adapters.settings import Settings

PEER = "peer"
"""The name of a connection in the state of its requests."""
STRANGERS_PART = 2
"""Strangers may take one of this many parts of all connections."""
Reason = Literal["room", "head", "slow"]
"""Why a connection was closed: to make room, for a head that is too long, or for a request that came too
slowly."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`head_s` is how long the head of a request may take, and the window in which a body must keep its
    pace."""

    most: int = 4096
    strangers_per_address: int = 1024
    head_s: float = 30.0

    @classmethod
    def of(cls, settings: Settings, open_files: int) -> "ConnectionLimits":
        """Return the configured limits, or less if the process may not open that many files."""
        most = max(min(settings.max_connections, open_files - RESERVED_FILES), 2)
        return cls(most, settings.max_connections_per_address, settings.request_head_timeout)

    @property
    def strangers(self) -> int:
        return max(self.most // STRANGERS_PART, 1)


RESERVED_FILES = 256
"""Files that a server opens beside its connections: store, logs, callbacks, modules."""


class Peer(Protocol):
    """The other side of one connection, as its protocol shows it."""

    address: str
    is_known: bool

    @property
    def is_busy(self) -> bool:
        """Return True while the peer waits for our answer."""

    def evict(self) -> None:
        """Close the connection at once."""


@dataclass(slots=True)
class Connections:
    """Counts peers. `closed` counts the connections that were closed, by reason; `receiving` are the peers of
    which the rest of a request is to come."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    closed: Counter[Reason] = field(default_factory=Counter)
    on_closed: Callable[[Reason], None] = lambda _: None
    receiving: dict["Receiver", None] = field(default_factory=dict)
    _open: dict[Peer, None] = field(default_factory=dict)
    _strangers: dict[Peer, None] = field(default_factory=dict)
    _of_address: dict[str, dict[Peer, None]] = field(default_factory=dict)

    @property
    def known(self) -> int:
        return len(self._open) - len(self._strangers)

    @property
    def strangers(self) -> int:
        return len(self._strangers)

    def admit(self, peer: Peer) -> bool:
        """Count a new connection, and evict an older one if there are too many. Return False if none can
        go."""
        if not self._make_room(peer.address):
            self.count_closed("room")
            return False
        self._open[peer] = self._strangers[peer] = None
        self._of_address.setdefault(peer.address, {})[peer] = None
        return True

    def recognise(self, peer: Peer) -> None:
        """Note that a request of this peer has shown a valid key."""
        peer.is_known = True
        self._no_stranger(peer)

    def leave(self, peer: Peer) -> None:
        """Forget a connection that was closed."""
        self._open.pop(peer, None)
        self._no_stranger(peer)

    def count_closed(self, reason: Reason) -> None:
        self.closed[reason] += 1
        self.on_closed(reason)

    def close_overdue(self, now: float) -> None:
        """Refuse the requests that come too slowly. Called every second."""
        for receiver in list(self.receiving):
            receiver.check(now)

    def _make_room(self, address: str) -> bool:
        from_there = self._of_address.get(address, {})
        if len(from_there) >= self.limits.strangers_per_address:
            return self._evict_oldest(from_there)
        if len(self._strangers) >= self.limits.strangers or len(self._open) >= self.limits.most:
            return self._evict_oldest(self._strangers)
        return True

    def _evict_oldest(self, peers: Iterable[Peer]) -> bool:
        oldest = next((peer for peer in peers if not peer.is_busy), None)
        if oldest is None:
            return False
        self.count_closed("room")
        self.leave(oldest)
        oldest.evict()
        return True

    def _no_stranger(self, peer: Peer) -> None:
        if peer in self._strangers:
            del self._strangers[peer]
            from_there = self._of_address[peer.address]
            del from_there[peer]
            if not from_there:
                del self._of_address[peer.address]


class Receiver(Protocol):
    def check(self, now: float) -> None:
        """Refuse the request if it comes too slowly."""


def address_of(peername: object) -> str:
    """Return the address that connections are counted by. One machine may use all 2^64 addresses of an IPv6
    network."""
    host = str(peername[0]) if isinstance(peername, tuple) and peername else ""
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(found, IPv6Address):
        return host
    return str(found.ipv4_mapped or f"{IPv6Address(int(found) >> 64 << 64)}/64")

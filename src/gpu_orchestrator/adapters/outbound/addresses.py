"""Which addresses may be requested on behalf of users: public ones, and private ones that an operator
named."""

import errno
import ipaddress
import socket
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
"""All global unicast addresses; the exceptions within it are listed next."""
NOT_PUBLIC: tuple[Network, ...] = tuple(
    map(
        ipaddress.ip_network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
            *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
            *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
        ),
    )
)


class Forbidden(OSError):
    """The address may not be requested; the message says why. An `OSError`, because that is what opening a
    connection may raise."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EACCES, reason)

    def __str__(self) -> str:
        return str(self.strerror)


@dataclass(frozen=True, slots=True)
class Allowed:
    """`hosts` are names, `*.example.org` for all below one, `*` for all; `networks` are private addresses
    that are allowed anyway."""

    hosts: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, hosts: str, networks: str) -> "Allowed":
        """Parse the settings, separated by commas; raise `ValueError` for what is not a network."""
        names = tuple(each.strip().lower() for each in hosts.split(",") if each.strip())
        return cls(
            names, tuple(ipaddress.ip_network(each.strip()) for each in networks.split(",") if each.strip())
        )

    def has_host(self, host: str) -> bool:
        name = host.lower().rstrip(".")
        return any(
            pattern in ("*", name) or (pattern.startswith("*.") and name.endswith(pattern[1:]))
            for pattern in self.hosts
        )


def check_address(address: Address, allowed: Allowed) -> None:
    """Raise `Forbidden` for an address that is not public, unless an operator allowed its network."""
    inner = _inner(address)
    if any(inner in network for network in allowed.networks if network.version == inner.version):
        return
    outside = isinstance(inner, ipaddress.IPv6Address) and inner not in GLOBAL_V6
    if outside or any(inner in network for network in NOT_PUBLIC if network.version == inner.version):
        raise Forbidden(f"{address} is a private or reserved address")


def address_in(host: str) -> Address | None:
    """Return the address that a host is, in any spelling that a resolver accepts: `127.1`, `0x7f000001`,
    `2130706433`, `0177.0.0.1` are all the same; None for a name."""
    bare = host.rstrip(".").partition("%")[0]
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(bare))
    except (OSError, ValueError):
        return None


def _inner(address: Address) -> Address:
    """Return the IPv4 address inside an IPv6 one, where networks translate it."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address

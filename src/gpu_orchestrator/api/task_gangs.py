"""Gangs of tasks: members that begin together and end together.

The id of a member is that of its gang with its rank behind it, so nobody needs a list of them.
"""

import re
from collections.abc import Iterator, Mapping
from zlib import crc32

import msgspec

MOST_MEMBERS = 512
LONGEST_KEY = 200
FIRST_PORT, PORTS = 20_000, 12_000
"""Ports for what members agree on: below those that systems give to connections."""
_MEMBER = re.compile(r"(?P<gang>.+)-(?P<rank>\d{1,4})")


class GangSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gang of `size` members. All of them run on workers with the same value of the label `same`, and if it
    can be of `near`."""

    size: int
    same: str = ""
    near: str = ""


class Peer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker on which a member runs, and where the other members reach it."""

    worker: str
    address: str = ""


class Gang(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a member is told: its gang, its rank, where all members run, by rank, and a port that members may
    use on the first of these."""

    id: str
    rank: int
    peers: tuple[Peer, ...]
    port: int = 0


def member_id(gang: str, rank: int) -> str:
    return f"{gang}-{rank}"


def members(gang: str, size: int) -> Iterator[str]:
    return (member_id(gang, rank) for rank in range(size))


def split(task: str) -> tuple[str, int]:
    """Return the gang of a member, and its rank; of a task that is none, its id and 0."""
    found = _MEMBER.fullmatch(task)
    return (found["gang"], int(found["rank"])) if found else (task, 0)


def port_of(gang: str, attempt: int) -> int:
    """Return a port for this attempt. Another one has another: the old one may be in use for a while."""
    return FIRST_PORT + crc32(f"{gang} {attempt}".encode()) % PORTS


TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment(gang: Gang, attempt: int) -> Mapping[str, str]:
    """Return the variables by which a member finds the others: ours, and those that PyTorch reads."""
    rank, size, port = str(gang.rank), str(len(gang.peers)), str(gang.port)
    addresses = [each.address for each in gang.peers]
    return {
        "GANG_ID": gang.id,
        "GANG_ATTEMPT": str(attempt),
        "GANG_RANK": rank,
        "GANG_SIZE": size,
        "GANG_MEMBERS": ",".join(addresses),
        "GANG_WORKERS": ",".join(each.worker for each in gang.peers),
        "GANG_ADDRESS": addresses[0],
        "GANG_PORT": port,
        **dict(zip(TORCH, (rank, size, addresses[0], port), strict=True)),
    }

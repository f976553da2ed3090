"""What a server reports of itself, and what makes it unfit for tasks."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_orchestrator.adapters.store.valkey.address import Address

OLDEST, OLDEST_STRICT = (7, 0), (7, 2)
LOCAL = {"", "localhost", "127.0.0.1", "::1"}
SHARE_OF_LIMIT, SHARE_OF_MACHINE = 0.8, 0.5
HIDDEN = "hidden"
"""In place of a setting that the server does not show."""
NO_FILE = "no append-only file"


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that the server uses, and the most that new tasks may fill. The rest is for results and the
    server itself: without free memory it could not even end a task."""

    used: int
    most: int

    @classmethod
    def of(cls, info: Mapping[str, str], wanted: int) -> "Room":
        limit, machine = int(info.get("maxmemory", 0)), int(info.get("total_system_memory", 0))
        most = int(limit * SHARE_OF_LIMIT) or wanted or int(machine * SHARE_OF_MACHINE)
        return cls(int(info.get("used_memory", 0)), min(wanted, most) if wanted else most)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server reports of itself. `durable` is empty if a crash loses nothing that was acknowledged,
    else it states what is missing or unknown; `replicas` are those connected."""

    version: str
    eviction: str
    durable: str
    replicas: int = 0
    is_cluster: bool = False

    @classmethod
    def of(cls, info: Mapping[str, str], fsync: str) -> "Facts":
        return cls(
            info.get("valkey_version") or info.get("redis_version", "0"),
            info.get("maxmemory_policy", ""),
            _missing(info, fsync),
            int(info.get("connected_slaves", 0)),
            info.get("redis_mode") == "cluster" or info.get("cluster_enabled") == "1",
        )

    def weakness(self, *, strict: bool, durable_replicas: int) -> str:
        """Return how acknowledged writes may be lost; empty if they cannot, as far as is known. A failover
        loses what no replica has yet: replication does not wait."""
        if self.replicas and not durable_replicas:
            behind = "a failover loses what no replica has yet; set DURABILITY=strict and DURABILITY_REPLICAS"
            return f"{self.durable}; {behind}" if self.durable and not strict else behind
        return "" if strict else self.durable


def unfit(facts: Facts, address: Address, *, strict: bool, insecure: bool) -> list[str]:
    """Return everything that is wrong with the server."""
    return [
        *_too_old(facts, strict=strict),
        *_evicts(facts),
        *_cluster(facts),
        *([] if insecure else _unprotected(address)),
        *(
            [f"DURABILITY=strict needs an append-only file; {facts.durable}"]
            if strict and facts.durable.startswith(NO_FILE)
            else []
        ),
    ]


def _too_old(facts: Facts, *, strict: bool) -> list[str]:
    numbers = tuple(int(part) for part in facts.version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        return [f"it is version {facts.version}; {_version(OLDEST)} or newer is needed"]
    if strict and numbers < OLDEST_STRICT:
        needed = f"DURABILITY=strict needs {_version(OLDEST_STRICT)} or newer, which has WAITAOF"
        return [f"it is version {facts.version}; {needed}"]
    return []


def _version(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))


def _evicts(facts: Facts) -> list[str]:
    if facts.eviction in ("", "noeviction"):
        return []
    return [f"maxmemory-policy is {facts.eviction}, which discards tasks; set it to noeviction"]


def _cluster(facts: Facts) -> list[str]:
    """All keys have one hash tag, so a cluster would keep them on one shard anyway; its redirects and
    resharding are not followed."""
    if not facts.is_cluster:
        return []
    return [
        "it runs in cluster mode, which is not supported; give a primary with replicas, for example by sentinel://"
    ]


def _unprotected(address: Address) -> list[str]:
    remote = [place.host for place in address.places if not place.path and place.host not in LOCAL]
    if address.tls or address.login.password or not remote:
        return []
    advice = "set REDIS_PASSWORD, use rediss://, or pass --insecure-dev"
    return [f"{remote[0]} is remote and requires no password; {advice}"]


def _missing(info: Mapping[str, str], fsync: str) -> str:
    if info.get("aof_enabled") != "1":
        return f"{NO_FILE}: a crash loses what was acknowledged since the last save"
    if fsync == HIDDEN:
        return "unknown durability: the store hides its settings (CONFIG); set DURABILITY=strict to be sure"
    if fsync != "always":
        return f"appendfsync is {fsync}: a crash loses the last second or more"
    return ""

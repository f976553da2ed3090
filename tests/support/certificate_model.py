"""A model of replicas that rotate certificates: one Secret, one webhook configuration, API servers and
replicas that see both late, clocks that jump, and writes that arrive late. The real `rotation.py` decides.

Every method is one step that can happen at any moment. API servers see a change within `propagation_s`, and
replicas see the Secret within it, and restore it if it is missing; of the configuration a replica may see any
old state.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpu_orchestrator.apps.webhook.certificates import rotation
from gpu_orchestrator.apps.webhook.certificates.content import Content, Leaf
from gpu_orchestrator.apps.webhook.certificates.rotation import Keep, View
from tests.support.certificates import RULES, issued

T = TypeVar("T")


class Stored(Generic[T]):
    """An object of the API server with all its states. The version counts them."""

    def __init__(self, value: T) -> None:
        self.states = [(0.0, value)]

    @property
    def version(self) -> int:
        return len(self.states)

    @property
    def value(self) -> T:
        return self.states[-1][1]

    def at(self, version: int) -> T:
        return self.states[version - 1][1]

    def write(self, value: T, now_s: float) -> None:
        """Replace the value. As on an API server, writing what is there changes nothing."""
        if value != self.value:
            self.states.append((now_s, value))

    def seen_by(self, now_s: float) -> int:
        """Return the oldest version that may still be seen at this time."""
        return max(at + 1 for at, (since_s, _) in enumerate(self.states) if not at or since_s <= now_s)


@dataclass
class Replica:
    world: "World"
    clock_offset_s: float = 0.0
    secret: tuple[int, Content | None] | None = None
    config: tuple[int, str] = (0, "")
    kept: Content | None = None
    settled: tuple[int, float] | None = None
    _write: tuple[int, Content] | None = None
    _repair: tuple[int, str] | None = None

    @property
    def serving(self) -> Leaf | None:
        return self.kept.serving if self.kept else None

    def restart(self) -> None:
        self.secret, self.config, self.kept, self.settled = None, (0, ""), None, None
        self._write = self._repair = None

    def see_secret(self) -> None:
        self.secret = self.world.secret.version, self.world.content
        self.kept = self.world.content or self.kept

    def see_config(self) -> None:
        self.config = self.world.config.version, self.world.bundle

    def decide(self) -> None:
        """Decide once both watches have shown something, and send the write, which arrives later."""
        if self.secret is None or not self.config[0]:
            return
        version, found = self.secret
        settled_s = self._settled_s(version, found)
        now_s = self.world.now_s + self.clock_offset_s
        view = View(found, self.kept, settled_s, now_s, may_others=bool(self.config[1]))
        step = rotation.decide(view, RULES)
        if not isinstance(step, Keep):
            made = issued(now_s) if rotation.needs_leaf(step) else None
            self._write = version, rotation.perform(step, view, made)

    def _settled_s(self, version: int, found: Content | None) -> float | None:
        if found and found.bundle != self.config[1]:
            self.settled = None
            return None
        if self.settled is None or self.settled[0] != version:
            self.settled = version, self.world.now_s
        return self.world.now_s - self.settled[1]

    def write(self) -> None:
        """Let the write arrive: it is refused if the Secret has changed since it was read."""
        if self._write and self._write[0] == self.world.secret.version:
            self.world.secret.write(self._write[1], self.world.now_s)
        self._write = None

    def read_for_repair(self) -> None:
        """Read the Secret, to write its bundle into the configuration as this replica sees it."""
        self._repair = None
        if self.secret and self.secret[1] and self.secret[0] == self.world.secret.version:
            self._repair = self.config[0], self.secret[1].bundle

    def turn(self) -> None:
        """See everything and do what is due, without a pause."""
        self.see_secret()
        self.see_config()
        if self.secret and self.secret[1] and self.secret[1].bundle != self.config[1]:
            self.read_for_repair()
            self.repair()
        self.decide()
        self.write()

    def repair(self) -> None:
        if self._repair and self._repair[0] == self.world.config.version:
            self.world.config.write(self._repair[1], self.world.now_s)
        self._repair = None


@dataclass
class World:
    replicas: list[Replica] = field(default_factory=list)
    servers: list[int] = field(default_factory=list)
    """The version of the configuration that each API server has."""
    now_s: float = 0.0
    secret: Stored[Content | None] = field(default_factory=lambda: Stored(None))
    config: Stored[str] = field(default_factory=lambda: Stored(""))

    @classmethod
    def start(cls, *, replicas: int, servers: int) -> "World":
        """Return a world where the first certificate is served and trusted everywhere."""
        world = cls()
        world.replicas = [Replica(world) for _ in range(replicas)]
        world.servers = [1] * servers
        for _ in range(3):
            world.turn()
        assert world.untrusted() == []
        return world

    @property
    def content(self) -> Content | None:
        return self.secret.value

    @property
    def bundle(self) -> str:
        return self.config.value

    def turn(self) -> None:
        """Let everybody see and do everything once."""
        for each in self.replicas:
            each.turn()
        self.servers = [self.config.version] * len(self.servers)

    def advance(self, by_s: float) -> None:
        """Let time pass. What was changed `propagation_s` ago has been seen by then."""
        self.now_s += by_s
        latest_s = self.now_s - RULES.propagation_s
        self.servers = [max(each, self.config.seen_by(latest_s)) for each in self.servers]
        for each in self.replicas:
            if each.secret and each.secret[0] < self.secret.seen_by(latest_s):
                each.see_secret()
            if each.kept and self.content is None and self.secret.states[-1][0] <= latest_s:
                each.turn()

    def restart(self, replica: Replica) -> None:
        """Restart a replica, but not the last one that could restore the Secret: a cluster where nobody has a
        certificate starts from nothing."""
        if self.content or any(each.kept for each in self.replicas if each is not replica):
            replica.restart()

    def see(self, server: int) -> None:
        self.servers[server] = self.config.version

    def delete_secret(self) -> None:
        """Delete the Secret, once all that serve have seen how it is."""
        serving = [each for each in self.replicas if each.kept]
        if serving and all(each.secret == (self.secret.version, self.content) for each in serving):
            self.secret.write(None, self.now_s)

    def untrusted(self) -> list[str]:
        """Return the leaves that an API server would refuse: none of what it trusts has signed them."""
        served = [each.serving for each in self.replicas if each.serving]
        trusted = [self.config.at(version) for version in self.servers]
        return [leaf.pem for leaf in served for bundle in trusted if leaf.authority.pem not in bundle]

"""Who may do what: keys are 256 random bits, kept only as hashes, and compared in constant time.

A plain hash is enough: nobody can try out 256 random bits. `Keys` is this process's copy of all keys, so that
a request asks no store; `keyring.py` keeps the copy fresh.
"""

import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from time import time
from typing import Literal, get_args

from gpu_orchestrator.adapters.store.keys import KeyRow
from gpu_orchestrator.apps.manager.access import limits
from gpu_orchestrator.apps.manager.access.limits import DEFAULTS, Limits
from gpu_orchestrator.apps.manager.errors import Forbidden, Unauthorized

Scope = Literal["read", "submit", "admin", "worker"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
INCLUDES: dict[Scope, frozenset[Scope]] = {
    "read": frozenset({"read"}),
    "submit": frozenset({"submit", "read"}),
    "admin": frozenset(SCOPES),
    "worker": frozenset({"worker"}),
}
"""Who may submit may look at what became of it. Who may do everything may join as a worker too: it could make
itself a key for that."""

WORKERS: frozenset[Scope] = frozenset({"worker"})

MARK = "gpo_"
"""Begins every key made here, so that scanners for leaked secrets can know one."""


@dataclass(frozen=True, slots=True)
class Key:
    """`id` may be shown and logged. Keys of one `owner` have their tasks in common. `configured` ones come
    from settings, not from the store. A time of 0 is never."""

    id: str
    digest: bytes = field(repr=False)
    name: str
    owner: str
    scopes: frozenset[Scope]
    created_ms: int = 0
    expires_ms: int = 0
    revoked_ms: int = 0
    used_ms: int = 0
    configured: bool = False
    limits: Limits = DEFAULTS

    def may(self, scope: Scope) -> bool:
        return any(scope in INCLUDES[each] for each in self.scopes)

    def demand(self, scope: Scope) -> None:
        if not self.may(scope):
            has = ", ".join(sorted(self.scopes))
            raise Forbidden(f"this key ({self.id}) has the scope {has}; {scope} is needed", needs=scope)

    def is_over(self, now_ms: int) -> bool:
        return bool(self.revoked_ms) or 0 < self.expires_ms <= now_ms

    @property
    def is_unlimited(self) -> bool:
        """The operator's own: what was configured, and workers."""
        return self.configured or self.scopes == WORKERS

    @property
    def sees(self) -> str:
        """Whose tasks it may see and touch; empty: everybody's."""
        return "" if self.may("admin") else self.owner


def make() -> str:
    return MARK + secrets.token_hex(32)


def digest_of(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def key_of(secret: str, scope: Scope) -> Key:
    return configured(digest_of(secret), scope)


def configured(digest: bytes, scope: Scope) -> Key:
    """A key from settings, with which everything begins."""
    name = "bootstrap" if scope == "admin" else f"bootstrap-{scope}"
    return Key(name, digest, name, scope, frozenset({scope}), configured=True)


def stored(row: KeyRow) -> Key:
    return Key(
        id=row.id,
        digest=bytes.fromhex(row.digest),
        name=row.name,
        owner=row.owner,
        scopes=frozenset(each for each in SCOPES if each in row.scopes.split(",")),
        created_ms=row.created_ms,
        expires_ms=row.expires_ms,
        revoked_ms=row.revoked_ms,
        used_ms=row.used_ms,
        limits=limits.decode(row.limits),
    )


def _now_ms() -> int:
    return int(time() * 1000)


class Keys:
    """`used` tells when each stored key was last used, until somebody takes it away."""

    def __init__(self, configured: Iterable[Key], now_ms: Callable[[], int] = _now_ms) -> None:
        self.configured = tuple(configured)
        self.now_ms = now_ms
        self.used: dict[str, int] = {}
        self._known = {key.digest: key for key in self.configured}
        self.revision = 0

    def owners_before(self) -> dict[str, str]:
        """Who has the keys that tasks of version 1 name: then a key's id was the head of its hash."""
        return {key.digest.hex()[:12]: key.owner for key in self.configured}

    def replace(self, stored: Iterable[Key]) -> None:
        """All that the store has, in place of what it had before."""
        self._known = {key.digest: key for key in (*stored, *self.configured)}
        self.revision += 1

    def all(self) -> Iterable[Key]:
        """Those that may be used now."""
        now_ms = self.now_ms()
        return [key for key in self._known.values() if not key.is_over(now_ms)]

    def find(self, authorization: str) -> Key:
        """The key of an `Authorization` header; raises `Unauthorized`."""
        kind, _, secret = authorization.partition(" ")
        if kind.lower() != "bearer" or not secret:
            raise Unauthorized("a key is needed; send the header Authorization: Bearer <key>")
        digest = digest_of(secret.strip())
        key = self._known.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            raise Unauthorized("this key is not known here; ask the operator for one")
        now_ms = self.now_ms()
        if key.is_over(now_ms):
            how = "was revoked" if key.revoked_ms else "has expired"
            raise Unauthorized(f"this key ({key.id}) {how}; ask the operator for another")
        if not key.configured:
            self.used[key.id] = now_ms
        return key

    def is_good(self, key: Key) -> bool:
        """Whether a key found before may still be used; for connections that last."""
        known = self._known.get(key.digest)
        return known is not None and not known.is_over(self.now_ms())

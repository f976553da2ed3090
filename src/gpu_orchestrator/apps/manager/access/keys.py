"""API keys and their scopes. A key is 256 random bits, stored only as a hash and compared in constant time.

A plain hash is enough, because 256 random bits cannot be guessed. `Keys` is this process's copy of all keys,
so that a request need not read the store; `key_sync.py` keeps the copy up to date.
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
INCLUDED_IN: dict[Scope, frozenset[Scope]] = {
    "read": frozenset({"read", "submit", "admin"}),
    "submit": frozenset({"submit", "admin"}),
    "admin": frozenset({"admin"}),
    "worker": frozenset({"worker", "admin"}),
}
"""`submit` includes `read`, to see the results. `admin` includes `worker`, because an admin could create such
a key anyway."""

WORKERS: frozenset[Scope] = frozenset({"worker"})

MARK = "gpo_"
"""The prefix of every key made here, so that scanners for leaked secrets can recognise one."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `id` may be shown and logged. Keys of one `owner` share their tasks. `configured` keys come
    from the settings, not from the store. A time of 0 means never. `worker` is the one worker that may join
    with it, empty until the first has; `*` for any number."""

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
    worker: str = "*"

    def may(self, scope: Scope) -> bool:
        return not INCLUDED_IN[scope].isdisjoint(self.scopes)

    def demand(self, scope: Scope) -> None:
        """Raise `Forbidden` if the key lacks this scope."""
        if not self.may(scope):
            has = ", ".join(sorted(self.scopes))
            raise Forbidden(f"this key ({self.id}) has the scope {has}; {scope} is needed", needs=scope)

    def is_over(self, now_ms: int) -> bool:
        return bool(self.revoked_ms) or 0 < self.expires_ms <= now_ms

    @property
    def is_unlimited(self) -> bool:
        """Return True for the operator's own keys: configured ones and worker tokens."""
        return self.configured or self.scopes == WORKERS

    @property
    def sees(self) -> str:
        """Return the owner whose tasks the key may see and change; empty for all owners."""
        return "" if self.may("admin") else self.owner


def make() -> str:
    return MARK + secrets.token_hex(32)


def digest_of(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def key_of(secret: str, scope: Scope) -> Key:
    return configured(digest_of(secret), scope)


def configured(digest: bytes, scope: Scope) -> Key:
    """Return a key from the settings: the first key of a new server."""
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
        worker=row.worker,
    )


def _now_ms() -> int:
    return int(time() * 1000)


class Keys:
    """This process's copy of all keys. `used` holds their last use until `KeySync` writes it."""

    def __init__(self, configured: Iterable[Key], now_ms: Callable[[], int] = _now_ms) -> None:
        self.configured = tuple(configured)
        self.now_ms = now_ms
        self.used: dict[str, int] = {}
        self._known = {key.digest: key for key in self.configured}
        self.revision = 0

    def version_1_owners(self) -> dict[str, str]:
        """Return owners by the key ids of store version 1, where an id was the start of the key's hash."""
        return {key.digest.hex()[:12]: key.owner for key in self.configured}

    def replace(self, stored: Iterable[Key]) -> None:
        """Replace all stored keys with these."""
        self._known = {key.digest: key for key in (*stored, *self.configured)}
        self.revision += 1

    def all(self) -> Iterable[Key]:
        """Return the keys that may be used now."""
        now_ms = self.now_ms()
        return [key for key in self._known.values() if not key.is_over(now_ms)]

    def find(self, authorization: str) -> Key:
        """Return the key of an `Authorization` header; raise `Unauthorized` if it may not be used."""
        kind, _, secret = authorization.partition(" ")
        if kind.lower() != "bearer" or not secret:
            raise Unauthorized(
                "a key is needed; log in with `gpu-orchestrator login`, "
                "or send the header Authorization: Bearer <key>"
            )
        digest = digest_of(secret.strip())
        key = self._known.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            raise Unauthorized("this key is not known here; ask the operator for one")
        now_ms = self.now_ms()
        if key.is_over(now_ms):
            how = "was revoked" if key.revoked_ms else "has expired"
            raise Unauthorized(f"this key ({key.id}) {how}; ask the operator for another")
        self.used[key.id] = now_ms
        return key

    def is_good(self, key: Key) -> bool:
        """Return True if a key found before may still be used; for long-lived connections."""
        known = self._known.get(key.digest)
        return known is not None and not known.is_over(self.now_ms())

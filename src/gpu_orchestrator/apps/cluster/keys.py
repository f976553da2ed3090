"""Who may do what: keys are 256 random bits, kept only as hashes, and compared in constant time.

An API key may use the API; a worker token may only join as a worker.
"""

import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from gpu_orchestrator.apps.cluster.errors import Forbidden, Unauthorized

Scope = Literal["admin", "worker"]


@dataclass(frozen=True, slots=True)
class Key:
    """`id` may be shown and logged: it is the head of the hash."""

    digest: bytes
    scope: Scope

    @property
    def id(self) -> str:
        return self.digest.hex()[:12]


def make() -> str:
    return secrets.token_hex(32)


def key_of(secret: str, scope: Scope) -> Key:
    return Key(sha256(secret.encode()).digest(), scope)


class Keys:
    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)

    def find(self, authorization: str) -> Key:
        """The key of an `Authorization` header; raises `Unauthorized`."""
        kind, _, secret = authorization.partition(" ")
        if kind.lower() != "bearer" or not secret:
            raise Unauthorized("a key is needed; send the header Authorization: Bearer <key>")
        digest = sha256(secret.strip().encode()).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None:
            raise Unauthorized("this key is not known here; ask the operator for one")
        return found

    def demand(self, authorization: str, scope: Scope) -> Key:
        key = self.find(authorization)
        if key.scope != scope and key.scope != "admin":
            raise Forbidden(f"this key may only be used as {key.scope}; {scope} is needed")
        return key

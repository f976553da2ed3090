"""The secrets that sign callbacks. Each owner has its own, so that a receiver that can verify one owner's
callbacks cannot forge another's. The server reads them for every callback, so the store holds them encrypted.
"""

from base64 import b64encode
from secrets import token_bytes

from gpu_orchestrator.adapters.seal import Seal
from gpu_orchestrator.adapters.store.valkey.database import Database

MARK = "whsec_"
"""The prefix from https://www.standardwebhooks.com; 32 random bytes in base64 follow it."""


def new_secret() -> str:
    return MARK + b64encode(token_bytes(32)).decode()


class Signing:
    """`common` signs the callbacks of owners without their own secret."""

    def __init__(self, database: Database, seal: Seal, common: str = "") -> None:
        self._database, self._seal, self._common = database, seal, common

    async def make(self, owner: str) -> str:
        """Store a new secret for this owner in place of the previous one, and return it."""
        secret = new_secret()
        await self._database.set(_place(owner), self._seal.close(secret, place=_place(owner)).encode())
        return secret

    async def find(self, owner: str) -> str:
        """Return the owner's secret, or the common one. Raise `CannotOpen` if this server lacks its key."""
        sealed = await self._database.get(_place(owner))
        return self._seal.open(sealed.decode(), place=_place(owner)) if sealed else self._common

    async def forget(self, owner: str) -> bool:
        """Delete the owner's secret; return True if there was one."""
        return await self._database.delete(_place(owner))


def _place(owner: str) -> str:
    return f"callback-secret:{owner}"

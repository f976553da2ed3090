"""The secret with which an owner's callbacks are signed: its own, so that who can verify one owner's
callbacks cannot forge another's. It must be read again for every callback, so it is in the store, sealed.
"""

from base64 import b64encode
from secrets import token_bytes

from gpu_orchestrator.adapters.seal import Seal
from gpu_orchestrator.adapters.store.valkey.database import Database

MARK = "whsec_"
"""As https://www.standardwebhooks.com has it; 32 random bytes in base64 follow."""


def new_secret() -> str:
    return MARK + b64encode(token_bytes(32)).decode()


class Signing:
    """`common` signs the callbacks of owners who have none of their own."""

    def __init__(self, database: Database, seal: Seal, common: str = "") -> None:
        self._database, self._seal, self._common = database, seal, common

    async def make(self, owner: str) -> str:
        """A new one; what was there before is forgotten."""
        secret = new_secret()
        await self._database.set(_place(owner), self._seal.close(secret, place=_place(owner)).encode())
        return secret

    async def find(self, owner: str) -> str:
        """The common one for an owner who never made one; raises `CannotOpen` if this server has not the key
        to it."""
        sealed = await self._database.get(_place(owner))
        return self._seal.open(sealed.decode(), place=_place(owner)) if sealed else self._common

    async def forget(self, owner: str) -> bool:
        """Whether there was one."""
        had = bool(await self._database.get(_place(owner)))
        await self._database.set(_place(owner), b"")
        return had


def _place(owner: str) -> str:
    return f"callback-secret:{owner}"

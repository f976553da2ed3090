"""The secrets that sign callbacks. Each owner has its own, so that a receiver that can verify one owner's
callbacks cannot forge another's. The server reads them for every callback, so the store holds them encrypted.

So does it hold the common one, if none is configured: the first server's counts for all, else signatures
would change with the leader."""

from base64 import b64encode
from secrets import token_bytes

from gpu_orchestrator.adapters.seal import CannotOpen, Seal
from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.errors import Unfit
from gpu_orchestrator.adapters.store.valkey.database import Database

MARK = "whsec_"
"""The prefix from https://www.standardwebhooks.com; 32 random bytes in base64 follow it."""


def new_secret() -> str:
    return MARK + b64encode(token_bytes(32)).decode()


COMMON = "callback-secret"
"""Where the store has the secret of all who have none of their own. Owners' follow after a colon."""


class Signing:
    """`common` signs the callbacks of owners without their own secret. With `shared` it is only proposed, and
    `agree` takes the one that the servers of this store have in common."""

    def __init__(self, database: Database, seal: Seal, common: str = "", *, shared: bool = False) -> None:
        self._database, self._seal, self.common, self._shared = database, seal, common, shared

    @classmethod
    def of(cls, settings: Settings, database: Database, seal: Seal, proposed: str) -> "Signing":
        """`proposed` is for the case that none is configured. If callbacks are off, there is nothing to agree
        on."""
        shared = not settings.callback_secret and bool(settings.callback_hosts)
        return cls(database, seal, settings.callback_secret or proposed, shared=shared)

    async def agree(self) -> None:
        if not self._shared:
            return
        proposed = self._seal.close(self.common or new_secret(), place=COMMON).encode()
        agreed = await self._database.set_once(COMMON, proposed)
        try:
            self.common = self._seal.open(agreed.decode(), place=COMMON)
        except CannotOpen as error:
            raise Unfit(
                f"another server of this store signs callbacks: {error}, or the same CALLBACK_SECRET"
            ) from error

    async def make(self, owner: str) -> str:
        """Store a new secret for this owner in place of the previous one, and return it."""
        secret = new_secret()
        await self._database.set(_place(owner), self._seal.close(secret, place=_place(owner)).encode())
        return secret

    async def find(self, owner: str) -> str:
        """Return the owner's secret, or the common one. Raise `CannotOpen` if this server lacks its key."""
        sealed = await self._database.get(_place(owner))
        return self._seal.open(sealed.decode(), place=_place(owner)) if sealed else self.common

    async def forget(self, owner: str) -> bool:
        """Delete the owner's secret; return True if there was one."""
        return await self._database.delete(_place(owner))


def _place(owner: str) -> str:
    return f"callback-secret:{owner}"

"""The version of the data in the store. Older data is migrated at start; newer data is refused.

1  before the store recorded a version
2  tasks are listed by owner; events, history and callbacks
"""

from collections.abc import Mapping

import structlog

from gpu_orchestrator.adapters.store.errors import Unfit
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.scripts import Script

log = structlog.get_logger()

VERSION = 2
KEY = "schema"
RESTORING = b"restoring"
"""Replaces the version while a backup is restored, because the store holds only a part of it until then."""

BATCH = 500
_MIGRATE_1_TO_2 = Script[tuple[str, int]]("migrate_1_to_2", tuple[str, int])


async def prepare(database: Database, owners: Mapping[str, str]) -> None:
    """Migrate the store to `VERSION`; raises `Unfit` for data of an unknown version. Tasks of version 1 name
    the id of a key; `owners` maps it to the key's owner."""
    found = await _found(database)
    if found > VERSION:
        raise Unfit(
            f"the store has data of version {found}, and this program supports up to {VERSION}: "
            "run the newer program again, or restore a backup made before the upgrade"
        )
    if found == 1:
        log.info("bringing the store up to date", version=found, to=VERSION)
        tasks = await _from_1(database, owners)
        log.info("the store is up to date", version=VERSION, tasks=tasks)
    if found != VERSION:
        await database.set(KEY, str(VERSION).encode())


async def refuse_partial_restore(database: Database) -> None:
    """Raise `Unfit` if a restore into this store is running or was interrupted."""
    if await database.get(KEY) == RESTORING:
        raise Unfit(
            "restoring a backup into this store did not finish: empty it (another --data, or FLUSHDB "
            "on your own server) and restore again"
        )


async def _found(database: Database) -> int:
    """Return the version of the data; 0 if the store is empty."""
    await refuse_partial_restore(database)
    written = await database.get(KEY)
    if written is not None:
        return int(written) if written.isdigit() else VERSION + 1
    return 1 if await database.exists("fence", "stats", "workers") else 0


async def _from_1(database: Database, owners: Mapping[str, str]) -> int:
    flat = [part for item in owners.items() for part in item]
    cursor, tasks = "0", 0
    while True:
        _, (cursor, some) = await database.call(_MIGRATE_1_TO_2, cursor, BATCH, flat)
        tasks += some
        if cursor == "0":
            return tasks

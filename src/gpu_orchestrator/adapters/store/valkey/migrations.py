"""The version of what is in the store. Older data are brought up to date at start; newer are not touched.

1  before versions were written down
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
"""In place of a version, as long as a backup is brought back: what is there until then is a part of it."""

AT_ONCE = 500
_MIGRATE_1_TO_2 = Script[tuple[str, int]]("migrate_1_to_2", tuple[str, int])


async def prepare(database: Database, owners: Mapping[str, str]) -> None:
    """Raises `Unfit` for data of a version that is not known here. `owners` says who has the keys that tasks
    of version 1 name."""
    found = await _found(database)
    if found > VERSION:
        raise Unfit(
            f"the store's data are of version {found}, and this program knows {VERSION} at most: "
            "run the newer program again, or restore a backup that was made before"
        )
    if found == 1:
        log.info("bringing the store up to date", version=found, to=VERSION)
        tasks = await _from_1(database, owners)
        log.info("the store is up to date", version=VERSION, tasks=tasks)
    if found != VERSION:
        await database.set(KEY, str(VERSION).encode())


async def refuse_a_part(database: Database) -> None:
    """Raises `Unfit` for a store into which a backup is being restored, or was and not to its end."""
    if await database.get(KEY) == RESTORING:
        raise Unfit(
            "a backup was restored into this store and not to its end: empty it (another --data, or FLUSHDB "
            "on a store of your own) and restore again"
        )


async def _found(database: Database) -> int:
    """0 where there is nothing yet."""
    await refuse_a_part(database)
    written = await database.get(KEY)
    if written is not None:
        return int(written) if written.isdigit() else VERSION + 1
    return 1 if await database.exists("fence", "stats", "workers") else 0


async def _from_1(database: Database, owners: Mapping[str, str]) -> int:
    flat = [part for item in owners.items() for part in item]
    cursor, tasks = "0", 0
    while True:
        _, (cursor, some) = await database.call(_MIGRATE_1_TO_2, cursor, AT_ONCE, flat)
        tasks += some
        if cursor == "0":
            return tasks

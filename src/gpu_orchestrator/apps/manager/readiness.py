"""Whether this process can accept tasks: the store, its disk, its memory, and who leads."""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_orchestrator.adapters.store.errors import Loading, StoreError
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.embedded import Embedded
from gpu_orchestrator.adapters.store.valkey.facts import Facts
from gpu_orchestrator.api.units import MIB
from gpu_orchestrator.apps.manager.siblings import ParentsStore
from gpu_orchestrator.apps.manager.tasks.overview import Overview
from gpu_orchestrator.apps.manager.tasks.results import Results


@dataclass(frozen=True, slots=True)
class Readiness:
    """`embedded` is the store's process, if this process or its parent runs it. `leader` returns which
    process leads, empty if none does."""

    store: Store
    facts: Facts
    embedded: Embedded | ParentsStore | None
    results: Results
    overview: Overview
    leader: Callable[[], str]

    async def ready(self) -> str:
        """Return what is missing to accept and place tasks; empty if nothing is.

        The health routes show this text without a key, so it must not name addresses.
        """
        try:
            await self.store.database.ping()
        except Loading as error:
            return error.progress
        except StoreError:
            return (self.embedded.trouble if self.embedded else "") or "the store does not answer"
        if trouble := self.store.database.trouble:
            return f"the store cannot make changes durable: {trouble}"
        return "" if self.leader() else "no process leads yet"

    def weakness(self) -> str:
        """Return how acknowledged changes may be lost; empty if they cannot, as far as is known."""
        database = self.store.database
        return self.facts.weakness(strict=database.strict, durable_replicas=database.replicas)

    def disk_shortage(self) -> str:
        """Return what is wrong with the disk of the embedded store, or of the results; empty if there is
        room."""
        store = self.embedded.disk.shortage() if self.embedded else ""
        return store or self.results.disk_shortage()

    def shortage(self) -> str:
        """Return why no task can be queued now; empty if there is room."""
        if (room := self.overview.reserve_memory(0)) is not None:
            return f"the store uses {room.used // MIB} of at most {room.most // MIB} MiB"
        return self.disk_shortage()

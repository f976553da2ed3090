"""Workers in the store: registration, epoch, lease, and the flags that an operator set."""

from collections.abc import Mapping, Sequence
from typing import Literal

from gpu_orchestrator.adapters.store.records import Active, Departure, Item, Registration, Renewal
from gpu_orchestrator.adapters.store.tasks import _FETCH, Row, row_of
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script


class RegisterResult(Item, frozen=True):
    """`taken`: another live connection uses the name. `full`: the limit on workers is reached."""

    kind: Literal["new", "resumed", "taken", "full"]
    epoch: int


class WorkerLocation(Item, frozen=True):
    """`state` is empty for an unknown worker; `api` is the process that holds its connection."""

    state: str
    api: str


_REGISTER = Script[RegisterResult]("register", RegisterResult)
_RENEW = Script[tuple[tuple[Active, ...] | bool, ...]]("renew", tuple[tuple[Active, ...] | bool, ...])
_REPORT = Script[bool]("report", bool)
_DISCONNECT = Script[bool]("disconnect", bool)
_REMOVE_WORKERS = Script[tuple[bool, ...]]("remove_workers", tuple[bool, ...])
_WORKER_FLAGS = Script[WorkerLocation]("worker_flags", WorkerLocation)


class Workers:
    def __init__(
        self, fenced: FencedDatabase, *, lease_ms: int, grace_ms: int, keep_ms: int, most: int
    ) -> None:
        self._fenced, self.most = fenced, most
        self.lease_ms, self.grace_ms, self.keep_ms = lease_ms, grace_ms, keep_ms

    async def register(self, registration: Registration) -> RegisterResult:
        return await self._fenced.write(_REGISTER, self.lease_ms, self.keep_ms, self.most, registration)

    async def renew(self, renewals: Sequence[Renewal]) -> list[tuple[Active, ...] | None]:
        """Extend leases. Return the active attempts of each worker, or None if its epoch or connection
        changed."""
        renewed = await self._fenced.read(_RENEW, self.lease_ms, renewals)
        return [None if isinstance(each, bool) else each for each in renewed]

    async def report(self, reports: Sequence[tuple[str, int, str, Sequence[Item]]]) -> None:
        """Store reports of devices: `(name, epoch, report as JSON, alerts)` each."""
        await self._fenced.write(_REPORT, reports)

    async def disconnect(self, connection: Renewal, *, leaving: bool = False) -> bool:
        """Mark a worker suspect, with a short grace, because its connection is lost; `leaving` if it had said
        that it leaves. Return False if it has a newer connection."""
        return await self._fenced.write(_DISCONNECT, self.grace_ms, connection, int(leaving))

    async def expire(self, departures: Sequence[Departure]) -> tuple[bool, ...]:
        """Remove workers whose lease has expired; the script checks again. Only the leader may."""
        return await self._fenced.write(_REMOVE_WORKERS, self.keep_ms, 1, departures)

    async def leave(self, departures: Sequence[Departure]) -> tuple[bool, ...]:
        """Remove workers that left or were removed; their attempts go back to the queue at once."""
        return await self._fenced.write(_REMOVE_WORKERS, self.keep_ms, 0, departures)

    async def control(
        self, name: str, fields: Mapping[str, str], *, forget: bool = False, status: str = ""
    ) -> WorkerLocation:
        """Set fields of a worker's row, or remove an offline worker. `status` goes into the event, if any."""
        flat = [part for item in fields.items() for part in item]
        return await self._fenced.write(_WORKER_FLAGS, name, flat, int(forget), status, ())

    async def cordon(self, name: str, device: int, *, cordoned: bool, status: str = "") -> WorkerLocation:
        return await self._fenced.write(_WORKER_FLAGS, name, (), 0, status, (device, int(cordoned)))

    async def fetch(self, names: Sequence[str]) -> list[Row | None]:
        _, _, rows = await self._fenced.read(_FETCH, (), names, 0)
        return [row_of(row) for row in rows]

"""Workers in the store: registration, epoch, lease, and the flags that an operator set."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Literal

from gpu_orchestrator.adapters.store.records import Departure, Item, Registration, Renewal, Renewed
from gpu_orchestrator.adapters.store.tasks import _FETCH, Row, row_of
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

DAYS_COUNTED = 8
"""For how many days the tasks of each day are counted per worker."""


class RegisterResult(Item, frozen=True):
    """`taken`: another live connection uses the name. `full`: the limit on workers is reached. `bound`: the
    key is for the worker `other`. `owned`: the name belongs to the key `other`. `device`: the worker `other`
    has the device with this `uuid`."""

    kind: Literal["new", "resumed", "taken", "full", "bound", "owned", "device"]
    epoch: int
    uuid: str = ""
    other: str = ""


class WorkerLocation(Item, frozen=True):
    """`state` is empty for an unknown worker; `api` is the process that holds its connection."""

    state: str
    api: str


class HeldRow(Item, frozen=True):
    """A worker's row, alternating fields and values, and what it holds: ids and placements as JSON in turn.
    Both are empty for an unknown worker."""

    row: tuple[str | int, ...]
    held: tuple[str, ...]

    def placements(self) -> Iterator[tuple[str, str]]:
        """Yield the id of each attempt with its placement."""
        return zip(self.held[::2], self.held[1::2], strict=True)


class LoadedModel(Item, frozen=True):
    """A model that a worker has loaded. `number` is that of the load."""

    number: int
    model: str
    devices: tuple[int, ...]
    load_s: float
    mib: int


class Stamp(Item, frozen=True):
    """`row` differs after a change of the worker's row, `held` after one of what it holds. Both are empty for
    an unknown worker. `done` and `failed` count its tasks. `seen` is when it renewed its lease last, in ms;
    `active` are the attempts that it holds."""

    row: str
    held: str
    done: int
    failed: int
    seen: str = ""
    active: int = 0


_REGISTER = Script[RegisterResult]("register", RegisterResult)


class Removed:
    """An operator removed the worker."""


_RENEW = Script[tuple[Renewed | bool, ...]]("renew", tuple[Renewed | bool, ...])
_REPORT = Script[bool]("report", bool)
_DISCONNECT = Script[bool]("disconnect", bool)
_HAND_OVER = Script[tuple[bool, ...]]("hand_over", tuple[bool, ...])
_REMOVE_WORKERS = Script[tuple[bool, ...]]("remove_workers", tuple[bool, ...])
_WORKER_CHORES = Script[tuple[str, ...]]("worker_chores", tuple[str, ...])
_WORKER_FLAGS = Script[WorkerLocation]("worker_flags", WorkerLocation)
_HALF_OPEN = Script[bool]("half_open", bool)
_WORKERS = Script[tuple[HeldRow, ...]]("workers", tuple[HeldRow, ...])
_STAMPS = Script[tuple[Stamp, ...]]("worker_stamps", tuple[Stamp, ...])
ASKED_AT_ONCE = 5
ROWS, STAMPS = 100, 500
"""How many workers one call of a script reads: the store serves nobody else meanwhile, and the caller's event
loop nobody else while it decodes the answer."""


HANDED_AT_ONCE = 100
"""Workers that one script hands over, so that other clients of the store do not wait long."""


class Workers:
    def __init__(
        self,
        fenced: FencedDatabase,
        *,
        lease_ms: int,
        grace_ms: int,
        hold_ms: int,
        keep_ms: int,
        most: int,
    ) -> None:
        self._fenced, self.most = fenced, most
        self.lease_ms, self.grace_ms, self.hold_ms, self.keep_ms = lease_ms, grace_ms, hold_ms, keep_ms

    async def register(self, registration: Registration) -> RegisterResult:
        return await self._fenced.write(_REGISTER, self.lease_ms, self.keep_ms, self.most, registration)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed | Removed | None]:
        """Extend leases. Return for each worker what it should do and have, `Removed`, or None if its epoch
        or connection changed."""
        renewed = await self._fenced.read(_RENEW, self.lease_ms, renewals)
        return [each if isinstance(each, Renewed) else Removed() if each else None for each in renewed]

    async def report(
        self, reports: Sequence[tuple[str, int, str, Sequence[Item], Sequence[LoadedModel]]]
    ) -> None:
        """Store reports of devices: `(name, epoch, report as JSON, alerts, loaded models)` each."""
        await self._fenced.write(_REPORT, reports)

    async def disconnect(
        self, connection: Renewal, *, leaving: bool = False, server_is_gone: bool = False
    ) -> bool:
        """Mark a worker suspect, with a short grace, because its connection is lost; `leaving` if it had said
        that it leaves. If the server is gone, the worker itself may be well and keeps its lease. Return False
        if it has a newer connection."""
        grace_ms = self.lease_ms if server_is_gone else self.grace_ms
        return await self._fenced.write(_DISCONNECT, grace_ms, connection, int(leaving))

    async def hand_over(self, connections: Sequence[Renewal]) -> None:
        """Give workers the term of a planned restart, because this server ends."""
        for first in range(0, len(connections), HANDED_AT_ONCE):
            some = connections[first : first + HANDED_AT_ONCE]
            await self._fenced.write(_HAND_OVER, self.hold_ms, some)

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

    async def cordon(
        self, name: str, index: int, uuid: str, *, cordoned: bool, status: str = ""
    ) -> WorkerLocation:
        return await self._fenced.write(_WORKER_FLAGS, name, (), 0, status, (index, uuid, int(cordoned)))

    async def tidy(self, names: Sequence[str], retention_ms: int) -> tuple[str, ...]:
        """Forget those of these workers that have been offline for longer than `retention_ms`, and drop old
        counters of the others. Return the names of the forgotten. Only the leader may."""
        return await self._fenced.write(_WORKER_CHORES, retention_ms, DAYS_COUNTED, names)

    async def half_open(self, names: Sequence[str]) -> None:
        """Let those of these workers have one task whose circuit was open for long enough. Only the leader
        may."""
        await self._fenced.write(_HALF_OPEN, names)

    async def fetch(self, names: Sequence[str]) -> list[Row | None]:
        _, _, rows = await self._fenced.read(_FETCH, (), names, 0)
        return [row_of(row) for row in rows]

    async def rows(self, names: Sequence[str]) -> AsyncIterator[list[Row]]:
        """Yield the rows of these workers, some at a time; unknown ones are left out."""
        for part in _parts(names, ROWS):
            yield [row for row in await self.fetch(part) if row]

    async def holding(self, names: Sequence[str]) -> AsyncIterator[list[tuple[Row, HeldRow]]]:
        """Yield the rows of these workers, with what each holds, some at a time, without unknown ones. The
        next ones are asked for before the caller works on these: a busy event loop is then waited for once,
        not once for each call."""
        parts, asked = deque(_parts(names, ROWS)), deque[asyncio.Future[tuple[HeldRow, ...]]]()
        try:
            while parts or asked:
                while parts and len(asked) < ASKED_AT_ONCE:
                    asked.append(asyncio.ensure_future(self._fenced.read(_WORKERS, parts.popleft())))
                found = await asked.popleft()
                yield [(row, each) for each in found if (row := row_of(each.row))]
        finally:
            for each in asked:
                each.cancel()

    async def stamps(self, names: Sequence[str]) -> dict[str, Stamp]:
        """Return the stamps of the workers among these that the store knows."""
        found: dict[str, Stamp] = {}
        for part in _parts(names, STAMPS):
            stamps = await self._fenced.read(_STAMPS, part)
            found.update((name, each) for name, each in zip(part, stamps, strict=True) if each.row)
        return found


def _parts(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (names[at : at + size] for at in range(0, len(names), size))

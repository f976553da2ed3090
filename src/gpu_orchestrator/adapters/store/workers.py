"""Workers in the store: who is there, under which epoch, until when, and what an operator said of them."""

from collections.abc import Mapping, Sequence
from typing import Literal

from gpu_orchestrator.adapters.store.records import Active, Departure, Item, Newcomer, Renewal
from gpu_orchestrator.adapters.store.tasks import _FETCH, Row, row_of
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script


class Greeting(Item, frozen=True):
    """`taken`: the name has a live connection. `full`: no more workers are allowed."""

    kind: Literal["new", "resumed", "taken", "full"]
    epoch: int


class Known(Item, frozen=True):
    """`state` is empty for a worker nobody knows; `api` is the process that has its connection."""

    state: str
    api: str


_REGISTER = Script[Greeting]("register", Greeting)
_RENEW = Script[tuple[tuple[Active, ...] | bool, ...]]("renew", tuple[tuple[Active, ...] | bool, ...])
_REPORT = Script[bool]("report", bool)
_DISCONNECT = Script[bool]("disconnect", bool)
_REMOVE_WORKERS = Script[tuple[bool, ...]]("remove_workers", tuple[bool, ...])
_WORKER_FLAGS = Script[Known]("worker_flags", Known)


class Workers:
    def __init__(
        self, fenced: FencedDatabase, *, lease_ms: int, grace_ms: int, keep_ms: int, most: int
    ) -> None:
        self._fenced, self.most = fenced, most
        self.lease_ms, self.grace_ms, self.keep_ms = lease_ms, grace_ms, keep_ms

    async def register(self, newcomer: Newcomer) -> Greeting:
        return await self._fenced.write(_REGISTER, self.lease_ms, self.keep_ms, self.most, newcomer)

    async def renew(self, renewals: Sequence[Renewal]) -> list[tuple[Active, ...] | None]:
        """For each what the worker should have now; None where it is no longer who it was."""
        renewed = await self._fenced.read(_RENEW, self.lease_ms, renewals)
        return [None if isinstance(each, bool) else each for each in renewed]

    async def report(self, reports: Sequence[tuple[str, int, str, Sequence[Item]]]) -> None:
        """`(name, epoch, report as JSON, alerts)` each."""
        await self._fenced.write(_REPORT, reports)

    async def disconnect(self, connection: Renewal) -> bool:
        """Its connection is lost: suspect, with a short grace. False if it has another one by now."""
        return await self._fenced.write(_DISCONNECT, self.grace_ms, connection)

    async def expire(self, departures: Sequence[Departure]) -> tuple[bool, ...]:
        """Take off whoever's lease is over (the script looks again). Only the leader may."""
        return await self._fenced.write(_REMOVE_WORKERS, self.keep_ms, 1, departures)

    async def leave(self, departures: Sequence[Departure]) -> tuple[bool, ...]:
        """They said goodbye: what they still had is queued anew at once."""
        return await self._fenced.write(_REMOVE_WORKERS, self.keep_ms, 0, departures)

    async def control(
        self, name: str, fields: Mapping[str, str], *, forget: bool = False, status: str = ""
    ) -> Known:
        """`status` is what those who watch are told."""
        flat = [part for item in fields.items() for part in item]
        return await self._fenced.write(_WORKER_FLAGS, name, flat, int(forget), status, ())

    async def cordon(self, name: str, device: int, *, cordoned: bool, status: str = "") -> Known:
        return await self._fenced.write(_WORKER_FLAGS, name, (), 0, status, (device, int(cordoned)))

    async def fetch(self, names: Sequence[str]) -> list[Row | None]:
        _, _, rows = await self._fenced.read(_FETCH, (), names)
        return [row_of(row) for row in rows]

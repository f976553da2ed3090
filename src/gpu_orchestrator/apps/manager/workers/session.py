"""One worker's connection: takes what the worker says, in order, and sends what is for it, many at a time.

Hello ──▶ register ──▶ Welcome ──▶ messages both ways ──▶ connection lost ──▶ suspect
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from uuid import uuid4

import msgspec
import structlog

from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.records import Active, Newcomer, Renewal
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Settled
from gpu_orchestrator.adapters.store.workers import Greeting
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.fleet import alerts, rows
from gpu_orchestrator.apps.manager.tasks.outcomes import Outcomes
from gpu_orchestrator.apps.manager.workers.session_config import SessionConfig
from gpu_orchestrator.apps.manager.workers.transports import Disconnected, Transport

log = structlog.get_logger()
Attempt = tuple[str, int]
LEISURE_S = 0.005
"""Nobody works slower for want of an `Ack`: it goes with what is more urgent, or after this."""


class Fenced(Exception):
    """This worker is no longer who it was: another has its name, or its lease was over."""


@dataclass(slots=True, eq=False)
class Session:
    transport: Transport
    store: Store
    outcomes: Outcomes
    config: SessionConfig
    name: str
    key: Key | None = None
    epoch: int = 0
    has_asked: bool = False
    """Whether the store was asked to register it: it may have done so, whatever we heard of that."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once nothing more is to be said or heard."""
    connection: str = field(default_factory=lambda: uuid4().hex)
    given: dict[Attempt, float] = field(default_factory=dict)
    _out: list[session.Message] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _cancelled: set[Attempt] = field(default_factory=set)
    _leisure: asyncio.TimerHandle | None = None

    @property
    def identity(self) -> Renewal:
        return Renewal(self.name, self.epoch, self.connection)

    def send(self, message: session.Message) -> None:
        if isinstance(message, session.Assign):
            self.given[message.task, message.attempt] = monotonic()
        self._out.append(message)
        if not isinstance(message, session.Ack):
            self._wake.set()
        elif self._leisure is None:
            self._leisure = asyncio.get_running_loop().call_later(LEISURE_S, self._leisure_over)

    def _leisure_over(self) -> None:
        self._leisure = None
        if self._out:
            self._wake.set()

    async def greet(self) -> Greeting:
        """The worker's first word and our answer to it; sets the epoch."""
        hello = await self._hello()
        newcomer = Newcomer(
            self.name,
            hello.instance,
            rows.encode(_lasting(hello)),
            self.store.owner,
            self.connection,
            hello.resume_epoch,
        )
        self.has_asked = True
        greeting = await self.store.workers.register(newcomer)
        self.epoch = greeting.epoch
        if greeting.kind in ("new", "resumed"):
            resumed = greeting.kind == "resumed"
            if resumed:
                self.given = {
                    (each.task, each.attempt): monotonic() for each in (*hello.running, *hello.unacked)
                }
            self.send(self.config.welcome(self.name, self.epoch, resumed=resumed))
        return greeting

    async def run(self) -> None:
        """Until the connection is lost or the worker is fenced."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_all())
            group.create_task(self._receive_all(group))
            group.create_task(self._until_over())

    async def _until_over(self) -> None:
        await self.over.wait()
        raise Disconnected

    async def _receive_all(self, group: asyncio.TaskGroup) -> None:
        """In a task of its own: woken there, it does not come through all of the layers that brought the
        connection here."""
        await self.resume()
        while True:
            for message in session.read_by_server(await self.transport.receive()):
                self._take(message, group)

    async def resume(self) -> None:
        """Say again what the worker should have and may have missed."""
        (active,) = await self.store.workers.renew([self.identity])
        if active is None:
            raise Fenced(self.name)
        await self._catch_up(active)

    async def _hello(self) -> session.Hello:
        async with asyncio.timeout(self.config.registration_s):
            said = session.read_by_server(await self.transport.receive())
        if not said or not isinstance(said[0], session.Hello) or said[0].name != self.name:
            raise msgspec.ValidationError(f"the first message must be Hello from {self.name}")
        if why := rows.misfit(said[0]):
            raise msgspec.ValidationError(f"worker {self.name} cannot be counted: {why}")
        return said[0]

    def _take(self, message: session.ToServer, group: asyncio.TaskGroup) -> None:
        match message:
            case session.Renew(number=number):
                group.create_task(self._renew(number))
            case session.Report():
                group.create_task(self._report(message))
            case session.Started(task=task, attempt=attempt):
                self.outcomes.started(self.identity, task, attempt)
            case session.Progress(task=task, attempt=attempt, line=line):
                self.outcomes.progressed(self.identity, task, attempt, line)
            case session.Leaving():
                group.create_task(self._leaving())
            case session.Hello():
                log.warning("a worker said hello twice", worker=self.name)
            case _:
                began = self.given.get((message.task, message.attempt))
                self._cancelled.discard((message.task, message.attempt))
                seconds = monotonic() - began if began else 0.0
                self.outcomes.settle(self.identity, message, seconds, partial(self._settled, message))

    def _settled(self, message: session.Outcome, settled: Settled | None) -> None:
        self.given.pop((message.task, message.attempt), None)  # not before: a renewal would miss it
        if settled is not None:
            self.send(session.Ack(message.task, message.attempt, bool(settled.counted)))

    async def _renew(self, number: int) -> None:
        try:
            (active,) = await self.store.workers.renew([self.identity])
        except StoreError:
            return  # unanswered, the worker stops by itself before its lease is over
        if active is None:
            raise Fenced(self.name)
        self.send(session.Renewed(number))
        await self._catch_up(active)

    async def _catch_up(self, active: tuple[Active, ...]) -> None:
        missing = [each for each in active if (each.id, each.attempt) not in self.given]
        for assign in await self.outcomes.assigns(missing):
            self.send(assign)
        for each in active:
            if each.cancel:
                self.cancel(each.id, each.attempt)

    def cancel(self, task: str, attempt: int) -> None:
        if (task, attempt) not in self._cancelled:
            self._cancelled.add((task, attempt))
            self.send(session.Cancel(task, attempt, self.config.cancel_grace_s))

    async def _report(self, report: session.Report) -> None:
        with contextlib.suppress(StoreError):  # there will be another
            found = alerts.of(report.readings, self.config.alerts)
            await self.store.workers.report([(self.name, self.epoch, rows.encode(report), found)])

    async def _leaving(self) -> None:
        with contextlib.suppress(StoreError):  # it will be missed soon enough
            await self.store.workers.control(self.name, {"leaving": "1"}, status="leaving")

    async def _send_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._flush()

    async def _flush(self) -> None:
        if self._out:
            said, self._out = self._out, []
            await self.transport.send(session.frame(*said))


def _lasting(hello: session.Hello) -> session.Hello:
    """What of a hello is worth keeping."""
    return msgspec.structs.replace(hello, running=(), unacked=(), resume_epoch=0)

"""One worker's connection: handles the worker's messages in order, and sends messages to it in batches.

Hello ──▶ register ──▶ Welcome ──▶ messages both ways ──▶ connection lost, or this server ends ──▶ suspect
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
from gpu_orchestrator.adapters.store.records import Active, Registration, Renewal, Renewed
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import FinishResult, Row
from gpu_orchestrator.adapters.store.workers import LoadedModel, RegisterResult, Removed
from gpu_orchestrator.api import pieces, session
from gpu_orchestrator.api.cutting import cut
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.fleet import alerts, rows
from gpu_orchestrator.apps.manager.tasks.outcomes import Outcomes
from gpu_orchestrator.apps.manager.workers import tickets
from gpu_orchestrator.apps.manager.workers.session_config import SessionConfig
from gpu_orchestrator.apps.manager.workers.transports import Disconnected, Transport

log = structlog.get_logger()
Attempt = tuple[str, int]
LONGEST_PROBLEM = 1000
"""Characters of a device's problem; more is cut, with a mark."""
ACK_DELAY_S = 0.005
"""No worker waits for an `Ack`, so it goes with the next urgent message, or after this delay."""
READ_AT_ONCE = 4
"""Assignments to read from the store in one answer: each may have parameters of `MAX_REQUEST_MB`."""


class Fenced(Exception):
    """This session is no longer valid: another worker has the name, or the lease expired."""


class WorkerRemoved(Exception):
    """An operator removed the worker."""


class WrongExecutor(Exception):
    """The worker wants its tasks by Celery, and this server does not send any there."""


@dataclass(slots=True, eq=False)
class Session:
    transport: Transport
    store: Store
    outcomes: Outcomes
    config: SessionConfig
    name: str
    key: Key | None = None
    celery: tickets.Celery | None = None
    """Set if this server sends tickets to those workers that want them."""
    epoch: int = 0
    may_be_registered: bool = False
    """Whether the store was asked to register the worker: it may have done so even if the answer was lost."""
    is_leaving: bool = False
    """Whether the worker has said that it leaves."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the session is closed."""
    connection: str = field(default_factory=lambda: uuid4().hex)
    assigned_at: dict[Attempt, float] = field(default_factory=dict)
    _link: pieces.FrameLink = field(default_factory=pieces.FrameLink)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _cancelled: set[Attempt] = field(default_factory=set)
    _claimed: frozenset[Attempt] = frozenset()
    has_models: bool = False
    """Whether the worker loads models; others do not understand messages about them."""
    _pins: tuple[str, ...] | None = None
    _wish: str = ""
    _ack_timer: asyncio.TimerHandle | None = None
    _tickets: tickets.Tickets | None = None

    @property
    def identity(self) -> Renewal:
        return Renewal(self.name, self.epoch, self.connection)

    def send(self, message: session.Message) -> None:
        if isinstance(message, session.Assign):
            self.assigned_at[message.task, message.attempt] = monotonic()
            if len(message.parameters) > pieces.LARGEST - pieces.USUAL:
                return self._fail_too_large(message)
            if self._tickets is not None:
                return self._tickets.issue(message, monotonic())
        self._put(message)
        return None

    def _put(self, message: session.Message) -> None:
        self._link.put(message)
        if not isinstance(message, session.Ack):
            self._wake.set()
        elif self._ack_timer is None:
            self._ack_timer = asyncio.get_running_loop().call_later(ACK_DELAY_S, self._ack_due)

    def pin(self, models: tuple[str, ...]) -> None:
        """Tell the worker which models it must not evict, if that changed."""
        if self.has_models and self.epoch and self._pins != models:
            self._pins = models
            self.send(session.Pins(models))

    def _ack_due(self) -> None:
        self._ack_timer = None
        if self._link.has_messages:
            self._wake.set()

    def _fail_too_large(self, assign: session.Assign) -> None:
        """End an attempt that no worker can receive, such as one of a version that took larger requests."""
        message = f"its parameters have {len(assign.parameters)} bytes; at most {pieces.LARGEST} can be sent"
        failed = session.Failed(assign.task, assign.attempt, session.TaskError("ParametersTooLarge", message))
        self.outcomes.record(self.identity, failed, 0.0, lambda _: None)

    async def register(self) -> RegisterResult:
        """Receive Hello, register the worker and send Welcome; sets the epoch."""
        hello = await self._hello()
        self.may_be_registered = True
        registered = await self.store.workers.register(
            self._registration(
                hello.instance, rows.encode(_without_connection(hello)), hello.resume_epoch, _uuids(hello)
            )
        )
        self.epoch = registered.epoch
        self._link.pieces, self.has_models = hello.pieces, bool(hello.model_types)
        if registered.kind in ("new", "resumed"):
            resumed = registered.kind == "resumed"
            if self.celery is not None and hello.executor == session.CELERY:
                self._tickets = tickets.Tickets(self.name, self.epoch, self.celery)
            if resumed:
                self.assigned_at = {
                    (each.task, each.attempt): monotonic() for each in (*hello.running, *hello.unacked)
                }
                self._claimed = frozenset((each.task, each.attempt) for each in hello.running)
                if self._tickets is not None:
                    self._tickets.redeemed.update(self.assigned_at)
            executor = hello.executor if self._tickets is not None else ""
            self.send(self.config.welcome(self.name, self.epoch, resumed=resumed, executor=executor))
        return registered

    def _registration(self, instance: str, spec: str, epoch: int, uuids: tuple[str, ...]) -> Registration:
        key, is_admin = (self.key.id, self.key.may("admin")) if self.key else ("", False)
        return Registration(
            self.name, instance, spec, self.store.owner, self.connection, epoch, key, int(is_admin), uuids
        )

    async def reclaim(self, row: Row) -> bool:
        """Make this the worker's connection again; return False if the worker has another epoch now."""
        uuids = _uuids(rows.worker_state_of(row).hello)
        registration = self._registration(row["instance"], row["spec"], self.epoch, uuids)
        if row["epoch"] != str(self.epoch) or row["state"] == "offline":
            return False
        if (await self.store.workers.register(registration)).kind != "resumed":
            return False
        await self.resume()
        return True

    async def run(self) -> None:
        """Serve until the connection is lost or the worker is fenced."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_all())
            group.create_task(self._receive_all(group))
            group.create_task(self._until_closed())

    async def _until_closed(self) -> None:
        await self.closed.wait()
        raise Disconnected

    async def _receive_all(self, group: asyncio.TaskGroup) -> None:
        """Receive messages. Runs in its own task: waking up is then cheaper than through all the layers of
        the web framework that opened the connection."""
        await self.resume()
        while True:
            received = await self.transport.receive()
            frame = self._link.receive(received, monotonic())
            if frame is not received and self._link.has_news:
                self._wake.set()
            for message in session.read_by_server(frame) if frame is not None else ():
                self._handle(message, group)

    async def resume(self) -> None:
        """Send again what the worker should have and may have missed. Stop runs that are no longer its own,
        as far as the store knows: it may have lost them in a failover."""
        renewed = await self._renewed()
        for task, attempt in self._claimed - {(each.id, each.attempt) for each in renewed.active}:
            self.cancel(task, attempt)
        self._claimed = frozenset()
        await self._catch_up(renewed)

    async def catch_up(self) -> None:
        """Send what the store has for this worker, as at a renewal."""
        with contextlib.suppress(StoreError):
            await self._catch_up(await self._renewed())

    async def _renewed(self) -> Renewed:
        (renewed,) = await self.store.workers.renew([self.identity])
        if isinstance(renewed, Removed):
            raise WorkerRemoved(self.name)
        if renewed is None:
            raise Fenced(self.name)
        return renewed

    async def _hello(self) -> session.Hello:
        async with asyncio.timeout(self.config.registration_s):
            messages = session.read_by_server(await self.transport.receive())
        if not messages or not isinstance(messages[0], session.Hello) or messages[0].name != self.name:
            raise msgspec.ValidationError(f"the first message must be Hello from {self.name}")
        if messages[0].executor == session.CELERY and self.celery is None:
            raise WrongExecutor(self.name)
        if why := rows.misfit(messages[0]):
            raise msgspec.ValidationError(f"worker {self.name} has impossible resources: {why}")
        return messages[0]

    def _handle(self, message: session.ToServer, group: asyncio.TaskGroup) -> None:
        match message:
            case session.Done():  # the most frequent by far
                self._ended(message)
            case session.Renew(number=number):
                group.create_task(self._renew(number))
            case session.Report():
                group.create_task(self._report(message))
            case session.Started(task=task, attempt=attempt):
                self.outcomes.started(self.identity, task, attempt)
            case session.Progress(task=task, attempt=attempt, line=line):
                self.outcomes.progressed(self.identity, task, attempt, line)
            case session.Log():
                self.outcomes.logged(self.identity, message)
            case session.Values():
                self.outcomes.sent(self.identity, message, self.send)
            case session.Redeem():
                group.create_task(self._redeem(message))
            case session.Leaving():
                self.is_leaving = True  # it may disconnect before the next line is done
                group.create_task(self._leaving())
            case session.Hello():
                log.warning("a worker said hello twice", worker=self.name)
            case _:
                self._ended(message)

    def _ended(self, message: session.Outcome) -> None:
        key = message.task, message.attempt
        began = self.assigned_at.get(key)
        self._cancelled.discard(key)
        seconds = monotonic() - began if began else 0.0
        self.outcomes.record(self.identity, message, seconds, partial(self._recorded, message))

    def _recorded(self, message: session.Outcome, result: FinishResult | None) -> None:
        # Not earlier: a renewal would send the task again.
        self.assigned_at.pop((message.task, message.attempt), None)
        if self._tickets is not None:
            self._tickets.ended((message.task, message.attempt))
        if result is not None:
            self.send(session.Ack(message.task, message.attempt, bool(result.counted)))

    async def _renew(self, number: int) -> None:
        try:
            renewed = await self._renewed()
        except StoreError:
            return  # without an answer the worker stops by itself before its lease expires
        self.send(session.Renewed(number))
        await self._catch_up(renewed)

    async def _catch_up(self, renewed: Renewed) -> None:
        await self._repeat(renewed.wish)
        for each in renewed.active:
            if each.cancel:
                self.cancel(each.id, each.attempt)
        missing = [each for each in renewed.active if (each.id, each.attempt) not in self.assigned_at]
        for first in range(0, len(missing), READ_AT_ONCE):
            for assign in await self.outcomes.assigns(self.identity, missing[first : first + READ_AT_ONCE]):
                if (assign.task, assign.attempt) not in self.assigned_at:
                    self.send(assign)
        for task, attempt in self._tickets.again(monotonic()) if self._tickets is not None else ():
            self._ended(session.Refused(task, attempt, tickets.UNREAD))

    async def _redeem(self, asked: session.Redeem) -> None:
        """Send the assignment of a ticket, as the store has it, or say that the ticket is void."""
        if self._tickets is None:
            return None
        key = (asked.task, asked.attempt)
        why = self._tickets.redeem(asked, self.assigned_at)
        try:
            active = [] if why else [Active(*key, cancel=0)]
            found = await self.outcomes.assigns(self.identity, active)
        except StoreError:
            self._tickets.take_back(key)
            return self._void(asked, tickets.STORE)
        for assign in found:
            return self._put(self._tickets.delivered(assign))
        if not why:  # it has ended meanwhile, or could not begin
            self.assigned_at.pop(key, None)
            self._tickets.ended(key)
        return self._void(asked, why or tickets.OLD)

    def _void(self, asked: session.Redeem, why: str) -> None:
        if self._tickets is not None:
            self._tickets.celery.void(why)
        self.send(session.Void(asked.number, why))

    async def _repeat(self, wish: str) -> None:
        """Tell the worker what an operator wishes of it. The message sent at the time may have been lost."""
        if self.is_leaving and wish != "leave":
            await self._leaving()  # an operator cannot call back a worker that already leaves
        elif wish == "leave" and not self.is_leaving:
            self.send(session.Drain(leave=True))
        elif wish == "drain" and self._wish != wish:
            self.send(session.Drain())
        self._wish = wish

    def cancel(self, task: str, attempt: int) -> None:
        if (task, attempt) not in self._cancelled:
            self._cancelled.add((task, attempt))
            self.send(session.Cancel(task, attempt, self.config.cancel_grace_s))

    async def _report(self, report: session.Report) -> None:
        with contextlib.suppress(StoreError):  # the next report follows soon
            report = _shortened(report)
            found = alerts.of(report.readings, self.config.alerts)
            loaded = [
                LoadedModel(each.number, each.model, each.devices, each.load_s, each.used_mib)
                for each in report.copies
                if each.is_loaded
            ]
            await self.store.workers.report([(self.name, self.epoch, rows.encode(report), found, loaded)])

    async def _leaving(self) -> None:
        with contextlib.suppress(StoreError):  # then its lease expires soon
            await self.store.workers.control(self.name, {"leaving": "1"}, status="leaving")

    async def _send_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._flush()

    async def _flush(self) -> None:
        while (frame := self._link.next(monotonic())) is not None:
            await self.transport.send(frame)


def _uuids(hello: session.Hello) -> tuple[str, ...]:
    return tuple(each.uuid for each in hello.devices if each.uuid)


def _shortened(report: session.Report) -> session.Report:
    """Return the report with problems within the bound of this server."""
    if all(len(each.problem) <= LONGEST_PROBLEM for each in report.readings):
        return report
    readings = tuple(
        msgspec.structs.replace(each, problem=cut(each.problem, LONGEST_PROBLEM)) for each in report.readings
    )
    return msgspec.structs.replace(report, readings=readings)


def _without_connection(hello: session.Hello) -> session.Hello:
    """Return the hello without the parts that concern only this connection."""
    return msgspec.structs.replace(hello, running=(), unacked=(), resume_epoch=0, pieces=False)

"""The worker's main process: keeps the session with the manager and the lease, and drains before it ends.

Started by `main`. It never imports CUDA: only its runners use the devices.
"""

import asyncio
import os
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

import aiohttp
import msgspec
import structlog

from gpu_orchestrator import __version__
from gpu_orchestrator.adapters import tls
from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.adapters.gpus.gpu import Gpus
from gpu_orchestrator.api import session, tickets
from gpu_orchestrator.apps.worker.attempt import Attempt
from gpu_orchestrator.apps.worker.attempts.attempt_files import FileCallbacks
from gpu_orchestrator.apps.worker.attempts.attempt_output import LogCallbacks
from gpu_orchestrator.apps.worker.attempts.attempt_values import ValueCallbacks
from gpu_orchestrator.apps.worker.attempts.attempts import AgentCallbacks, Attempts
from gpu_orchestrator.apps.worker.desk import Desk, DeskCallbacks, Key, told_of
from gpu_orchestrator.apps.worker.handlers import find
from gpu_orchestrator.apps.worker.runners.model_cache import ModelCache
from gpu_orchestrator.apps.worker.runners.mps import MpsDaemons, find_program
from gpu_orchestrator.apps.worker.runners.runner_pool import RunnerPool
from gpu_orchestrator.apps.worker.session import system
from gpu_orchestrator.apps.worker.session.connection import (
    CONNECT_S,
    SHORT_CONNECT_S,
    Connection,
    NotWanted,
    TokenRefused,
    words,
)
from gpu_orchestrator.apps.worker.session.lease import Lease
from gpu_orchestrator.apps.worker.session.report import Reporter
from gpu_orchestrator.apps.worker.session.requests import Requests
from gpu_orchestrator.apps.worker.session.servers import Servers
from gpu_orchestrator.apps.worker.settings import Settings
from gpu_orchestrator.engine import backoff

TICK_S = 0.25
WAIT_JITTER = 0.5
LAST_OUTCOMES_S = 5.0
SAY_EVERY_S = 30.0
REFUSED_S = 15.0
"""How long to try while the manager refuses this worker. Longer than a usual lease: the name may still be
held by a worker that has just died with its manager."""

log = structlog.get_logger()


class Agent:
    """Keep one session with the manager, and run what it assigns.

    joining --Welcome--> joined --connection lost--> joining (runners continue while the lease lasts)
                           |--server ends as planned--> joining (the lease lasts longer)
                           |--lease expired--> all runners killed (or kept: `--on-disconnect keep`), joining
                           '--leave--> draining --last outcome acknowledged--> ended
    """

    def __init__(self, settings: Settings, gpus: Gpus) -> None:
        self._settings, self._gpus = settings, gpus
        self._instance = uuid4().hex
        self._servers = Servers(settings.servers)
        self._requests = Requests(settings, self._servers)
        self._connection = Connection(settings.token, self._receive)
        self._lease = Lease()
        self._mps = MpsDaemons(find_program(), settings.run_as) if settings.sharing == session.MPS else None
        self._pool = RunnerPool(
            gpus,
            settings.options,
            processes=settings.processes,
            idle_s=settings.idle_s,
            shares_owners=settings.share_runners,
            mps=self._mps,
            user=settings.run_as,
            is_pinned=lambda model: self._models.is_pinned(model),
        )
        self._models = ModelCache(self._pool, settings.cache, elapsed_s, self._report)
        self._reporter = Reporter(gpus, self._pool, self._models)
        logs = LogCallbacks(self._log_bytes, lambda: self._is_joined, self._connection.send)
        values = ValueCallbacks(self._takes_values, lambda: self._is_joined, self._connection.send)
        self._attempts = Attempts(
            self._pool,
            self._models,
            AgentCallbacks(
                self._check_lease,
                self._has_room,
                self._no_room_reason,
                self._connection.send,
                logs,
                values,
                FileCallbacks(self._requests, settings.run_as),
            ),
        )
        self._desk = self._opened_desk() if settings.desk is not None else None
        self._welcome: session.Welcome | None = None
        self._is_joined = False
        self._hello_at = self._renew_at = 0.0
        self._leaving = asyncio.Event()
        self._rejection = self._refusal = self._goodbye = ""
        self._said: dict[str, tuple[str, float]] = {}
        self._refused_at: float | None = None

    async def run(self) -> None:
        """Run until asked to leave. Raise `NotWanted` if the manager rejects this worker."""
        devices = self._gpus.devices()
        servers = ", ".join(self._settings.servers)
        log.info("worker starts", name=self._settings.name, devices=len(devices), server=servers)
        if os.geteuid() == 0 and self._settings.run_as is None:
            log.warning("tasks run as root and can read everything here; give --run-as USER")
        if not devices:
            log.warning("no GPU found; only tasks that need none run here (--simulate 4 describes some)")
        if self._mps is not None:
            await self._mps.check()
        async with aiohttp.ClientSession(connector=self._connector()) as http:
            self._requests.http = http
            joining = asyncio.create_task(self._stay_joined(http))
            ticking = asyncio.create_task(self._tick())
            leaving = asyncio.create_task(self._leave())
            tasks = [joining, ticking, leaving]
            if self._desk is not None:
                tasks.append(asyncio.create_task(self._desk.serve()))
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await self._end(*tasks)
        log.info("worker ends", name=self._settings.name)

    def _connector(self) -> aiohttp.TCPConnector:
        is_tls = any(each.startswith("https:") for each in self._settings.servers)
        return aiohttp.TCPConnector(ssl=tls.client(self._settings.ca) if is_tls else True)

    def leave(self) -> None:
        """Finish running attempts, refuse new ones, then end. A second call ends the worker at once."""
        if self._leaving.is_set():
            self._attempts.fail_all(
                session.TaskError("WorkerLeft", "the worker was asked to end at once", True)
            )
        self._leaving.set()

    # --- the session ---------------------------------------------------------------------------------------

    async def _stay_joined(self, http: aiohttp.ClientSession) -> None:
        connect_s = CONNECT_S if len(self._servers.urls) == 1 else SHORT_CONNECT_S
        while True:
            self._refusal = self._goodbye = ""
            url = self._settings.session_url(self._servers.current)
            try:
                await self._connection.run(http, url, self._hello, connect_s)
                why = self._goodbye or "the server closed the connection"
            except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError) as error:
                why = words(error)
            except NotWanted as error:
                if self._servers.refused(str(error)) and self._welcome is None:
                    raise
                why = str(error)
                self._refusal = why if isinstance(error, TokenRefused) else ""
            if self._rejection:
                raise NotWanted(self._rejection)
            self._give_up_if_refused()
            self._say_disconnected(why)
            if self._is_joined:
                self._servers.joined()
            wait_s, self._is_joined = self._servers.next(), False
            await asyncio.sleep(backoff.jittered(wait_s, WAIT_JITTER, random))

    def _say_disconnected(self, why: str) -> None:
        """Log why there is no session: at once, and then every `SAY_EVERY_S` while it stays the same."""
        time, server = elapsed_s(), self._servers.current
        said, said_at = self._said.get(server, ("", 0.0))
        if self._is_joined:
            log.info("connection lost, connecting again", why=why, server=server)
        elif why != said or time - said_at > SAY_EVERY_S:
            log.info("not connected, trying again", why=why, server=server)
        else:
            return
        self._said[server] = why, time

    def _give_up_if_refused(self) -> None:
        """Raise once the manager has refused this worker for `REFUSED_S` without a break."""
        if not self._refusal:
            self._refused_at = None
            return
        if self._refused_at is None:
            self._refused_at = elapsed_s()
            log.warning("the server refuses this worker", reason=self._refusal, tried_for_s=REFUSED_S)
        if elapsed_s() - self._refused_at > REFUSED_S:
            raise NotWanted(self._refusal)

    def _hello(self) -> session.Hello:
        self._hello_at = elapsed_s()
        return session.Hello(
            name=self._settings.name,
            instance=self._instance,
            devices=self._reporter.devices(),
            task_types=find.task_types(self._settings.options),
            system_info=system.read(),
            labels=self._settings.labels,
            pool=self._settings.pool,
            max_concurrent=self._settings.max_concurrent,
            version=__version__,
            sharing=self._settings.sharing,
            resume_epoch=self._welcome.epoch if self._welcome else 0,
            running=self._attempts.attempts(),
            unacked=tuple(session.Attempt(each.task, each.attempt) for each in self._attempts.unacked()),
            on_disconnect="keep" if self._keeps else "stop",
            pieces=True,
            executor=session.CELERY if self._desk else "",
            model_types=tuple(sorted(self._settings.options.models)),
            most_models=self._settings.cache.most if self._settings.options.models else 0,
            address=self._settings.address or self._connection.own_address or socket.gethostname(),
        )

    def _receive(self, message: session.ToWorker) -> None:
        match message:
            case session.Assign():
                self._assigned(message)
            case session.Ack():
                self._acknowledged(message)
            case session.Taken():
                self._attempts.taken(message)
            case session.Void():
                self._void(message)
            case session.Renewed(number):
                if self._lease.renewal_granted(number):
                    self._prolong()
            case session.Cancel():
                self._attempts.cancel(message)
            case session.Welcome():
                self._welcomed(message)
            case session.Pins() | session.Preload() | session.Unload() | session.Drain():
                self._commanded(message)
            case session.Goodbye():
                self._goodbye_received(message)

    def _assigned(self, assign: session.Assign) -> None:
        if self._desk is not None:
            self._desk.assigned((assign.task, assign.attempt))
        self._attempts.assign(assign, loads_model=assign.task_type in self._settings.options.models)

    def _void(self, void: session.Void) -> None:
        if self._desk is not None:
            self._desk.void(void)

    def _acknowledged(self, ack: session.Ack) -> None:
        key = (ack.task, ack.attempt)
        if self._desk is not None and (ended := self._attempts.outcome(key)) is not None:
            self._desk.ended(key, ended, counted=ack.accepted)
        self._attempts.ack(ack)

    def _commanded(self, message: session.Pins | session.Preload | session.Unload | session.Drain) -> None:
        """Do what an operator wishes."""
        match message:
            case session.Pins(models):
                self._models.pin(models)
                self._report()
            case session.Preload():
                if message.task_type in self._settings.options.models and not self._leaving.is_set():
                    self._attempts.preload(message, self._reporter.missing_mib)
            case session.Unload(model, force):
                self._attempts.unload(model, force=force)
            case session.Drain(leave):
                self._attempts.refuse_waiting("the worker drains")
                if leave:
                    self._leaving.set()

    def _welcomed(self, welcome: session.Welcome) -> None:
        if self._desk is not None and welcome.executor != session.CELERY:
            self._rejection = "the server is of a version that sends no tasks by Celery; upgrade it first"
            return self._connection.close()
        if not welcome.resumed:
            self._stop()
            self._attempts.forget_outcomes()
        self._lease.begin(welcome.lease_s, self._hello_at)
        self._prolong()
        self._reporter.heartbeat_s = welcome.heartbeat_s
        self._welcome, self._is_joined = welcome, True
        self._renew_at = self._hello_at + welcome.renew_every_s
        log.info("joined", worker_id=welcome.worker_id, epoch=welcome.epoch, resumed=welcome.resumed)
        self._connection.send(self._reporter.report(elapsed_s()))
        self._attempts.joined()
        if self._desk is not None:
            self._desk.joined()
        if self._leaving.is_set():
            self._connection.send(session.Leaving())
        return None

    def _stop(self) -> None:
        """Kill all runners: their attempts are no longer this worker's."""
        self._attempts.stop()
        if self._desk is not None:
            self._desk.lost()

    def _log_bytes(self) -> int:
        """Return how much of an attempt's log the manager takes; 0 for an older manager, which takes none."""
        return self._welcome.log_kb * 1024 if self._welcome else 0

    def _takes_values(self) -> bool:
        """Return whether the manager keeps partial results; an older one does not know them."""
        return self._welcome is not None and self._welcome.takes_values

    def _goodbye_received(self, goodbye: session.Goodbye) -> None:
        self._goodbye = goodbye.reason
        if goodbye.refused:
            self._refusal = goodbye.reason
        if goodbye.hold_s:
            self._lease.hold(goodbye.hold_s)
            self._prolong()
        if goodbye.fenced:
            log.warning("the server took this worker's tasks back", reason=goodbye.reason)
            self._stop()
            self._attempts.forget_outcomes()
            self._welcome = None
        if not goodbye.retry:
            self._rejection = goodbye.reason
        self._connection.close()

    # --- Celery ---------------------------------------------------------------------------------------------

    def _opened_desk(self) -> Desk:
        assert self._settings.desk is not None  # noqa: S101
        attached = tickets.Attached(self._settings.name, self._settings.max_concurrent)
        callbacks = DeskCallbacks(
            lambda key: self._attempts.has(key), self._cancel, self._connection.send, self.leave, self._tell
        )
        return Desk(self._settings.desk, attached, callbacks)

    def _cancel(self, key: Key) -> None:
        self._attempts.cancel(session.Cancel(*key))

    def _tell(self, what: str) -> dict[str, object]:
        """Answer a management task of Celery."""
        known: dict[str, object] = {"worker": self._settings.name, "joined": self._is_joined}
        if what == "drain":
            self.leave()
            return known | {"drains": True}
        if what == "ping":
            return known
        epoch = self._welcome.epoch if self._welcome else 0
        report = self._reporter.report(elapsed_s())
        return known | told_of(
            what, report, self._attempts.attempts(), is_joined=self._is_joined, epoch=epoch
        )

    # --- timers --------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self._tick_once(elapsed_s())
            except Exception:
                log.exception("a moment of the worker failed")

    def _tick_once(self, time: float) -> None:
        self._check_lease()
        self._pool.tidy(asyncio.get_running_loop().time())
        self._models.tidy()
        if self._is_joined and self._welcome:
            self._renew(time, self._welcome.renew_every_s)
            if (report := self._reporter.due(time)) is not None:
                self._connection.send(report)

    @property
    def _keeps(self) -> bool:
        return self._settings.on_disconnect == "keep"

    def _prolong(self) -> None:
        """Tell the keepers how long their runners may run. A worker that keeps its tasks sets no limit: the
        store decides later whether their outcomes count."""
        self._pool.prolong(float("inf") if self._keeps else self._lease.until)

    def _check_lease(self) -> None:
        """Kill all runners if the lease has expired: the manager may run their attempts elsewhere by now."""
        if not self._keeps and self._lease.is_over(elapsed_s()) and self._attempts.attempts():
            log.warning("lease over, all runners are killed", running=len(self._attempts.attempts()))
            self._stop()
            self._connection.close()

    def _renew(self, time: float, every_s: float) -> None:
        if time >= self._renew_at:
            self._renew_at = time + every_s
            if self._is_silent(time, every_s):
                log.warning("a renewal was not answered, connecting again")
                self._connection.close()
            else:
                self._connection.send(session.Renew(self._lease.renewal_sent(time)))

    def _is_silent(self, time: float, every_s: float) -> bool:
        """Return whether a renewal has no answer and the server should be given up. On a slow link the answer
        may be late while pieces of a large message still arrive: then it has a second chance."""
        unanswered_s = self._lease.unanswered_s(time)
        is_heard = time - self._connection.heard_at < every_s * 0.5
        return unanswered_s >= every_s * (1.9 if is_heard else 0.9)

    def _report(self) -> None:
        if self._is_joined:
            self._connection.send(self._reporter.report(elapsed_s()))

    def _has_room(self, attempt: Attempt) -> bool:
        return self._models.make_room(attempt, self._reporter.missing_mib)

    def _no_room_reason(self, attempt: Attempt) -> str:
        """Return why the devices have no room for an attempt, or "". First report the readings behind it."""
        if reason := self._reporter.no_room_reason(attempt):
            self._connection.send(self._reporter.report(elapsed_s()))
        return reason

    # --- the end -------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        await self._leaving.wait()
        log.info("worker leaves", running=len(self._attempts.attempts()))
        self._attempts.refuse_all("the worker leaves")
        self._connection.send(session.Leaving())
        await self._until(lambda: self._attempts.is_over, self._settings.drain_s)
        if self._attempts.attempts():
            message = f"the worker left and waited {self._settings.drain_s:g} s"
            self._attempts.fail_all(session.TaskError("WorkerLeft", message, retryable=True))
        await self._until(lambda: self._attempts.is_over, LAST_OUTCOMES_S)
        if within_s := self._pool.end():
            await self._until(lambda: not self._pool.has_servers, within_s)

    async def _until(self, is_true: Callable[[], bool], within_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not is_true():
                    self._attempts.changed.clear()
                    await self._attempts.changed.wait()

    async def _end(self, *tasks: "asyncio.Task[None]") -> None:
        self._attempts.stop()
        first = next((task for task in tasks if task.done()), None)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A process that hangs in a driver is left to its keeper.
        await self._until(lambda: not self._pool.all(), LAST_OUTCOMES_S)
        self._pool.close()
        self._attempts.close()
        self._gpus.close()
        if first is not None:
            first.result()

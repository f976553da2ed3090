"""Sessions of the workers that are connected to this process; forwards messages for workers connected to
others."""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
import structlog

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.records import Renewal
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.api import pieces, session
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.tasks.outcomes import Outcomes
from gpu_orchestrator.apps.manager.workers.session import Fenced, Session, WorkerRemoved, WrongExecutor
from gpu_orchestrator.apps.manager.workers.session_config import SessionConfig
from gpu_orchestrator.apps.manager.workers.tickets import Celery
from gpu_orchestrator.apps.manager.workers.transports import Disconnected, Transport

log = structlog.get_logger()

KEY_INVALID = "the key of this worker was revoked or has expired"
GOODBYE_S = 1.0
HAND_OVER_S = 2.0
MOST_RUNNING = 10_000
FENCED = "this worker's lease expired, or another worker has its name"
CREATE = "gpu-orchestrator key create {name} --scope worker --worker {name}"
SERVER_ENDS = "the server ends"
REMOVED = session.Goodbye("removed", fenced=True, retry=False)
NOT_BY_CELERY = session.Goodbye(
    "this server sends no tasks by Celery; start it with EXECUTOR=celery, or join with "
    "`gpu-orchestrator worker` instead of `celery worker`",
    retry=False,
)
REFUSALS = {
    "taken": "a worker of this name is connected; start this one with another --name",
    "full": "MAX_WORKERS workers are registered; raise it or remove one",
    "bound": "this token is for the worker {other}; start this one with --name {other}, "
    f"or create a token for it: {CREATE}",
    "owned": "the name {name} belongs to key {other}; start this worker with another --name, "
    "remove the old one with `gpu-orchestrator worker remove {name}`, "
    f"or create a token for this name: {CREATE}",
    "device": "the worker {other} has the device {uuid} already; "
    "stop that one, or start this one without the device",
}
FINAL_REFUSALS = ("bound",)
"""Those that trying again cannot change."""


class ForwardedFrame(msgspec.Struct, frozen=True, array_like=True):
    """A frame for a worker that is connected to another process; `epoch` as in `Sessions.send`. An empty
    frame stands for a message that is too large to be published: the store has it."""

    worker: str
    frame: bytes
    epoch: int = 0


_forwarded = msgspec.msgpack.Decoder(ForwardedFrame)
_encode = msgspec.msgpack.Encoder().encode


class Sessions:
    """All open sessions; `on_registered` is called when a worker has registered or was refused. `celery`
    sends tickets to the workers that want them. `pins_on` returns the models that a worker must not evict."""

    def __init__(
        self,
        store: Store,
        outcomes: Outcomes,
        config: SessionConfig,
        on_registered: Callable[[], None],
        celery: Celery | None = None,
        pins_on: Callable[[str], tuple[str, ...]] = lambda _: (),
    ) -> None:
        self._celery, self._pins_on = celery, pins_on
        self._store, self._outcomes, self._config = store, outcomes, config
        self._on_registered = on_registered
        self._open: dict[str, Session] = {}
        self._background = BackgroundTasks()
        self._is_ending = False

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, transport: Transport, name: str, key: Key | None = None) -> None:
        """Serve one worker's connection from Hello to its end."""
        connected = Session(transport, self._store, self._outcomes, self._config, name, key, self._celery)
        if self._is_ending:
            return await self._close(connected, session.Goodbye(SERVER_ENDS))
        try:
            await self._serve(connected)
        except* (Disconnected, TimeoutError):
            pass
        except* msgspec.MsgspecError as group:
            await self._close(
                connected, session.Goodbye(f"not understood: {group.exceptions[0]}", retry=False)
            )
        except* StoreError:
            await self._close(connected, session.Goodbye("the store does not answer"))
        except* Fenced:
            await self._close(connected, session.Goodbye(FENCED, fenced=True))
        except* WorkerRemoved:
            await self._close(connected, REMOVED)
        except* WrongExecutor:
            await self._close(connected, NOT_BY_CELERY)
        except* Exception:
            log.exception("a worker's session failed", worker_id=name)
            await self._close(connected, session.Goodbye("something went wrong here; the log has it"))
        finally:
            await self._ended(connected)

    def send(self, worker: str, api: str, message: session.Message, epoch: int = 0) -> None:
        """Send a message to a worker, through another process if it is connected there. A message lost on the
        way is sent again with the next renewal. With `epoch`, only a worker of that epoch gets it: after a
        restart a worker no longer owns tasks assigned before."""
        here = self._open.get(worker)
        if here is not None and epoch in (0, here.epoch):
            here.send(message)
        elif api and api != self._store.owner:
            frame = session.frame(message) if pieces.weight(message) <= pieces.WHOLE else b""
            self._background.start(self._publish(api, ForwardedFrame(worker, frame, epoch)))

    def tell_pins(self) -> None:
        """Tell the workers connected here which models they must not evict, where that changed."""
        for name, here in self._open.items():
            if here.has_models:
                here.pin(self._pins_on(name))

    def cancel(self, worker: str, api: str, task: str, attempt: int) -> None:
        if (here := self._open.get(worker)) is not None:
            here.cancel(task, attempt)
        else:
            self.send(worker, api, session.Cancel(task, attempt, self._config.cancel_grace_s))

    def deliver(self, forwarded: bytes) -> None:
        """Pass on a frame from another process to a worker that is connected here."""
        read = _forwarded.decode(forwarded)
        here = self._open.get(read.worker)
        if here is None or read.epoch not in (0, here.epoch):
            return
        if not read.frame:
            self._background.start(self._caught_up(here))
            return
        for message in session.read_by_worker(read.frame):
            here.send(message)

    async def adopted(self, name: str, epoch: int, key: Key) -> session.Hello | None:
        """Return a Hello that resumes the session of a polling worker that another process has had: a load
        balancer may bring each of its heartbeats to another one. None if the store has no such session."""
        (row,) = await self._store.workers.fetch([name])
        if row is None or row["epoch"] != str(epoch) or row["state"] == "offline":
            return None
        if row.get("joined_with") != key.id:
            return None
        known = rows.worker_state_of(row).hello
        began = await self._store.tasks.page(states=("running",), worker=name, offset=0, limit=MOST_RUNNING)
        attempts = zip(began.ids, await self._store.tasks.fetch(began.ids), strict=True)
        running = tuple(session.Attempt(task, int(each["attempt"])) for task, each in attempts if each)
        return msgspec.structs.replace(known, resume_epoch=epoch, running=running)

    async def reclaim(self, name: str) -> bool:
        """Take the session of a polling worker back from the process that adopted it meanwhile. Return False
        if the worker must register again."""
        here, (row,) = self._open.get(name), await self._store.workers.fetch([name])
        if here is None or row is None:
            return False
        return row["connection"] == here.connection or await here.reclaim(row)

    def disconnect_keys(self, is_invalid: Callable[[Key], bool]) -> None:
        """Disconnect workers whose key is no longer valid."""
        for each in list(self._open.values()):
            if each.key is not None and is_invalid(each.key):
                self._background.start(
                    self._close(each, session.Goodbye(KEY_INVALID, fenced=True, retry=False))
                )

    async def close(self) -> None:
        """End all sessions because this server ends, and accept no more. The workers keep what they run: they
        get the term of a planned restart to join another server, or this one again."""
        self._is_ending = True
        is_held = await self._hand_over([each.identity for each in self._open.values()])
        for each in self._open.values():
            each.may_be_registered = not is_held
        goodbye = session.Goodbye(SERVER_ENDS, hold_s=self._config.hold_s if is_held else 0.0)
        await asyncio.gather(*(self._close(each, goodbye) for each in self._open.values()))

    async def _serve(self, connected: Session) -> None:
        registered = await connected.register()
        self._on_registered()
        if registered.kind in REFUSALS:
            why = REFUSALS[registered.kind].format(
                name=connected.name, uuid=registered.uuid, other=registered.other
            )
            key = connected.key.id if connected.key else ""
            log.warning(
                "a worker was refused", worker_id=connected.name, reason=registered.kind, key=key, why=why
            )
            retry = registered.kind not in FINAL_REFUSALS
            return await self._close(connected, session.Goodbye(why, refused=True, retry=retry))
        before = self._open.get(connected.name)
        self._open[connected.name] = connected
        connected.pin(self._pins_on(connected.name))
        if before is not None:
            self._background.start(
                self._close(before, session.Goodbye("there is a newer connection", fenced=True))
            )
        log.info("worker connected", worker_id=connected.name, epoch=registered.epoch, how=registered.kind)
        return await connected.run()

    async def _ended(self, connected: Session) -> None:
        if self._open.get(connected.name) is connected:
            del self._open[connected.name]
        if connected.epoch:
            log.info("worker disconnected", worker_id=connected.name, epoch=connected.epoch)
        if connected.may_be_registered and self._is_ending:
            await self._hand_over([connected.identity])
        elif connected.may_be_registered:
            with contextlib.suppress(StoreError):  # then its lease expires
                await self._store.workers.disconnect(connected.identity, leaving=connected.is_leaving)

    async def _hand_over(self, connections: list[Renewal]) -> bool:
        """Give these workers the term of a planned restart; return False if the store does not answer."""
        try:
            async with asyncio.timeout(HAND_OVER_S):
                await self._store.workers.hand_over(connections)
        except (StoreError, TimeoutError):
            return False
        return True

    async def _caught_up(self, connected: Session) -> None:
        with contextlib.suppress(Fenced, WorkerRemoved):  # the next renewal tells the worker
            await connected.catch_up()

    async def _close(self, connected: Session, goodbye: session.Goodbye) -> None:
        """Send Goodbye and close; give up after `GOODBYE_S`."""
        with contextlib.suppress(Disconnected, TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await connected.transport.send(session.frame(goodbye))
                await connected.transport.close()
        connected.closed.set()

    async def _publish(self, api: str, forwarded: ForwardedFrame) -> None:
        with contextlib.suppress(StoreError):
            await self._store.database.publish(f"api:{api}", _encode(forwarded))

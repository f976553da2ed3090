"""All workers that are connected to this process, and the way to those that are connected to another."""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
import structlog

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.tasks.outcomes import Outcomes
from gpu_orchestrator.apps.manager.workers.session import Fenced, Session
from gpu_orchestrator.apps.manager.workers.session_config import SessionConfig
from gpu_orchestrator.apps.manager.workers.transports import Disconnected, Transport

log = structlog.get_logger()

KEY_OVER = "the key of this worker was revoked or has expired"
GOODBYE_S = 1.0
FENCED = "this worker's lease was over, or another has its name"
REFUSALS = {
    "taken": "a worker of this name is connected; give this one another --name",
    "full": "MAX_WORKERS workers are registered; raise it or remove one",
}


class Letter(msgspec.Struct, frozen=True, array_like=True):
    """A frame for a worker that another process is connected to; `epoch` is as of `Sessions.to`."""

    worker: str
    frame: bytes
    epoch: int = 0


_letters = msgspec.msgpack.Decoder(Letter)
_encode = msgspec.msgpack.Encoder().encode


class Sessions:
    """`came` is called when a worker is connected."""

    def __init__(
        self, store: Store, outcomes: Outcomes, config: SessionConfig, came: Callable[[], None]
    ) -> None:
        self._store, self._outcomes, self._config, self._came = store, outcomes, config, came
        self._open: dict[str, Session] = {}
        self._background = BackgroundTasks()

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, transport: Transport, name: str, key: Key | None = None) -> None:
        """One worker's connection from hello to its end."""
        connected = Session(transport, self._store, self._outcomes, self._config, name, key)
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
        except* Exception:
            log.exception("a worker's session failed", worker_id=name)
            await self._close(connected, session.Goodbye("something went wrong here; the log has it"))
        finally:
            await self._part(connected)

    def to(self, worker: str, api: str, message: session.Message, epoch: int = 0) -> None:
        """To a worker, wherever it is connected. What is lost on the way is said again with a renewal. What
        is for one `epoch` of it is not for the next: a task given to it before it started anew is no longer
        its own."""
        here = self._open.get(worker)
        if here is not None and epoch in (0, here.epoch):
            here.send(message)
        elif api and api != self._store.owner:
            self._background.start(self._publish(api, Letter(worker, session.frame(message), epoch)))

    def cancel(self, worker: str, api: str, task: str, attempt: int) -> None:
        if (here := self._open.get(worker)) is not None:
            here.cancel(task, attempt)
        else:
            self.to(worker, api, session.Cancel(task, attempt, self._config.cancel_grace_s))

    def deliver(self, letter: bytes) -> None:
        """What another process has for a worker of ours."""
        read = _letters.decode(letter)
        here = self._open.get(read.worker)
        if here is not None and read.epoch in (0, here.epoch):
            for message in session.read_by_worker(read.frame):
                here.send(message)

    def part_from(self, is_over: Callable[[Key], bool]) -> None:
        """From workers whose key may not be used any more."""
        for each in list(self._open.values()):
            if each.key is not None and is_over(each.key):
                self._background.start(self._close(each, session.Goodbye(KEY_OVER, fenced=True, retry=False)))

    async def close(self) -> None:
        goodbye = session.Goodbye("the server ends")
        await asyncio.gather(*(self._close(each, goodbye) for each in self._open.values()))

    async def _serve(self, connected: Session) -> None:
        greeting = await connected.greet()
        self._came()
        if greeting.kind in REFUSALS:
            log.warning("a worker was refused", worker_id=connected.name, reason=greeting.kind)
            return await self._close(connected, session.Goodbye(REFUSALS[greeting.kind]))
        before = self._open.get(connected.name)
        self._open[connected.name] = connected
        if before is not None:
            self._background.start(
                self._close(before, session.Goodbye("there is a newer connection", fenced=True))
            )
        log.info("worker connected", worker_id=connected.name, epoch=greeting.epoch, how=greeting.kind)
        return await connected.run()

    async def _part(self, connected: Session) -> None:
        if self._open.get(connected.name) is connected:
            del self._open[connected.name]
        if connected.epoch:
            log.info("worker disconnected", worker_id=connected.name, epoch=connected.epoch)
        if connected.has_asked:
            with contextlib.suppress(StoreError):  # then its lease runs out
                await self._store.workers.disconnect(connected.identity)

    async def _close(self, connected: Session, last_word: session.Goodbye) -> None:
        """Who does not take our last word in time is parted from without it."""
        with contextlib.suppress(Disconnected, TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await connected.transport.send(session.frame(last_word))
                await connected.transport.close()
        connected.over.set()

    async def _publish(self, api: str, letter: Letter) -> None:
        with contextlib.suppress(StoreError):
            await self._store.database.publish(f"api:{api}", _encode(letter))

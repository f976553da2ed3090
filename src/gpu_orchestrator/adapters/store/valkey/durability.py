"""Group commit for DURABILITY=strict: one WAITAOF for everything that was written before it.

Writes run at once, on the connection of all. A caller that acknowledges one waits here until it is on the
disk of the primary and of as many replicas as are asked for. WAITAOF blocks its connection and counts that
connection's own writes only, so each group writes a little key of its own first, on a second connection, and
waits there: what ran on the server before that key is then as safe as the key. Callers that come meanwhile
form the next group.

A group counts only if its server has had the same history since the writes: see `history_in`.
"""

import asyncio
from typing import Any

import structlog

from gpu_orchestrator.adapters.store.errors import NotDurable
from gpu_orchestrator.adapters.store.valkey.client import Client
from gpu_orchestrator.adapters.store.valkey.dial import history_in
from gpu_orchestrator.adapters.store.valkey.resp import Lost, Refused
from gpu_orchestrator.adapters.store.valkey.scripts import small_write

log = structlog.get_logger()

WAIT_S = 5.0
"""How long a group may take; with `appendfsync everysec` on both sides two seconds are ordinary."""
LINKS, APART_S = 4, 0.2
"""Groups under way at once, each on its own connection, and the least time between their starts: a group that
starts just after another would wait for the same fsync."""
RETRY_S = 0.5
KEY = "durable"

_Waiter = tuple[str, "asyncio.Future[None]"]


class Durability:
    """Waits until writes are on disk. `trouble` says why they cannot be now; empty while they can."""

    def __init__(self, client: Client, prefix: str, replicas: int, answer_s: float) -> None:
        self._client, self._key, self._replicas = client, prefix + KEY, replicas
        self._links = [client.sibling(WAIT_S + answer_s) for _ in range(LINKS)]
        self._idle = list(self._links)
        self._waiting: list[_Waiter] = []
        self._running: set[asyncio.Task[None]] = set()
        self._started = -APART_S
        self._timer: asyncio.TimerHandle | None = None
        self._known: tuple[str, int] = ("", 0)
        """The last history, and the time of its server until which everything is known to be durable."""
        self.trouble = ""

    async def wait(self, history: str, at_ms: int | None = None) -> None:
        """Return once everything is durable that ran under this history until now, or until `at_ms` of the
        server's time. Raise `NotDurable` if it is not yet, and `Lost` if the server has another history by
        now: then it may never be."""
        if at_ms is not None and history == self._known[0] and at_ms < self._known[1]:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((history, done))
        self._start_group()
        await done

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for each in self._running:
            each.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for link in self._links:
            await link.close()

    def _start_group(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None or not self._idle or not self._waiting:
            return
        wait_s = self._started + APART_S - loop.time() if self._running else 0.0
        if wait_s > 0:
            self._timer = loop.call_later(wait_s, self._timer_due)
            return
        group, self._waiting, self._started = self._waiting, [], loop.time()
        self._run(self._commit(self._idle.pop(), group))

    def _timer_due(self) -> None:
        self._timer = None
        self._start_group()

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if self._timer is not None and not self._running:
            self._timer.cancel()
            self._timer = None
        self._start_group()

    async def _commit(self, link: Client, group: list[_Waiter]) -> None:
        try:
            history = await self._barrier(link)
        except (Lost, Refused, NotDurable) as error:
            _fail(group, error)
            if isinstance(error, NotDurable):
                await self._recover(link, error)
        except asyncio.CancelledError:
            _fail(group, Lost("the client was closed"))
            raise
        else:
            self._settle(group, history)
        finally:
            self._idle.append(link)

    def _settle(self, group: list[_Waiter], history: str) -> None:
        for wanted, done in group:
            if wanted != history and not done.done():
                done.set_exception(Lost("the store failed over after the write, which may be lost"))
            elif not done.done():
                done.set_result(None)
        if any(wanted != history for wanted, _ in group):
            self._client.leave("the store has another history now")

    async def _recover(self, link: Client, error: NotDurable) -> None:
        """Say what is wrong, and try until it is not."""
        if self.trouble:
            return
        self.trouble = error.reason
        log.error("the store cannot make writes durable; changes are refused", reason=self.trouble)
        try:
            while self.trouble:
                try:
                    await self._barrier(link)
                except NotDurable as again:
                    self.trouble = again.reason
                except (Lost, Refused):
                    await asyncio.sleep(RETRY_S)
                else:
                    log.warning("the store makes writes durable again")
                    self.trouble = ""
        finally:
            self.trouble = ""

    async def _barrier(self, link: Client) -> str:
        """Wait until all that ran before is durable; return the history of the server that it ran on."""
        (seconds, micros), _, (local, replicas), info = await link.execute_all(
            ("TIME",),
            small_write("SET", self._key, ""),
            ("WAITAOF", 1, self._replicas, int(WAIT_S * 1000)),
            ("INFO", "server", "replication"),
        )
        if not local:
            raise NotDurable("the store's disk did not take the write in time")
        if replicas < self._replicas:
            raise NotDurable(f"{replicas} of {self._replicas} replicas have it on disk (DURABILITY_REPLICAS)")
        self._known = (history_in(info), int(seconds) * 1000 + int(micros) // 1000)
        return self._known[0]


def _fail(group: list[_Waiter], error: Exception) -> None:
    for _, done in group:
        if not done.done():
            done.set_exception(
                type(error)(str(error)) if not isinstance(error, NotDurable) else NotDurable(error.reason)
            )

"""Keep a model server running, also while no task asks it: start it, look whether it is well, start it again
after a crash or a hang, and end it politely. `server` calls it; a thread of its own does the watching.

    starting ──healthy──▶ healthy ──crashed, or silent for long──▶ restarting ──after a pause──▶ starting
        any of them ──close──▶ closed: no new request, those that run end, SIGTERM, SIGKILL
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Event, Thread

from gpu_orchestrator.apps.worker.frames import HEALTHY, RESTARTING, Health
from gpu_orchestrator.apps.worker.handlers.server_process import (
    LOOK_IDLE_S,
    LOOK_S,
    ServerProcess,
    options_of,
)
from gpu_orchestrator.apps.worker.task import OWN_THREAD, LoadFailed, Model, Temporary

FIRST_PAUSE_S, LONGEST_PAUSE_S, CALM_S = 0.5, 60.0, 60.0
"""The pause before a server that crashed is started again, doubled each time, until it has run this long."""


@dataclass(slots=True)
class Pauses:
    """How long to wait before the next start. Time is an argument."""

    pause_s: float = 0.0

    def next(self, ran_s: float) -> float:
        is_calm = ran_s > CALM_S or not self.pause_s
        self.pause_s = FIRST_PAUSE_S if is_calm else min(2 * self.pause_s, LONGEST_PAUSE_S)
        return self.pause_s

    @property
    def is_longest(self) -> bool:
        return self.pause_s >= LONGEST_PAUSE_S


class ServerWatch:
    """`tell` is called when the server becomes ill or healthy again."""

    def __init__(self, model: Model, tell: Callable[[Health], None]) -> None:
        self._model, self._options, self._tell = model, options_of(model), tell
        self._pauses, self._restarts, self._why = Pauses(), 0, ""
        self._closing = Event()
        self._changed = Condition()
        self._is_healthy = False
        self._requests = 0
        self._process: ServerProcess | None = None
        self._began = 0.0
        self._watcher = Thread(target=self._watch, daemon=True, name=OWN_THREAD)

    @property
    def served(self) -> str:
        """Return what the server calls its model."""
        return self._options.model or self._model.name

    @property
    def ends_within_s(self) -> float:
        return self._options.drain_seconds + self._options.stop_seconds

    def pids(self) -> tuple[int, ...]:
        return (self._process.pid,) if self._process is not None else ()

    def start(self) -> None:
        """Start the server, wait until it is healthy, and watch it from then on."""
        self._spawn()
        self._model.progress(f"starting {self._server.program} on port {self._server.port}")
        while not self._server.is_healthy():
            if (how := self._server.exit()) is not None:
                raise LoadFailed(f"model {self._model.name!r}: its server {how}")
            time.sleep(LOOK_S)
        self._is_healthy = True
        self._watcher.start()

    @contextmanager
    def request(self, check: Callable[[], None]) -> Iterator[int]:
        """Wait until the server can be asked and yield its port; `check` raises to give up."""
        with self._changed:
            while self._closing.is_set() or not self._is_healthy or self._server.exit() is not None:
                self._refuse_if_hopeless()
                self._changed.wait(LOOK_S)
                check()
            self._requests += 1
            port = self._server.port
        try:
            yield port
        finally:
            with self._changed:
                self._requests -= 1
                self._changed.notify_all()

    def ended(self) -> str | None:
        """Return how the server ended, if it has."""
        return self._server.exit()

    def close(self, *, drains: bool = True) -> None:
        """Take no more requests, let those that run end, then end the server."""
        self._closing.set()
        if drains:
            with self._changed:
                self._changed.wait_for(lambda: not self._requests, self._options.drain_seconds)
        self._watcher.join(self._options.stop_seconds)  # else it might start another one
        self._server.end(self._options.stop_seconds)

    # --- the watching thread -------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closing.is_set():
            why = self._until_ill()
            if self._closing.is_set():
                return
            self._now_ill(why)
            self._start_again()

    def _until_ill(self) -> str:
        """Return why the server must be started again, once it must."""
        well_at = looked_at = time.monotonic()
        while not self._closing.wait(LOOK_IDLE_S):
            if (how := self._server.exit()) is not None:
                return f"it {how}"
            if (now := time.monotonic()) - looked_at < self._options.check_seconds:
                continue
            if self._server.is_healthy():
                well_at = time.monotonic()
            elif time.monotonic() - well_at >= self._options.unhealthy_seconds:
                self._server.end(self._options.stop_seconds)
                return f"it did not say that it is healthy for {self._options.unhealthy_seconds:g} s"
            looked_at = now
        return ""

    def _start_again(self) -> None:
        """Start the server until it is healthy, with pauses that grow."""
        while not self._closing.wait(self._pauses.next(time.monotonic() - self._began)):
            try:
                self._spawn()
                why = self._until_healthy()
            except LoadFailed as error:
                why = str(error)
            if not why:
                return self._now_healthy()
            self._now_ill(why)
        return None

    def _until_healthy(self) -> str:
        """Return why the server did not become healthy; empty if it did, or is being closed."""
        until = time.monotonic() + self._options.start_seconds
        while not self._closing.wait(LOOK_S) and not self._server.is_healthy():
            if (how := self._server.exit()) is not None:
                return f"it {how}"
            if time.monotonic() >= until:
                self._server.end(self._options.stop_seconds)
                return f"it was not healthy within {self._options.start_seconds:g} s"
        return ""

    def _now_ill(self, why: str) -> None:
        with self._changed:
            self._is_healthy, self._why = False, why
            self._restarts += 1
        self._tell(Health(RESTARTING, why, self._restarts))

    def _now_healthy(self) -> None:
        if self._closing.is_set():
            return
        with self._changed:
            self._is_healthy = True
            self._changed.notify_all()
        self._tell(Health(HEALTHY, self._why, self._restarts))

    # --- both ----------------------------------------------------------------------------------------------

    @property
    def _server(self) -> ServerProcess:
        assert self._process is not None  # noqa: S101 - `start` made it
        return self._process

    def _spawn(self) -> None:
        self._began = time.monotonic()
        self._process = ServerProcess(self._model, self._options)

    def _refuse_if_hopeless(self) -> None:
        if self._closing.is_set():
            raise Temporary(f"the server of model {self.served!r} is being ended")
        if self._pauses.is_longest and not self._is_healthy:
            raise Temporary(
                f"the server of model {self.served!r} was started {self._restarts} times and does not stay: "
                f"{self._why}"
            )

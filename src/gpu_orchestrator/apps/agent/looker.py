"""Look at the devices and at their processes, in a thread: a driver in trouble may block for minutes.

One look at a time. While a call hangs, `look` raises TimeoutError and the same call is waited for again: a
second one would hang beside it. Processes that the driver cannot tell now are taken to be there for a minute:
a device whose list of processes was not read is not a free one.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

from gpu_orchestrator.adapters import cgroups
from gpu_orchestrator.adapters.gpus.fabric import Fabric
from gpu_orchestrator.adapters.gpus.gpu import Gpus, Link, Process, Reading
from gpu_orchestrator.apps.agent.plausible import plausible
from gpu_orchestrator.apps.agent.survey import Look

SURROUNDINGS_S = 300.0
"""How often links and the fabric are read: they change with the hardware, and reading them is slow."""
KEEP_S = 60.0
"""How long the last processes of a device count while the driver cannot tell all."""


class Looker:
    def __init__(self, gpus: Gpus, root: Path, clock: Callable[[], float]) -> None:
        self._gpus, self._root, self._clock = gpus, root, clock
        self._links: tuple[Link, ...] = ()
        self._fabric = Fabric()
        self._around: tuple[str, ...] | None = None
        self._read_at = clock()
        self._processes: dict[str, tuple[float, tuple[Process, ...]]] = {}
        self._running: asyncio.Future[Look] | None = None

    async def look(self, within_s: float) -> Look:
        """Return what is there now; raise TimeoutError if the driver does not answer in time."""
        running = self._running or self._start()
        self._running = running
        async with asyncio.timeout(within_s):
            try:
                return await asyncio.shield(running)
            finally:
                if running.done():
                    self._running = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about the devices, or about their absence."""
        return self._gpus.notes()

    def _start(self) -> "asyncio.Future[Look]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Look] = loop.create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # always retrieved

        def run() -> None:
            began = self._clock()
            with suppress(RuntimeError):  # the loop has ended meanwhile
                try:
                    found = replace(self._look(), began=began)
                except Exception as error:
                    loop.call_soon_threadsafe(_fail, future, error)
                else:
                    loop.call_soon_threadsafe(_finish, future, found)

        # A daemon: a call that hangs in the driver must not keep the process from ending.
        Thread(target=run, name="look", daemon=True).start()
        return future

    def _look(self) -> Look:
        devices = self._gpus.devices()
        readings = {each.uuid: self._with_processes(each) for each in self._gpus.readings()}
        self._processes = {uuid: seen for uuid, seen in self._processes.items() if uuid in readings}
        self._look_around(tuple(device.uuid for device in devices))
        pids = {process.pid for each in readings.values() for process in each.processes}
        pods = {pid: uid for pid in pids if (uid := cgroups.read(pid, self._root))}
        seen = Look(devices, readings, self._links, self._fabric, pods, withheld=self._gpus.withheld())
        return plausible(seen)

    def _with_processes(self, reading: Reading) -> Reading:
        """Return the reading with the processes that were there before, if it does not have all."""
        now = self._clock()
        if reading.all_processes:
            self._processes[reading.uuid] = now, reading.processes
            return reading
        at, before = self._processes.get(reading.uuid, (now, ()))
        known = {each.pid for each in reading.processes}
        kept = (each for each in before if each.pid not in known) if now - at < KEEP_S else ()
        return replace(reading, processes=(*reading.processes, *kept))

    def _look_around(self, uuids: tuple[str, ...]) -> None:
        if uuids != self._around or self._clock() - self._read_at >= SURROUNDINGS_S:
            self._links, self._fabric = self._gpus.links(), self._gpus.fabric()
            self._around, self._read_at = uuids, self._clock()


def _finish(future: "asyncio.Future[Look]", found: Look) -> None:
    if not future.done():
        future.set_result(found)


def _fail(future: "asyncio.Future[Look]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)

"""`server --processes N`: one parent and N API processes, each with its own listening socket on one port.

The kernel spreads connections over the sockets. The parent serves no request: it owns the data directory and
the embedded store, starts a process again when it ends, and ends all of them, the store last. Any process may
lead.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import monotonic

import structlog

from gpu_orchestrator.adapters.parent_death import end_with_parent
from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.errors import Unfit
from gpu_orchestrator.apps.manager import server
from gpu_orchestrator.apps.manager.siblings import Place
from gpu_orchestrator.cli import host
from gpu_orchestrator.cli.api_process import UP, Order, encoded

log = structlog.get_logger()

START_S, STOP_S = 120.0, 20.0
FIRST_PAUSE_S, MOST_PAUSE_S, STEADY_S = 0.1, 10.0, 60.0
"""A process that ends is started again after a pause. The pause doubles each time, up to the second; after a
process that ran for STEADY_S it is the first again."""
LONGEST_FOLDER = 90
COMMAND = (sys.executable, "-m", "gpu_orchestrator.cli.api_process")


@contextlib.asynccontextmanager
async def hosting(chosen: Settings, *, insecure: bool = False) -> AsyncIterator[str]:
    """Run the API in several processes; yield its URL."""
    with host.prepared(chosen) as prepared, _folder(Path(chosen.data_dir)) as folder:
        address = prepared.listening.getsockname()[:2]
        prepared.listening.close()  # it does not share its port; the processes' sockets do
        async with contextlib.AsyncExitStack() as stack:
            held = stack.enter_context(server.bind(*address))
            store = await server.store_of(chosen, stack)
            place = Place(0, chosen.worker_processes, str(folder), store.url, store.folder)
            order = Order(prepared.settings, prepared.begun.known, place, insecure)
            group = ProcessGroup(order, address)
            await stack.enter_async_context(group.running())
            url = server.url_of(chosen, held)
            prepared.keep(url)
            yield url


@contextlib.contextmanager
def _folder(data: Path) -> Iterator[Path]:
    """Yield an empty, private folder for the sockets and counters of the processes."""
    folder = data / "processes"
    if len(str(folder)) > LONGEST_FOLDER:  # the path of a socket must be short
        name = sha256(str(folder).encode()).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"gpu-orchestrator-{os.getuid()}-{name}-processes"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class ProcessGroup:
    order: Order
    address: tuple[str, int]
    _processes: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    _ends: bool = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start all processes and keep them running; the first alone, so that an error is reported once."""
        numbers = range(1, self.order.place.of + 1)
        keepers: list[asyncio.Task[None]] = []
        try:
            await self._start(1)
            await asyncio.gather(*(self._start(number) for number in numbers[1:]))
            keepers = [asyncio.get_running_loop().create_task(self._keep(number)) for number in numbers]
            yield
        finally:
            self._ends = True
            for each in keepers:
                each.cancel()
            await self._stop()

    async def _start(self, number: int) -> None:
        process = self._spawn(number)
        assert process.stdout is not None  # noqa: S101 - it was asked for
        try:
            async with asyncio.timeout(START_S):
                said = await asyncio.to_thread(process.stdout.readline)
        except TimeoutError:
            process.kill()
            said = b""
        if said != UP:
            raise Unfit(f"API process {number} did not start; the lines above say why")

    def _spawn(self, number: int) -> "subprocess.Popen[bytes]":
        """Start a process with a socket that is its own. The kernel sends it no connection before it
        listens, and none after it ended."""
        with server.bind(*self.address) as listening:
            process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(listening.fileno(),),
                start_new_session=True,  # Ctrl-C in the terminal is for the parent
                preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM),
            )
            assert process.stdin is not None  # noqa: S101 - it was asked for
            process.stdin.write(encoded(self.order, number, listening.fileno()))
            process.stdin.close()
        self._processes[number] = process
        return process

    async def _keep(self, number: int) -> None:
        """Start a process again whenever it ends."""
        pause_s = FIRST_PAUSE_S
        while True:
            began = monotonic()
            process = self._processes[number]
            while process.poll() is None:  # noqa: ASYNC110 - the loop does not learn of a child's end
                await asyncio.sleep(FIRST_PAUSE_S)
            pause_s = FIRST_PAUSE_S if monotonic() - began > STEADY_S else min(pause_s * 2, MOST_PAUSE_S)
            log.error("an API process ended and is started again", number=number, status=process.returncode)
            await asyncio.sleep(pause_s)
            with contextlib.suppress(Unfit):
                await self._start(number)

    async def _stop(self) -> None:
        """End all processes; kill those that take too long."""
        for process in self._processes.values():
            process.terminate()
        for number, process in self._processes.items():
            try:
                await asyncio.to_thread(process.wait, STOP_S)
            except subprocess.TimeoutExpired:
                log.warning("an API process did not end in time and is killed", number=number)
                process.kill()
                process.wait()

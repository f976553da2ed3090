"""Keep the MPS daemons that the leases of this node's devices ask for. `mps_plan` decides, this does it.

    /run/gpu-mps/owned/<folder>/pipe    where its clients meet a daemon; a pod has it as /run/gpu-mps, to read

All daemons end with the agent, however it ends: each has a keeper. The folders stay then, since containers
have them mounted, and the next agent takes them over.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import structlog

from gpu_orchestrator.adapters import foreign_files
from gpu_orchestrator.adapters.background import wait_until_set
from gpu_orchestrator.adapters.mps import PROGRAM, MpsDaemon, which
from gpu_orchestrator.api import mps, sharing
from gpu_orchestrator.api.gpunodestatus import NodeMps
from gpu_orchestrator.api.mps import Daemon
from gpu_orchestrator.apps.agent import mps_plan
from gpu_orchestrator.apps.agent.metrics import Metrics
from gpu_orchestrator.apps.agent.mps_leases import DeviceLeases
from gpu_orchestrator.apps.agent.mps_plan import Slot

CHECK, PIPES = "check", "pipe"
RETRY_S = 60.0
OLDEST_DRIVER = 580
"""From this driver on, a daemon hands its memory to its clients through the pipes, as tried on an H200. Older
ones meet them in /dev/shm of the node, where everybody writes."""
LONGEST_SLEEP_S = 60.0
MOST_REFUSED = 1024
VISIBLE = "CUDA_VISIBLE_DEVICES"
HANDED_ON = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LANG")
"""Variables of the agent that a daemon and its keeper get."""

_FOLDER = re.compile(f"[0-9a-f]{{{mps.FOLDER_LENGTH}}}")

log = structlog.get_logger()


class MpsDaemons:
    """`root` is /run/gpu-mps. `written` returns the folders in the report that was written last; `told` is
    called when `report` has changed. There are `most` at once."""

    def __init__(
        self,
        root: Path,
        leases: Callable[[Callable[[], None]], DeviceLeases],
        *,
        clock: Callable[[], float],
        written: Callable[[], Collection[str]],
        told: Callable[[], None],
        metrics: Metrics,
        most: int,
    ) -> None:
        self._root, self._clock, self._metrics, self._most = root, clock, metrics, most
        self._written, self._told = written, told
        self._changed = asyncio.Event()
        self._leases = leases(self.check)
        self._uuids: Mapping[int, str] = {}
        self._driver = ""
        self._followed = asyncio.Event()
        self._slots: dict[str, Slot] = {}
        self._running: dict[str, MpsDaemon] = {}
        self._files = asyncio.Lock()
        self._report: NodeMps | None = None

    @property
    def report(self) -> NodeMps | None:
        """What the node's report says; None where no daemon can be kept."""
        return self._report

    def check(self) -> None:
        """Look again at what there is to do."""
        self._changed.set()

    def follow(self, uuids: Mapping[int, str], driver: str) -> None:
        """Keep daemons for these devices, by id, with this version of the driver."""
        self._driver = driver
        self._followed.set()
        if uuids != self._uuids:
            self._uuids = dict(uuids)
            self.check()

    async def run(self) -> None:
        """Keep the daemons until cancelled; then call `close`. Return at once where there is no MPS."""
        if not (program := which()):
            log.warning("no MPS here: shares are counted only", missing=PROGRAM)
            return
        await self._followed.wait()
        await self._until_it_works(program)
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                self._leases.follow(self._uuids, group)
                again_at = self._step(program, group)
                left_s = LONGEST_SLEEP_S if again_at is None else again_at - self._clock()
                await wait_until_set(self._changed, min(max(left_s, 0.01), LONGEST_SLEEP_S))

    async def close(self) -> None:
        """End all daemons."""
        await asyncio.gather(*(each.end() for each in self._running.values()))
        self._running.clear()

    async def _until_it_works(self, program: str) -> None:
        """Start and end one daemon, until that succeeds: a report with `mps` attracts pods. Then take over
        what is there."""
        said = ""
        while True:
            try:
                _check_driver(self._driver)
                await self._try(program)
                self._slots = mps_plan.leftovers(self._found(), self._clock())
                return
            except OSError as error:  # also where the folder is not mounted, or cannot be written
                self._metrics.error("mps")
                if str(error) != said:
                    log.warning("MPS does not work here: shares are counted only", error=str(error))
                said = str(error)
            await asyncio.sleep(RETRY_S)

    async def _try(self, program: str) -> None:
        daemon = self._daemon(program, self._root / CHECK, {})
        try:
            _make_empty(self._root / CHECK)
            await daemon.start()
        finally:
            await daemon.end()
            shutil.rmtree(self._root / CHECK, ignore_errors=True)

    def _found(self) -> list[str]:
        """Return the folders that a predecessor left. A kubelet may have made others beside them."""
        owned = self._root / sharing.OWNED
        owned.mkdir(parents=True, exist_ok=True)
        return [each.name for each in owned.iterdir() if _FOLDER.fullmatch(each.name)]

    def _step(self, program: str, group: asyncio.TaskGroup) -> float | None:
        """Do what is due; return when something is due next."""
        wanted, written, again_at = sharing.daemons(self._leases.holds()), self._written(), None
        needed = mps_plan.admitted(self._slots, wanted, written, self._most)
        if self._leases.are_known:
            todo = mps_plan.plan(self._slots, needed, written, self._clock())
            self._slots, again_at = todo.slots, todo.again_at
            for daemon in todo.start:
                group.create_task(self._keep(program, daemon))
            for folder in todo.end:
                group.create_task(self._end(folder))
        refused = sorted({each.folder for each in wanted} - {each.folder for each in needed})
        listed = mps_plan.listed(self._slots, needed)
        self._tell(NodeMps(ready=True, folders=listed, refused=refused[:MOST_REFUSED]))
        return again_at

    def _tell(self, report: NodeMps) -> None:
        if report != self._report:
            if report.refused and not (self._report and self._report.refused):
                self._metrics.error("mps")
                log.warning("no room for more MPS daemons", most=self._most, refused=len(report.refused))
            self._report = report
            self._told()

    async def _keep(self, program: str, daemon: Daemon) -> None:
        """Start a daemon and wait until it has ended. Its clients write to its folders, and whatever is wrong
        with those is its own failure, and no other daemon's."""
        visible = {VISIBLE: ",".join(daemon.uuids)}
        made = self._running[daemon.folder] = self._daemon(
            program, self._folder(daemon.folder), visible, daemon
        )
        try:
            await self._run(daemon, made)
        finally:  # a new one may have taken its place already when the agent ends
            await made.end()

    async def _run(self, daemon: Daemon, made: MpsDaemon) -> None:
        folder = daemon.folder
        try:
            await self._make_empty(folder, made)
            await made.start()
            self._slots = mps_plan.listening(self._slots, folder, self._clock())
            log.info("MPS daemon listens", namespace=daemon.namespace, folder=folder, devices=daemon.devices)
            self.check()
            await made.ended()
            said = f"it ended; {made.last_words}"
        except Exception as error:  # the edge of one daemon
            said = str(error) or repr(error)
        if self._running.get(folder) is made:  # nobody ended it
            self._slots = mps_plan.failed(self._slots, folder, self._clock())
            self._metrics.error("mps")
            log.warning("MPS daemon is not there", folder=folder, error=said)
            self.check()

    async def _make_empty(self, folder: str, made: MpsDaemon) -> None:
        async with self._files:
            await asyncio.to_thread(_make_empty, self._folder(folder))
        if self._running.get(folder) is not made:
            raise OSError("it is needed no more")

    async def _end(self, folder: str) -> None:
        """End a daemon that nobody needs any more, and remove its folder; try again later if that fails."""
        left: dict[str, Slot] = {}
        try:
            if daemon := self._running.pop(folder, None):
                await daemon.end()
            async with self._files:
                await asyncio.to_thread(foreign_files.remove, self._folder(folder))
            log.info("MPS daemon ended", folder=folder)
        except Exception as error:  # the edge of one daemon
            left = mps_plan.leftovers([folder], self._clock())
            self._metrics.error("mps")
            log.warning("folder of an ended MPS daemon was not removed", folder=folder, error=str(error))
        self._slots = mps_plan.gone(self._slots, folder) | left
        self.check()

    def _folder(self, name: str) -> Path:
        return self._root / sharing.OWNED / name

    def _daemon(
        self, program: str, folder: Path, visible: Mapping[str, str], daemon: Daemon | None = None
    ) -> MpsDaemon:
        return MpsDaemon(
            program,
            {name: os.environ[name] for name in HANDED_ON if name in os.environ} | dict(visible),
            folder=folder / PIPES,
            commands=daemon.commands if daemon else (),
            answers=daemon.answers if daemon else 0,
        )


def _check_driver(driver: str) -> None:
    major = driver.partition(".")[0]
    if major.isdecimal() and int(major) < OLDEST_DRIVER:
        raise OSError(f"driver {driver} is older than {OLDEST_DRIVER}; update it")


def _make_empty(folder: Path) -> None:
    """Make the folder of a daemon's pipes, or empty it. It stays the same one: a container that has it
    mounted meets the next daemon there."""
    pipes = folder / PIPES
    pipes.mkdir(parents=True, exist_ok=True)
    pipes.chmod(0o755)
    foreign_files.empty(pipes)

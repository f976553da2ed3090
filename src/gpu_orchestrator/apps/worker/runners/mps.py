"""Shares of NVIDIA GPUs that hold: runs NVIDIA's MPS daemons, one for each owner and set of devices.

A process that uses a device through such a daemon gets no more device memory than its limit. The limit is
what its task reserved; the CUDA context, about half a gigabyte on large GPUs, is part of it. A fault of one
process ends the work of all processes of the same daemon, so owners never share one. `runner_pool` calls
this.

    agent ──lifeline──> keeper ──> nvidia-cuda-mps-control ──> nvidia-cuda-mps-server
                                          └── its pipes are in a folder; runners get its path

MPS prevents accidents, not attacks: a process that drops the variables of its environment talks to the device
directly.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from gpu_orchestrator.adapters.process_rights import User
from gpu_orchestrator.apps.worker import environment
from gpu_orchestrator.apps.worker.attempt import Devices
from gpu_orchestrator.apps.worker.runners import keeper

PROGRAM = "nvidia-cuda-mps-control"
START_S = 20.0
LOOK_EVERY_S = 0.01
LAST_WORDS = 400
PIPES, LOGS, LIMIT = (
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    environment.MEMORY_LIMIT,
)


class MpsFailed(OSError):
    """A daemon does not start, or has ended."""


def find_program() -> str:
    """Return the path of NVIDIA's control program; raise `MpsFailed` if this machine does not have it."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise MpsFailed(
            f"GPU_SHARING=mps needs {PROGRAM}, which comes with NVIDIA's driver; it is not on PATH. "
            "Install it, or set GPU_SHARING=accounted"
        )
    return found


class MpsDaemon:
    """One daemon under a keeper of its own. Ends with the agent, however the agent ends."""

    def __init__(self, program: str, visible: Mapping[str, str], user: User | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-mps-"))
        """In the folder for temporary files, because the path of a socket may have 107 bytes only."""
        self._program, self._visible, self._user = program, visible, user
        self._process: asyncio.subprocess.Process | None = None
        self._lifeline = -1

    @property
    def is_running(self) -> bool:
        """Ask the kernel: the event loop hears of an end only later, and until then a runner would be sent to
        a daemon that is gone, where it has no limit."""
        if self._process is None or self._process.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    @property
    def keeper_pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Return when the daemon listens; raise `MpsFailed` if it does not."""
        self._make_folders()
        user = self._user.encode() if self._user else ""
        far, self._lifeline = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                environment.SAFE_PATH,
                "-m",
                keeper.__name__,
                *keeper.program_arguments(far, str(self.folder), user, self._program, "-f"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env=environment.without_secrets() | dict(self._visible) | self.variables(),
                pass_fds=(far,),
                start_new_session=True,
            )
        finally:
            os.close(far)
        await self._until_listening()

    def _make_folders(self) -> None:
        """Make the folders, for the user of the runners: a daemon refuses clients of another user."""
        (self.folder / "log").mkdir()
        if self._user is not None:
            for folder in (self.folder, self.folder / "log"):
                os.chown(folder, self._user.uid, self._user.gid)

    async def _until_listening(self) -> None:
        for _ in range(int(START_S / LOOK_EVERY_S)):
            if not self.is_running:
                break
            if (self.folder / "control").exists():
                return
            await asyncio.sleep(LOOK_EVERY_S)
        said = self._last_words()
        await self.end()
        raise MpsFailed(f"{self._program} did not start: {said}")

    def variables(self) -> dict[str, str]:
        return {PIPES: str(self.folder), LOGS: str(self.folder / "log")}

    async def end(self) -> None:
        """End the daemon and everything it started."""
        self.kill()
        if self._process is not None:
            await self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _last_words(self) -> str:
        try:
            return (self.folder / "log" / "control.log").read_text(errors="replace")[-LAST_WORDS:].strip()
        except OSError:
            return "it wrote no log"


class MpsDaemons:
    """The daemons of this worker. `environment_of` starts one where there is none, or where it has ended."""

    def __init__(self, program: str, user: User | None = None) -> None:
        self._program, self._user = program, user
        self._daemons: dict[tuple[str, Devices], MpsDaemon] = {}
        self._starting = asyncio.Lock()

    async def check(self) -> None:
        """Start and end one daemon; raise `MpsFailed` if it does not start on this machine."""
        daemon = MpsDaemon(self._program, {}, self._user)
        await daemon.start()
        await daemon.end()

    async def environment_of(
        self, owner: str, devices: Devices, visible: Mapping[str, str], limit_mib: int
    ) -> dict[str, str]:
        """Return the variables with which a process is a client of the owner's daemon for these devices."""
        async with self._starting:
            daemon = self._daemons.get((owner, devices))
            if daemon is None or not daemon.is_running:
                if daemon is not None:
                    await daemon.end()
                daemon = self._daemons[owner, devices] = MpsDaemon(self._program, visible, self._user)
                await daemon.start()
        return daemon.variables() | {LIMIT: limits(len(devices), limit_mib)}

    def pids(self) -> set[int]:
        """Return the ids of all processes of the daemons: what they hold on a device is this worker's."""
        running = [daemon.keeper_pid for daemon in self._daemons.values() if daemon.is_running]
        return {pid for each in running for pid in (each, *keeper.descendants(each))}

    def keep_only(self, used: Collection[tuple[str, Devices]]) -> None:
        """End the daemons that no runner uses any more."""
        for key in [key for key in self._daemons if key not in used]:
            self._daemons.pop(key).kill()

    def kill(self) -> None:
        self.keep_only(())


def limits(devices: int, limit_mib: int) -> str:
    """Return the limit of device memory for each visible device, as the driver reads it."""
    return ",".join(f"{index}={limit_mib}M" for index in range(devices))

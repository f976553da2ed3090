"""One MPS daemon of NVIDIA's driver as a process: started, watched and ended. `api/mps` says what it does.

    agent ──lifeline──> keeper ──> nvidia-cuda-mps-control ──> nvidia-cuda-mps-server
                                          └── its pipes are in a folder; clients get its path

The worker has one for each owner and set of devices; the agent of a Kubernetes node one for each daemon that
`api/sharing` says the node needs.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_orchestrator.adapters import keeper
from gpu_orchestrator.adapters.process_rights import User
from gpu_orchestrator.api import mps

PROGRAM = "nvidia-cuda-mps-control"
START_S = 20.0
LOOK_EVERY_S = 0.01
LAST_WORDS = 400


class MpsFailed(OSError):
    """A daemon does not start, or has ended."""


def which() -> str:
    """Return the path of NVIDIA's control program; empty if this machine does not have it."""
    return shutil.which(PROGRAM) or ""


class MpsDaemon:
    """One daemon under a keeper of its own. Ends with the agent, however the agent ends. `variables` are all
    that it starts with, apart from its folders; `commands` are told to it before it has a client, and it
    answers with this number of lines. Without a folder it gets a temporary one, which is removed when it
    ends; a folder that was given stays. Its log is in `logs`, or in the folder. `through` is a command that
    runs the program, such as `own_shm.command`."""

    def __init__(
        self,
        program: str,
        variables: Mapping[str, str],
        user: User | None = None,
        *,
        folder: Path | None = None,
        logs: Path | None = None,
        through: Sequence[str] = (),
        commands: Sequence[str] = (),
        answers: int = 0,
    ) -> None:
        # In the folder for temporary files, because the path of a socket may have 107 bytes only.
        self.folder = folder or Path(tempfile.mkdtemp(prefix="gpu-mps-"))
        self._temporary = "" if folder else str(self.folder)
        self._logs, self._through = logs or self.folder / "log", through
        self._program, self._variables, self._user = program, variables, user
        self._commands, self._answers = commands, answers
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
                *keeper.program_command(far, self._temporary, user, *self._through, self._program, "-f"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env=dict(self._variables) | self.variables(),
                pass_fds=(far,),
                start_new_session=True,
            )
        finally:
            os.close(far)
        await self._until_listening()
        if self._commands:
            await self._tell()

    async def _tell(self) -> None:
        """Give the commands to the daemon; raise `MpsFailed` if it does not take one. A ceiling that is set
        after the first client would not hold that one, so nobody may hear of the daemon before."""
        control = await asyncio.create_subprocess_exec(
            self._program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(self._variables) | self.variables(),
        )
        said, _ = await control.communicate("".join(f"{each}\n" for each in self._commands).encode())
        lines = said.decode(errors="replace").splitlines()
        if control.returncode or len(lines) != self._answers or any("nknown" in each for each in lines):
            await self.end()
            asked, answered = "; ".join(self._commands), "; ".join(lines)
            raise MpsFailed(f"{self._program} did not take {asked}; it said: {answered[-LAST_WORDS:]}")

    def _make_folders(self) -> None:
        """Make the folders, for the user of the runners: a daemon refuses clients of another user."""
        for folder in (self.folder, self._logs):
            folder.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            for folder in (self.folder, self._logs):
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
        return {mps.PIPES: str(self.folder), mps.LOGS: str(self._logs)}

    async def end(self) -> None:
        """End the daemon and everything it started."""
        self.kill()
        await self.ended()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def ended(self) -> None:
        """Return when the daemon and everything it started has ended."""
        if self._process is not None:
            await self._process.wait()

    def kill(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _last_words(self) -> str:
        try:
            return (self._logs / "control.log").read_text(errors="replace")[-LAST_WORDS:].strip()
        except OSError:
            return "it wrote no log"

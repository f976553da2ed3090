"""One MPS daemon of NVIDIA's driver as a process: started, watched and ended. `api/mps` says what it does.

    agent ──lifeline──> keeper ──> nvidia-cuda-mps-control ──> nvidia-cuda-mps-server
                                          └── its pipes are in a folder; clients get its path

The worker has one for each owner and set of devices; the agent of a Kubernetes node one for each daemon that
`api/sharing` says the node needs.
"""

import asyncio
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpu_orchestrator.adapters import foreign_files, keeper
from gpu_orchestrator.adapters.process_rights import User
from gpu_orchestrator.api import mps

PROGRAM = "nvidia-cuda-mps-control"
START_S = 20.0
LOOK_EVERY_S = 0.01
LAST_WORDS = 400
TELL_S, LONGEST_ANSWER = 5.0, 64 * 1024
"""How long the control program may take, and how much it may say: a client that took the daemon's place would
answer never, or without end."""


class MpsFailed(OSError):
    """A daemon does not start, or has ended."""


def which() -> str:
    """Return the path of NVIDIA's control program; empty if this machine does not have it."""
    return shutil.which(PROGRAM) or ""


class MpsDaemon:
    """One daemon under a keeper of its own. Ends with the agent, however the agent ends. `variables` are all
    that it starts with, apart from its folders; `commands` are told to it before it has a client, and it
    answers with this number of lines. Without a folder it gets a temporary one, which is removed when it
    ends; a folder that was given stays."""

    def __init__(
        self,
        program: str,
        variables: Mapping[str, str],
        user: User | None = None,
        *,
        folder: Path | None = None,
        commands: Sequence[str] = (),
        answers: int = 0,
    ) -> None:
        # In the folder for temporary files, because the path of a socket may have 107 bytes only.
        self.folder = folder or Path(tempfile.mkdtemp(prefix="gpu-mps-"))
        self._temporary = "" if folder else str(self.folder)
        self._program, self._variables, self._user = program, variables, user
        self._commands, self._answers = commands, answers
        self._process: asyncio.subprocess.Process | None = None
        self._lifeline = -1
        self._said = b""
        self._listener: asyncio.Task[None] | None = None

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
        self._make_folder()
        user = self._user.encode() if self._user else ""
        far, self._lifeline = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *keeper.program_command(far, self._temporary, user, self._program, "-f"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(self._variables) | self.variables(),
                pass_fds=(far,),
                start_new_session=True,
            )
        finally:
            os.close(far)
        self._listener = asyncio.create_task(self._listen(self._process))
        await self._until_listening()
        if self._commands:
            try:
                await self._tell()
            except MpsFailed:
                await self.end()
                raise

    async def _tell(self) -> None:
        """Give the commands to the daemon; raise `MpsFailed` if it does not take one. A ceiling that is set
        after the first client would not hold that one, so nobody may hear of the daemon before."""
        commands = "".join(f"{each}\n" for each in self._commands).encode()
        variables = dict(self._variables) | self.variables()
        code, said = await asyncio.to_thread(_talk, self._program, variables, commands)
        lines = said.decode(errors="replace").splitlines()
        if code or len(lines) != self._answers or any("nknown" in each for each in lines):
            asked, answered = "; ".join(self._commands), "; ".join(lines)
            raise MpsFailed(f"{self._program} did not take {asked}; it said: {answered[-LAST_WORDS:]}")

    def _make_folder(self) -> None:
        """Make the folder, for the user of the runners: a daemon refuses clients of another user."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            os.chown(self.folder, self._user.uid, self._user.gid)

    async def _until_listening(self) -> None:
        for _ in range(int(START_S / LOOK_EVERY_S)):
            if not self.is_running:
                break
            if (self.folder / "control").exists():
                return
            await asyncio.sleep(LOOK_EVERY_S)
        await self.end()
        raise MpsFailed(f"{self._program} did not start: {self.last_words or 'it said nothing'}")

    def variables(self) -> dict[str, str]:
        return {mps.PIPES: str(self.folder), mps.LOGS: os.devnull}  # it says all to its output

    async def end(self) -> None:
        """End the daemon and everything it started."""
        self.kill()
        await self.ended()
        if self._temporary:
            with suppress(OSError):
                await asyncio.to_thread(foreign_files.remove, self.folder)

    async def ended(self) -> None:
        """Return when the daemon and everything it started has ended."""
        if self._process is not None:
            await self._process.wait()
        if self._listener is not None:
            await self._listener

    def kill(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Take in what the daemon says, which is its log. Clients make it grow, so the end is kept alone."""
        while process.stdout is not None and (more := await process.stdout.read(LAST_WORDS)):
            self._said = (self._said + more)[-LAST_WORDS:]

    @property
    def last_words(self) -> str:
        return self._said.decode(errors="replace").strip()


def _talk(program: str, variables: Mapping[str, str], commands: bytes) -> tuple[int, bytes]:
    """Run the control program with these commands; return its exit code and what it says. Raise `MpsFailed`
    if it does not end in time or says too much: then it is killed."""
    with subprocess.Popen(
        [program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=variables,
        start_new_session=True,
        bufsize=0,
    ) as control:
        try:
            return _exchange(control, commands)
        except subprocess.TimeoutExpired as error:
            raise MpsFailed(f"{PROGRAM} did not answer in {TELL_S:g} s") from error
        finally:
            if control.returncode is None:
                os.killpg(control.pid, signal.SIGKILL)


def _exchange(control: "subprocess.Popen[bytes]", commands: bytes) -> tuple[int, bytes]:
    deadline, said = time.monotonic() + TELL_S, b""
    if control.stdin is None or control.stdout is None:
        return control.wait(TELL_S), said
    with suppress(OSError), control.stdin:  # it may have ended already, and its answer says why
        control.stdin.write(commands)
    while select.select([control.stdout], [], [], max(deadline - time.monotonic(), 0.0))[0]:
        more = control.stdout.read(LONGEST_ANSWER)
        said += more or b""
        if not more:
            return control.wait(max(deadline - time.monotonic(), 0.1)), said
        if len(said) > LONGEST_ANSWER:
            raise MpsFailed(f"{PROGRAM} says more than {LONGEST_ANSWER:,} bytes")
    raise subprocess.TimeoutExpired(control.args, TELL_S)

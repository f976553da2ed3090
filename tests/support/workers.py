"""Real worker processes for tests, and checks that they leave no process behind."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from gpu_orchestrator.adapters import keeper
from tests.support import warm
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S, pause_s
from tests.support.scripted_server import TOKEN

MARK = "GPU_ORCHESTRATOR_TEST_MARK"
CELERY = (sys.executable, "-m", "celery", "-A", "gpu_orchestrator.workers")


class Worker:
    """`gpu-orchestrator worker` as a process; its environment has a mark that every process below it
    inherits."""

    def __init__(
        self,
        server: str,
        log: Path,
        *options: str,
        token: str = TOKEN,
        name: str = "w",
        before: Sequence[str] = (),
        program: Sequence[str] = (warm.PROGRAM,),
    ) -> None:
        self.name, self.mark, self._program = name, uuid4().hex, program
        self.log = log
        environment = compiled() | {MARK: self.mark, "GPU_ORCHESTRATOR_TOKEN": token}
        given = ["--server", server, *options]
        with log.open("ab") as output:
            self.process = warm.Popen(
                [*before, *self._command(given, environment)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _command(self, given: list[str], environment: dict[str, str]) -> list[str]:
        return [*self._program, "worker", "--name", self.name, *given]

    @property
    def agent(self) -> int:
        """The process that has the session with the server."""
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def below(self) -> list[int]:
        """Return the live processes of this worker, without the agent itself."""
        return sorted(pid for pid in marked(self.mark) if pid != self.process.pid)

    def is_in_trouble(self) -> bool:
        """Return whether the worker has logged an exception that nobody expected."""
        return "Traceback" in self.log.read_text()

    def victims(self) -> list[int]:
        """Return the live processes that may be killed without ending the worker for good."""
        return self.below()

    def runner(self) -> int:
        """Return the newest process that runs handlers."""
        return max(self.below(), key=_started)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


class CeleryWorker(Worker):
    """The same worker as a Celery worker, with the agent as its child. `broker` are the settings that say
    where Celery's broker is. Celery waits a second for neighbours at its start, unless told not to."""

    def __init__(self, *given: str | Path, broker: dict[str, str], **more: str) -> None:
        self._broker = broker
        super().__init__(*given, **more)  # type: ignore[arg-type]

    def _command(self, given: list[str], environment: dict[str, str]) -> list[str]:
        environment |= self._broker | {"GPU_ORCHESTRATOR_WORKER_OPTIONS": shlex.join(given)}
        quick = ("--without-mingle", "--without-gossip", "--loglevel", "INFO")
        return [*CELERY, "worker", "--hostname", f"{self.name}@test", *quick]

    @property
    def agent(self) -> int:
        (found,) = (pid for pid in self.below() if self._is_agent(pid))
        return found

    def _is_agent(self, pid: int) -> bool:
        with suppress(OSError):
            return b"\0--desk\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    def is_in_trouble(self) -> bool:
        """Celery logs tracebacks when it loses its broker or a process: only the agent's lines count."""
        agent = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return any('"level": "error"' in line for line in agent)

    def victims(self) -> list[int]:
        """Those of the agent: Celery ends with the agent, or if a pool process ends as it starts, for what
        keeps it running to start it again."""
        return [pid for each in self.below() if self._is_agent(each) for pid in keeper.descendants(each)]


def open_to_all() -> list[str]:
    """Return what to put before a command so that every user can read this Python and these sources, though
    they may be in the home of root: in a mount namespace of its own, that home has nothing else."""
    needed = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
    closed = {each for path in needed for each in path.parents if not each.stat().st_mode & 0o001}
    if not closed:
        return []
    home = min(closed, key=lambda path: len(path.parts))
    inside = [path for path in needed if home in path.parents]
    binds = "; ".join(
        f'mkdir -p "$T/{p.relative_to(home)}"; mount --bind {p} "$T/{p.relative_to(home)}"' for p in inside
    )
    script = f'T=$(mktemp -d); chmod 755 "$T"; {binds}; mount --rbind "$T" {home}; exec "$@"'
    return ["unshare", "-m", "sh", "-ec", script, "sh"]


def compiled() -> dict[str, str]:
    """Return an environment in which Python caches bytecode, as it does for an installed package: processes
    start as fast as they do for a user. Without the machine's certificate authorities: aiohttp would read
    them in every process, which takes 45 ms of CPU, and no test trusts one."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    folder = Path(tempfile.gettempdir()) / f"gpu-orchestrator-pycache-{os.getuid()}"
    return kept | {"PYTHONPYCACHEPREFIX": str(folder), "SSL_CERT_FILE": os.devnull}


def marked(mark: str) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and is_alive(int(folder.name)):
            with suppress(OSError):
                if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                    yield int(folder.name)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _started(pid: int) -> tuple[int, int]:
    """Sort processes by age. Their ids do not: they begin again at the lowest when the highest was given."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]), pid
    except OSError:
        return 0, pid


def grown_to(worker: Worker, count: int) -> None:
    """Wait until this worker has `count` processes: one that has just started does not show its mark yet."""
    end = time.monotonic() + PATIENCE_S
    while True:
        looked_at = time.monotonic()
        if len(below := worker.below()) >= count:
            return
        assert looked_at < end, f"never {count} processes: {below}"
        time.sleep(pause_s(time.monotonic() - looked_at, 0.01))


def gone_within(worker: Worker, seconds: float) -> float:
    """Wait until no process below this worker is left, and return how long it took."""
    start = time.monotonic()
    while True:
        looked_at = time.monotonic()
        if not (below := worker.below()):
            return time.monotonic() - start
        assert looked_at - start < seconds, f"still there after {seconds} s: {below}"
        time.sleep(pause_s(time.monotonic() - looked_at, 0.01))

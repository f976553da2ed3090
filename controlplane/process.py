"""One server process of a cluster, which a test can stop, kill, pause, resume and restart."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.errors import ClusterError

START_TIMEOUT_S = 60.0


@dataclass
class Process:
    """stopped ──start──▶ running ──pause──▶ paused ──resume──▶ running; any ──stop or kill──▶ stopped."""

    name: str
    command: Sequence[str | Path]
    folder: Path
    environment: Mapping[str, str]
    is_ready: Callable[[], bool] = lambda: True
    popen: type["subprocess.Popen[bytes]"] = subprocess.Popen
    _popen: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        if self._popen is None:
            raise ClusterError(f"{self.name} is not running")
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        popen = self._popen  # another thread that kills it may clear the attribute meanwhile
        return popen is not None and popen.poll() is None

    def start(self, *, wait: bool = True) -> None:
        if self.is_running:
            return
        with self.log.open("ab") as log:
            self._popen = self.popen(
                [str(word) for word in self.command],
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only the owner, which ends the parts in order
            )
        if wait:
            self.wait_ready()

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.is_ready():
            if not self.is_running:
                raise ClusterError(f"{self.name} ended while starting; its log ends:\n{self.last_words()}")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{self.name} not ready after {timeout_s:.0f} s; its log ends:\n{self.last_words()}"
                )
            time.sleep(0.05)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Send SIGTERM; after `timeout_s` send SIGKILL."""
        if (popen := self._popen) is None:
            return
        popen.send_signal(signal.SIGCONT)
        popen.send_signal(signal.SIGTERM)
        try:
            popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            popen.kill()
        self._forget(popen)

    def kill(self) -> None:
        if (popen := self._popen) is not None:
            popen.kill()
            self._forget(popen)

    def _forget(self, popen: "subprocess.Popen[bytes]") -> None:
        popen.wait()
        if self._popen is popen:  # else another thread saw it end and started it again
            self._popen = None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def last_words(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    @property
    def memory_mb(self) -> float:
        """Return the resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))

    @property
    def cpu_s(self) -> float:
        """Return the CPU seconds used since the start."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _signal(self, signum: signal.Signals) -> None:
        if self._popen is None:
            raise ClusterError(f"{self.name} is not running")
        self._popen.send_signal(
            signum
        )  # not by pid, which may belong to another process once this one has ended

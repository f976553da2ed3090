"""The worker process of `up`: started, started again when it ends, drained at the end.

running --ended by itself--> waiting (1 s, 2 s, … 30 s) --> running
   |      '--cannot start with these arguments--> given up
   '--leave--> draining --> ended
"""

import asyncio
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from gpu_orchestrator.adapters.broker.address import OF_SETTINGS
from gpu_orchestrator.adapters.parent_death import end_with_parent
from gpu_orchestrator.adapters.setting_names import OF_MODELS
from gpu_orchestrator.adapters.settings import env_file_values
from gpu_orchestrator.apps.worker import environment
from gpu_orchestrator.apps.worker.settings import name_of
from gpu_orchestrator.cli.host import Host
from gpu_orchestrator.cli.worker import CANNOT_START
from gpu_orchestrator.engine import backoff

DRAIN_S = 5.0
AT_ONCE_S, END_S = 1.0, 15.0
FIRST_S, LONGEST_S, GOOD_S = 1.0, 30.0, 60.0
"""Pauses before a restart; a worker that ran for `GOOD_S` starts again with the first."""
LOG = "worker.log"
LAST_BYTES = 16_384


class OwnWorker:
    def __init__(
        self,
        host: Host,
        *,
        simulate: str,
        max_concurrent: int,
        apps: Sequence[str] = (),
        models: Sequence[str] = (),
    ) -> None:
        self._apps, self._models = apps, models
        self._host, self._simulate, self._max_concurrent = host, simulate, max_concurrent
        self.name = name_of(socket.gethostname())
        self._log = Path(host.settings.data_dir) / LOG
        self._process: asyncio.subprocess.Process | None = None
        self._leaving = asyncio.Event()
        self._problem = ""

    def problems(self) -> list[str]:
        """Return what is wrong with the worker now, at most one line."""
        return [self._problem] if self._problem else []

    async def keep(self) -> None:
        """Keep a worker running until `leave` is called, or until it cannot start."""
        failed = 0
        loop = asyncio.get_running_loop()
        while not self._leaving.is_set():
            began, size = loop.time(), self._log_size()
            process = self._process = await self._start()
            joined = loop.create_task(self._clear_when_joined())
            status = await process.wait()
            joined.cancel()
            if self._leaving.is_set():
                return
            failed = 0 if loop.time() - began > GOOD_S else failed
            wait_s = backoff.delay_s(failed, base_s=FIRST_S, cap_s=LONGEST_S)
            self._problem = problem(status, self._last_line(size), wait_s, self._log)
            if status == CANNOT_START:
                return
            failed += 1
            await asyncio.sleep(wait_s)

    async def leave(self, at_once: asyncio.Event) -> None:
        """Let the worker finish what it runs and end. `at_once` ends it without waiting."""
        self._leaving.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        ended = asyncio.get_running_loop().create_task(process.wait())
        told = asyncio.get_running_loop().create_task(at_once.wait())
        await asyncio.wait([ended, told], return_when=asyncio.FIRST_COMPLETED, timeout=END_S)
        told.cancel()
        if process.returncode is None:
            process.terminate()  # the second time: it tells the manager, and ends
            await asyncio.wait([ended], timeout=AT_ONCE_S)

    async def kill(self) -> None:
        """End what is left of it. Its runners end with it."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        by_celery = self._host.settings.executor == "celery"
        with self._opened_log() as log:
            # -P: a random.py in the current folder must not take the place of Python's own.
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m"),
                *(
                    self._as_celery_worker()
                    if by_celery
                    else ("gpu_orchestrator", "worker", *self._options())
                ),
                env=self._environment() | (self._of_celery() if by_celery else {}),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM),
            )

    def _options(self) -> list[str]:
        host, folder = self._host, self._log.parent
        return [
            *("--server", host.server.url, "--name", self.name),
            *("--drain-s", f"{DRAIN_S:g}", "--max-concurrent", str(self._max_concurrent)),
            *("--simulation", str(folder / "gpus")),
            *(("--simulate", self._simulate) if self._simulate else ()),
            *(word for app in self._apps for word in ("--app", app)),
            *(word for model in self._models for word in ("--model", model)),
            *(("--v", "1") if host.settings.log_level == "DEBUG" else ()),
        ]

    def _as_celery_worker(self) -> tuple[str, ...]:
        return ("celery", "-A", "gpu_orchestrator.workers", "worker", "-n", f"{self.name}@%h", "-l", "INFO")

    def _of_celery(self) -> dict[str, str]:
        """Return the options of the worker, and the settings that say where Celery's broker is."""
        names = [name.upper() for name in OF_SETTINGS]
        broker = {name: os.environ[name] for name in names if name in os.environ}
        return broker | {
            "DATA_DIR": self._host.settings.data_dir,
            "GPU_ORCHESTRATOR_WORKER_OPTIONS": shlex.join(self._options()),
        }

    def _environment(self) -> dict[str, str]:
        """Pass the token by the environment: every user could read it on a command line. Of the manager's
        secrets the worker gets no other. It does not read `.env`, so what that says of models goes along."""
        cert = self._host.settings.ssl_cert_path
        ca = {"GPU_ORCHESTRATOR_CA": cert} if cert else {}
        token = {"GPU_ORCHESTRATOR_TOKEN": self._host.secrets.worker_token}
        in_file = env_file_values(Path(".env"))
        models = {name: in_file[name] for name in OF_MODELS if name in in_file}
        return {**models, **environment.without_secrets(), **ca, **token}

    def _opened_log(self) -> IO[bytes]:
        try:
            return self._log.open("ab")
        except OSError:  # a full disk must not keep the worker from working
            return Path(os.devnull).open("ab")

    async def _clear_when_joined(self) -> None:
        while not len(self._host.server.manager.sessions):  # noqa: ASYNC110 - sessions offer no event
            await asyncio.sleep(0.1)
        self._problem = ""

    def _log_size(self) -> int:
        with suppress(OSError):
            return self._log.stat().st_size
        return 0

    def _last_line(self, after: int) -> str:
        """Return what the worker said last, since its log had this size."""
        with suppress(OSError), self._log.open("rb") as log:
            log.seek(max(after, self._log_size() - LAST_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
            return next((words(line) for line in reversed(lines) if line.strip()), "")
        return ""


def words(line: str) -> str:
    """Return a line of a log for people: a JSON line becomes its message and its reason."""
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if not isinstance(entry, dict) or "message" not in entry:
        return line.strip().removeprefix("gpu-orchestrator worker: ")
    why = next((str(entry[name]) for name in ("error", "why", "reason") if entry.get(name)), "")
    return f"{entry['message']}: {why}" if why else str(entry["message"])


def problem(status: int, last: str, wait_s: float, log: Path) -> str:
    """Return the end of a worker in words; empty if it ended as it should."""
    if status == 0:
        return ""
    how = f"killed by signal {-status}" if status < 0 else f"exit code {status}"
    said = how if status < 0 else last or how  # its last line tells nothing of a signal
    if status == CANNOT_START:
        return f"the worker cannot start: {said}; press Ctrl-C, correct it and start again"
    return f"the worker ended: {said}; it starts again in {wait_s:g} s; its log is {log}"

"""Workers as processes on this machine, each with devices of its own. They end with the server.

    server ──lifeline──> keeper ──> worker ──> its runners

A worker that ends by itself is started again after a pause; one that is to go was told so by its session, and
its place is free once it has ended. A worker has a place: its number, which is part of its name, and devices.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpu_orchestrator.adapters import keeper
from gpu_orchestrator.adapters.provisioners.provisioner import CannotScale, Wish

FIRST_PAUSE_S, LONGEST_PAUSE_S, GOOD_S = 1.0, 60.0, 60.0
LEAVE_S, AT_ONCE_S = 10.0, 2.0
"""How long workers may take to end their tasks and leave when the server ends, and then to end without."""


@dataclass(slots=True)
class _Running:
    process: asyncio.subprocess.Process
    lifeline: int
    began: float

    def is_there(self) -> bool:
        return self.process.returncode is None


@dataclass(frozen=True, slots=True)
class LocalWorkers:
    """How they are started: `options` of `gpu-orchestrator worker`, `environment` with the token. `places`
    are the devices of each, by UUID; without, workers have what their options say. `log_folder` has a log of
    each."""

    options: Sequence[str]
    environment: Mapping[str, str]
    label: str
    log_folder: Path
    places: Sequence[tuple[str, ...]] = ()


class Local:
    name = "local"
    tells_to_leave = True

    def __init__(self, workers: LocalWorkers) -> None:
        self._workers = workers
        self._running: dict[str, _Running] = {}
        self._failed, self._not_before, self._ended = 0, 0.0, ""
        self._prefix = f"{socket.gethostname().split('.')[0].lower()[:40]}-auto-"

    async def scale(self, wish: Wish) -> None:
        self._take_note_of_ended(wish)
        staying = (wish.online | self._running.keys()) - set(wish.stopping)
        for _ in range(wish.wanted - len(staying)):
            await self._start(wish.online)

    async def close(self) -> None:
        """End all: first as they are told to, with time for their tasks, then at once."""
        ending = [asyncio.ensure_future(each.process.wait()) for each in self._running.values()]
        for patience_s in (LEAVE_S, AT_ONCE_S):
            if not all(each.done() for each in ending):
                self._terminate()
                await asyncio.wait(ending, timeout=patience_s)
        for each in self._running.values():
            os.close(each.lifeline)  # the keeper ends whatever is left
        await asyncio.gather(*ending)
        self._running.clear()

    def _terminate(self) -> None:
        for each in self._running.values():
            with suppress(OSError):
                os.write(each.lifeline, keeper.order(keeper.TERM))

    def _take_note_of_ended(self, wish: Wish) -> None:
        now = asyncio.get_running_loop().time()
        for name in [name for name, each in self._running.items() if not each.is_there()]:
            ended = self._running.pop(name)
            os.close(ended.lifeline)
            if name in wish.stopping or not ended.process.returncode:
                continue
            self._failed = 0 if now - ended.began > GOOD_S else self._failed + 1
            pause_s = min(FIRST_PAUSE_S * 2**self._failed, LONGEST_PAUSE_S)
            self._not_before = now + pause_s
            self._ended = (
                f"worker {name} ended with {ended.process.returncode}; another starts within {pause_s:g} s; "
                f"its log is {self._log(name)}"
            )
        if now < self._not_before and wish.wanted > len(wish.online | self._running.keys()):
            raise CannotScale(self._ended)

    async def _start(self, online: frozenset[str]) -> None:
        name, devices = self._free_place(online)
        options = [*self._workers.options, *(("--gpus", ",".join(devices)) if devices else ())]
        program = [sys.executable, keeper.SAFE_PATH, "-m", "gpu_orchestrator", "worker"]
        program += ["--name", name, "--label", self._workers.label, *self._simulation(name), *options]
        far, lifeline = os.pipe2(os.O_CLOEXEC)
        try:
            with self._opened_log(name) as log:
                process = await asyncio.create_subprocess_exec(
                    *keeper.program_command(far, "", "", *program),
                    env=dict(self._workers.environment),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(far,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(far)
        self._running[name] = _Running(process, lifeline, asyncio.get_running_loop().time())

    def _free_place(self, online: frozenset[str]) -> tuple[str, tuple[str, ...]]:
        """Return the name and the devices of the first place that no worker has."""
        taken, number = online | self._running.keys(), 0
        while (name := f"{self._prefix}{number}") in taken:
            number += 1
        places = self._workers.places
        if places and number >= len(places):
            raise CannotScale(
                f"this machine's devices are enough for {len(places)} workers, and all are taken"
            )
        return name, places[number] if places else ()

    def _simulation(self, name: str) -> list[str]:
        """Return where simulated devices of a worker are: two workers must not have the same."""
        return ["--simulation", str(self._workers.log_folder / "gpus" / name)]

    def _log(self, name: str) -> Path:
        return self._workers.log_folder / f"{name}.log"

    def _opened_log(self, name: str) -> IO[bytes]:
        try:
            return self._log(name).open("wb")
        except OSError:  # a full disk must not keep the worker from working
            return Path(os.devnull).open("ab")


def places_of(uuids: Sequence[str], each: int) -> list[tuple[str, ...]]:
    """Return the devices of each worker; what is left over at the end has none."""
    if not each:
        return []
    return [tuple(uuids[at : at + each]) for at in range(0, len(uuids) - each + 1, each)]

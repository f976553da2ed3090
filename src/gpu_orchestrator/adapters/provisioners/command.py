"""A program of the operator starts and ends workers: `PROGRAM ARGUMENTS… WANTED [WORKER…]`.

It is told how many workers shall run, and the names of those that are drained and end now. No shell reads
its arguments. It is called when something changes and once by each new leader, so it must be able to hear the
same twice.
"""

import asyncio
import os
import shlex
import signal
from collections.abc import Collection
from contextlib import suppress

from gpu_orchestrator.adapters.provisioners.provisioner import CannotScale, Wish, without

LONGEST_S = 120.0
KILLED_S = 5.0
LAST_WORDS = 300
LOUDEST = 65_536
"""Bytes of its output that are read at once; only the last of them are shown."""


class Command:
    name = "command"
    tells_to_leave = True

    def __init__(self, line: str, secrets: Collection[str] = ()) -> None:
        self._words, self._secrets = shlex.split(line), secrets
        self._done: Wish | None = None

    async def scale(self, wish: Wish) -> None:
        what = Wish(wish.wanted, stopping=tuple(sorted(wish.stopping)))
        if what == self._done:
            return
        await self._call(str(what.wanted), *what.stopping)
        self._done = what

    async def close(self) -> None: ...

    async def _call(self, *arguments: str) -> None:
        program = self._words[0]
        try:
            process = await asyncio.create_subprocess_exec(
                *self._words,
                *arguments,
                env=without(dict(os.environ), self._secrets),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise CannotScale(f"AUTO_SCALE_COMMAND: {program} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(LONGEST_S):
                said = await _last_words(process)
                status = await process.wait()
        except TimeoutError:
            raise CannotScale(f"AUTO_SCALE_COMMAND: {program} took longer than {LONGEST_S:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                # What it started in a session of its own may keep its output open for good.
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), KILLED_S)
        if status:
            raise CannotScale(
                f"AUTO_SCALE_COMMAND: {program} ended with {status}; it said: {said or 'nothing'}"
            )


async def _last_words(process: asyncio.subprocess.Process) -> str:
    kept = b""
    while process.stdout is not None and (part := await process.stdout.read(LOUDEST)):
        kept = (kept + part)[-LAST_WORDS:]
    return kept.decode(errors="replace").strip()

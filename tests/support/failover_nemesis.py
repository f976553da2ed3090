"""Kill the primary of a replicated store again and again, while tasks are submitted."""

import asyncio
import signal
from contextlib import suppress
from random import Random
from typing import Any

import aiohttp

from tests.support.fleet import Fleet
from tests.support.replicated import Replicated

LIMIT_S = 180.0
CUT_S = 0.7
"""How long the replica is cut off before the primary is killed, in every second round."""
BETWEEN = 20
"""Tasks that are acknowledged between two kills, at least."""


class FailoverNemesis:
    """`acknowledged` are the ids of tasks that the manager has acknowledged, with their numbers."""

    def __init__(self, manager: Fleet, stores: Replicated, rng: Random) -> None:
        self._manager, self._stores, self._rng = manager, stores, rng
        self.acknowledged: dict[str, int] = {}
        self.refused = 0
        self._number = 0
        self._over = asyncio.Event()

    async def run(self, kills: int, *, pause_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(self._submit())
            for number in range(kills):
                await self._acknowledge(BETWEEN)
                await asyncio.sleep(pause_s * self._rng.uniform(0.0, 1.0))
                await self._kill(cut_off=number % 2 == 0)
            await self._acknowledge(1)
            self._over.set()

    async def _acknowledge(self, more: int) -> None:
        """Wait until the manager has acknowledged some more tasks."""
        wanted = len(self.acknowledged) + more
        async with asyncio.timeout(LIMIT_S):
            while len(self.acknowledged) < wanted:  # noqa: ASYNC110 - counts what requests were answered
                await asyncio.sleep(0.02)

    async def _kill(self, *, cut_off: bool) -> None:
        """Kill the primary, also while its replica is cut off: then there are writes that only the primary
        has."""
        primary = await self._stores.whole()
        replica = next(each for each in self._stores.nodes if each is not primary)
        if cut_off:
            replica.send(signal.SIGSTOP)
            await primary.command("CLIENT", "KILL", "TYPE", "replica")
            await asyncio.sleep(CUT_S)
        primary.kill()
        if cut_off:
            replica.send(signal.SIGCONT)
        new = await self._stores.primary()
        await primary.up("--replicaof", f"127.0.0.1 {new.port}")

    async def _submit(self) -> None:
        while not self._over.is_set():
            self._number += 1
            number = self._number
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with asyncio.timeout(30):
                    await self._submit_one(number)
            await asyncio.sleep(0.02)

    async def _submit_one(self, number: int) -> None:
        body = {
            "task_type": "echo",
            "parameters": {"number": number},
            "resources": {"gpus": 0},
            "max_retries": 50,
            "idempotency_key": f"f-{number}",
        }
        status, answer = await self._manager.call("POST", "/tasks", body)
        if status == 202:
            self.acknowledged[answer["task_id"]] = number
        else:
            assert status == 503, answer
            self.refused += 1


async def shown(manager: Fleet, task: str) -> dict[str, Any] | None:
    """Return the task once it has ended, or None if the manager does not know it."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with suppress(aiohttp.ClientError, OSError):
                status, answer = await manager.call("GET", f"/tasks/{task}/wait?timeout=10")
                if status == 404:
                    return None
                if answer.get("status") in ("completed", "failed", "dead", "cancelled"):
                    return dict(answer)
            await asyncio.sleep(0.05)

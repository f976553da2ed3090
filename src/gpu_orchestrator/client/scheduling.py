"""What `Client.schedules` and `AsyncClient.schedules` offer. Each method performs steps of
`schedules`."""

import builtins
from typing import TYPE_CHECKING, Any

from gpu_orchestrator.client import schedules
from gpu_orchestrator.client.functions import TaskFunction
from gpu_orchestrator.client.schedules import ScheduleInfo
from gpu_orchestrator.client.tasks import Call, Cron

if TYPE_CHECKING:
    from gpu_orchestrator.client.awaiting import AsyncClient, AsyncHandle
    from gpu_orchestrator.client.blocking import Client, Handle


class Schedules:
    """The schedules of your key's owner: tasks that the server queues at the moments of a cron expression.
    Reached as `client.schedules`."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def add(
        self,
        name: str,
        when: str | Cron,
        task: Call[Any] | TaskFunction[..., Any],
        /,
        *,
        replace: bool = False,
    ) -> ScheduleInfo:
        """Add a schedule: `add("nightly", "0 3 * * *", train.call(epochs=3))`. The same one again changes
        nothing; another of this name is refused, or with `replace` takes its place."""
        return self._client._run(schedules.add(self._client._with, name, when, task, replace=replace))

    def apply(self, *functions: TaskFunction[..., Any]) -> "builtins.list[ScheduleInfo]":
        """Add or replace the schedules of these functions, as `@task(schedule=...)` says, under the names of
        the functions."""
        return self._client._run(schedules.apply(self._client._with, functions))

    def get(self, name: str) -> ScheduleInfo:
        """Return a schedule, by its name or its id."""
        return self._client._run(schedules.get(self._client._with, name))

    def pause(self, name: str) -> ScheduleInfo:
        """Let it fire no more until it is resumed."""
        return self._client._run(schedules.change(self._client._with, name, "pause"))

    def resume(self, name: str) -> ScheduleInfo:
        """Let it fire again, also one that stopped because its key is over: it goes on under yours."""
        return self._client._run(schedules.change(self._client._with, name, "resume"))

    def run(self, name: str) -> "Handle[Any]":
        """Queue its task now."""
        return self._client.handle(self._client._run(schedules.run(self._client._with, name)))

    def delete(self, name: str) -> None:
        """Delete a schedule. Tasks that it has queued go on."""
        self._client._run(schedules.delete(self._client._with, name))

    def list(self, owner: str = "") -> "builtins.list[ScheduleInfo]":
        """Return all schedules, oldest first. `owner` is for admins."""
        return self._client._run(schedules.page(self._client._with, owner))


class AsyncSchedules:
    """The schedules of your key's owner: tasks that the server queues at the moments of a cron expression.
    Reached as `client.schedules`."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client

    async def add(
        self,
        name: str,
        when: str | Cron,
        task: Call[Any] | TaskFunction[..., Any],
        /,
        *,
        replace: bool = False,
    ) -> ScheduleInfo:
        """Add a schedule: `add("nightly", "0 3 * * *", train.call(epochs=3))`. The same one again changes
        nothing; another of this name is refused, or with `replace` takes its place."""
        return await self._client._run(schedules.add(self._client._with, name, when, task, replace=replace))

    async def apply(self, *functions: TaskFunction[..., Any]) -> "builtins.list[ScheduleInfo]":
        """Add or replace the schedules of these functions, as `@task(schedule=...)` says, under the names of
        the functions."""
        return await self._client._run(schedules.apply(self._client._with, functions))

    async def get(self, name: str) -> ScheduleInfo:
        """Return a schedule, by its name or its id."""
        return await self._client._run(schedules.get(self._client._with, name))

    async def pause(self, name: str) -> ScheduleInfo:
        """Let it fire no more until it is resumed."""
        return await self._client._run(schedules.change(self._client._with, name, "pause"))

    async def resume(self, name: str) -> ScheduleInfo:
        """Let it fire again, also one that stopped because its key is over: it goes on under yours."""
        return await self._client._run(schedules.change(self._client._with, name, "resume"))

    async def run(self, name: str) -> "AsyncHandle[Any]":
        """Queue its task now."""
        return self._client.handle(await self._client._run(schedules.run(self._client._with, name)))

    async def delete(self, name: str) -> None:
        """Delete a schedule. Tasks that it has queued go on."""
        await self._client._run(schedules.delete(self._client._with, name))

    async def list(self, owner: str = "") -> "builtins.list[ScheduleInfo]":
        """Return all schedules, oldest first. `owner` is for admins."""
        return await self._client._run(schedules.page(self._client._with, owner))

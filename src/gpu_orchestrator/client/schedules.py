"""Schedules as a client writes and reads them, and what is said about them. Pure.

`Client.schedules` and `AsyncClient.schedules` perform these steps.
"""

from collections.abc import Iterable
from typing import Any, Literal
from urllib.parse import quote, urlencode

import msgspec

from gpu_orchestrator.client import calls
from gpu_orchestrator.client.conversation import PREFIX, Conversation
from gpu_orchestrator.client.functions import TaskFunction
from gpu_orchestrator.client.steps import Ask, Steps
from gpu_orchestrator.client.tasks import Call, Cron

PAGE = 1000
_encode = msgspec.json.Encoder().encode


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as the server knows it. `status` is `active`, `paused` or `stopped`, and `reason` says why
    it does not fire. `upcoming` are its next moments. `fired` counts its tasks, `passed_over` the moments
    without one."""

    schedule_id: str
    name: str
    owner: str
    key_id: str
    schedule: str
    timezone: str = "UTC"
    missed: str = "run_once"
    overlap: str = "allow"
    jitter: str = ""
    status: str
    reason: str = ""
    next_at: str | None = None
    upcoming: list[str] = []
    last_at: str | None = None
    last_task: str | None = None
    fired: int = 0
    passed_over: int = 0
    created_at: str = ""
    task_type: str = ""
    labels: dict[str, str] = {}


class _Page(msgspec.Struct):
    schedules: list[ScheduleInfo]
    total: int


class _Accepted(msgspec.Struct):
    task_id: str


class _Gone(msgspec.Struct):
    schedule_id: str


def add(told: Conversation, name: str, when: str | Cron, task: Any, *, replace: bool) -> Steps[ScheduleInfo]:
    body = {
        "name": name,
        **msgspec.structs.asdict(Cron.of(when)),
        "task": calls.of(task, (), {}).body(),
        "replace": replace,
    }
    found = yield from told.ask(Ask("POST", f"{PREFIX}/schedules", _encode(body)), ScheduleInfo)
    return found


def apply(told: Conversation, functions: Iterable[TaskFunction[..., Any]]) -> Steps[list[ScheduleInfo]]:
    asked: list[tuple[TaskFunction[..., Any], Cron, Call[Any]]] = []
    for function in functions:
        if function.schedule is None:
            raise TypeError(f"{function.name} has no schedule; decorate it with @task(schedule='0 3 * * *')")
        asked.append((function, function.schedule, function.call()))
    found = []
    for function, when, call in asked:
        found.append((yield from add(told, function.name, when, call, replace=True)))
    return found


def get(told: Conversation, name: str) -> Steps[ScheduleInfo]:
    found = yield from told.ask(Ask("GET", _path(name)), ScheduleInfo)
    return found


def change(told: Conversation, name: str, what: Literal["pause", "resume"]) -> Steps[ScheduleInfo]:
    found = yield from told.ask(Ask("POST", _path(name, f"/{what}")), ScheduleInfo)
    return found


def run(told: Conversation, name: str) -> Steps[str]:
    """Queue the task of a schedule now; return its id."""
    found = yield from told.ask(Ask("POST", _path(name, "/run")), _Accepted)
    return found.task_id


def delete(told: Conversation, name: str) -> Steps[None]:
    yield from told.ask(Ask("DELETE", _path(name)), _Gone)


def page(told: Conversation, owner: str) -> Steps[list[ScheduleInfo]]:
    found: list[ScheduleInfo] = []
    while True:
        query = urlencode({"limit": PAGE, "offset": len(found), **({"owner": owner} if owner else {})})
        more = yield from told.ask(Ask("GET", f"{PREFIX}/schedules?{query}"), _Page)
        found += more.schedules
        if not more.schedules or len(found) >= more.total:
            return found


def _path(name: str, rest: str = "") -> str:
    return f"{PREFIX}/schedules/{quote(name, safe='')}{rest}"

"""Turn the body of a request into a schedule in the store, and rows of schedules into answers.

The routes for schedules call it. The task of a schedule is checked as any that is submitted now.
"""

import re
from hashlib import sha256
from itertools import pairwise

import msgspec
from msgspec import structs

from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.schedules import MOST_OF_ALL, NewSchedule, ScheduleRow
from gpu_orchestrator.api import files, units
from gpu_orchestrator.api.units import BadAmount
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.http import submission
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.schedule_schema import Schedule, ScheduleRequest
from gpu_orchestrator.apps.manager.schedules import cron, moments, template
from gpu_orchestrator.apps.manager.schedules.cron import BadSchedule
from gpu_orchestrator.apps.manager.views import when

MOST_PARAMETERS = 64 << 10
LONGEST_JITTER_S = units.DAY_S
UPCOMING, LOOKED_AT, LOOKED_AHEAD_MS = 5, 100, 8 * 86_400_000
"""Moments that are shown; moments that are looked at, and how far ahead, to see how often it fires."""
_NAME = re.compile(r"\w[\w.:-]*", re.ASCII)
NOT_OF_SCHEDULES = ("not_before", "depends_on", "idempotency_key")


def id_of(owner: str, name: str) -> str:
    """Return the id of a schedule. Its name is its owner's alone, so the same name is the same schedule."""
    return sha256(f"{owner}\0{name}".encode()).hexdigest()[:16]


async def save(
    manager: Manager, wanted: ScheduleRequest, key: Key, correlation: str
) -> tuple[ScheduleRow, bool]:
    """Store a schedule; return its row, and whether it is new."""
    if not _NAME.fullmatch(wanted.name):
        raise errors.Unprocessable(
            f"name: {wanted.name!r} cannot be the name of a schedule; use letters, digits, _, ., : and -, "
            "and begin with none of the last three"
        )
    now_ms = int(manager.leader.clock.now() * 1000)
    at = _moments(manager, wanted.schedule, wanted.timezone, now_ms)
    jitter_ms = _jitter_ms(wanted.jitter)
    new = await _task(manager, wanted, key, correlation)
    name = id_of(key.owner, wanted.name)
    columns = {
        "schedule": wanted.schedule,
        "zone": wanted.timezone,
        "missed": wanted.missed,
        "overlap": wanted.overlap,
        "jitter": str(jitter_ms),
        "task": template.written(new),
        "params": new.params,
    }
    # Not of the task as it is stored: that also depends on settings, and it would seem to be another.
    definition = sha256(msgspec.json.encode(structs.replace(wanted, replace=False))).hexdigest()
    columns |= {"name": wanted.name, "key": key.id, "definition": definition}
    said, row = await manager.store.schedules.save(
        NewSchedule(
            name,
            key.owner,
            int(wanted.replace),
            manager.settings.max_schedules or MOST_OF_ALL,
            MOST_OF_ALL,
            at.after(now_ms) or 0,
            moments.delay_ms(name, jitter_ms),
            tuple(part for column in columns.items() for part in column),
        )
    )
    if said == "full":
        most = manager.settings.max_schedules
        raise errors.Conflict(
            f"{key.owner} has {most} schedules, the most that one owner may have (MAX_SCHEDULES); delete some"
        )
    if said == "all full" or row is None:
        raise errors.Conflict(f"this server has {MOST_OF_ALL} schedules, the most that it takes; delete some")
    if said == "other":
        raise errors.Conflict(
            f"{key.owner} has another schedule {wanted.name!r}; give another name, or `replace`",
            schedule_id=name,
        )
    return row, said == "saved"


async def find(manager: Manager, given: str, key: Key) -> ScheduleRow:
    """Return the schedule of this name, or of this id, if the key may see it."""
    for name in (id_of(key.owner, given), given):
        row = await manager.store.schedules.get(name)
        if row is not None and key.sees in ("", row.owner):
            return row
    raise errors.NotFound(f"there is no schedule {given}; `schedule list` shows yours")


def next_ms(row: ScheduleRow, now_ms: int) -> int:
    try:
        return cron.read(row.schedule, row.zone).after(now_ms) or 0
    except BadSchedule as error:
        raise errors.Conflict(str(error)) from error


def shown(row: ScheduleRow, *, upcoming: int = UPCOMING) -> Schedule:
    spec = template.spec_of(row)
    return Schedule(
        schedule_id=row.id,
        name=row.name,
        owner=row.owner,
        key_id=row.key,
        schedule=row.schedule,
        timezone=row.zone,
        missed=row.missed,
        overlap=row.overlap,
        jitter=units.show_seconds(row.jitter_ms / 1000) if row.jitter_ms else "",
        status=row.state,
        reason=row.reason or (f"its task waits for room: {row.trouble}" if row.trouble else ""),
        next_at=when(row.next_ms + row.delay_ms) if row.next_ms else None,
        upcoming=_upcoming(row, upcoming),
        last_at=when(row.last_ms),
        last_task=row.last_task or None,
        fired=row.fired,
        passed_over=row.passed_over,
        created_at=when(row.created_ms) or "",
        task_type=spec.task_type,
        model_name=spec.model_name,
        priority=spec.priority,
        gpus=spec.gpus,
        labels=spec.labels,
        pool=spec.pool,
    )


def _upcoming(row: ScheduleRow, most: int) -> list[str]:
    """Return the next moments as people see them, in the schedule's own time zone."""
    if not row.next_ms:
        return []
    try:
        at, found = cron.read(row.schedule, row.zone), [row.next_ms]
    except BadSchedule:  # another server has a newer database of time zones
        return []
    while len(found) < most and (following := at.after(found[-1])) is not None:
        found.append(following)
    return [cron.local(moment, row.zone) for moment in found]


def _moments(manager: Manager, schedule: str, zone: str, now_ms: int) -> cron.Schedule:
    try:
        at = cron.read(schedule, zone)
    except BadSchedule as error:
        raise errors.Unprocessable(f"schedule: {error}") from error
    least_s = manager.settings.schedule_min_interval
    found = [now_ms]
    while len(found) < LOOKED_AT and found[-1] < now_ms + LOOKED_AHEAD_MS:
        found.append(at.after(found[-1]) or now_ms + LOOKED_AHEAD_MS)
    if any(later - sooner < least_s * 1000 for sooner, later in pairwise(found[1:])):
        raise errors.Unprocessable(
            f"schedule: {schedule!r} fires more often than every {least_s:g} seconds "
            "(SCHEDULE_MIN_INTERVAL); give a longer interval"
        )
    return at


def _jitter_ms(given: str) -> int:
    try:
        seconds = units.span_s(given) if given else 0.0
    except BadAmount as error:
        raise errors.Unprocessable(f"jitter: {error}") from error
    if seconds > LONGEST_JITTER_S:
        raise errors.Unprocessable(f"jitter: {given} is more than a day; give less")
    return int(seconds * 1000)


async def _task(manager: Manager, wanted: ScheduleRequest, key: Key, correlation: str) -> NewTask:
    request = wanted.task
    if given := [name for name in NOT_OF_SCHEDULES if getattr(request, name)]:
        raise errors.Unprocessable(f"task.{given[0]} makes no sense in a schedule; leave it out")
    if request.gang is not None:
        raise errors.Unprocessable(
            "task.gang: a schedule queues single tasks; let its task submit the gang, or submit it from cron"
        )
    if taken := {template.NAME, template.MOMENT} & set(request.labels):
        raise errors.Unprocessable(
            f"task.labels: {', '.join(sorted(taken))}: the schedule gives its tasks this label; use another"
        )
    if named := files.named_in(bytes(request.parameters)):
        raise errors.Unprocessable(
            f"task.parameters name the file {named[0]}, and a file is deleted TASK_RETENTION after it was "
            "last named by a task that was submitted; let the task of a schedule fetch what it needs"
        )
    new = await submission.checked(manager, request, key, correlation)
    if new.expires_ms > 0:
        raise errors.Unprocessable(
            f"task.expires: {request.expires!r} is one moment; write how long after each, such as 1h"
        )
    if len(new.params.encode()) > MOST_PARAMETERS:
        raise errors.Unprocessable(
            f"task.parameters: at most {MOST_PARAMETERS >> 10} KiB in a schedule; put the rest into a file"
        )
    return new

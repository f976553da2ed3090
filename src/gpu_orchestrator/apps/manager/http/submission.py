"""From a request's body to tasks in the store: checked, made specs, refused if they can never fit."""

from collections.abc import Sequence
from difflib import get_close_matches
from os import urandom

import msgspec

from gpu_orchestrator.adapters.outbound.addresses import Forbidden
from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.records import (
    Accepted,
    KeyConflict,
    Limit,
    NewTask,
    NoRoom,
    Submitted,
    Unit,
)
from gpu_orchestrator.api import task, units
from gpu_orchestrator.api.nesting import DEEPEST, is_too_deep
from gpu_orchestrator.api.task import PRIORITIES, TaskSpec
from gpu_orchestrator.api.units import MIB, show_seconds
from gpu_orchestrator.apps.manager import errors, schema, views
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.access.limits import UNLIMITED, Allowance
from gpu_orchestrator.apps.manager.fleet.nodes import request_of
from gpu_orchestrator.apps.manager.manager import Manager

LONGEST_ADVICE_S = 60.0
"""Nobody is told to wait longer for room in a queue: it may come sooner than we think."""

WISHES_AT_ONCE = 500
ROW = 1000
"""About what a task takes in the store besides what it brings."""


async def accept(
    manager: Manager, asked: Sequence[schema.TaskRequest], key: Key, correlation: str
) -> list[Accepted]:
    """All of them are in the store, or an error says why none is."""
    specs = [_spec(manager, each, key) for each in asked]
    for number, spec in enumerate(specs):
        await _check(manager, number, spec)
    new = [_new(manager, each, spec, key, correlation) for each, spec in zip(asked, specs, strict=True)]
    if len(new) > 1:  # one alone is judged when it is taken
        await _check_wishes(manager, asked, new)
    may = manager.quotas.of_key(key)
    answers = await _submit(manager, new, key, may)
    for answer in answers:  # nothing of a request is taken where not all of it is
        if isinstance(answer, NoRoom):
            raise _no_room(manager, answer, len(answers), key, may)
    return [_taken(wanted, answer) for wanted, answer in zip(asked, answers, strict=True)]


def accepted(manager: Manager, taken: Sequence[Accepted]) -> list[schema.TaskAccepted]:
    wait_s = round(manager.overview.wait_s(manager.metrics.average_s), 1)
    return [
        schema.TaskAccepted(
            task_id=each.id,
            status="queued",
            estimated_wait_time=show_seconds(wait_s),
            estimated_wait_seconds=wait_s,
            assigned_worker=None,
            created_at=views.when(each.created_ms) or "",
        )
        for each in taken
    ]


async def accept_again(manager: Manager, name: str, key: Key) -> str:
    """The state of a task before it was queued anew, if it could be; a retry needs room like any other task.
    Who retries tasks of everybody is not held to what he may himself."""
    may = manager.quotas.of_key(key)
    room = _unit(key, may if key.sees else UNLIMITED, manager.settings)
    (retried,) = await manager.store.tasks.retry([name], owner=key.sees, may=room)
    if isinstance(retried, NoRoom):
        raise _no_room(manager, retried, 1, key, may)
    return retried.state


async def _submit(manager: Manager, new: Sequence[NewTask], key: Key, may: Allowance) -> Sequence[Submitted]:
    """Only new tasks take room: a flood of what is refused or known already leaves it to others."""
    sizes = [ROW + len(each.params) + len(each.spec) for each in new]
    _check_room(manager, sum(sizes), key)
    answers: Sequence[Submitted] = ()
    try:
        answers = await manager.admission.put(new, _unit(key, may, manager.settings))
    finally:
        pairs = zip(sizes, answers, strict=False)
        taken = sum(size for size, each in pairs if isinstance(each, Accepted) and each.fresh)
        manager.overview.release_memory(sum(sizes), taken)
    return answers


def _check_room(manager: Manager, size: int, key: Key) -> None:
    room = manager.overview.reserve_memory(size)
    if room is not None:
        manager.metrics.refused(key.owner, "store")
        raise errors.StoreFull(
            f"the store holds {room.used // MIB} MiB of at most {room.most // MIB}; nothing was taken; try "
            "again when ended tasks were forgotten, or let an operator raise MAX_STORE_MB",
            LONGEST_ADVICE_S,
        )


def _unit(key: Key, may: Allowance, settings: Settings) -> Unit:
    return Unit(key.owner, may.queued, settings.max_queued_tasks, may.gpu_seconds * 1000)


def _taken(asked: schema.TaskRequest, answer: Submitted) -> Accepted:
    match answer:
        case Accepted():
            return answer
        case KeyConflict(id=name):
            raise _other(asked, name)
        case NoRoom():
            raise AssertionError("a request without room was refused before")


def _no_room(
    manager: Manager, refused: NoRoom, count: int, key: Key, may: Allowance
) -> errors.TooManyRequests | errors.QueueFull:
    """The error for a request of `count` tasks for which there is no room; counts it, too."""
    is_budget, is_own = refused.limit is Limit.DAY_BUDGET, refused.limit is Limit.OWNER_QUEUE
    manager.metrics.refused(key.owner, "budget" if is_budget else "queue")
    if is_budget:
        had = f"{key.owner} may use {may.gpu_seconds} GPU seconds a day and has used them"
        wait_s = refused.retry_after_ms / 1000
        return errors.TooManyRequests(f"{had}; the next day begins at 00:00 UTC", wait_s)
    most = may.queued if is_own else manager.settings.max_queued_tasks
    whose = key.owner if is_own else "one priority"
    room_s = min(manager.overview.drain_s(count, manager.metrics.average_s), LONGEST_ADVICE_S)
    return errors.QueueFull(
        f"no more than {most} tasks of {whose} may wait, and {count} more would be too many; "
        "nothing was taken, try again when some have run",
        room_s,
    )


def _spec(manager: Manager, asked: schema.TaskRequest, key: Key) -> TaskSpec:
    settings, wanted = manager.settings, asked.resources
    timeout_s = asked.timeout or settings.task_timeout
    try:
        memory_mib = units.memory_mib(wanted.gpu_memory) if wanted.gpu_memory else 0
    except units.BadAmount as error:
        raise errors.Unprocessable(f"resources.gpu_memory: {error}") from error
    return TaskSpec(
        task_type=asked.task_type,
        model_name=asked.model_name,
        priority=_priority(asked.priority),
        gpus=wanted.gpus,
        memory_mib=memory_mib if wanted.gpus else 0,
        vendor=wanted.vendor,
        timeout_s=timeout_s,
        soft_limit_s=min(settings.task_soft_time_limit, timeout_s),
        labels=asked.labels,
        callback_url=_callback(manager, asked.callback_url) if asked.callback_url else "",
        tenant=key.owner,
    )


def _callback(manager: Manager, url: str) -> str:
    if not manager.allowed.hosts:
        raise errors.Unprocessable(
            "callback_url: callbacks are off; an operator allows hosts with CALLBACK_HOSTS"
        )
    from gpu_orchestrator.adapters.outbound import requests  # not before somebody needs it: it is large

    try:
        requests.check_url(url, manager.allowed)
    except Forbidden as error:
        raise errors.Unprocessable(
            f"callback_url: {error}; CALLBACK_HOSTS and CALLBACK_NETWORKS say what is"
        ) from error
    return url


def _priority(given: str | int) -> int:
    if isinstance(given, int):
        return given
    if given not in PRIORITIES:
        raise errors.Unprocessable(f"unknown priority {given!r}; give {', '.join(PRIORITIES)} or 0 to 100")
    return PRIORITIES[given]


def _parameters(given: msgspec.Raw) -> str:
    """They are passed on as they came, so this is the last who looks at them before a worker does."""
    text = bytes(given)
    if is_too_deep(text):
        raise errors.Unprocessable(f"parameters: nested deeper than {DEEPEST}; make them flatter")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise errors.BadRequest(f"the body is no JSON: parameters: {error}") from error


async def _check(manager: Manager, number: int, spec: TaskSpec) -> None:
    wanted = request_of("", spec)
    refusal = await manager.overview.never_fits(wanted.shape, manager.registry.policy_of(wanted))
    if refusal is None:
        return
    types = manager.overview.task_types()
    if spec.task_type not in types:
        raise errors.Unprocessable(_unknown_type(spec.task_type, types), task=number)
    raise errors.Conflict(
        f"no worker can ever take this: {refusal.message}",
        task=number,
        reasons=[f"{count} {text}" for text, count in refusal.reasons],
        nearest=str(refusal.nearest) if refusal.nearest else "",
    )


def _unknown_type(name: str, known: set[str]) -> str:
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"unknown task_type {name!r}{hint} the workers know: {', '.join(sorted(known))}"


async def _check_wishes(
    manager: Manager, asked: Sequence[schema.TaskRequest], new: Sequence[NewTask]
) -> None:
    """Before the first of many is taken: a batch is taken whole or not."""
    wishes = [number for number, each in enumerate(new) if each.idempotency]
    first: dict[str, NewTask] = {}
    for number in wishes:
        known = first.setdefault(new[number].idempotency, new[number])
        if (known.spec, known.params) != (new[number].spec, new[number].params):
            raise errors.Conflict(
                f"idempotency_key {asked[number].idempotency_key!r} is given to tasks that ask for "
                "different things; nothing was taken",
                task=number,
            )
    for start in range(0, len(wishes), WISHES_AT_ONCE):
        part = wishes[start : start + WISHES_AT_ONCE]
        others = await manager.store.tasks.conflicts([new[number] for number in part])
        for number, other in zip(part, others, strict=True):
            if other:
                raise _other(asked[number], other, task=number)


def _other(asked: schema.TaskRequest, name: str, **details: int) -> errors.Conflict:
    return errors.Conflict(
        f"idempotency_key {asked.idempotency_key!r} belongs to task {name}, which asks for something else",
        task_id=name,
        **details,
    )


def _new(manager: Manager, asked: schema.TaskRequest, spec: TaskSpec, key: Key, correlation: str) -> NewTask:
    retries = manager.settings.max_retries if asked.max_retries is None else asked.max_retries
    return NewTask(
        urandom(16).hex(),
        task.encode(spec),
        _parameters(asked.parameters),
        retries,
        f"{key.owner}:{asked.idempotency_key}" if asked.idempotency_key else "",
        correlation,
        key.owner,
        task.level(spec.priority),
    )

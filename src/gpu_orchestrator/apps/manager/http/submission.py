"""Turn the body of a request into tasks in the store: check it, build the specs, refuse what can never fit.

The task routes call it; it hands the new tasks to `tasks/admission.py`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from os import urandom
from time import time
from typing import NamedTuple

import msgspec
from msgspec import structs

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
from gpu_orchestrator.adapters.store.tasks import Retried
from gpu_orchestrator.api import task, units
from gpu_orchestrator.api.nesting import DEEPEST, is_too_deep
from gpu_orchestrator.api.task import PRIORITIES, TaskSpec
from gpu_orchestrator.api.units import MIB, show_seconds
from gpu_orchestrator.apps.manager import errors, task_schema, views
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.access.limits import UNLIMITED, Allowance
from gpu_orchestrator.apps.manager.fleet import words
from gpu_orchestrator.apps.manager.fleet.nodes import plain_shape
from gpu_orchestrator.apps.manager.http import (
    dependencies,
    result_cache,
    task_files,
    task_gangs,
    task_models,
)
from gpu_orchestrator.apps.manager.http.dependencies import LINK_BYTES
from gpu_orchestrator.apps.manager.http.task_wishes import pool_allowed, pool_of, times_of
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.request import Shape

MAX_RETRY_AFTER_S = 60.0
"""The longest `Retry-After` for a full queue: there may be room sooner than estimated."""

TASKS_PER_REQUEST = 100
"""As many tasks count as one request in batches and bulk changes."""

CONFLICTS_PER_CALL = 500
LONGEST_KEY = 200
ROW_BYTES = 1000
"""About what a task takes in the store besides its spec and parameters."""


async def accept(
    manager: Manager, requests: Sequence[task_schema.TaskRequest], key: Key, correlation: str
) -> list[Accepted]:
    """Store all of these tasks, or store none and raise the error that says why. Return one answer for each
    request: of a gang that of the first task."""
    await task_models.refresh(manager, requests)
    if any(each.gang for each in requests):
        return await _accept_gangs(manager, task_gangs.members(requests), key, correlation)
    specs = [_spec(manager, each, key, number) for number, each in enumerate(requests)]
    return await _store(manager, requests, specs, key, correlation)


async def _accept_gangs(
    manager: Manager, members: Sequence[task_gangs.Member], key: Key, correlation: str
) -> list[Accepted]:
    """Store tasks of which some are members of gangs."""
    specs = [
        structs.replace(_spec(manager, each.request, key, each.number), gang=each.gang) for each in members
    ]
    requests = [each.request for each in members]
    taken = await _store(manager, requests, specs, key, correlation, members)
    first: dict[int, Accepted] = {}
    for member, answer in zip(members, taken, strict=True):
        first.setdefault(member.number, answer)
    return [first[number] for number in sorted(first)]


async def accept_load(
    manager: Manager, request: task_schema.TaskRequest, key: Key, correlation: str, worker: str
) -> Accepted:
    """Store a task that loads its model, on this worker if one is named, and does nothing more."""
    await task_models.refresh(manager, [request])
    spec = structs.replace(_spec(manager, request, key), only_load=True, worker=worker)
    if not spec.model:
        raise errors.Conflict(f"no worker loads models of {request.task_type!r}; start one with --model")
    (taken,) = await _store(manager, [request], [spec], key, correlation)
    return taken


async def _store(
    manager: Manager,
    requests: Sequence[task_schema.TaskRequest],
    specs: Sequence[TaskSpec],
    key: Key,
    correlation: str,
    members: Sequence[task_gangs.Member] = (),
) -> list[Accepted]:
    """Store tasks whose specs are made; see `accept`. Those that the result cache answers are not stored.
    `members` are these tasks if some are of gangs."""
    with _by_request(members):
        if len(specs) == 1:
            await _check(manager, 0, specs[0], plain_shape(specs[0], manager.models.memory_mib))
        else:
            await _check_all(manager, specs)
    if members:
        await task_gangs.check(manager, members, specs, key)
    now_s = time()
    new = [
        _new(manager, each, spec, _Sender(key, correlation, now_s))
        for each, spec in zip(requests, specs, strict=True)
    ]
    if members:
        pairs = zip(members, new, strict=True)
        new = [structs.replace(one, id=of.id, gang=of.gang.size) if of.gang else one for of, one in pairs]
    with _by_request(members):
        if len(new) > 1:  # the store checks a single task when it submits it
            await _check_idempotency_keys(manager, requests, new)
        await dependencies.check(manager, requests, key.owner)
        await task_files.check(manager, requests, key.owner)
    hits = await result_cache.lookup(manager, specs, key.owner)
    fresh, rest = result_cache.without(hits, new), result_cache.without(hits, requests)
    answers = await _submit(manager, fresh, key, manager.quotas.of_key(key)) if fresh else ()
    taken = [each for each in answers if isinstance(each, Accepted)]
    if len(taken) < len(answers):
        raise _refusal(manager, rest, answers, key)
    return result_cache.merged(hits, taken, len(requests))


@contextmanager
def _by_request(members: Sequence[task_gangs.Member]) -> Iterator[None]:
    """Let errors name the task of the request in place of the member that it made."""
    try:
        yield
    except errors.ApiError as error:
        if members and "task" in error.details:
            error.details["task"] = members[error.details["task"]].number
        raise


async def checked(manager: Manager, request: task_schema.TaskRequest, key: Key, correlation: str) -> NewTask:
    """Return the task of a request, as `accept` would store it now; raise the error that says why not."""
    if request.cache is not None:
        raise errors.Unprocessable("a schedule runs its tasks each time; leave cache out", param="cache")
    await task_models.refresh(manager, [request])
    spec = _spec(manager, request, key)
    await _check(manager, 0, spec, plain_shape(spec, manager.models.memory_mib))
    await task_files.check(manager, [request], key.owner)
    return _new(manager, request, spec, _Sender(key, correlation, time()))


async def put(manager: Manager, new: NewTask, key: Key) -> Accepted:
    """Store a task that was checked before and has no idempotency key."""
    (answer,) = await _submit(manager, [new], key, manager.quotas.of_key(key))
    if isinstance(answer, NoRoom):
        raise no_room(manager, answer, 1, key)
    assert isinstance(answer, Accepted)  # noqa: S101 - only an idempotency key can be another task's
    return answer


def accepted(
    manager: Manager,
    taken: Sequence[Accepted],
    load_s: float = 0.0,
    requests: Sequence[task_schema.TaskRequest] = (),
) -> list[task_schema.TaskAccepted]:
    """Return the answers to these requests."""
    answers = _accepted(manager, taken, load_s)
    if not any(each.gang for each in requests):
        return answers
    return [
        task_gangs.with_members(answer, each.gang.size) if each.gang else answer
        for answer, each in zip(answers, requests, strict=True)
    ]


def _accepted(manager: Manager, taken: Sequence[Accepted], load_s: float) -> list[task_schema.TaskAccepted]:
    wait_s = round(manager.overview.wait_s(manager.metrics.average_s) + load_s, 1)
    return [
        task_schema.TaskAccepted(
            task_id=each.id,
            status=each.state,
            estimated_wait_time=show_seconds(wait_s),
            estimated_wait_seconds=wait_s,
            assigned_worker=each.worker or None,
            created_at=views.when(each.created_ms) or "",
        )
        for each in taken
    ]


async def retry(
    manager: Manager, names: Sequence[str], key: Key
) -> list[Retried | NoRoom | errors.Forbidden]:
    """Queue ended tasks again; the state before shows whether one could be queued.

    A retry needs room like any other task. An admin, who may retry the tasks of every owner, is not held to
    the limits of the admin's own key.
    """
    room = _unit(key, manager.quotas.of_key(key) if key.sees else UNLIMITED, manager.settings)
    refused = await _outside_pools(manager, names, key)
    allowed = [name for name in names if name not in refused]
    answers = await manager.store.tasks.retry(allowed, owner=key.sees, may=room)
    found: dict[str, Retried | NoRoom | errors.Forbidden] = {
        **refused,
        **dict(zip(allowed, answers, strict=True)),
    }
    return [found[name] for name in names]


async def _outside_pools(manager: Manager, names: Sequence[str], key: Key) -> dict[str, errors.Forbidden]:
    """Return a refusal for each task of a pool that this key may not use: another key of its owner may have
    submitted it."""
    refused: dict[str, errors.Forbidden] = {}
    if not key.limits.pools:
        return refused
    for name, row in zip(names, await manager.store.tasks.fetch(names), strict=True):
        if row is None or key.sees not in ("", row.get("tenant", "")):
            continue  # the store says that there is no such task
        try:
            pool_allowed(task.decode(row["spec"]).pool, key)
        except errors.Forbidden as error:
            refused[name] = error
    return refused


async def _submit(manager: Manager, new: Sequence[NewTask], key: Key, may: Allowance) -> Sequence[Submitted]:
    """Submit the tasks. Only new tasks take room: a flood of refused or known ones leaves room for others."""
    sizes = [
        ROW_BYTES + len(each.params) + len(each.spec) + LINK_BYTES * each.needs.count(" ") for each in new
    ]
    _check_room(manager, sum(sizes), key)
    answers: Sequence[Submitted] = ()
    try:
        unit = _unit(key, may, manager.settings)
        put = manager.admission.put_together if any(each.gang for each in new) else manager.admission.put
        answers = await put(new, unit)
    finally:
        pairs = zip(sizes, answers, strict=False)
        taken = sum(size for size, each in pairs if isinstance(each, Accepted) and each.fresh)
        manager.overview.release_memory(sum(sizes), taken)
    return answers


def _check_room(manager: Manager, size: int, key: Key) -> None:
    if shortage := manager.readiness.disk_shortage():
        manager.metrics.refused(key.owner, "disk")
        raise errors.StoreFull(f"{shortage}; nothing was queued; retry then", MAX_RETRY_AFTER_S)
    room = manager.overview.reserve_memory(size)
    if room is not None:
        manager.metrics.refused(key.owner, "store")
        raise errors.StoreFull(
            f"the store uses {room.used // MIB} of at most {room.most // MIB} MiB; nothing was queued; retry "
            "when ended tasks have been deleted, or ask the operator to raise MAX_STORE_MB",
            MAX_RETRY_AFTER_S,
        )


def _unit(key: Key, may: Allowance, settings: Settings) -> Unit:
    return Unit(key.owner, may.queued, settings.max_queued_tasks, may.gpu_seconds * 1000)


def _refusal(
    manager: Manager,
    requests: Sequence[task_schema.TaskRequest],
    answers: Sequence[Submitted],
    key: Key,
) -> errors.ApiError:
    """Return the error for a request that was not taken; the store takes it whole or not at all."""
    for answer in answers:
        if isinstance(answer, NoRoom):
            return no_room(manager, answer, len(answers), key)
    request, conflict = next(
        (request, answer)
        for request, answer in zip(requests, answers, strict=True)
        if isinstance(answer, KeyConflict)
    )
    return _key_conflict(request, conflict.id)


def no_room(
    manager: Manager, refused: NoRoom, count: int, key: Key
) -> errors.TooManyRequests | errors.QueueFull:
    """Count the refusal and return the error for a request of `count` tasks without room."""
    may = manager.quotas.of_key(key)
    if refused.limit is Limit.OLDER_LEADER:
        raise errors.Unavailable(
            "the server that leads is of a version without gangs; retry when all servers are upgraded",
            MAX_RETRY_AFTER_S,
        )
    is_budget, is_own = refused.limit is Limit.DAY_BUDGET, refused.limit is Limit.OWNER_QUEUE
    manager.metrics.refused(key.owner, "budget" if is_budget else "queue")
    if is_budget:
        used_up = f"{key.owner} may use {may.gpu_seconds} GPU seconds a day and has used them"
        wait_s = refused.retry_after_ms / 1000
        return errors.TooManyRequests(f"{used_up}; the next day begins at 00:00 UTC", wait_s)
    most = may.queued if is_own else manager.settings.max_queued_tasks
    whose = key.owner if is_own else "one priority"
    room_s = min(manager.overview.drain_s(count, manager.metrics.average_s), MAX_RETRY_AFTER_S)
    return errors.QueueFull(
        f"at most {most} tasks of {whose} may wait, and {count} more would be too many; "
        "nothing was queued; retry when some have started",
        room_s,
    )


def _spec(manager: Manager, request: task_schema.TaskRequest, key: Key, number: int = 0) -> TaskSpec:
    settings, wanted = manager.settings, request.resources
    timeout_s = request.timeout or settings.task_timeout
    try:
        memory_mib = units.memory_mib(wanted.gpu_memory) if wanted.gpu_memory else 0
    except units.BadAmount as error:
        raise errors.Unprocessable(f"resources.gpu_memory: {error}") from error
    if memory_mib and not wanted.gpus:
        raise errors.Unprocessable(
            f"resources.gpu_memory is {wanted.gpu_memory!r} and resources.gpus is 0; memory is reserved on "
            "GPUs: leave gpu_memory out, or give gpus 1 or more"
        )
    spec = TaskSpec(
        task_type=request.task_type,
        model_name=request.model_name,
        priority=_priority(request.priority),
        gpus=wanted.gpus,
        memory_mib=memory_mib,
        vendor=wanted.vendor,
        timeout_s=timeout_s,
        soft_limit_s=min(settings.task_soft_time_limit, timeout_s),
        labels=request.labels,
        callback_url=_callback(manager, request.callback_url) if request.callback_url else "",
        result_ttl_s=_result_ttl(settings, request.result_ttl),
        tenant=key.owner,
        worker_labels=wanted.labels,
        pool=pool_of(wanted.pool, key),
        not_before=request.not_before,
        expires=request.expires,
        takes_results=dependencies.takes_results(request, number),
        model=task_models.model_of(manager, request, number),
    )
    if not (cache_key := result_cache.key_of(manager, request, spec, number)):
        return spec
    return structs.replace(spec, cache_key=cache_key, cache_s=request.cache)


def with_idempotency_key(
    request: task_schema.TaskRequest, key: str, number: int | None = None
) -> task_schema.TaskRequest:
    """Return the request with the key of the header `Idempotency-Key`; in a batch, with the task's number."""
    if len(key) > LONGEST_KEY or not key.isprintable():
        raise errors.Unprocessable(f"Idempotency-Key: give at most {LONGEST_KEY} printable characters")
    if request.idempotency_key not in ("", key):
        raise errors.Unprocessable(
            f"Idempotency-Key is {key!r} and idempotency_key is {request.idempotency_key!r}: give one of them"
        )
    return structs.replace(request, idempotency_key=key if number is None else f"{key}#{number}")


def _result_ttl(settings: Settings, given: float | None) -> float | None:
    if given is not None and given > settings.task_retention:
        raise errors.Unprocessable(
            f"result_ttl is {given:g}; tasks are kept for at most {settings.task_retention:g} seconds "
            "(TASK_RETENTION): give less, or leave it out"
        )
    return given


def _callback(manager: Manager, url: str) -> str:
    if not manager.allowed.hosts:
        raise errors.Unprocessable(
            "callback_url: callbacks are off; an operator allows hosts with CALLBACK_HOSTS"
        )
    from gpu_orchestrator.adapters.outbound import requests  # imported on first use, because it is large

    try:
        requests.check_url(url, manager.allowed)
    except Forbidden as error:
        raise errors.Unprocessable(
            f"callback_url: {error}; CALLBACK_HOSTS and CALLBACK_NETWORKS list what is allowed"
        ) from error
    return url


def _priority(given: str | int) -> int:
    if isinstance(given, int):
        return given
    if given not in PRIORITIES:
        raise errors.Unprocessable(f"unknown priority {given!r}; give {', '.join(PRIORITIES)} or 0 to 100")
    return PRIORITIES[given]


def _parameters(given: msgspec.Raw) -> str:
    """Check the parameters. They are passed on unparsed, so nothing else checks them before a worker does."""
    text = bytes(given)
    if is_too_deep(text):
        raise errors.Unprocessable(f"parameters: nested deeper than {DEEPEST}; make them flatter")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise errors.BadRequest(f"the body is not valid JSON: parameters: {error}") from error


async def _check_all(manager: Manager, specs: Sequence[TaskSpec]) -> None:
    """Raise an error for the first task that no worker can ever take. A batch mostly asks for few shapes."""
    checked: set[Shape] = set()
    for number, spec in enumerate(specs):
        shape = plain_shape(spec, manager.models.memory_mib)
        if shape not in checked:
            checked.add(shape)
            await _check(manager, number, spec, shape)


async def _check(manager: Manager, number: int, spec: TaskSpec, shape: Shape) -> None:
    refusal = await manager.overview.never_fits(shape, manager.registry.policy())
    if refusal is None:
        return
    types = manager.overview.task_types()
    if spec.task_type not in types:
        raise errors.Unprocessable(_unknown_type(spec.task_type, types), task=number)
    raise errors.Conflict(
        f"no worker can ever take this: {words.message(refusal)}{_threshold(manager, spec, refusal)}",
        task=number,
        reasons=words.reasons(refusal),
        nearest=words.nearest(refusal),
    )


def _threshold(manager: Manager, spec: TaskSpec, refusal: Refusal) -> str:
    """Return that a part of each device stays free, if a task was refused for its memory; else it would look
    as if a device of the requested size were too small."""
    wanted_mib = plain_shape(spec, manager.models.memory_mib).memory_mib
    is_short = wanted_mib and any(f"{wanted_mib} MiB" in text for text, _ in refusal.reasons)
    part = manager.memory.threshold
    return (
        f"; {part:.0%} of a GPU's memory can be reserved (GPU_MEMORY_THRESHOLD)"
        if is_short and part < 1
        else ""
    )


def _unknown_type(name: str, known: set[str]) -> str:
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    how = f"; a worker started with {option} runs it" if (option := words.option_for(name)) else ""
    return f"unknown task_type {name!r}{hint} the workers know: {', '.join(sorted(known))}{how}"


async def _check_idempotency_keys(
    manager: Manager, requests: Sequence[task_schema.TaskRequest], new: Sequence[NewTask]
) -> None:
    """Check all idempotency keys before the first task is stored: a batch is taken whole or not at all."""
    keyed = [number for number, each in enumerate(new) if each.idempotency]
    first: dict[str, NewTask] = {}
    for number in keyed:
        known = first.setdefault(new[number].idempotency, new[number])
        if (known.spec, known.params) != (new[number].spec, new[number].params):
            raise errors.Conflict(
                f"idempotency_key {requests[number].idempotency_key!r} is given to different tasks; "
                "nothing was queued",
                task=number,
            )
    for start in range(0, len(keyed), CONFLICTS_PER_CALL):
        part = keyed[start : start + CONFLICTS_PER_CALL]
        others = await manager.store.tasks.conflicts([new[number] for number in part])
        for number, other in zip(part, others, strict=True):
            if other:
                raise _key_conflict(requests[number], other, task=number)


def _key_conflict(request: task_schema.TaskRequest, name: str, **details: int) -> errors.Conflict:
    return errors.Conflict(
        f"idempotency_key {request.idempotency_key!r} belongs to task {name}, which is different",
        task_id=name,
        **details,
    )


class _Sender(NamedTuple):
    """The key that submits a request, the id of the request, and when."""

    key: Key
    correlation: str
    now_s: float


def _new(manager: Manager, request: task_schema.TaskRequest, spec: TaskSpec, sender: _Sender) -> NewTask:
    settings, key = manager.settings, sender.key
    retries = settings.max_retries if request.max_retries is None else request.max_retries
    return NewTask(
        urandom(16).hex(),
        task.encode(spec),
        _parameters(request.parameters),
        retries,
        f"{key.owner}:{request.idempotency_key}" if request.idempotency_key else "",
        sender.correlation,
        key.owner,
        task.level(spec.priority),
        *times_of(request, sender.now_s),
        lost_workers=request.max_lost_workers or settings.max_lost_workers,
        needs=dependencies.needs_of(request),
    )

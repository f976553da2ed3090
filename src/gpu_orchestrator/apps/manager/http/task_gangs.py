"""Read what a request says about gangs: make the members of each, and refuse those that can never start.

`submission.py` calls it. A gang comes whole with one request, so it is never short of members: `size` makes
equal ones, and tasks of a batch that give the same `name` are one gang, ranked in their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import urandom
from typing import NamedTuple

from msgspec import structs

from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.api.task_gangs import MOST_MEMBERS, GangSpec, member_id, split
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.fleet import words
from gpu_orchestrator.apps.manager.fleet.nodes import gang_terms, plain_shape, request_of
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.core.gang import GangRefusal
from gpu_orchestrator.engine.gang_members import MOST_KINDS

MOST_OF_REQUEST = 1000
"""Tasks of a request with gangs: the store takes them in one step."""
MOST_PARAMETERS = 16 << 20
"""Bytes of the parameters of one gang: all of them go to the workers at once."""


class Member(NamedTuple):
    """A task of a request: what was asked, the number of that in the request, and of which gang it is."""

    request: task_schema.TaskRequest
    number: int
    gang: GangSpec | None = None
    id: str = ""


@dataclass(slots=True)
class _Gang:
    terms: task_schema.Gang
    key: str
    id: str = field(default_factory=lambda: urandom(15).hex())
    entries: list[tuple[int, task_schema.TaskRequest]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(each.gang.size for _, each in self.entries if each.gang)


def members(requests: Sequence[task_schema.TaskRequest]) -> list[Member]:
    """Return the tasks of a request with gangs, those of one gang together and by rank."""
    gangs: dict[str | int, _Gang] = {}
    single: list[Member] = []
    for number, request in enumerate(requests):
        if request.gang is None:
            single.append(Member(request, number))
        else:
            _join(gangs, number, request, request.gang)
    found = [*single, *(member for gang in gangs.values() for member in _members(gang))]
    if len(found) > MOST_OF_REQUEST:
        raise errors.Unprocessable(
            f"a request with gangs may have {MOST_OF_REQUEST} tasks, and this one has {len(found)}; "
            "send the gangs in several"
        )
    keys = [gang.key for gang in gangs.values() if gang.key]
    if len(set(keys)) < len(keys):
        raise errors.Unprocessable(
            "two gangs of one request have the same idempotency_key; give each its own"
        )
    return found


def _join(
    gangs: dict[str | int, _Gang], number: int, request: task_schema.TaskRequest, terms: task_schema.Gang
) -> None:
    if request.cache is not None:
        raise errors.Unprocessable(
            "cache is for single tasks: members of a gang run together; leave it out", task=number
        )
    gang = gangs.setdefault(terms.name or number, _Gang(terms, request.idempotency_key))
    if (terms.same, terms.near) != (gang.terms.same, gang.terms.near):
        raise errors.Unprocessable(
            f"gang {terms.name}: its tasks say different things of `same` and `near`; "
            "give all of them the same words",
            task=number,
        )
    if request.idempotency_key and not gang.key:
        raise errors.Unprocessable(
            f"gang {terms.name}: idempotency_key is given to task {number}; give it to the gang's first task",
            task=number,
        )
    gang.entries.append((number, request))
    if gang.size > MOST_MEMBERS:
        raise errors.Unprocessable(
            f"gang.size: a gang may have {MOST_MEMBERS} members, and this one has {gang.size}", task=number
        )


def _members(gang: _Gang) -> list[Member]:
    """Return the members by rank. The first has the key of all; of equal ones the first has the callback."""
    spec = GangSpec(gang.size, gang.terms.same, gang.terms.near)
    size = sum(len(each.parameters) * each.gang.size for _, each in gang.entries if each.gang)
    if size > MOST_PARAMETERS:
        raise errors.Unprocessable(
            f"parameters of the members of a gang may have {MOST_PARAMETERS >> 20} MiB together, and these "
            f"have {size >> 20}; put what is large into a file",
            task=gang.entries[0][0],
        )
    found: list[Member] = []
    for number, request in gang.entries:
        plain = structs.replace(request, idempotency_key="", callback_url="")
        for place in range(request.gang.size if request.gang else 0):
            asked = plain if place else structs.replace(plain, callback_url=request.callback_url)
            if not found:
                asked = structs.replace(asked, idempotency_key=request.idempotency_key)
            found.append(Member(asked, number, spec, member_id(gang.id, len(found))))
    return found


def with_members(answer: task_schema.TaskAccepted, size: int) -> task_schema.TaskAccepted:
    """Return the answer with the gang and with the tasks that this request has made of it."""
    gang, first = split(answer.task_id)
    ids = [member_id(gang, rank) for rank in range(first, first + size)]
    return structs.replace(answer, gang_id=gang, members=ids)


async def check(manager: Manager, found: Sequence[Member], specs: Sequence[TaskSpec], key: Key) -> None:
    """Raise an error for a gang that can never start: by its owner's limit, or on the workers there are."""
    by_gang: dict[str, list[int]] = {}
    for at, (member, spec) in enumerate(zip(found, specs, strict=True)):
        if member.gang is None:
            continue
        if spec.model:
            raise errors.Unprocessable(
                f"tasks of type {spec.task_type} load models, and those cannot be members of a gang",
                task=member.number,
            )
        by_gang.setdefault(member.id.rpartition("-")[0], []).append(at)
    for places in by_gang.values():
        first, size = found[places[0]], len(places)
        kinds = len({plain_shape(specs[at], manager.models.memory_mib) for at in places})
        if kinds > MOST_KINDS:
            raise errors.Unprocessable(
                f"the members of this gang ask for {kinds} different things, and may ask for {MOST_KINDS}",
                task=first.number,
            )
        most = manager.quotas.of_key(key).running
        if most and size > most:
            raise errors.Conflict(
                f"the gang can never start: its {size} members begin together, and {key.owner} may run "
                f"{most} tasks at once",
                task=first.number,
            )
        await _check_room(manager, [(found[at].id, specs[at]) for at in places], first.number)


async def _check_room(manager: Manager, members: list[tuple[str, TaskSpec]], number: int) -> None:
    if manager.settings.auto_scale_enabled and manager.settings.auto_scale_provisioner != "none":
        return  # more workers may come
    requests = [request_of(name, spec, sizes=manager.models.memory_mib) for name, spec in members]
    terms = gang_terms(*members[0])
    assert terms is not None  # noqa: S101
    refused = await manager.overview.gang_never_fits(terms, requests, manager.registry.policy_of)
    if isinstance(refused, GangRefusal):
        where = f" on workers with one value of the label {terms.domain}" if terms.domain else ""
        raise errors.Conflict(
            f"the gang can never start: {refused.placed} of its {terms.least} members fit together{where} "
            f"if nothing else runs; for the next one {words.message(refused.reason)}",
            task=number,
            reasons=words.reasons(refused.reason),
        )

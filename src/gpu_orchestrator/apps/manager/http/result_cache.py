"""The cache of results, for tasks that ask for it: an equal task of the same owner that has completed answers
for a new one.

`submission.py` calls it for each request.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from gpu_orchestrator.adapters.store.records import Accepted
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.manager import Manager

T = TypeVar("T")
APART = ("depends_on", "not_before", "callback_url", "idempotency_key")
"""What a task of the cache cannot also have: an earlier task waits for nothing, and calls nobody back. An
idempotency key says which tasks are the same by itself."""


def key_of(manager: Manager, request: task_schema.TaskRequest, spec: TaskSpec, number: int = 0) -> str:
    """Return by what an equal task is known: its type, its model as it is declared now, and its parameters
    byte for byte. Empty for one that does not ask for the cache."""
    if request.cache is None:
        return ""
    for name in APART:
        if getattr(request, name):
            raise errors.Unprocessable(
                f"cache is given with {name}; leave one of them out", task=number, param="cache"
            )
    parts: tuple[Any, ...] = (spec.task_type, spec.model_name, manager.models.message(spec))
    digest = hashlib.sha256(msgspec.json.encode(parts))
    digest.update(bytes(request.parameters))
    return digest.hexdigest()


async def lookup(manager: Manager, specs: Sequence[TaskSpec], owner: str) -> dict[int, Accepted]:
    """Return the completed tasks that answer for these, by the number of the request."""
    asked = [number for number, spec in enumerate(specs) if spec.cache_key]
    if not asked:
        return {}
    found = await manager.store.tasks.cached([f"{owner}:{specs[number].cache_key}" for number in asked])
    hits = {number: each for number, each in zip(asked, found, strict=True) if each.id}
    manager.metrics.cache_hits.inc(len(hits))
    manager.metrics.cache_misses.inc(len(asked) - len(hits))
    return hits


def merged(hits: dict[int, Accepted], taken: Sequence[Accepted], count: int) -> list[Accepted]:
    """Return the answers in the order of the requests."""
    rest = iter(taken)
    return [hits[number] if number in hits else next(rest) for number in range(count)]


def without(hits: dict[int, Accepted], items: Sequence[T]) -> list[T]:
    return [each for number, each in enumerate(items) if number not in hits]

"""Says of a waiting member of a gang where it would go, or why its gang waits."""

from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.api import task, task_gangs
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet import words
from gpu_orchestrator.apps.manager.fleet.nodes import gang_terms, request_of
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import Gang, GangRefusal, decide_gang
from gpu_orchestrator.core.request import Request


async def explained(
    manager: Manager, name: str, spec: TaskSpec, cluster: Cluster
) -> tuple[Placement | None, str]:
    """Return where the member would go with all others now, or why the gang waits."""
    terms = gang_terms(name, spec)
    assert terms is not None  # noqa: S101 - the caller has looked
    names = list(task_gangs.members(terms.name, terms.least))
    rows = await manager.store.tasks.fetch(names)
    if waits_for := _not_queued(dict(zip(names, rows, strict=True))):
        return None, waits_for
    requests = tuple(
        _request(manager, each, row) for each, row in zip(names, rows, strict=True) if row is not None
    )
    gang = Gang(terms, requests, terms.least)
    answer = decide_gang(gang, cluster, manager.registry.policy_of, manager.chance)
    if isinstance(answer, GangRefusal):
        fit = f"{answer.placed} of {terms.least} members of its gang fit together now"
        return None, f"{fit}; for the next one {words.message(answer.reason)}"
    return next((each for each in answer if each.key == name), None), ""


def _not_queued(rows: dict[str, Row | None]) -> str:
    """Return for which members a gang waits that is not whole in the queue."""
    others = [(name, row["state"] if row else "gone") for name, row in rows.items()]
    left = [f"{name} ({state})" for name, state in others if state != "queued"]
    return f"waits for members of its gang: {', '.join(left[:5])}" if left else ""


def _request(manager: Manager, name: str, row: Row) -> Request:
    return request_of(name, task.decode(row["spec"]), sizes=manager.models.memory_mib)

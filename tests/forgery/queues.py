"""Forged queues: a tenant that raises its own quota, lowers another's, or leaves them. And what its owner may
do with a pod's label, which chooses between the queues that select the namespace."""

from collections.abc import Iterator

from gpu_orchestrator.api import names
from tests.forgery import kinds
from tests.forgery.calls import APPLY, JSON_PATCH, PODS, TEAM, Call, Json, annotate, merge
from tests.forgery.changes import BOUND, WAITING
from tests.forgery.pods import ready

QUEUES = "/apis/gpu.scheduling/v1/gpuqueues"
OURS, THEIRS = "ours", "theirs"
"""Queues that select the tenant's namespace and another one."""
RBAC = "cannot "
USED = {"status": {"used": {"*": 0}}}
TEXTS = ("default", "", "a" * 63, "A_b.c-9", "0")
"""Labels that the API server takes as such."""


def queue(name: str, namespace: str = TEAM, *, gpus: int = 100) -> Json:
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuQueue",
        "metadata": {"name": name},
        "spec": {
            "limit": {"*": 1000 * gpus},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        },
    }


def calls() -> Iterator[Call]:
    """F9: out of the reach of a limit, by all who are not administrators."""
    users = (kinds.EDITOR, kinds.OPERATOR, kinds.SCHEDULER, kinds.AGENT_HERE, "tenant")
    for user in users:
        yield Call(f"F9 {user} makes a queue", "POST", QUEUES, queue("forged"), RBAC, user)
        for name in (OURS, THEIRS):
            at = f"{QUEUES}/{name}"
            yield merge(f"F9 {user} limits {name}", at, {"spec": {"limit": {"*": 1}}}, RBAC, user=user)
            yield Call(f"F9 {user} deletes {name}", "DELETE", at, None, RBAC, user)
        at = f"{QUEUES}/{OURS}"
        yield Call(f"F9 {user} replaces a queue", "PUT", at, queue(OURS), RBAC, user)
        yield Call(f"F9 {user} applies a queue", "PATCH", at, queue(OURS), RBAC, user, APPLY)
        borrows: list[Json] = [{"op": "add", "path": "/spec/guaranteed", "value": {"*": 8000}}]
        yield Call(f"F9 {user} guarantees itself GPUs", "PATCH", at, borrows, RBAC, user, JSON_PATCH)
        yield merge(
            f"F9 {user} selects no namespace", at, {"spec": {"namespaceSelector": None}}, RBAC, user=user
        )
        if user != kinds.SCHEDULER:
            yield merge(f"F9 {user} tells what a queue uses", f"{at}/status", USED, RBAC, user=user)
        yield Call(f"F9 {user} deletes all queues", "DELETE", f"{QUEUES}?labelSelector=a", None, RBAC, user)
    team = {"metadata": {"labels": {"team": "rich"}}}
    yield merge("F9 tenant joins another team", f"/api/v1/namespaces/{TEAM}", team, RBAC)
    held = f"{kinds.LEASES}/gpu-gpu-node-0-0"
    says = "says who holds a GPU"
    moved = annotate(THEIRS, names.QUEUE)
    yield merge("F9 editor counts a device elsewhere", held, moved, says, user=kinds.EDITOR)
    yield merge("F9 tenant counts a device elsewhere", held, moved, RBAC)


def legitimate() -> Iterator[Call]:
    """Whatever a label says, it moves nothing that runs: it is the scheduler that reads it."""
    for text in (OURS, THEIRS, *TEXTS):
        labels = {names.QUEUE: text}
        yield Call(f"pod with queue {text!r}", "POST", PODS, ready("gpus", "legit", labels=labels))
        for pod in (BOUND, WAITING):
            yield merge(f"{pod} with queue {text!r}", f"{PODS}/{pod}", {"metadata": {"labels": labels}})
        made = kinds.workload(f"queue-{TEXTS.index(text)}" if text in TEXTS else text, labels=labels)
        yield Call(f"workload with queue {text!r}", "POST", kinds.WORKLOADS, made)
    gone: Json = {"metadata": {"labels": {names.QUEUE: None}}}
    yield merge(f"{BOUND} without a queue", f"{PODS}/{BOUND}", gone)
    at = f"{QUEUES}/{OURS}"
    yield merge("scheduler tells what a queue uses", f"{at}/status", USED, user=kinds.SCHEDULER)
    yield Call("admin makes a queue", "POST", QUEUES, queue("new"), user="admin")
    yield merge("admin limits a queue", at, {"spec": {"limit": {"*": 1000}}}, user="admin")
    yield Call("admin deletes a queue", "DELETE", at, None, user="admin")

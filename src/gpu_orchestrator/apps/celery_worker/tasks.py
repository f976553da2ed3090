"""The tasks of our Celery app. None of them runs what a message says: `inference` presents a ticket, which
counts only if the ledger has it, and takes all else from there.
"""

from typing import Any, NoReturn

from celery import Celery, Task, states
from celery.exceptions import Ignore

from gpu_orchestrator.api import tickets
from gpu_orchestrator.apps.celery_worker.visit import Visit

AGAIN = "again"
QUESTIONS = ("ping", "status", "health", "drain")


class TaskFailed(Exception):
    """The attempt failed; the ledger says whether the task runs again."""


class TaskLost(Exception):
    """The worker no longer had the attempt, or its outcome came too late to count."""


def add_to(app: Celery) -> None:
    app.task(bind=True, name=tickets.INFERENCE, throws=(TaskFailed, TaskLost))(inference)
    for what in QUESTIONS:
        app.task(bind=True, name=f"{tickets.MANAGEMENT}.{what}")(_question(what))


def inference(self: "Task[Any, Any]", task: str, attempt: int, epoch: int) -> dict[str, Any]:
    """Run one attempt: present its ticket, and wait until the ledger has its outcome."""
    with Visit() as visit:
        visit.say(tickets.Ticket(str(task), int(attempt), int(epoch)))
        match visit.hear():
            case tickets.Ended(status, counted, error, message):
                return _ended(self, task, attempt, tickets.Ended(status, counted, error, message))
            case tickets.Void(reason):
                _dropped(self, reason)
    raise TaskLost("the worker's lease ended; the task runs elsewhere, or again")


def _ended(self: "Task[Any, Any]", task: str, attempt: int, ended: tickets.Ended) -> dict[str, Any]:
    if not ended.counted:
        raise TaskLost(f"this attempt {ended.status}, too late to count: the task was given to others")
    if ended.status == "cancelled":
        self.update_state(state=states.REVOKED)
        self.send_event("task-revoked", terminated=True, signum=None, expired=False)
        raise Ignore
    if ended.status != "completed":
        raise TaskFailed(": ".join(part for part in (ended.error or ended.status, ended.message) if part))
    return {"task_id": task, "attempt": attempt, "status": ended.status}


def _dropped(self: "Task[Any, Any]", reason: str) -> NoReturn:
    """Drop a ticket that does not count. If its attempt runs, Celery shows that under the same id."""
    if reason != AGAIN:
        self.send_event("task-rejected", requeue=False)
    raise Ignore


def _question(what: str) -> Any:
    def ask(_: "Task[Any, Any]") -> dict[str, object]:
        with Visit() as visit:
            visit.say(tickets.Ask(what))
            told = visit.hear()
            assert isinstance(told, tickets.Told)  # noqa: S101
            return told.answer

    return ask

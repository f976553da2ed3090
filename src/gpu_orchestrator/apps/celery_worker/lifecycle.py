"""What happens as Celery's processes start and end: the agent starts first, and says how the worker is called
and how many tasks it may run; when it ends, Celery does, and the other way round.

celeryd_init --> agent started --> worker_init --> pool processes --> worker_shutting_down --> worker_shutdown
"""

import os
import signal
import socket
import sys
from typing import Any

from celery import signals
from celery.worker import state

from gpu_orchestrator.adapters import process_rights
from gpu_orchestrator.adapters.broker.queues import queue_for
from gpu_orchestrator.adapters.parent_death import end_with_parent
from gpu_orchestrator.api import tickets
from gpu_orchestrator.apps.celery_worker import channels
from gpu_orchestrator.apps.celery_worker.agent_process import AgentProcess

FOR_MANAGEMENT = 1
"""Pool processes beyond those for tasks, so that a busy worker answers management tasks."""
USUAL_NAME = "celery"
SPAWNED = (
    "--pool-start-method spawn does not know our tasks; leave it out: pool processes only wait, and tasks "
    "run in processes of their own, which are never forked from Celery"
)
ALONE = "solo"


class Lifecycle:
    def __init__(self) -> None:
        self._agent: AgentProcess | None = None
        self._main = 0

    def connect(self) -> None:
        signals.celeryd_init.connect(self._begin, weak=False)
        signals.worker_init.connect(self._configure, weak=False)
        signals.worker_process_init.connect(self._pool_process, weak=False)
        signals.task_revoked.connect(self._revoked, weak=False)
        signals.worker_shutting_down.connect(self._leave, weak=False)
        signals.worker_shutdown.connect(self._end, weak=False)

    def _begin(self, sender: str, instance: Any, conf: Any, options: dict[str, Any], **_: Any) -> None:
        """Start the agent, which the name and the queue of the worker come from."""
        if options.get("pool_start_method") == "spawn":
            raise SystemExit(SPAWNED)
        process_rights.hide()
        channels.guard()
        self._main = os.getpid()
        _wait_for_broker(instance.app)
        name, _at, host = sender.partition("@")
        self._agent = AgentProcess("" if name == USUAL_NAME else name, _slots(options))
        attached = self._agent.attached
        instance.hostname = f"{attached.name}@{host or socket.gethostname()}"
        conf.task_queues = [queue_for(attached.name)]
        conf.task_default_queue = tickets.queue_of(attached.name)

    def _configure(self, sender: Any, **_: Any) -> None:
        assert self._agent is not None  # noqa: S101 - `_begin` came first
        attached = self._agent.attached
        sender.app.amqp.queues.select_add(queue_for(attached.name))  # also if `-Q` names others
        sender.concurrency = attached.max_concurrent + FOR_MANAGEMENT
        self._agent.watch(self._agent_ended)

    def _agent_ended(self, code: int) -> None:
        """End Celery, from the agent's thread, as the agent has ended: removed, drained, or killed."""
        if state.should_stop is None:
            state.should_stop = code if code >= 0 else 1

    def _pool_process(self, **_: Any) -> None:
        """End with the main process, however that ends. Else pool processes would stay and wait."""
        if os.getpid() == self._main:
            return  # the pool `solo` says so of the main process
        end_with_parent(self._main, signal.SIGKILL)
        if self._agent is not None:
            self._agent.forget()

    def _revoked(self, request: Any, expired: bool, **_: Any) -> None:
        if self._agent is not None and not expired:
            self._agent.revoke(str(request.id))

    def _leave(self, how: str, **_: Any) -> None:
        if self._agent is not None:
            self._agent.leave()
            if how.lower() != "warm":
                self._agent.leave()

    def _end(self, **_: Any) -> None:
        if self._agent is not None:
            self._agent.end()


def _wait_for_broker(app: Any) -> None:
    """Wait until the broker answers: a worker that joined without one would be given tasks."""
    with app.connection_for_read() as connection:
        where = connection.as_uri()
        connection.ensure_connection(lambda error, _: _say(where, error), interval_step=1, interval_max=5)


def _say(where: str, error: Exception) -> None:
    print(  # noqa: T201 - Celery's logs are not set up yet
        f"Celery's broker {where} does not answer: {error}; "
        "trying again. CELERY_BROKER_URL must be that of the server",
        file=sys.stderr,
        flush=True,
    )


def _slots(options: dict[str, Any]) -> int:
    """Return how many tasks the operator wants to run at once; 0 for as many as the agent finds right."""
    if str(getattr(options.get("pool_cls"), "__module__", "")).endswith(ALONE):
        return 1
    given = options.get("concurrency")
    return int(given) if given and str(given).isdigit() else 0

"""Sends tickets to the queues of workers, from a thread of its own: a broker that does not answer delays
nobody. What it cannot send in time is dropped; a worker's next renewal has it sent again.
"""

import logging
import queue
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from gpu_orchestrator.adapters.broker import config
from gpu_orchestrator.adapters.broker.address import NO_RESULTS, Broker
from gpu_orchestrator.adapters.broker.queues import queue_for
from gpu_orchestrator.api.tickets import INFERENCE, Ticket

MOST = 10_000
ONCE = {"max_retries": 1, "interval_start": 0.0, "interval_step": 0.0}
"""For kombu, which else tries for seconds to connect: we try again ourselves."""
PAUSE_S, TRIED_S, SAY_EVERY_S, END_S = 0.5, 8.0, 30.0, 2.0

log = structlog.get_logger()


class _Order(NamedTuple):
    worker: str
    ticket: Ticket
    task_type: str
    at: float


class Publisher:
    """`lost` is called, in the thread that publishes, for each ticket that was dropped."""

    def __init__(self, broker: Broker, lost: Callable[[], None] = lambda: None) -> None:
        self._app = Celery("gpu_orchestrator.manager", set_as_current=False)
        self._app.conf.update(config.of(broker) | {"result_backend": NO_RESULTS})
        self._app.conf.broker_transport_options |= ONCE
        self._lost = lost
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._said_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="celery tickets", daemon=True)
        self.trouble = ""
        """Why tickets cannot be sent now; empty while they can."""

    def start(self) -> None:
        logging.getLogger("kombu").setLevel(logging.WARNING)
        self._thread.start()

    def publish(self, worker: str, ticket: Ticket, task_type: str) -> None:
        if self._orders.qsize() >= MOST:
            return self._lost()
        return self._orders.put(_Order(worker, ticket, task_type, monotonic()))

    def close(self) -> None:
        self._orders.put(None)
        if self._thread.is_alive():
            self._thread.join(END_S)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            while not self._sent(order):
                if monotonic() - order.at > TRIED_S:
                    self._lost()
                    break
                threading.Event().wait(PAUSE_S)

    def _sent(self, order: _Order) -> bool:
        """Send a ticket; return False if the broker does not take it."""
        try:
            with self._app.producer_or_acquire() as producer:
                self._app.send_task(INFERENCE, producer=producer, **_message(order))
        except Exception as error:
            self._failed(error)
            return False
        if self.trouble:
            log.info("celery's broker takes tickets again")
        self.trouble = ""
        return True

    def _failed(self, error: Exception) -> None:
        is_new, self.trouble = not self.trouble, "celery's broker does not answer"
        if is_new or monotonic() - self._said_at > SAY_EVERY_S:
            self._said_at = monotonic()
            known = isinstance(error, OperationalError | OSError)
            log.warning(
                "celery's broker takes no tickets", error=str(error), exc_info=None if known else error
            )


def _message(order: _Order) -> dict[str, Any]:
    ticket = order.ticket
    shown = f"task={ticket.task}, attempt={ticket.attempt}, type={order.task_type}"
    return {
        "kwargs": {"task": ticket.task, "attempt": ticket.attempt, "epoch": ticket.epoch},
        "task_id": ticket.id,
        "queue": queue_for(order.worker),
        "kwargsrepr": shown,
        "retry": False,
    }

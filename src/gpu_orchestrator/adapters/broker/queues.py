"""The queues of workers, declared alike by the manager and by the workers."""

from kombu.entity import Queue

from gpu_orchestrator.api.tickets import queue_of

UNUSED_S = 86_400.0
"""A queue that nobody uses for so long goes: workers come and go, some with a new name each time."""


def queue_for(worker: str) -> Queue:
    return Queue(queue_of(worker), expires=UNUSED_S)  # type: ignore[no-untyped-call]

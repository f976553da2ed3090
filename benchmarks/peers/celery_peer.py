"""Celery with the settings of systems that must not lose tasks: late acknowledgement, results stored.
PREFETCH is 1, or the value at which it is fastest."""

# mypy: disable-error-code="import-not-found,untyped-decorator"

from celery import Celery
from celery.result import ResultSet
from client import PREFETCH, URL, WITHIN_S, main

app = Celery("celery_peer", broker=URL, backend=URL)
app.conf.update(
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_track_started=PREFETCH == 1,
    worker_prefetch_multiplier=PREFETCH,
    broker_connection_retry_on_startup=True,
)


@app.task
def noop() -> None:
    return None


def submit(count: int) -> None:
    for _ in range(count):
        noop.delay()


def gather(count: int) -> list[object]:
    results: list[object] = ResultSet([noop.delay() for _ in range(count)]).join_native(timeout=WITHIN_S)
    return results


if __name__ == "__main__":
    main(submit, lambda: noop.delay().get(timeout=30), "celery-task-meta-*", gather)

"""The Prometheus metrics of the manager. `GET /metrics` shows them.

What happens for every task or request is counted in plain numbers first, and written to the metrics before
they are read (`write`): prometheus_client makes about ten calls for each number. One of several processes
writes at once: its numbers are in a file that outlives it, and a killed process must not take counts along.
"""

from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SLOW = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)
Gauges = Callable[[], Iterable[Metric]]


class Tally:
    """Observations of a histogram that are not written to it yet."""

    def __init__(self, histogram: Histogram, bounds: tuple[float, ...]) -> None:
        self._histogram, self._bounds = histogram, bounds
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def write(self) -> None:
        """Write them. The attributes are not public; `test_metrics.py` compares with `Histogram.observe`."""
        if not any(self._counts):
            return
        for bucket, count in zip(self._histogram._buckets, self._counts, strict=True):
            bucket.inc(count)
        self._histogram._sum.inc(self._sum)
        self._counts, self._sum = [0] * len(self._counts), 0.0


class Metrics:
    def __init__(self, *, at_once: bool = False) -> None:
        self._at_once = at_once
        self.registry, self.gauges = CollectorRegistry(), CollectorRegistry()
        self.tasks = Counter(
            "tasks", "Ended attempts by the task's status afterwards", ["status"], registry=self.registry
        )
        self.duration = Histogram(
            "task_duration_seconds",
            "Seconds from assignment to result of completed tasks",
            registry=self.registry,
            buckets=SLOW,
        )
        self.dispatch = Histogram(
            "task_dispatch_seconds",
            "Seconds from submission to assignment",
            registry=self.registry,
            buckets=FAST,
        )
        self.requests = Counter(
            "http_requests", "HTTP requests answered", ["method", "route", "status"], registry=self.registry
        )
        self.request_s = Histogram(
            "http_request_duration_seconds",
            "Seconds to answer an HTTP request",
            ["route"],
            registry=self.registry,
            buckets=FAST,
        )
        self.late = Counter(
            "stale_results", "Results dropped: the attempt was no longer current", registry=self.registry
        )
        self.redelivered = Counter(
            "redeliveries",
            "Tasks queued again after an attempt that did not finish them",
            registry=self.registry,
        )
        self.expired = Counter(
            "lease_expirations",
            "Workers set offline because their lease or grace period ended",
            registry=self.registry,
        )
        self.tasks_expired = Counter(
            "tasks_expired", "Tasks that expired before they began", registry=self.registry
        )
        self.gangs_started = Counter(
            "gangs_started",
            "Gangs whose members were all assigned, by attempt: first or again",
            ["attempt"],
            registry=self.registry,
        )
        self.schedule_moments = Counter(
            "schedule_moments",
            "Moments of schedules: fired, missed, overlap, no_room, stopped or moved_on",
            ["outcome"],
            registry=self.registry,
        )
        self.pauses = Counter(
            "reaper_pauses",
            "Lease expiry paused because most workers went silent",
            registry=self.registry,
        )
        self.terms = Counter("leader_terms", "Times this process became the leader", registry=self.registry)
        self.cache_hits = Counter(
            "result_cache_hits", "Tasks answered by the result of an equal one", registry=self.registry
        )
        self.cache_misses = Counter(
            "result_cache_misses",
            "Tasks that asked for the result cache and were queued",
            registry=self.registry,
        )
        self.callbacks = Counter(
            "callbacks", "Callback attempts by outcome", ["outcome"], registry=self.registry
        )
        self.audit_dropped = Counter(
            "audit_entries_dropped",
            "Audit entries not written: store unreachable, or unauthenticated requests over the limit",
            ["why"],
            registry=self.registry,
        )
        self.refusals = Counter(
            "requests_refused",
            "Requests refused because of a limit: rate, queue, budget or store",
            ["owner", "limit"],
            registry=self.registry,
        )
        self.connections_closed = Counter(
            "http_connections_closed",
            "Connections closed because of a limit",
            ["reason"],
            registry=self.registry,
        )
        self.forgotten = Counter(
            "tasks_forgotten",
            "Ended tasks forgotten early, by what was too full: store, count or results",
            ["why"],
            registry=self.registry,
        )
        self.tickets_void = Counter(
            "celery_tickets_void",
            "Tickets of Celery that did not count: old, again (redeemed before), or store (no answer)",
            ["reason"],
            registry=self.registry,
        )
        self.tickets_lost = Counter(
            "celery_tickets_lost", "Tickets that Celery's broker did not take in time", registry=self.registry
        )
        self.scale_decisions = Counter(
            "scale_decisions",
            "Steps of the autoscaler: up, keep, drain or stop",
            ["action"],
            registry=self.registry,
        )
        self.scale_failures = Counter(
            "scale_failures", "Times that workers could not be started or ended", registry=self.registry
        )
        self.average_s = 0.0
        self._ended: Counts[str] = Counts()
        self._answered: Counts[tuple[str, str, int]] = Counts()
        self._answered_s: dict[str, Tally] = {}
        self._duration, self._dispatch = Tally(self.duration, SLOW), Tally(self.dispatch, FAST)

    def collect_from(self, gauges: Gauges) -> None:
        """Register gauges that are read each time the metrics are collected."""

        class OnScrape:
            def collect(self) -> Iterable[Metric]:
                return gauges()

        self.gauges.register(OnScrape())

    def dispatched(self, waited_s: float) -> None:
        self._dispatch.observe(max(waited_s, 0.0))
        self._counted()

    def ended(self, status: str, seconds: float) -> None:
        self._ended[status] += 1
        if status == "completed":
            self._duration.observe(seconds)
            self.average_s += (seconds - self.average_s) * (0.05 if self.average_s else 1.0)
        elif status == "queued":
            self.redelivered.inc()
        self._counted()

    def refused(self, owner: str, limit: str) -> None:
        self.refusals.labels(owner, limit).inc()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._answered[method, route, status] += 1
        tally = self._answered_s.get(route)
        if tally is None:
            tally = self._answered_s[route] = Tally(self.request_s.labels(route), FAST)
        tally.observe(seconds)
        self._counted()

    def _counted(self) -> None:
        if self._at_once:
            self.write()

    def write(self) -> None:
        """Write what was counted since the last call. Call it before the metrics are read."""
        for status, count in self._ended.items():
            self.tasks.labels(status).inc(count)
        for (method, route, status_code), count in self._answered.items():
            self.requests.labels(method, route, str(status_code)).inc(count)
        self._ended.clear()
        self._answered.clear()
        for tally in (self._duration, self._dispatch, *self._answered_s.values()):
            tally.write()


GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "workers_connected": ("Workers connected to this process", ()),
    "http_connections": ("Open connections, by whether they have shown a key", ("kind",)),
    "worker_circuits": ("Workers whose circuit is open or half open", ("state",)),
    "watchers": ("Clients that watch events on this process", ()),
    "leader": ("1 if this process is the leader", ()),
    "queue_depth": ("Waiting tasks", ("priority",)),
    "kept_places": ("Places kept for tasks and gangs that smaller ones would pass", ("kind",)),
    "owner_tasks_queued": ("Waiting tasks of each owner", ("owner",)),
    "owner_tasks_running": ("Assigned or running tasks of each owner", ("owner",)),
    "scale_wanted_workers": ("Workers that the autoscaler wants", ()),
    "scale_predicted_wait_seconds": ("Predicted wait of tasks for workers of the autoscaler", ()),
    "owner_gpu_seconds_today": ("GPU seconds of each owner's tasks that ended today", ("owner",)),
}
"""The gauges that are read each time the metrics are collected: their text and labels."""


def gauge(name: str, values: Iterable[tuple[list[str], float]]) -> Metric:
    """Return one of `GAUGES` with its label values and values."""
    text, labels = GAUGES[name]
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family

"""The Prometheus metrics of the manager. `GET /metrics` shows them."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SLOW = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)
Gauges = Callable[[], Iterable[Metric]]


class Metrics:
    def __init__(self) -> None:
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
        self.pauses = Counter(
            "reaper_pauses",
            "Lease expiry paused because most workers went silent",
            registry=self.registry,
        )
        self.terms = Counter("leader_terms", "Times this process became the leader", registry=self.registry)
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
        self.average_s = 0.0
        self._tasks: dict[str, Counter] = {}
        self._requests: dict[tuple[str, str, int], Counter] = {}
        self._request_s: dict[str, Histogram] = {}

    def collect_from(self, gauges: Gauges) -> None:
        """Register gauges that are read each time the metrics are collected."""

        class OnScrape:
            def collect(self) -> Iterable[Metric]:
                return gauges()

        self.gauges.register(OnScrape())

    def dispatched(self, waited_s: float) -> None:
        self.dispatch.observe(max(waited_s, 0.0))

    def ended(self, status: str, seconds: float) -> None:
        counter = self._tasks.get(status)
        if counter is None:
            counter = self._tasks[status] = self.tasks.labels(status)
        counter.inc()
        if status == "completed":
            self.duration.observe(seconds)
            self.average_s += (seconds - self.average_s) * (0.05 if self.average_s else 1.0)
        elif status == "queued":
            self.redelivered.inc()

    def refused(self, owner: str, limit: str) -> None:
        self.refusals.labels(owner, limit).inc()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method, route, status)
        counter = self._requests.get(key)
        if counter is None:
            counter = self._requests[key] = self.requests.labels(method, route, str(status))
            self._request_s.setdefault(route, self.request_s.labels(route))
        counter.inc()
        self._request_s[route].observe(seconds)


def gauge(name: str, text: str, labels: list[str], values: Iterable[tuple[list[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family

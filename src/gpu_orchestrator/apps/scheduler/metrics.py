"""The scheduler's metrics, in a registry of their own. Labelled children are cached: looking one up for every
pod would cost more than counting it."""

from collections.abc import Callable, Iterator
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.queue_terms import ALL
from gpu_orchestrator.engine.engine import Engine

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.scheduling = Histogram(
            "gpu_scheduler_scheduling_duration_seconds",
            "Time from a scheduling decision until the pod was bound or the bind failed.",
            ["result"],
            registry=registry,
            buckets=BUCKETS,
        )
        self.end_to_end = Histogram(
            "gpu_scheduler_e2e_seconds",
            "Time from a pod's creation until it was bound.",
            registry=registry,
            buckets=BUCKETS,
        )
        self.lease_operations = Counter(
            "gpu_scheduler_lease_operations",
            "Attempts to acquire or release a device lease, by result.",
            ["op", "result"],
            registry=registry,
        )
        self.conflicts = Counter(
            "gpu_scheduler_conflicts",
            "Conflicts the sweep found: two holders of a device, an unrelated Lease with its name, or a pod "
            "whose annotation and leases name different devices.",
            registry=registry,
        )
        self.leaked = Counter(
            "gpu_scheduler_leaked_leases",
            "Unused device leases that the sweep removed.",
            registry=registry,
        )
        self.unhealthy = Counter(
            "gpu_scheduler_unhealthy_pods",
            "Pods with a device that became unhealthy, by what was done: told, evicted, or not evicted "
            "because of a disruption budget (blocked) or an error (failed).",
            ["action"],
            registry=registry,
        )
        self.preemptions = Counter(
            "gpu_scheduler_preempted_pods",
            "Pods that were to make room for one of higher priority, by what became of it: evicted, or not "
            "because of a disruption budget (blocked) or an error (failed).",
            ["result"],
            registry=registry,
        )
        self.in_between = Counter(
            "gpu_scheduler_backfilled_pods",
            "Pods bound where a place is kept for another, because they declare that they end before.",
            registry=registry,
        )
        self.overruns = Counter(
            "gpu_scheduler_overrun_pods",
            "Pods that ran longer than declared in a place that is kept for another, by what was done: told, "
            "evicted, or not evicted because of a disruption budget (blocked) or an error (failed).",
            ["action"],
            registry=registry,
        )
        self.errors = Counter(
            "gpu_scheduler_errors",
            "Objects that could not be handled because of an unexpected error, by the part that failed.",
            ["part"],
            registry=registry,
        )
        self.result = cache(lambda result: self.scheduling.labels(result))
        self._lease = cache(lambda op, result: self.lease_operations.labels(op, result))

    def lease(self, op: str, result: str) -> None:
        self._lease(op, result).inc()

    def error(self, part: str) -> None:
        """Count an object that this part could not handle; the log has the traceback."""
        self.errors.labels(part).inc()

    def watch(self, engine: Engine, held_back: Callable[[], int]) -> None:
        """Count pods and devices when the metrics are read, not at every change. `held_back` returns how many
        pods wait outside the engine."""
        self.registry.register(_Counts(engine, held_back))
        self.registry.register(_QueueCounts(engine))


class _Counts(Collector):
    def __init__(self, engine: Engine, held_back: Callable[[], int]) -> None:
        self._engine, self._held_back = engine, held_back

    def collect(self) -> Iterator[GaugeMetricFamily]:
        pending = GaugeMetricFamily(
            "gpu_scheduler_pending_pods", "Pending pods, by state in the queue.", labels=["state"]
        )
        for state, number in self._engine.counts().items():
            if state != "held":
                pending.add_metric([state], number)
        pending.add_metric(["held back"], self._held_back())
        yield pending
        kept = GaugeMetricFamily(
            "gpu_scheduler_kept_places",
            "Places kept for pods and gangs that do not fit: reserved from a known moment on, or held; and "
            "holds on quota.",
            labels=["kind"],
        )
        places = self._engine.kept()
        held = sum(each.is_hold for each in places)
        kept.add_metric(["hold"], held)
        kept.add_metric(["reserved"], len(places) - held)
        kept.add_metric(["quota"], self._engine.quota_holds())
        yield kept
        cluster = self._engine.cluster
        total = healthy = free = fragmented = 0
        for node in cluster:
            node_healthy = sum(device.healthy for device in node.devices)
            node_free = cluster.free_gpus(node.name) + cluster.free_slices(node.name)
            total, healthy, free = total + len(node.devices), healthy + node_healthy, free + node_free
            fragmented += node_free if node_free < node_healthy else 0
        devices = GaugeMetricFamily(
            "gpu_scheduler_devices", "GPUs and slices of GPUs, by state.", labels=["state"]
        )
        for what, number in (("free", free), ("used", healthy - free), ("unhealthy", total - healthy)):
            devices.add_metric([what], number)
        yield devices
        yield GaugeMetricFamily(
            "gpu_scheduler_fragmentation_ratio",
            "Fraction of the free devices that are on partly used nodes.",
            value=fragmented / free if free else 0.0,
        )


class _QueueCounts(Collector):
    """The queues with quota. A label for each of them, so they are bounded; an administrator makes them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[GaugeMetricFamily]:
        usages, queues = self._engine.queue_usages(), self._engine.queues
        nodes = {name: node for name in usages if (node := queues.node(name)) is not None}
        yield GaugeMetricFamily(
            "gpu_scheduler_queue_problems",
            "Queues that admit nothing because their definition makes no sense.",
            value=sum(bool(node.problem) for node in nodes.values()),
        )
        used, limit, borrowed, pending = (_of_queues(*each) for each in QUEUE_GAUGES)
        for name in sorted(nodes)[:MOST_QUEUES]:
            usage, terms = usages[name], nodes[name].terms
            used.add_metric([name], usage.used.get(ALL, 0) / WHOLE)
            borrowed.add_metric([name], usage.borrowed.get(ALL, 0) / WHOLE)
            pending.add_metric([name], usage.pending)
            if terms is not None and ALL in terms.limit:
                limit.add_metric([name], terms.limit[ALL] / WHOLE)
        yield from (used, limit, borrowed, pending)


QUEUE_GAUGES = (
    ("gpu_scheduler_queue_used_gpus", "GPUs that the pods of a queue use, and of those below it."),
    ("gpu_scheduler_queue_limit_gpus", "GPUs that a queue may use at most, if it has a limit."),
    ("gpu_scheduler_queue_borrowed_gpus", "GPUs that a queue uses beyond what it is guaranteed."),
    ("gpu_scheduler_queue_pending_pods", "Pods that wait in a queue and in those below it."),
)
MOST_QUEUES = 1000
"""Queues that are shown, the first by name."""


def _of_queues(name: str, about: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, labels=["queue"])

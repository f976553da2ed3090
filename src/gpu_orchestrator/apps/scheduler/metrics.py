"""The scheduler's metrics, in a registry of their own. Children of labels are kept: looking one up by name
for every pod would cost more than counting it."""

from collections.abc import Iterator
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpu_orchestrator.engine.engine import Engine

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.scheduling = Histogram(
            "gpu_scheduler_scheduling_duration_seconds",
            "From a decision until it was carried out, or was found impossible.",
            ["result"],
            registry=registry,
            buckets=BUCKETS,
        )
        self.end_to_end = Histogram(
            "gpu_scheduler_e2e_seconds",
            "From a pod's creation until it was bound.",
            registry=registry,
            buckets=BUCKETS,
        )
        self.lease_operations = Counter(
            "gpu_scheduler_lease_operations",
            "Device leases acquired and released.",
            ["op", "result"],
            registry=registry,
        )
        self.conflicts = Counter(
            "gpu_scheduler_conflicts",
            "Devices found with two holders, or with a Lease of their name that is no device's.",
            registry=registry,
        )
        self.leaked = Counter(
            "gpu_scheduler_leaked_leases",
            "Device leases that the sweep found and removed.",
            registry=registry,
        )
        self.result = cache(lambda result: self.scheduling.labels(result))
        self._lease = cache(lambda op, result: self.lease_operations.labels(op, result))

    def lease(self, op: str, result: str) -> None:
        self._lease(op, result).inc()

    def watch(self, engine: Engine) -> None:
        """Count pods and devices whenever somebody asks, not whenever one moves."""
        self.registry.register(_Counts(engine))


class _Counts(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[GaugeMetricFamily]:
        pending = GaugeMetricFamily(
            "gpu_scheduler_pending_pods", "Pods that wait, by where they wait.", labels=["state"]
        )
        for state, number in self._engine.counts().items():
            if state != "held":
                pending.add_metric([state], number)
        yield pending
        cluster = self._engine.cluster
        total = healthy = free = broken = 0
        for node in cluster:
            fit, open_ = sum(device.healthy for device in node.devices), cluster.free_gpus(node.name)
            total, healthy, free = total + len(node.devices), healthy + fit, free + open_
            broken += open_ if open_ < fit else 0
        devices = GaugeMetricFamily(
            "gpu_scheduler_devices", "Devices by what they are doing.", labels=["state"]
        )
        for what, number in (("free", free), ("used", healthy - free), ("unhealthy", total - healthy)):
            devices.add_metric([what], number)
        yield devices
        yield GaugeMetricFamily(
            "gpu_scheduler_fragmentation_ratio",
            "Part of the free devices that stand on nodes where others are taken.",
            value=broken / free if free else 0.0,
        )

"""The operator's Prometheus metrics, in their own registry. The controller updates them."""

from collections import Counter as Counts
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.gpuworkload import GPUWorkload, GPUWorkloadStatus

PHASES = ("Pending", "Scheduling", "Scheduled", "Running", "Failed", "Succeeded")
PENDING_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 14_400, 86_400)
RECONCILE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        name = "warp_gpuworkload_"
        self.scheduled = Counter(
            f"{name}scheduled", "Workloads placed on a node.", ["strategy"], registry=registry
        )
        self.failed = Counter(f"{name}failed", "Failed tries, by cause.", ["reason"], registry=registry)
        self.retries = Counter(f"{name}retries", "Retries planned.", registry=registry)
        self.reconcile = Histogram(
            f"{name}reconcile_duration_seconds",
            "Duration of one reconcile pass, including its writes.",
            ["result"],
            registry=registry,
            buckets=RECONCILE_BUCKETS,
        )
        self.phase = Gauge(f"{name}phase", "Workloads in each phase.", ["phase"], registry=registry)
        self.pending = Histogram(
            f"{name}pending_seconds",
            "Time from the creation of a workload until it was placed.",
            registry=registry,
            buckets=PENDING_BUCKETS,
        )
        self._phases: Counts[str] = Counts()
        self._leads = False

    def expect(self, causes: Iterable[str]) -> None:
        """Show these causes of failed tries from the start, as zero: the first increase counts too."""
        for cause in causes:
            self.failed.labels(cause)

    def lead(self) -> None:
        """Show the phases from now on. Standbys see the same workloads, and a sum over all replicas would
        count each workload several times."""
        self._leads = True
        for phase in PHASES:
            self.phase.labels(phase).set(self._phases[phase])

    def count_phases(self, old: GPUWorkload | None, new: GPUWorkload | None) -> None:
        """Handle a change from the watch."""
        for workload, step in ((old, -1), (new, 1)):
            if workload is None:
                continue
            phase = workload.status.phase or "Pending"
            self._phases[phase] += step
            if self._leads:
                self.phase.labels(phase).set(self._phases[phase])

    def count_status(self, workload: GPUWorkload, new: GPUWorkloadStatus) -> None:
        """Count what a newly written status reports."""
        old = workload.status
        placed = new.job_name, new.assigned_node
        if new.phase in ("Scheduled", "Running") and placed != (old.job_name, old.assigned_node):
            self.scheduled.labels(workload.spec.scheduling_strategy).inc()
            self._observe_wait(workload, new)
        if new.retry_count > old.retry_count and new.phase == "Pending":
            self.retries.inc()

    def _observe_wait(self, workload: GPUWorkload, new: GPUWorkloadStatus) -> None:
        created = timestamps.parse_optional(workload.metadata.creation_timestamp)
        placed = timestamps.parse_optional(new.last_schedule_time)
        if created and placed and not workload.status.start_time:
            self.pending.observe(max(0.0, (placed - created).total_seconds()))

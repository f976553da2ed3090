"""The agent's metrics. Readings of devices are not set at each look but made from the last one when scraped.

docs/agent.md lists them beside the names that users of DCGM-exporter know.
"""

from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpu_orchestrator.adapters.gpus.gpu import Device, Reading
from gpu_orchestrator.api.gpunodestatus import NodeDevice
from gpu_orchestrator.apps.agent.health import HEALTHY, Condition
from gpu_orchestrator.apps.agent.survey import Look

DEVICE = ("gpu", "uuid", "model", "pci_bus_id", "node")
POD = ("namespace", "pod")
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 10)

What = Literal["report", "capacity", "taint"]

Value = Callable[[Reading], float | None]
GAUGES: dict[str, tuple[str, Value]] = {
    "gpu_agent_utilization_percent": (
        "Time in which a kernel ran, in percent.",
        lambda now: now.utilization_percent,
    ),
    "gpu_agent_memory_utilization_percent": (
        "Time in which memory was read or written, in percent.",
        lambda now: now.memory_utilization_percent,
    ),
    "gpu_agent_memory_used_mib": ("Memory in use, in MiB.", lambda now: now.used_mib),
    "gpu_agent_memory_free_mib": ("Free memory, in MiB.", lambda now: now.free_mib),
    "gpu_agent_temperature_celsius": ("Temperature, in °C.", lambda now: now.temperature_c),
    "gpu_agent_power_watts": ("Power, in W.", lambda now: now.power_w),
    "gpu_agent_sm_clock_mhz": ("Clock of the processors, in MHz.", lambda now: now.sm_clock_mhz),
    "gpu_agent_memory_clock_mhz": ("Clock of the memory, in MHz.", lambda now: now.memory_clock_mhz),
    "gpu_agent_xid": ("The XID that made the device unusable; 0 for none.", lambda now: now.xid),
    "gpu_agent_processes": ("Processes on the device.", lambda now: len(now.processes)),
}
COUNTERS: dict[str, tuple[str, Value]] = {
    "gpu_agent_energy_joules": ("Energy since the driver was loaded, in J.", lambda now: now.energy_j),
    "gpu_agent_ecc_uncorrected": (
        "Memory errors that could not be corrected, since the driver was loaded.",
        lambda now: now.ecc_errors,
    ),
    "gpu_agent_ecc_corrected": (
        "Memory errors that were corrected, since the driver was loaded.",
        lambda now: now.ecc_corrected,
    ),
    "gpu_agent_pcie_replays": ("Repeated packets on the PCIe link.", lambda now: now.pcie_replays),
}


@dataclass(frozen=True, slots=True)
class Shown:
    """What a scrape shows. `users` has the UIDs of the pods that use a device, `pods` their namespaces and
    names. `lost` are devices of the report that were not seen: they have no readings, and are unhealthy."""

    look: Look = field(default_factory=Look)
    ids: Mapping[str, int] = field(default_factory=dict)
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    users: Mapping[str, frozenset[str]] = field(default_factory=dict)
    pods: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    lost: tuple[NodeDevice, ...] = ()


class Metrics:
    def __init__(self, node: str) -> None:
        self.registry = registry = CollectorRegistry()
        self.node, self.shown = node, Shown()
        self.mismatches = Counter(
            "gpu_agent_mismatch",
            "Times that a pod was found on a device which it was not given.",
            registry=registry,
        )
        self.scans = Histogram(
            "gpu_agent_scan_duration_seconds",
            "How long a look at the devices took.",
            registry=registry,
            buckets=BUCKETS,
        )
        writes = Counter("gpu_agent_writes", "Writes to the API server.", ["what"], registry=registry)
        errors = Counter("gpu_agent_errors", "Looks and writes that failed.", ["what"], registry=registry)
        self._writes, self._errors = writes.labels, errors.labels
        registry.register(_Devices(self))

    def wrote(self, what: What) -> None:
        self._writes(what).inc()

    def error(self, what: str) -> None:
        self._errors(what).inc()


class _Devices(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        shown = self._metrics.shown
        rows = [(each, self._labels(each, shown)) for each in shown.look.devices if each.uuid in shown.ids]
        yield from self._states(shown, rows)
        for name, (text, value) in GAUGES.items():
            yield _filled(GaugeMetricFamily(name, text, labels=DEVICE + POD), shown, rows, value)
        for name, (text, value) in COUNTERS.items():
            yield _filled(CounterMetricFamily(name, text, labels=DEVICE + POD), shown, rows, value)
        yield self._of_pods(shown)

    def _labels(self, device: Device, shown: Shown) -> list[str]:
        """A device that several pods use shows none: its readings are not those of one."""
        users = shown.users.get(device.uuid, frozenset())
        pod = shown.pods.get(next(iter(users)), ("", "")) if len(users) == 1 else ("", "")
        model = "-".join(device.model.split())
        of_device = [str(shown.ids[device.uuid]), device.uuid, model, device.pci_bus_id]
        return [*of_device, self._metrics.node, *pod]

    def _states(self, shown: Shown, rows: list[tuple[Device, list[str]]]) -> Iterator[Metric]:
        total = GaugeMetricFamily("gpu_agent_devices", "Devices that the driver lists.")
        total.add_metric([], len(shown.look.devices))
        healthy = GaugeMetricFamily("gpu_agent_healthy", "1 if it is healthy.", labels=DEVICE + POD)
        for device, labels in rows:
            condition = shown.conditions.get(device.uuid, HEALTHY)
            healthy.add_metric(labels, float(condition.is_healthy))
        for lost in shown.lost:
            healthy.add_metric(
                [str(lost.id), lost.uuid, lost.model, lost.pci_bus_id, self._metrics.node, "", ""], 0.0
            )
        yield total
        yield healthy

    def _of_pods(self, shown: Shown) -> Metric:
        family = GaugeMetricFamily(
            "gpu_agent_pod_memory_used_mib",
            "Memory of the device that a pod's processes have, in MiB.",
            labels=("gpu", "uuid", "node", "namespace", "pod", "pod_uid"),
        )
        for uuid, reading in shown.look.readings.items():
            used = Counts[str]()
            for process in reading.processes:
                if uid := shown.look.pods.get(process.pid):
                    used[uid] += process.used_mib or 0
            for uid, mib in used.items() if uuid in shown.ids else ():
                about = [str(shown.ids[uuid]), uuid, self._metrics.node, *shown.pods.get(uid, ("", "")), uid]
                family.add_metric(about, mib)
        return family


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily,
    shown: Shown,
    rows: list[tuple[Device, list[str]]],
    value: Value,
) -> Metric:
    for device, labels in rows:
        reading = shown.look.readings.get(device.uuid)
        if reading is not None and (found := value(reading)) is not None:
            family.add_metric(labels, found)
    return family

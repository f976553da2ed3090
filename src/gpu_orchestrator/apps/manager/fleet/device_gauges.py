"""The gauges of all devices in the text format of Prometheus. `GET /metrics` of the leader shows them.

A thousand workers have tens of thousands of samples. So the text of each worker is kept, and made again only
for workers that changed since the last scrape, some at a time: the leader's other work goes on in between.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpu_orchestrator.api.units import MIB
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState
from gpu_orchestrator.core.cluster import Cluster

AT_ONCE = 50
DEVICE, WORKER = ("device", "worker"), ("worker",)
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "gpu_alert": ("1 while an alert is active", (*DEVICE, "kind")),
    "gpu_memory_used_bytes": ("Used memory as the driver reports it", DEVICE),
    "gpu_memory_free_bytes": ("Memory that can still be reserved", DEVICE),
    "gpu_memory_reserved_bytes": ("Memory reserved for tasks and pinned models", DEVICE),
    "models_loaded": ("Copies of models that are loaded", WORKER),
    "model_cache_hits": ("Tasks that found their model loaded, since the worker started", WORKER),
    "model_cache_misses": ("Tasks that loaded their model, since the worker started", WORKER),
    "model_cache_evictions": ("Models that were evicted, since the worker started", WORKER),
    "model_load_failures": ("Loads of models that failed, since the worker started", WORKER),
}
"""The text and labels of each."""
Lines = tuple[str, ...]
"""For each family the lines of one worker."""


@dataclass(slots=True)
class DeviceGauges:
    memory: MemoryPolicy
    _cluster: Cluster | None = None
    _mark: int = 0
    _known: dict[str, tuple[WorkerState, Lines]] = field(default_factory=dict)

    async def text(self, workers: Mapping[str, WorkerState], cluster: Cluster) -> str:
        """Return the gauges of these workers on this cluster."""
        changed = self._changed_rows(cluster)
        known, self._known = self._known, {}
        for number, (name, worker) in enumerate(list(workers.items()), 1):
            if name not in cluster:
                continue
            before = known.get(name)
            if before is None or before[0] is not worker or changed is None or cluster.row(name) in changed:
                before = worker, self._lines(name, worker, cluster)
            self._known[name] = before
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return "".join(self._families())

    def _changed_rows(self, cluster: Cluster) -> set[int] | None:
        """Return the rows that changed since the last call; None if all may have."""
        since = cluster.changed.since(self._mark) if cluster is self._cluster else None
        self._cluster, self._mark = cluster, cluster.changed.mark
        return None if since is None else set(since)

    def _families(self) -> Iterator[str]:
        for at, (name, (text, _)) in enumerate(FAMILIES.items()):
            yield f"# HELP {name} {text}\n# TYPE {name} gauge\n"
            yield from (lines[at] for _, lines in self._known.values())

    def _lines(self, name: str, worker: WorkerState, cluster: Cluster) -> Lines:
        named, readings = _escaped(name), {each.index: each for each in worker.readings}
        reserved = rows.reserved_on(worker, self.memory, cluster.held_on(name).values())
        left = cluster.usage.free_mib[cluster.row(name)]
        alerts = [
            f'gpu_alert{{device="{each.device}",kind="{_escaped(each.kind)}",worker="{named}"}} 1.0\n'
            for each in worker.alerts
        ]
        used, free, held = [], [], []
        for at, device in enumerate(worker.hello.devices[: len(left)]):
            labels = f'{{device="{device.index}",worker="{named}"}}'
            reading = readings.get(device.index)
            used.append(f"gpu_memory_used_bytes{labels} {_bytes(reading.used_mib if reading else 0)}\n")
            free.append(f"gpu_memory_free_bytes{labels} {_bytes(max(int(left[at]), 0))}\n")
            mib = reserved[device.index].mib if device.index in reserved else 0
            held.append(f"gpu_memory_reserved_bytes{labels} {_bytes(mib)}\n")
        return "".join(alerts), "".join(used), "".join(free), "".join(held), *_models(worker, named)


def _models(worker: WorkerState, named: str) -> Lines:
    if not worker.hello.model_types:
        return ("",) * 5
    counts, loaded = worker.cache, sum(each.is_loaded for each in worker.copies)
    values = (loaded, counts.hits, counts.misses, counts.evictions, counts.failures)
    names = [name for name, (_, labels) in FAMILIES.items() if labels == WORKER]
    return tuple(f'{name}{{worker="{named}"}} {value}.0\n' for name, value in zip(names, values, strict=True))


def _bytes(mib: int) -> str:
    return f"{mib * MIB}.0"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

"""Every metric of every component, with its labels, read from the registries in the code."""

# ruff: noqa: TID251 - a script, outside the pure packages

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from gpu_orchestrator.apps.agent.metrics import Metrics as AgentMetrics
from gpu_orchestrator.apps.manager import metrics as manager
from gpu_orchestrator.apps.manager.fleet import device_gauges
from gpu_orchestrator.apps.operator.metrics import Metrics as OperatorMetrics
from gpu_orchestrator.apps.scheduler.metrics import Metrics as SchedulerMetrics
from gpu_orchestrator.apps.webhook.metrics import Metrics as WebhookMetrics
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.policies.registry import Registry

COMPONENTS = ("operator", "scheduler", "webhook", "agent", "manager")


@dataclass(frozen=True, slots=True)
class Family:
    """A metric. The name of a counter has no `_total` here, as in the code."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def shown(self) -> str:
        """Return the name that documents use."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    @property
    def series(self) -> dict[str, tuple[str, ...]]:
        """Return the names that an expression can select, each with its labels."""
        if self.kind != "histogram":
            return {self.shown: self.labels}
        return {
            f"{self.name}_bucket": (*self.labels, "le"),
            f"{self.name}_sum": self.labels,
            f"{self.name}_count": self.labels,
        }


@cache
def families(component: str) -> tuple[Family, ...]:
    """Return the metrics of a component, in the order of its code."""
    return tuple(_MAKE[component]())


def series() -> dict[str, tuple[str, ...]]:
    """Return all names that an expression can select, each with its labels."""
    return {
        name: labels
        for component in COMPONENTS
        for family in families(component)
        for name, labels in family.series.items()
    }


def _scheduler() -> Iterator[Family]:
    metrics = SchedulerMetrics()
    metrics.watch(Engine(Registry().policy_of, random.Random(0)), lambda: 0)  # noqa: S311 - decides nothing
    return _registered(metrics.registry)


def _manager() -> Iterator[Family]:
    yield from _registered(manager.Metrics().registry)
    for name, (text, labels) in (manager.GAUGES | device_gauges.FAMILIES).items():
        yield Family(name, "gauge", labels, text)


_MAKE = {
    "operator": lambda: _registered(OperatorMetrics().registry),
    "scheduler": _scheduler,
    "webhook": lambda: _registered(WebhookMetrics().registry),
    "agent": lambda: _registered(AgentMetrics("node").registry),
    "manager": _manager,
}


def _registered(registry: CollectorRegistry) -> Iterator[Family]:
    """prometheus_client names the labels of a metric without samples only in private attributes."""
    for collector in registry._collector_to_names:
        if isinstance(collector, MetricWrapperBase):
            yield Family(
                collector._name, collector._type, tuple(collector._labelnames), collector._documentation
            )
        else:
            for each in collector.collect():
                yield Family(each.name, each.type, tuple(each._labelnames), each.documentation)

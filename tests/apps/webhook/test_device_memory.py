"""How much memory the largest device of a model has, by nodes and reports."""

import json

import pytest

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api.devices import DeviceWish
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import Node
from gpu_orchestrator.apps.webhook.device_memory import DeviceMemory
from tests.support.scheduler_objects import node, report


class Fed:
    """Device memory with its stores, fed as the watches do it."""

    def __init__(self) -> None:
        self.nodes, self.reports = Store[Node](), Store[GpuNodeStatus]()
        self.memory = DeviceMemory(self.nodes, self.reports)

    def show(self, *objects: Node | GpuNodeStatus) -> "Fed":
        for each in objects:
            if isinstance(each, Node):
                for node_change in self.nodes.put(each):
                    self.memory.node_changed(*node_change)
            else:
                for report_change in self.reports.put(each):
                    self.memory.report_changed(*report_change)
        return self

    def remove(self, name: str) -> None:
        for change in self.nodes.drop(name):
            self.memory.node_changed(*change)

    def largest(self, **wish: str) -> int:
        return self.memory.sizes.largest_mib(DeviceWish(exclusivity="Shared", memory_mib=1, **wish))  # type: ignore[arg-type]


def described(name: str, model: str, mib: int, vendor: str = "nvidia") -> Node:
    text = json.dumps({"count": 2, "model": model, "memoryMiB": mib, "vendor": vendor})
    return node(name, 0, annotations={"gpu.scheduling/devices": text})


@pytest.fixture
def fed() -> Fed:
    return Fed().show(
        described("a", "A100", 40_000),
        described("b", "A100", 80_000),
        described("c", "MI300X", 192_000, "amd"),
    )


def test_largest_of_what_is_wished(fed: Fed) -> None:
    assert fed.largest() == 192_000
    assert fed.largest(vendor="nvidia") == 80_000
    assert fed.largest(model="MI300X") == 192_000
    assert fed.largest(model="MI300X", vendor="nvidia") == 0
    assert Fed().largest() == 0


def test_report_wins_over_the_node_whichever_comes_first(fed: Fed) -> None:
    seen = report("d", {"id": 0, "model": "H200", "memoryMiB": 141_000})
    fed.show(seen)
    assert fed.largest(model="H200") == 0, "a report without a node counts for nothing"
    fed.show(described("d", "H100", 80_000))
    assert (fed.largest(model="H200"), fed.largest(model="H100")) == (141_000, 0)


def test_removed_node_is_forgotten(fed: Fed) -> None:
    fed.remove("b")
    assert fed.largest(model="A100") == 40_000
    fed.remove("a")
    assert fed.largest(model="A100") == 0

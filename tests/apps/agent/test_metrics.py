"""The metrics of devices and their labels."""

from dataclasses import replace
from typing import Any

from gpu_orchestrator.api.gpunodestatus import NodeDevice
from gpu_orchestrator.apps.agent.health import Condition, Fault
from gpu_orchestrator.apps.agent.metrics import COUNTERS, GAUGES, Metrics, Shown
from tests.support.agent_builders import NODE, device, look, reading
from tests.support.paths import ROOT

FULL: dict[str, Any] = {
    "utilization_percent": 50.0,
    "memory_utilization_percent": 20.0,
    "temperature_c": 60.0,
    "power_w": 300.0,
    "energy_j": 1e6,
    "sm_clock_mhz": 1980,
    "memory_clock_mhz": 2600,
    "ecc_errors": 0,
    "ecc_corrected": 4,
    "pcie_replays": 1,
}


def shown(*uids: str, **readings: Any) -> Metrics:
    metrics = Metrics(NODE)
    seen = look(
        device(0, pci_bus_id="00000000:3B:00.0"),
        readings=[reading(pids=[1, 2], **(readings or FULL))],
        pods={1: "uid-a", 2: "uid-a"},
    )
    pods = {uid: ("team", uid.removeprefix("uid-")) for uid in uids}
    conditions = {"GPU-0": Condition(Fault(3, "x"), 0.0)}
    metrics.shown = Shown(seen, {"GPU-0": 5}, conditions, {"GPU-0": frozenset(uids)}, pods)
    return metrics


def labels(pod: str = "", namespace: str = "") -> dict[str, str]:
    about = {"gpu": "5", "uuid": "GPU-0", "model": "NVIDIA-H100-80GB-HBM3", "pci_bus_id": "00000000:3B:00.0"}
    return about | {"node": NODE, "namespace": namespace, "pod": pod}


def test_readings_carry_the_pod_that_uses_the_device() -> None:
    registry = shown("uid-a").registry
    value = registry.get_sample_value
    assert value("gpu_agent_utilization_percent", labels("a", "team")) == 50.0
    assert value("gpu_agent_energy_joules_total", labels("a", "team")) == 1e6
    assert value("gpu_agent_healthy", labels("a", "team")) == 0.0
    assert value("gpu_agent_devices") == 1.0
    of_pod = {"gpu": "5", "uuid": "GPU-0", "node": NODE, "namespace": "team", "pod": "a", "pod_uid": "uid-a"}
    assert value("gpu_agent_pod_memory_used_mib", of_pod) == 200.0


def test_device_of_several_pods_names_none() -> None:
    registry = shown("uid-a", "uid-b").registry
    assert registry.get_sample_value("gpu_agent_utilization_percent", labels()) == 50.0


def test_value_that_the_driver_does_not_tell_is_left_out() -> None:
    registry = shown("uid-a", temperature_c=None).registry
    assert registry.get_sample_value("gpu_agent_power_watts", labels("a", "team")) is None
    assert registry.get_sample_value("gpu_agent_memory_used_mib", labels("a", "team")) == 0.0


def test_device_that_is_lost_is_unhealthy_and_has_no_readings() -> None:
    """An agent that starts after the loss knows it from the report alone: its alarm must not end then."""
    metrics = shown("uid-a")
    lost = NodeDevice(id=7, health="Unhealthy", uuid="GPU-7", model="L4", pci_bus_id="00000000:3C:00.0")
    metrics.shown = replace(metrics.shown, lost=(lost,))
    value = metrics.registry.get_sample_value
    about = {"gpu": "7", "uuid": "GPU-7", "model": "L4", "pci_bus_id": "00000000:3C:00.0"}
    labels_of_lost = labels() | about
    assert value("gpu_agent_healthy", labels_of_lost) == 0.0
    assert value("gpu_agent_memory_used_mib", labels_of_lost) is None
    assert value("gpu_agent_devices") == 1.0, "those that the driver lists"


def test_every_metric_is_in_the_document() -> None:
    text = (ROOT / "docs" / "agent.md").read_text()
    families = [family.name for family in shown("uid-a").registry.collect()]
    assert set(GAUGES) | set(COUNTERS) <= set(families)
    for name in families:
        assert f"`{name}" in text, name

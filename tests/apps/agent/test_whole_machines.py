"""The machines of tests/data/gpus as the agent reports them: what is recorded → a report that the API server
takes, with right islands, bandwidth and health."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from gpu_orchestrator.adapters.gpus.find import find
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatusStatus
from gpu_orchestrator.apps.agent import health, survey
from gpu_orchestrator.apps.agent.health import Rules
from gpu_orchestrator.apps.agent.looker import Looker
from gpu_orchestrator.apps.agent.memory import Memory
from tests.support import recorded_nvml, sysfs_tree

NOW = datetime(2026, 11, 18, 15, 0, tzinfo=UTC)


async def reported(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, memory: Memory) -> Memory:
    """Return what an agent knows after a look at a machine; `published` is the report that it then makes."""
    recorded_nvml.install(recorded_nvml.load("nvml-missing" if name == "mi300x" else name), monkeypatch)
    root = sysfs_tree.unpack(name, folder) if name == "mi300x" else folder
    look = await Looker(find(root=root), root, lambda: 0.0).look(within_s=60)
    after = memory.after(look, 0.0, rules=Rules(), forget_s=60.0)
    status = survey.survey(look, after.findings(look, {}), NOW)
    assert msgspec.convert(msgspec.to_builtins(status), GpuNodeStatusStatus) == status, "within its bounds"
    return after.with_published(status.devices)


def shape(memory: Memory) -> list[tuple[int | None, int]]:
    devices = sorted(memory.published.values(), key=lambda each: each.id)
    return [(each.island, each.bandwidth_gbps) for each in devices]


def unhealthy(memory: Memory) -> dict[int, str]:
    return {
        each.id: each.unhealthy_reason for each in memory.published.values() if each.health == "Unhealthy"
    }


@pytest.mark.parametrize(
    ("name", "islands", "ill"),
    [
        pytest.param("8xh100-nvswitch", [(0, 900)] * 8, {}, id="8xH100 on NVSwitches"),
        pytest.param("two-nvlink-quads", [(0, 200)] * 4 + [(1, 200)] * 4, {}, id="two NVLink quads"),
        pytest.param("pcie-only", [(0, 64), (1, 64), (2, 64), (3, 64)], {}, id="PCIe only"),
        pytest.param(
            "mi300x", [(0, 128)] * 8, {7: "uncorrectable memory errors; reset the device"}, id="MI300X"
        ),
        pytest.param("h200", [(0, 0)], {}, id="one H200"),
        pytest.param("no-gpu", [], {}, id="no GPU"),
        pytest.param("nvml-missing", [], {}, id="NVML missing"),
    ],
)
async def test_machine(
    name: str,
    islands: list[tuple[int, int]],
    ill: dict[int, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await reported(name, tmp_path, monkeypatch, Memory())
    assert (shape(found), unhealthy(found)) == (islands, ill)


async def test_slices_of_a_gpu_are_devices_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await reported("mig-mixed", tmp_path, monkeypatch, Memory())
    profiles = {each.id: each.mig.profile if each.mig else "" for each in found.published.values()}
    assert profiles == {1: "", 3: "3g.40gb", 4: "2g.20gb", 5: "2g.20gb"}, "the whole GPU keeps its number"
    assert (shape(found), unhealthy(found)) == ([(0, 0), (1, 0), (2, 0), (3, 0)], {})


@pytest.mark.parametrize(
    ("name", "ill"),
    [
        ("one-lost", {5: health.LOST}),
        ("failing-mid-read", {2: "GPU is lost", 3: health.LOST}),
        ("nvml-missing", dict.fromkeys(range(8), health.LOST)),
    ],
)
async def test_device_that_is_lost_keeps_its_place_and_the_others_go_on(
    name: str, ill: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await reported("8xh100-nvswitch", tmp_path, monkeypatch, Memory())
    found = await reported(name, tmp_path, monkeypatch, before)
    assert (shape(found), unhealthy(found)) == ([(0, 900)] * 8, ill)

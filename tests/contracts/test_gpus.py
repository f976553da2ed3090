"""The contract of every source of GPUs: simulated devices, recorded drivers of NVIDIA and AMD, and NVIDIA's
own where one is installed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.gpus.amd import Amd
from gpu_orchestrator.adapters.gpus.find import find
from gpu_orchestrator.adapters.gpus.gpu import Gpus, Reading
from gpu_orchestrator.adapters.gpus.nvml import Nvml
from gpu_orchestrator.adapters.gpus.simulated import Simulated
from tests.support import recorded_nvml, sysfs_tree

pytestmark = pytest.mark.real


def has_driver() -> bool:
    nvml = Nvml()
    found = bool(nvml.devices())
    nvml.close()
    return found


LIVE = ["simulated", "nvml"] if has_driver() else ["simulated"]
"""Sources on which a process can take memory."""
RECORDED = ["described", "h200", "8xh100-nvswitch", "mig-mixed", "mi300x", "both vendors", "none"]
DEVICES = {
    "devices": [
        {"count": 2, "vendor": "nvidia", "model": "H100", "memory_mib": 81559, "numa": 0},
        {"uuid": "MIG-1", "memory_mib": 9856, "mig": {"profile": "1g.10gb", "parent": "GPU-2"}},
    ],
    "links": [{"between": [0, 1], "kind": "NVLink", "bandwidth_gbps": 900, "label": "NV18"}],
}


def source(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    match name:
        case "simulated":
            return Simulated(folder, "2xL4:24GiB,1xH200:141GiB")
        case "nvml":
            return Nvml()
        case "described":
            (folder / "devices.json").write_text(json.dumps(DEVICES))
            return find(devices_file=folder / "devices.json", folder=folder / "simulated")
        case "mi300x":
            return Amd(sysfs_tree.unpack("mi300x", folder), lambda: None)
        case "both vendors":
            recorded_nvml.install(recorded_nvml.load("pcie-only"), monkeypatch)
            return find(root=sysfs_tree.unpack("mi300x", folder))
        case "none":
            recorded_nvml.install(recorded_nvml.load("nvml-missing"), monkeypatch)
            return find(root=folder)
        case _:
            recorded_nvml.install(recorded_nvml.load(name), monkeypatch)
            return Nvml(folder)


@pytest.fixture(params=LIVE)
def gpus(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    made = source(request.param, tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.fixture(params=[*LIVE, *RECORDED])
def any_gpus(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Gpus]:
    made = source(request.param, tmp_path, monkeypatch)
    yield made
    made.close()


@contextmanager
def outside_process(gpus: Gpus, uuid: str, mib: int) -> Iterator[subprocess.Popen[str]]:
    """Run a process outside the orchestrator that holds memory on one device."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_orchestrator.adapters.gpus.hold", str(mib)],
        env={**os.environ, **gpus.environment([uuid])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def reading(gpus: Gpus, uuid: str) -> Reading:
    return next(reading for reading in gpus.readings() if reading.uuid == uuid)


def test_devices_have_numbers_uuids_and_memory(any_gpus: Gpus) -> None:
    devices = any_gpus.devices()
    numbers = [device.index for device in devices]
    assert numbers == sorted(set(numbers))
    assert len({device.uuid for device in devices}) == len(devices)
    assert all(device.memory_mib > 0 and device.model and device.vendor for device in devices)
    assert all(device.mig is None or device.mig.parent not in {d.uuid for d in devices} for device in devices)
    assert any_gpus.devices() == devices


def test_every_device_has_a_reading_within_its_memory(any_gpus: Gpus) -> None:
    devices = any_gpus.devices()
    readings = any_gpus.readings()
    assert [reading.uuid for reading in readings] == [device.uuid for device in devices]
    for device, now in zip(devices, readings, strict=True):
        assert now.problem == ""
        assert 0 <= now.used_mib + now.free_mib <= device.memory_mib
        assert sum(process.used_mib or 0 for process in now.processes) <= device.memory_mib


def test_links_join_two_listed_devices_once(any_gpus: Gpus) -> None:
    whole = {device.uuid for device in any_gpus.devices() if device.mig is None}
    pairs = [frozenset((link.a, link.b)) for link in any_gpus.links()]
    assert all(len(pair) == 2 and pair <= whole for pair in pairs)
    assert len(set(pairs)) == len(pairs)
    assert all(link.bandwidth_gbps >= 0 for link in any_gpus.links())


def test_environment_names_the_devices_it_is_asked_for_and_no_others(any_gpus: Gpus) -> None:
    uuids = [device.uuid for device in any_gpus.devices()]
    for uuid in uuids:
        words = ",".join(any_gpus.environment([uuid]).values())
        assert uuid in words
        assert not any(other in words for other in uuids if other != uuid)
    hidden = any_gpus.environment([])
    assert "" in hidden.values(), "an empty list hides all"
    assert set(hidden) == set(any_gpus.environment(uuids))


def test_source_without_devices_tells_what_it_looked_for(any_gpus: Gpus) -> None:
    assert bool(any_gpus.devices()) or any_gpus.notes()
    assert any_gpus.fabric() == any_gpus.fabric()


def test_memory_of_another_process_shows_only_on_its_device(gpus: Gpus) -> None:
    *others, device = gpus.devices()
    before = reading(gpus, device.uuid)
    others_before = [reading(gpus, other.uuid).used_mib for other in others]
    with outside_process(gpus, device.uuid, 2048):
        now = reading(gpus, device.uuid)
        assert now.used_mib - before.used_mib >= 2048
        assert before.free_mib - now.free_mib >= 2048
        assert [reading(gpus, other.uuid).used_mib for other in others] == others_before


def test_memory_of_a_killed_process_is_free_again(gpus: Gpus) -> None:
    device = gpus.devices()[0]
    before = reading(gpus, device.uuid)
    with outside_process(gpus, device.uuid, 1024) as process:
        process.kill()
        process.wait()
    assert reading(gpus, device.uuid).used_mib <= before.used_mib


def test_allocation_over_device_memory_fails(gpus: Gpus) -> None:
    device = gpus.devices()[0]
    ran = subprocess.run(
        [sys.executable, "-m", "gpu_orchestrator.adapters.gpus.hold", str(device.memory_mib + 1)],
        env={**os.environ, **gpus.environment([device.uuid])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "OutOfMemory" in ran.stderr

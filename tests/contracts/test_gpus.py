"""The contract of every source of GPUs: simulated devices always, NVIDIA's where a driver is installed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.gpus.gpu import Gpus, Reading
from gpu_orchestrator.adapters.gpus.nvml import Nvml
from gpu_orchestrator.adapters.gpus.simulated import Simulated

pytestmark = pytest.mark.real


def has_driver() -> bool:
    nvml = Nvml()
    found = bool(nvml.devices())
    nvml.close()
    return found


SOURCES = ["simulated", "nvml"] if has_driver() else ["simulated"]


@pytest.fixture(params=SOURCES)
def gpus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gpus]:
    source: Gpus = Nvml() if request.param == "nvml" else Simulated(tmp_path, "2xL4:24GiB,1xH200:141GiB")
    yield source
    source.close()


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


def test_devices_have_indices_uuids_and_memory(gpus: Gpus) -> None:
    devices = gpus.devices()
    assert [device.index for device in devices] == list(range(len(devices)))
    assert len({device.uuid for device in devices}) == len(devices)
    assert all(device.memory_mib > 0 and device.model and device.vendor for device in devices)
    assert gpus.devices() == devices


def test_every_device_has_a_reading_within_its_memory(gpus: Gpus) -> None:
    devices = gpus.devices()
    readings = gpus.readings()
    assert [reading.uuid for reading in readings] == [device.uuid for device in devices]
    for device, now in zip(devices, readings, strict=True):
        assert now.problem == ""
        assert 0 <= now.used_mib + now.free_mib <= device.memory_mib


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

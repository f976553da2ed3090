"""The NVML adapter over a scripted driver: failures that a real driver rarely shows.

The driver below the adapter is scripted, call by call; the adapter itself is the real one.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml  # type: ignore[import-untyped]
import pytest

from gpu_orchestrator.adapters.gpus.gpu import Process
from gpu_orchestrator.adapters.gpus.nvml import Nvml
from gpu_orchestrator.api.units import MIB


@dataclass
class Driver:
    """Two devices of 80 GiB. `errors` says which device answers with which error."""

    is_loaded: bool = True
    is_initialised: bool = False
    errors: dict[str, int] = field(default_factory=dict)
    ecc_errors: int = 0
    listened: set[str] = field(default_factory=set)
    events: list[tuple[str, int]] = field(default_factory=list)

    def init(self) -> None:
        if not self.is_loaded:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.is_initialised = True

    def shutdown(self) -> None:
        self.is_initialised = False

    def handle(self, name: int | str) -> str:
        uuid = f"GPU-{name}" if isinstance(name, int) else name
        if not (self.is_initialised and self.is_loaded):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        if uuid in self.errors:
            raise pynvml.NVMLError(self.errors[uuid])
        return uuid

    def memory(self, handle: str, version: int | None = None) -> Any:
        return SimpleNamespace(total=81920 * MIB, used=1024 * MIB, free=80000 * MIB)

    def register(self, handle: str, kinds: int, events: str) -> None:
        assert kinds & pynvml.nvmlEventTypeXidCriticalError
        self.listened.add(handle)

    def event(self, events: str, timeout_ms: int) -> Any:
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        uuid, xid = self.events.pop(0)
        return SimpleNamespace(device=uuid, eventData=xid)

    def unsupported(self, *_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    script = {
        "nvmlInit": driver.init,
        "nvmlShutdown": driver.shutdown,
        "nvmlSystemGetDriverVersion": lambda: b"580.1",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": driver.handle,
        "nvmlDeviceGetHandleByUUID": driver.handle,
        "nvmlDeviceGetUUID": lambda handle: handle,
        "nvmlDeviceGetName": lambda _: "NVIDIA H100",
        "nvmlDeviceGetMemoryInfo": driver.memory,
        "nvmlDeviceGetNumaNodeId": driver.unsupported,
        "nvmlDeviceGetUtilizationRates": driver.unsupported,
        "nvmlDeviceGetTemperature": lambda *_: 41,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [
            SimpleNamespace(pid=7, usedGpuMemory=512 * MIB),
            SimpleNamespace(pid=8, usedGpuMemory=None),
        ],
        "nvmlDeviceGetGraphicsRunningProcesses": driver.unsupported,
        "nvmlDeviceGetTotalEccErrors": lambda *_: driver.ecc_errors,
        "nvmlEventSetCreate": lambda: "events",
        "nvmlEventSetFree": lambda _: None,
        "nvmlDeviceRegisterEvents": driver.register,
        "nvmlEventSetWait_v2": driver.event,
    }
    for name, function in script.items():
        monkeypatch.setattr(pynvml, name, function)
    return driver


def test_without_a_driver_there_are_no_devices(driver: Driver) -> None:
    driver.is_loaded = False
    assert Nvml().devices() == ()
    assert Nvml().readings() == ()


def test_values_the_driver_does_not_report_are_left_out(driver: Driver) -> None:
    nvml = Nvml()
    assert [device.uuid for device in nvml.devices()] == ["GPU-0", "GPU-1"]
    now = nvml.readings()[0]
    assert (now.utilization_percent, now.temperature_c) == (None, 41.0)
    assert now.processes == (Process(7, 512), Process(8, None))
    assert now.held_by({7, 8}) == 512


def test_lost_device_reports_a_problem_and_the_others_go_on(driver: Driver) -> None:
    nvml = Nvml()
    nvml.devices()
    driver.errors["GPU-0"] = pynvml.NVML_ERROR_GPU_IS_LOST
    for _ in range(3):
        lost, fine = nvml.readings()
        assert lost.problem == "GPU is lost"
    assert fine.problem == ""
    assert fine.free_mib == 80000
    assert [device.uuid for device in nvml.devices()] == ["GPU-0", "GPU-1"]


def test_reloaded_driver_is_found_again(driver: Driver) -> None:
    nvml = Nvml()
    nvml.devices()
    driver.is_loaded = False
    assert {reading.problem for reading in nvml.readings()} <= {"Uninitialized", "NVIDIA driver not loaded"}
    assert {reading.problem for reading in nvml.readings()} == {"NVIDIA driver not loaded"}
    assert len(nvml.devices()) == 2
    driver.is_loaded = True
    assert [reading.problem for reading in nvml.readings()] == ["", ""]


def test_driver_loaded_later_is_found(driver: Driver) -> None:
    driver.is_loaded = False
    nvml = Nvml()
    assert nvml.devices() == ()
    driver.is_loaded = True
    assert len(nvml.devices()) == 2


def test_no_device_given_means_none_visible(driver: Driver) -> None:
    assert Nvml().environment([])["CUDA_VISIBLE_DEVICES"] == ""
    assert Nvml().environment(["GPU-1", "GPU-0"])["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-0"


def test_device_fault_stays_and_a_program_fault_is_ignored(driver: Driver) -> None:
    gpus = Nvml()
    gpus.devices()
    assert driver.listened == {"GPU-0", "GPU-1"}
    driver.events = [("GPU-0", 31), ("GPU-1", 79), ("GPU-1", 48)]
    driver.ecc_errors = 3
    healthy, faulty = gpus.readings()
    assert (healthy.xid, healthy.problem, healthy.ecc_errors) == (0, "", 3)
    assert faulty.xid == 79
    assert "XID 79" in faulty.problem
    driver.errors["GPU-1"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert gpus.readings()[1].xid == 79, "also when the device no longer answers"


def test_driver_without_events_is_ignored(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlEventSetCreate", driver.unsupported)
    gpus = Nvml()
    gpus.devices()
    assert [reading.xid for reading in gpus.readings()] == [0, 0]

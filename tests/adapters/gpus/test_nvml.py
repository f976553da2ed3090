"""The NVML adapter over a described driver: failures that a real driver rarely shows."""

from typing import Any

import pynvml  # type: ignore[import-untyped]
import pytest

from gpu_orchestrator.adapters.gpus.gpu import Process
from gpu_orchestrator.adapters.gpus.nvml import Nvml
from gpu_orchestrator.adapters.gpus.xids import PASSING_S, Xids
from gpu_orchestrator.api.units import MIB
from tests.support import recorded_nvml
from tests.support.recorded_nvml import RecordedNvml


def two_h100() -> dict[str, Any]:
    """Two devices of 80 GiB that tell little more than what they must."""
    used = [{"pid": 7, "usedGpuMemory": 512 * MIB}, {"pid": 8, "usedGpuMemory": None}]
    return {
        "calls": {
            "nvmlSystemGetDriverVersion": {"": "580.1"},
            "nvmlEventSetCreate": {"": "events"},
            "nvmlEventSetFree": {"*": None},
        },
        "every": {
            "nvmlDeviceGetName": {"": "NVIDIA H100"},
            "nvmlDeviceGetMemoryInfo": {"*": {"total": 81920 * MIB, "used": 1024 * MIB, "free": 80000 * MIB}},
            "nvmlDeviceGetTemperature": {"0": 41},
            "nvmlDeviceGetComputeRunningProcesses": {"": used},
            "nvmlDeviceGetTotalEccErrors": {"*": 0},
        },
        "gpus": {str(number): {"nvmlDeviceGetUUID": {"": f"GPU-{number}"}} for number in range(2)},
    }


def lose(driver: RecordedNvml, device: str) -> None:
    lost = {"": {"error": pynvml.NVML_ERROR_GPU_IS_LOST}}
    driver.gpus[device] |= {"nvmlDeviceGetHandleByUUID": lost, "nvmlDeviceGetHandleByIndex": lost}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> RecordedNvml:
    return recorded_nvml.install(RecordedNvml(two_h100()), monkeypatch)


def test_without_a_driver_there_are_no_devices(driver: RecordedNvml) -> None:
    driver.is_loaded = False
    assert Nvml().devices() == ()
    assert Nvml().readings() == ()


def test_clients_of_mps_and_graphics_are_processes_too(driver: RecordedNvml) -> None:
    """The driver has a list for each; a process that we miss would lose its device to the next pod."""
    driver.gpus["0"] |= {
        "nvmlDeviceGetGraphicsRunningProcesses": {"": [{"pid": 7, "usedGpuMemory": 512 * MIB}]},
        "nvmlDeviceGetMPSComputeRunningProcesses": {"": [{"pid": 9, "usedGpuMemory": 256 * MIB}]},
    }
    nvml = Nvml()
    nvml.devices()
    processes = [now.processes for now in nvml.readings()]
    assert processes == [
        (Process(7, 512), Process(8, None), Process(9, 256)),
        (Process(7, 512), Process(8, None)),
    ]


@pytest.mark.parametrize(
    ("code", "are_all"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, True),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, True),
        (pynvml.NVML_ERROR_INSUFFICIENT_SIZE, False),
        (pynvml.NVML_ERROR_UNKNOWN, False),
    ],
)
def test_list_of_processes_that_was_not_read_is_not_an_empty_one(
    driver: RecordedNvml, code: int, are_all: bool
) -> None:
    driver.gpus["0"]["nvmlDeviceGetGraphicsRunningProcesses"] = {"": {"error": code}}
    nvml = Nvml()
    nvml.devices()
    first, second = nvml.readings()
    assert (first.all_processes, second.all_processes) == (are_all, True)
    assert [each.pid for each in first.processes] == [7, 8], "the other lists count"
    assert first.problem == ""


def test_values_the_driver_does_not_report_are_left_out(driver: RecordedNvml) -> None:
    nvml = Nvml()
    assert [device.uuid for device in nvml.devices()] == ["GPU-0", "GPU-1"]
    now = nvml.readings()[0]
    assert (now.utilization_percent, now.temperature_c) == (None, 41.0)
    assert now.processes == (Process(7, 512), Process(8, None))
    assert now.held_by({7, 8}) == 512


def test_lost_device_reports_a_problem_and_the_others_go_on(driver: RecordedNvml) -> None:
    nvml = Nvml()
    nvml.devices()
    lose(driver, "0")
    for _ in range(3):
        lost, fine = nvml.readings()
        assert lost.problem == "GPU is lost"
    assert fine.problem == ""
    assert fine.free_mib == 80000
    assert [device.uuid for device in nvml.devices()] == ["GPU-0", "GPU-1"]


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("nvmlDeviceGetMemoryInfo", {"*": {"total": 81920 * MIB, "used": 2**64 - 1, "free": 0}}),
        ("nvmlDeviceGetMemoryInfo", {"*": {"total": None, "used": 0, "free": 0}}),
    ],
)
def test_nonsense_of_one_device_is_its_problem_and_the_others_go_on(
    driver: RecordedNvml, call: str, answer: Any
) -> None:
    nvml = Nvml()
    nvml.devices()
    driver.gpus["0"] |= {call: answer}
    odd, fine = nvml.readings()
    assert odd.problem.startswith("the driver answers with nonsense")
    assert fine.problem == ""
    again = Nvml()
    assert [device.uuid for device in again.devices()] == ["GPU-1"]
    assert "GPU 0 answers with nonsense" in again.notes()[0]


def test_text_that_is_no_text_is_left_out(driver: RecordedNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def garbled(*_: Any) -> str:
        return b"\xff\xfe".decode()

    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", garbled)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPciInfo", garbled)
    assert [(each.driver_version, each.pci_bus_id) for each in Nvml().devices()] == [("", "")] * 2
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: b"58\xff")
    assert Nvml().devices()[0].driver_version == "58\ufffd"


def test_reloaded_driver_is_found_again(driver: RecordedNvml) -> None:
    nvml = Nvml()
    nvml.devices()
    driver.is_loaded = False
    assert {reading.problem for reading in nvml.readings()} <= {"Uninitialized", "NVIDIA driver not loaded"}
    assert {reading.problem for reading in nvml.readings()} == {"NVIDIA driver not loaded"}
    assert len(nvml.devices()) == 2
    driver.is_loaded = True
    assert [reading.problem for reading in nvml.readings()] == ["", ""]


def test_driver_loaded_later_is_found(driver: RecordedNvml) -> None:
    driver.is_loaded = False
    nvml = Nvml()
    assert nvml.devices() == ()
    driver.is_loaded = True
    assert len(nvml.devices()) == 2


def test_no_device_given_means_none_visible(driver: RecordedNvml) -> None:
    assert Nvml().environment([])["CUDA_VISIBLE_DEVICES"] == ""
    assert Nvml().environment(["GPU-1", "GPU-0"])["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-0"


def test_device_fault_stays_and_a_program_fault_is_ignored(driver: RecordedNvml) -> None:
    gpus = Nvml()
    gpus.devices()
    assert driver.listened == {"0", "1"}
    driver.events = [("0", 31), ("1", 79), ("1", 48)]
    driver.gpus["0"]["nvmlDeviceGetTotalEccErrors"] = {"*": 3}
    healthy, faulty = gpus.readings()
    assert (healthy.xid, healthy.problem, healthy.ecc_errors) == (0, "", 3)
    assert faulty.xid == 79
    assert "XID 79" in faulty.problem
    lose(driver, "1")
    assert gpus.readings()[1].xid == 79, "also when the device no longer answers"


def test_driver_without_events_is_ignored(driver: RecordedNvml) -> None:
    del driver.calls["nvmlEventSetCreate"]
    gpus = Nvml()
    gpus.devices()
    assert [reading.xid for reading in gpus.readings()] == [0, 0]


def test_faults_are_received_though_another_device_is_lost(driver: RecordedNvml) -> None:
    lose(driver, "0")
    gpus = Nvml()
    assert [device.uuid for device in gpus.devices()] == ["GPU-1"]
    driver.events = [("1", 79)]
    assert gpus.readings()[0].xid == 79


def test_error_that_passes_counts_until_it_has_not_come_for_a_while(driver: RecordedNvml) -> None:
    now = [0.0]
    gpus = Nvml()
    gpus._xids = Xids(clock=lambda: now[0])
    gpus.devices()
    driver.events = [("1", 74)]
    assert [each.xid for each in gpus.readings()] == [0, 74]
    now[0] = PASSING_S - 1
    driver.events = [("1", 94)]
    assert gpus.readings()[1].xid == 94
    now[0] += PASSING_S
    assert (gpus.readings()[1].xid, gpus.readings()[1].problem) == (0, "")
    driver.events = [("1", 74), ("1", 48)]
    assert gpus.readings()[1].xid == 48
    now[0] += 10 * PASSING_S
    assert gpus.readings()[1].xid == 48, "until the device is reset"


def test_driver_older_than_the_library_tells_no_processes(
    driver: RecordedNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mismatch(*_: Any) -> Any:
        raise pynvml.NVMLLibraryMismatchError("versions differ")

    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", mismatch)
    gpus = Nvml()
    gpus.devices()
    assert [(now.processes, now.problem) for now in gpus.readings()] == [((), ""), ((), "")]


def test_library_is_not_opened_again_and_again_for_a_lost_device(driver: RecordedNvml) -> None:
    gpus = Nvml()
    gpus.devices()
    lose(driver, "0")
    for _ in range(5):
        gpus.devices()
        gpus.readings()
    assert driver.opened == 2

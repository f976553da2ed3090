"""Simulated devices: how they are described, and that their memory is never allocated twice."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.gpus import simulated
from gpu_orchestrator.adapters.gpus.gpu import OutOfMemory, Process
from gpu_orchestrator.adapters.gpus.simulated import BadDescription, Simulated


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        pytest.param("2", [("Simulated", 24576)] * 2, id="a count alone"),
        pytest.param("1xH200:141GiB", [("H200", 144384)], id="model and memory"),
        pytest.param("1xL4:24GiB, 1xT4:15360MiB", [("L4", 24576), ("T4", 15360)], id="several kinds"),
    ],
)
def test_description_becomes_devices(
    tmp_path: Path, description: str, expected: list[tuple[str, int]]
) -> None:
    devices = Simulated(tmp_path, description).devices()
    assert [(device.model, device.memory_mib) for device in devices] == expected


@pytest.mark.parametrize("description", ["", "0", "L4", "2xL4", "2xL4:24GB", "-1", "9999"])
def test_bad_description_is_refused_with_an_example(tmp_path: Path, description: str) -> None:
    with pytest.raises(BadDescription, match=r"write a count such as 4, or 4xL4:24GiB"):
        Simulated(tmp_path, description)


def test_same_folder_is_the_same_hardware(tmp_path: Path) -> None:
    assert Simulated(tmp_path, "2").devices() == Simulated(tmp_path, "2").devices()
    assert Simulated(tmp_path / "other", "2").devices() != Simulated(tmp_path, "2").devices()


def test_memory_is_attributed_to_the_process_that_took_it(tmp_path: Path) -> None:
    gpus = Simulated(tmp_path, "1")
    uuid = gpus.devices()[0].uuid
    block = simulated.allocate(tmp_path, uuid, 100)
    simulated.allocate(tmp_path, uuid, 28)
    (now,) = gpus.readings()
    assert now.processes == (Process(os.getpid(), 128),)
    assert now.held_by({os.getpid()}) == 128
    assert now.held_by({1}) == 0
    block.free()
    assert gpus.readings()[0].used_mib == 28


def test_concurrent_allocations_never_exceed_the_memory(tmp_path: Path) -> None:
    gpus = Simulated(tmp_path, "1xT:1000MiB")
    uuid = gpus.devices()[0].uuid

    def take(_: int) -> bool:
        try:
            simulated.allocate(tmp_path, uuid, 90)
        except OutOfMemory:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        taken = sum(pool.map(take, range(40)))
    assert taken == 11
    assert gpus.readings()[0].free_mib == 10


def test_unknown_device_is_named(tmp_path: Path) -> None:
    Simulated(tmp_path, "1")
    with pytest.raises(LookupError, match="no simulated device 'GPU-x'"):
        simulated.allocate(tmp_path, "GPU-x", 1)

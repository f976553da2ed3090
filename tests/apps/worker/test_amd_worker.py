"""A worker on a machine with eight MI300X: it registers them, and tasks see those that they were given."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpu_orchestrator.adapters.gpus.find import find
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.agent import Agent
from gpu_orchestrator.apps.worker.frames import Options
from gpu_orchestrator.apps.worker.settings import Settings
from tests.support import recorded_nvml, sysfs_tree
from tests.support.scripted_server import TOKEN, Peer

pytestmark = pytest.mark.real
FUNCTIONS = {"environment": "tests.support.worker_functions:environment"}
SECOND_MIB = 16684


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    recorded_nvml.install(recorded_nvml.load("nvml-missing"), monkeypatch)
    return sysfs_tree.unpack("mi300x", tmp_path / "machine")


@pytest.fixture
async def worker(peer: Peer, root: Path) -> AsyncIterator[None]:
    settings = Settings(
        servers=(peer.url,), token=TOKEN, name="w", max_concurrent=4, options=Options(functions=FUNCTIONS)
    )
    agent = Agent(settings, find(root=root))
    running = asyncio.create_task(agent.run())
    yield
    agent.leave()
    await running


async def variable(peer: Peer, name: str, *numbers: int) -> str | None:
    """Return what a task on these devices has in its environment."""
    hello = await peer.receive(session.Hello)
    given = tuple(session.Given(number, hello.devices[number].uuid) for number in numbers)
    task = f"{name}-{len(numbers)}"
    asked = {"function": "environment", "arguments": {"name": name}}
    await peer.assign(task, "python", asked, devices=given, exclusive=bool(given))
    done = await peer.receive(session.Done, task)
    return msgspec.json.decode(done.result, type=str | None)


async def test_amd_devices_are_registered_and_given_to_tasks(peer: Peer, worker: None) -> None:
    hello = await peer.receive(session.Hello)
    assert [(device.index, device.vendor) for device in hello.devices] == [(at, "amd") for at in range(8)]
    assert {(device.model, device.memory_mib) for device in hello.devices} == {
        ("AMD Instinct MI300X", 196592)
    }
    uuids = [device.uuid for device in hello.devices]
    assert await variable(peer, "ROCR_VISIBLE_DEVICES", 5, 2) == f"{uuids[5]},{uuids[2]}"
    assert await variable(peer, "HIP_VISIBLE_DEVICES", 5, 2) == "0,1"
    assert await variable(peer, "CUDA_VISIBLE_DEVICES", 5, 2) is None
    assert await variable(peer, "ROCR_VISIBLE_DEVICES") == "", "a task without devices sees none"


async def test_health_of_amd_devices_is_reported(peer: Peer, root: Path, worker: None) -> None:
    report = await peer.receive(session.Report)
    assert (report.readings[1].used_mib, report.readings[1].temperature_c) == (SECOND_MIB, 61.0)
    assert report.readings[7].ecc_errors == 1
    (root / "sys/bus/pci/devices/0000:46:00.0/mem_info_vram_used").unlink()

    def problems(report: session.Report) -> list[int]:
        return [reading.index for reading in report.readings if reading.problem]

    def faulty() -> session.Report | None:
        reports = (each for each in peer.received if isinstance(each, session.Report))
        return next((each for each in reports if problems(each)), None)

    assert problems(await peer.until(faulty)) == [2]

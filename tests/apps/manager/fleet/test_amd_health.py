"""A worker with eight MI300X, one of which fails: the manager raises an alert, and keeps tasks off it until
it is well again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_orchestrator.adapters.gpus.find import find
from gpu_orchestrator.apps.worker.agent import Agent
from gpu_orchestrator.apps.worker.settings import Settings
from tests.apps.manager.conftest import TOKEN, NewSite, Site
from tests.support import recorded_nvml, sysfs_tree
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.real
EIGHT = {"gpus": 8}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    recorded_nvml.install(recorded_nvml.load("nvml-missing"), monkeypatch)
    return sysfs_tree.unpack("mi300x", tmp_path / "machine")


@pytest.fixture
async def busy_site(new_site: NewSite, root: Path) -> AsyncIterator[Site]:
    """A site whose worker reports every second."""
    site: Site = await new_site(heartbeat_interval=1)
    agent = Agent(Settings(servers=(site.running.url,), token=TOKEN, name="amd"), find(root=root))
    running = asyncio.create_task(agent.run())
    yield site
    agent.leave()
    await running


async def test_failing_device_is_told_and_gets_no_tasks_until_it_is_well(busy_site: Site, root: Path) -> None:
    await seen(busy_site, lambda device: device[7]["alerts"], "the ECC error of the last one")
    used = root / "sys/bus/pci/devices/0000:46:00.0/mem_info_vram_used"
    text = used.read_text()
    used.unlink()
    (alert,) = await seen(busy_site, lambda device: device[2]["alerts"], "the third one fails")
    assert alert["kind"] == "problem"
    task = await busy_site.submit(resources=EIGHT)
    _, explained = await busy_site.call("GET", f"/tasks/{task}/explain")
    assert explained["status"] == "queued"
    assert explained["reason"] == "0/1 workers fit: 1 has fewer than 8 healthy GPUs"

    used.write_text(text)
    assert (await busy_site.wait(task))["status"] == "completed"
    await seen(busy_site, lambda device: not device[2]["alerts"], "the alert is over")


async def seen(site: Site, what: Callable[[Any], Any], description: str) -> Any:
    """Wait until the devices of the worker, as the manager shows them, are so; return what was asked for."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status, worker = await site.call("GET", "/workers/amd")
            if status == 200 and worker.get("gpu_info") and (found := what(worker["gpu_info"])):
                return found
            await asyncio.sleep(0.1)
    raise AssertionError(description)

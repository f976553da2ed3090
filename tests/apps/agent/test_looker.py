"""Looking at devices that answer, fail and hang."""

import asyncio
import threading
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.gpus.gpu import Device, Link, Reading, unread
from gpu_orchestrator.adapters.gpus.machine import Machine
from gpu_orchestrator.adapters.gpus.nvml import Nvml
from gpu_orchestrator.adapters.gpus.simulated import Simulated
from gpu_orchestrator.apps.agent.looker import KEEP_S, SURROUNDINGS_S, Looker
from tests.support import recorded_nvml
from tests.support.agent_builders import device, reading

UID = "1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901"


class Driver(Simulated):
    """One device, whose driver can be made to hang or to fail."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "1")
        self.hanging, self.go_on = threading.Event(), threading.Event()
        self.fails, self.looks, self.link_reads = False, 0, 0
        self.reading = reading(pids=[42, 43])

    def devices(self) -> tuple[Device, ...]:
        return (device(0),)

    def readings(self) -> tuple[Reading, ...]:
        self.looks += 1
        if self.hanging.is_set():
            assert self.go_on.wait(60)
        if self.fails:
            raise RuntimeError("a defect")
        return (self.reading,)

    def links(self) -> tuple[Link, ...]:
        self.link_reads += 1
        return ()


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    folder = tmp_path / "proc" / "42"
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(f"0::/kubepods/pod{UID}/x\n")
    return Driver(tmp_path / "devices")


async def test_processes_are_joined_to_their_pods(driver: Driver, tmp_path: Path) -> None:
    found = await Looker(driver, tmp_path, lambda: 0.0).look(within_s=30)
    assert found.pods == {42: UID}
    assert set(found.readings) == {"GPU-0"}


async def test_gpu_that_gives_no_device_is_seen_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded_nvml.install(recorded_nvml.load("mig-mixed"), monkeypatch)
    found = await Looker(Machine(Nvml(tmp_path)), tmp_path, lambda: 0.0).look(within_s=30)
    ((uuid, why),) = found.withheld.items()
    assert uuid not in {device.board for device in found.devices}
    assert "is in MIG mode and has no instances" in why


async def test_hanging_driver_is_waited_for_once(driver: Driver, tmp_path: Path) -> None:
    looker = Looker(driver, tmp_path, lambda: 0.0)
    driver.hanging.set()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await looker.look(within_s=0.05)
    assert driver.looks == 1, "a second call would hang beside it"
    driver.hanging.clear()
    driver.go_on.set()
    assert (await looker.look(within_s=30)).devices
    await looker.look(within_s=30)
    assert driver.looks == 2


async def test_defect_of_a_driver_is_raised_and_the_next_look_works(driver: Driver, tmp_path: Path) -> None:
    looker = Looker(driver, tmp_path, lambda: 0.0)
    driver.fails = True
    with pytest.raises(RuntimeError, match="a defect"):
        await looker.look(within_s=30)
    driver.fails = False
    assert (await looker.look(within_s=30)).devices


async def test_processes_that_the_driver_cannot_tell_now_are_there_for_a_minute(tmp_path: Path) -> None:
    """Else the device of a pod that was deleted by force would go to the next one."""
    clock, driver = [0.0], Driver(tmp_path / "devices")
    (tmp_path / "proc" / "42").mkdir(parents=True)
    (tmp_path / "proc" / "42" / "cgroup").write_text(f"0::/kubepods/pod{UID}/x")
    looker = Looker(driver, tmp_path, lambda: clock[0])

    async def seen() -> list[int]:
        look = await looker.look(60)
        assert look.pods == ({42: UID} if look.readings["GPU-0"].processes else {})
        return [each.pid for each in look.readings["GPU-0"].processes]

    assert await seen() == [42, 43]
    driver.reading = reading(pids=[44], all_processes=False)
    clock[0] = KEEP_S - 1
    assert await seen() == [44, 42, 43]
    driver.reading = unread(device(0), "GPU is lost")
    assert await seen() == [42, 43]
    clock[0] = KEEP_S
    assert await seen() == []
    driver.reading = reading(pids=[42])
    assert await seen() == [42]
    driver.reading = reading()
    assert await seen() == []


async def test_links_are_read_rarely(driver: Driver, tmp_path: Path) -> None:
    now = [0.0]
    looker = Looker(driver, tmp_path, lambda: now[0])
    for _ in range(3):
        await looker.look(within_s=30)
    assert driver.link_reads == 1
    now[0] = SURROUNDINGS_S
    await looker.look(within_s=30)
    assert driver.link_reads == 2


async def test_process_can_end_while_the_driver_hangs(driver: Driver, tmp_path: Path) -> None:
    """The thread is a daemon, and its late answer finds no loop."""
    driver.hanging.set()
    with pytest.raises(TimeoutError):
        await Looker(driver, tmp_path, lambda: 0.0).look(within_s=0.05)
    looking = [each for each in threading.enumerate() if each.name == "look"]
    assert all(each.daemon for each in looking)
    driver.go_on.set()
    await asyncio.to_thread(looking[0].join, 30)

"""Workers as processes: their places, and what happens when one ends by itself."""

from pathlib import Path

import pytest

from gpu_orchestrator.adapters.gpus.chosen import Chosen, UnknownDevices
from gpu_orchestrator.adapters.gpus.simulated import Simulated
from gpu_orchestrator.adapters.provisioners.local import Local, LocalWorkers, places_of
from gpu_orchestrator.adapters.provisioners.provisioner import CannotScale, Wish


def test_each_place_has_devices_of_its_own() -> None:
    assert places_of(["a", "b", "c"], 1) == [("a",), ("b",), ("c",)]
    assert places_of(["a", "b", "c"], 2) == [("a", "b")]
    assert places_of(["a"], 0) == places_of([], 1) == []


async def test_no_device_is_given_twice(tmp_path: Path) -> None:
    local = Local(LocalWorkers([], {}, "l=1", tmp_path, [("a",)]))
    name, devices = local._free_place(frozenset())
    assert devices == ("a",)
    with pytest.raises(CannotScale, match="enough for 1 workers, and all are taken"):
        await local.scale(Wish(2, frozenset({name})))


async def test_worker_that_cannot_start_is_told_and_tried_again_after_a_pause(tmp_path: Path) -> None:
    local = Local(LocalWorkers(["--no-such-option"], {"PATH": "/bin"}, "l=1", tmp_path))
    await local.scale(Wish(1))
    (running,) = local._running.values()
    assert await running.process.wait() != 0
    for _ in range(2):
        with pytest.raises(CannotScale, match="another starts within 2 s; its log is"):
            await local.scale(Wish(1))
    assert local._running == {}
    assert "no-such-option" in local._log(f"{local._prefix}0").read_text()
    await local.close()


def test_chosen_devices_are_all_that_a_worker_sees(tmp_path: Path) -> None:
    gpus = Simulated(tmp_path, "3")
    first, second, _ = (each.uuid for each in gpus.devices())
    chosen = Chosen(gpus, [second])
    assert [each.uuid for each in chosen.devices()] == [each.uuid for each in chosen.readings()] == [second]
    assert chosen.devices()[0].index == 1
    assert all({link.a, link.b} <= {second} for link in chosen.links())
    with pytest.raises(UnknownDevices, match="there is no device GPU-x here; give UUIDs of"):
        Chosen(gpus, [first, "GPU-x"])

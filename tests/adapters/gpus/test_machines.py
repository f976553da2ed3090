"""Whole machines, described or recorded: right devices, islands, bandwidth and health on each; none fails.

NVIDIA's are answers of NVML that are replayed below the real adapter, AMD's are trees of sysfs.
"""

from pathlib import Path

import pytest

from gpu_orchestrator.adapters.gpus import find
from gpu_orchestrator.adapters.gpus.amd import Amd
from gpu_orchestrator.adapters.gpus.fabric import Hca
from gpu_orchestrator.adapters.gpus.gpu import Gpus, Process, Slice
from gpu_orchestrator.adapters.gpus.machine import Machine
from gpu_orchestrator.adapters.gpus.nvml import Nvml
from gpu_orchestrator.api import topology
from tests.support import recorded_nvml, sysfs_tree


@pytest.fixture
def nvidia(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gpus:
    recorded_nvml.install(recorded_nvml.load(request.param), monkeypatch)
    return Nvml(tmp_path)


@pytest.fixture
def mi300x(tmp_path: Path) -> Amd:
    return Amd(sysfs_tree.unpack("mi300x", tmp_path), lambda: None)


def shape(gpus: Gpus) -> list[tuple[int, int]]:
    """Return island and best bandwidth of each device."""
    uuids = [device.uuid for device in gpus.devices()]
    links = gpus.links()
    found = topology.islands(uuids, links)
    return [(found[uuid], topology.best_peer(uuid, links)) for uuid in uuids]


def labels(gpus: Gpus) -> dict[tuple[int, int], str]:
    number = {device.uuid: device.index for device in gpus.devices()}
    return {(number[link.a], number[link.b]): link.label for link in gpus.links()}


@pytest.mark.parametrize(
    ("nvidia", "expected"),
    [
        pytest.param("8xh100-nvswitch", [(0, 900)] * 8, id="8xH100 on NVSwitches"),
        pytest.param("two-nvlink-quads", [(0, 200)] * 4 + [(1, 200)] * 4, id="two NVLink quads"),
        pytest.param("pcie-only", [(0, 64), (1, 64), (2, 64), (3, 64)], id="PCIe only"),
        pytest.param("one-lost", [(0, 900)] * 7, id="one lost before the start"),
        pytest.param("no-gpu", [], id="no GPU"),
        pytest.param("nvml-missing", [], id="NVML missing"),
    ],
    indirect=["nvidia"],
)
def test_islands_and_bandwidth(nvidia: Gpus, expected: list[tuple[int, int]]) -> None:
    assert shape(nvidia) == expected
    assert [reading.problem for reading in nvidia.readings()] == [""] * len(expected)


@pytest.mark.parametrize("nvidia", ["8xh100-nvswitch"], indirect=True)
def test_values_of_a_whole_gpu(nvidia: Gpus) -> None:
    device, now = nvidia.devices()[1], nvidia.readings()[1]
    assert (device.index, device.model, device.memory_mib) == (1, "NVIDIA H100 80GB HBM3", 81559)
    assert (device.pci_bus_id, device.driver_version, device.mig) == ("00000000:3B:00.0", "580.95.05", None)
    assert (now.used_mib, now.free_mib) == (0, 81050), "what the driver keeps is neither"
    assert (now.power_w, now.energy_j, now.temperature_c) == (71.25, 123456.789, 33.0)
    assert (now.sm_clock_mhz, now.memory_clock_mhz) == (345, 2619)
    assert (now.ecc_errors, now.ecc_corrected, now.pcie_replays) == (0, 0, 0)
    assert set(labels(nvidia).values()) == {"NV18"}


@pytest.mark.parametrize("nvidia", ["pcie-only"], indirect=True)
def test_paths_over_pcie_have_their_names(nvidia: Gpus) -> None:
    found = labels(nvidia)
    assert (found[0, 1], found[2, 3], found[0, 2]) == ("PIX", "PXB", "SYS")
    assert {link.bandwidth_gbps for link in nvidia.links() if link.kind == "System"} == {0}
    assert nvidia.readings()[0].ecc_errors is None


def test_numa_node_is_that_of_the_slot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorded_nvml.install(recorded_nvml.load("pcie-only"), monkeypatch)
    for number, bus in enumerate((0x21, 0x22, 0xA1)):
        folder = tmp_path / "sys/bus/pci/devices" / f"0000:{bus:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{number // 2}\n")
    assert [device.numa for device in Nvml(tmp_path).devices()] == [0, 0, 1, -1]


@pytest.mark.parametrize("nvidia", ["mig-mixed"], indirect=True)
def test_instances_take_the_place_of_a_gpu_in_mig_mode(nvidia: Gpus) -> None:
    devices = nvidia.devices()
    assert [(each.index, each.mig.profile if each.mig else "") for each in devices] == [
        (1, ""),
        (3, "3g.40gb"),
        (4, "2g.20gb"),
        (5, "2g.20gb"),
    ]
    parent = "GPU-0000a180-0000-4000-8000-000000000000"
    assert devices[1].mig == Slice("3g.40gb", parent)
    assert (devices[1].memory_mib, devices[1].uuid[:4]) == (40192, "MIG-")
    whole, first, *_ = nvidia.readings()
    assert first.processes == (Process(4242, 1024),)
    assert (first.temperature_c, first.power_w, first.utilization_percent) == (33.0, None, None)
    assert (whole.power_w, whole.problem, first.problem) == (71.25, "", "")
    assert nvidia.links() == ()
    assert any("GPU 2 is in MIG mode and has no instances" in note for note in nvidia.notes())
    (why,) = nvidia.withheld().values()
    assert why.startswith("the GPU is in MIG mode and has no instances")


def test_instances_that_are_gone_are_no_longer_listed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = recorded_nvml.install(recorded_nvml.load("mig-mixed"), monkeypatch)
    gpus = Nvml(tmp_path)
    before = {device.uuid: device.index for device in gpus.devices()}
    del library.gpus["0/1"]
    library.gpus["2"]["nvmlDeviceGetMigMode"] = {"": [0, 0]}
    after = {device.uuid: device.index for device in gpus.devices()}
    assert len(after) == 4
    assert all(before.get(uuid, index) == index for uuid, index in after.items()), "numbers stay"
    assert sorted(after.values()) == [1, 2, 3, 5]
    assert [reading.problem for reading in gpus.readings()] == [""] * 4


def test_xid_of_a_gpu_marks_all_its_instances(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = recorded_nvml.install(recorded_nvml.load("mig-mixed"), monkeypatch)
    gpus = Nvml(tmp_path)
    gpus.devices()
    library.events = [("0", 79)]
    assert [reading.xid for reading in gpus.readings()] == [0, 79, 79, 79]


@pytest.mark.parametrize("nvidia", ["failing-mid-read"], indirect=True)
def test_device_lost_in_the_middle_of_a_reading_is_a_problem(nvidia: Gpus) -> None:
    devices = nvidia.devices()
    problems = {now.uuid: now.problem for now in nvidia.readings()}
    by_number = {device.index: problems[device.uuid] for device in devices}
    assert by_number.pop(2) == "GPU is lost", "memory was read before, and counts for nothing"
    assert set(by_number.values()) == {""}, "a value that one driver cannot tell is left out"
    assert nvidia.readings()[devices.index(next(d for d in devices if d.index == 4))].power_w is None
    assert any("GPU 3 does not answer" in note for note in nvidia.notes())


def test_device_whose_memory_cannot_be_read_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = recorded_nvml.install(recorded_nvml.load("8xh100-nvswitch"), monkeypatch)
    gpus = Nvml(tmp_path)
    assert len(gpus.devices()) == 8
    library.gpus["3"]["nvmlDeviceGetMemoryInfo"] = {"*": {"error": 999}}
    assert [bool(now.problem) for now in gpus.readings()] == [False] * 3 + [True] + [False] * 4


@pytest.mark.parametrize("nvidia", ["one-lost", "no-gpu", "nvml-missing"], indirect=True)
def test_what_is_missing_is_explained(nvidia: Gpus) -> None:
    nvidia.devices()
    (note,) = nvidia.notes()
    assert note.startswith("NVIDIA: ")
    assert any(words in note for words in ("GPU 5 does not answer: GPU is lost", "lists no GPU", "Not Found"))


def test_mi300x(mi300x: Amd) -> None:
    device = mi300x.devices()[1]
    assert (device.index, device.uuid) == (1, "GPU-9e3d4a5b22222222")
    assert (device.vendor, device.model, device.memory_mib) == ("amd", "AMD Instinct MI300X", 196592)
    assert (device.pci_bus_id, device.numa, device.driver_version) == ("00000000:26:00.0", 0, "6.12.12")
    assert [each.numa for each in mi300x.devices()] == [0] * 4 + [1] * 4
    assert shape(mi300x) == [(0, 128)] * 8
    assert len(mi300x.links()) == 28
    now = mi300x.readings()
    assert (now[1].used_mib, now[1].free_mib) == (16684, 196592 - 16684)
    assert now[1].processes == (Process(31337, 16384),)
    assert (now[1].utilization_percent, now[1].memory_utilization_percent) == (97.0, 12.0)
    assert (now[1].temperature_c, now[1].power_w) == (61.0, 402.0)
    assert (now[1].sm_clock_mhz, now[1].memory_clock_mhz, now[1].pcie_replays) == (2098, 900, 0)
    assert [(each.ecc_errors, each.ecc_corrected) for each in now[5:]] == [(0, 0), (0, 3), (1, 0)]
    assert {each.problem for each in now} == {""}


def test_fabric_of_mi300x(mi300x: Amd) -> None:
    fabric = mi300x.fabric()
    assert fabric.hcas[0] == Hca("mlx5_0", 1, 400)
    assert sum(hca.ports for hca in fabric.hcas) == 7
    assert (fabric.gpu_direct_rdma, fabric.cu_file) == (True, False)


def test_amd_without_xgmi_is_connected_by_pcie(mi300x: Amd, tmp_path: Path) -> None:
    for path in tmp_path.glob("sys/class/kfd/kfd/topology/nodes/*/io_links/*/properties"):
        path.write_text(path.read_text().replace("type 11", "type 2"))
    assert [island for island, _ in shape(mi300x)] == list(range(8))
    kinds = {(link.kind, link.bandwidth_gbps) for link in mi300x.links()}
    assert kinds == {("PCIe", 128), ("System", 0)}


def test_amd_device_that_stops_answering_is_a_problem(mi300x: Amd, tmp_path: Path) -> None:
    mi300x.devices()
    (tmp_path / "sys/bus/pci/devices/0000:26:00.0/mem_info_vram_used").unlink()
    (tmp_path / "sys/class/kfd/kfd/topology/nodes/9/properties").unlink()
    assert len(mi300x.devices()) == 8
    problems = [now.problem for now in mi300x.readings()]
    assert [at for at, problem in enumerate(problems) if problem] == [1, 7]
    assert "does not answer" in problems[1]
    assert "no longer lists" in problems[7]


def test_amd_devices_without_an_id_of_their_own_are_numbered(mi300x: Amd, tmp_path: Path) -> None:
    """Some boards have no unique id, and partitions of one board share it: the runtime knows these by
    number."""
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    same = (nodes / "2/properties").read_text().partition("unique_id ")[2].split()[0]
    for number, unique in ((3, same), (4, "0")):
        text = (nodes / f"{number}/properties").read_text()
        own = text.partition("unique_id ")[2].split()[0]
        (nodes / f"{number}/properties").write_text(text.replace(f"unique_id {own}", f"unique_id {unique}"))
    devices = mi300x.devices()
    assert len({device.uuid for device in devices}) == 8
    chosen = [devices[2].uuid, devices[1].uuid, devices[5].uuid]
    assert mi300x.environment(chosen) == {
        "ROCR_VISIBLE_DEVICES": f"2,1,{devices[5].uuid}",
        "HIP_VISIBLE_DEVICES": "0,1,2",
    }


def test_machine_of_two_vendors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorded_nvml.install(recorded_nvml.load("pcie-only"), monkeypatch)
    root = sysfs_tree.unpack("mi300x", tmp_path)
    machine = Machine(Nvml(root), Amd(root, lambda: None))
    devices = machine.devices()
    assert [device.index for device in devices] == list(range(12))
    assert [device.vendor for device in devices] == ["nvidia"] * 4 + ["amd"] * 8
    assert [reading.uuid for reading in machine.readings()] == [device.uuid for device in devices]
    assert machine.environment([devices[4].uuid]) == {
        "CUDA_VISIBLE_DEVICES": "",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "ROCR_VISIBLE_DEVICES": devices[4].uuid,
        "HIP_VISIBLE_DEVICES": "0",
    }
    assert machine.notes() == ()


def test_machine_hides_what_it_has_and_names_no_other_vendor(
    mi300x: Amd, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded_nvml.install(recorded_nvml.load("nvml-missing"), monkeypatch)
    machine = Machine(Nvml(), mi300x)
    first = machine.devices()[0].uuid
    assert machine.environment([first]) == {"ROCR_VISIBLE_DEVICES": first, "HIP_VISIBLE_DEVICES": "0"}
    assert machine.environment([]) == {"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def test_machine_is_read_without_the_binding_of_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "find_spec", lambda name: None)
    gpus = find.find(root=tmp_path)
    assert gpus.devices() == ()
    assert [note.partition(":")[0] for note in gpus.notes()] == ["NVIDIA", "AMD"]
    sysfs_tree.unpack("mi300x", tmp_path)
    assert len(gpus.devices()) == 8
    assert gpus.notes() == ()

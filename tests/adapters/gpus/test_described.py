"""Files that describe devices: what they make, and what is refused with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_orchestrator.adapters.gpus import described
from gpu_orchestrator.adapters.gpus.described import BadDescription
from gpu_orchestrator.adapters.gpus.fabric import Hca
from gpu_orchestrator.adapters.gpus.find import find
from gpu_orchestrator.adapters.gpus.gpu import Slice

QUADS = {
    "devices": [
        {"count": 4, "vendor": "nvidia", "model": "A100", "memory_mib": 40960, "numa": 0},
        {"count": 4, "vendor": "nvidia", "model": "A100", "memory_mib": 40960, "numa": 1},
        {"uuid": "MIG-x", "mig": {"profile": "1g.10gb", "parent": "GPU-y"}, "memory_mib": 9856},
    ],
    "links": [
        {"between": [0, 1, 2, 3], "kind": "NVLink", "bandwidth_gbps": 200, "label": "NV4"},
        {"between": [4, 5, 6, 7], "kind": "NVLink", "bandwidth_gbps": 200, "label": "NV4"},
        {"between": [0, 1, 2, 3, 4], "kind": "System", "label": "SYS"},
    ],
    "fabric": {"hcas": [{"name": "mlx5_0", "ports": 1, "speed_gbps": 400}], "cu_file": True},
}


def write(folder: Path, content: Any) -> Path:
    path = folder / "devices.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_file_describes_devices_links_and_fabric(tmp_path: Path) -> None:
    gpus = find(devices_file=write(tmp_path, QUADS), folder=tmp_path / "gpus")
    devices = gpus.devices()
    assert [device.index for device in devices] == list(range(9))
    assert [device.numa for device in devices] == [0] * 4 + [1] * 4 + [-1]
    assert devices[8].uuid == "MIG-x"
    assert devices[8].mig == Slice("1g.10gb", "GPU-y")
    kinds = [link.kind for link in gpus.links()]
    assert (kinds.count("NVLink"), kinds.count("System")) == (12, 4), "the first entry of a pair counts"
    assert {link.a for link in gpus.links()} <= {device.uuid for device in devices}
    assert gpus.fabric().hcas == (Hca("mlx5_0", 1, 400),)
    assert (gpus.fabric().cu_file, gpus.fabric().gpu_direct_rdma) == (True, False)
    again = find(devices_file=write(tmp_path, QUADS), folder=tmp_path / "gpus")
    assert again.devices() == devices, "the same folder is the same hardware"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param("{", "does not describe devices", id="not JSON"),
        pytest.param({"devices": []}, "describes 0 devices", id="none"),
        pytest.param({"devices": [{"count": 0}]}, "describes 0 devices", id="count of 0"),
        pytest.param({"devices": [{"count": 9999}]}, "describes 9999 devices", id="too many"),
        pytest.param({"devices": [{"modell": "L4"}]}, "modell", id="unknown field"),
        pytest.param({"devices": [{"count": 2, "uuid": "GPU-1"}]}, "one UUID", id="one UUID for two"),
        pytest.param(
            {"devices": [{}], "links": [{"between": [0, 1], "kind": "NVLink"}]},
            "links device 1, but devices are numbered 0 to 0",
            id="link to nothing",
        ),
        pytest.param(
            {"devices": [{"count": 2}], "links": [{"between": [0, 1], "kind": "Ether"}]}, "Ether", id="kind"
        ),
    ],
)
def test_bad_file_is_refused_with_the_reason(tmp_path: Path, content: Any, reason: str) -> None:
    with pytest.raises(BadDescription, match=reason):
        described.from_file(write(tmp_path, content))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadDescription, match="No such file"):
        described.from_file(tmp_path / "none.json")


def test_devices_are_described_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give one of them"):
        find("4", tmp_path, devices_file=write(tmp_path, QUADS))

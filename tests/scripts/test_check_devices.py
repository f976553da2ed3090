"""Our devices against nvidia-smi, field by field: on machines whose driver and nvidia-smi were recorded at
once."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_orchestrator.adapters.gpus.nvml import Nvml
from gpu_orchestrator.cli import device_rows
from gpu_orchestrator.cli.device_rows import Seen
from scripts import check_devices
from tests.support import recorded_nvml

RECORDED = sorted(path.stem for path in recorded_nvml.FOLDER.glob("*.xml"))


def devices_json(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    recorded_nvml.install(recorded_nvml.load(name), monkeypatch)
    gpus = Nvml(folder)
    seen = Seen(gpus.devices(), gpus.readings(), gpus.links(), gpus.fabric(), gpus.notes())
    return dict(json.loads(json.dumps(device_rows.as_json(seen))))


def xml(name: str) -> str:
    return (recorded_nvml.FOLDER / f"{name}.xml").read_text()


@pytest.mark.parametrize("name", RECORDED)
def test_devices_agree_with_nvidia_smi(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours = devices_json(name, tmp_path, monkeypatch)
    rows = check_devices.compare(ours, xml(name))
    assert len(rows) >= 1 + 18 * len(ours["devices"])
    assert [row for row in rows if not row.agrees] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("uuid", "GPU-x"), ("used_mib", 2), ("temperature_c", 40.0), ("ecc_errors", 0), ("processes", [1])],
)
def test_difference_is_found(
    field: str, value: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = devices_json("pcie-only", tmp_path, monkeypatch)
    ours["devices"][2][field] = value
    differ = [
        (row.device, row.field) for row in check_devices.compare(ours, xml("pcie-only")) if not row.agrees
    ]
    assert differ == [(2, field)]

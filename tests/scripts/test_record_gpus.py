"""The recorder of drivers: what it writes is replayed as the machine was."""

import json
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.gpus.nvml import Nvml
from scripts import record_gpus
from tests.support import recorded_nvml
from tests.support.recorded_nvml import RecordedNvml


@pytest.mark.parametrize("name", ["8xh100-nvswitch", "two-nvlink-quads", "pcie-only", "mig-mixed"])
def test_recording_of_a_machine_is_replayed_as_that_machine(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded_nvml.install(recorded_nvml.load(name), monkeypatch)
    gpus = Nvml(tmp_path)
    expected = gpus.devices(), gpus.links(), gpus.readings(), gpus.notes()
    recorder = record_gpus.record()
    written = json.loads(json.dumps({"calls": recorder.calls, "gpus": recorder.gpus}))
    assert "every" not in written
    recorded_nvml.install(RecordedNvml(written), monkeypatch)
    again = Nvml(tmp_path)
    assert (again.devices(), again.links(), again.readings(), again.notes()) == expected

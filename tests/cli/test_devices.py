"""`gpu-orchestrator devices` on machines of many kinds: table, JSON, matrix, and a machine without GPUs."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_orchestrator.adapters.gpus.find import find
from gpu_orchestrator.cli import device_rows, main
from gpu_orchestrator.cli.device_rows import Seen
from gpu_orchestrator.cli.tables import table
from tests.support import recorded_nvml, sysfs_tree


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run the command; it ends with 0."""
    with pytest.raises(SystemExit) as ended:
        main.run(["devices", *words])
    assert not ended.value.code
    return capsys.readouterr().out


def seen(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Read a machine of `tests/data/gpus`."""
    recorded_nvml.install(recorded_nvml.load("nvml-missing" if name == "mi300x" else name), monkeypatch)
    gpus = find(root=sysfs_tree.unpack(name, folder) if name == "mi300x" else folder)
    return Seen(gpus.devices(), gpus.readings(), gpus.links(), gpus.fabric(), gpus.notes())


def lines(found: tuple[list[Any], list[list[object]]]) -> list[list[str]]:
    return [line.split() for line in table(*found)]


def test_machine_without_gpus_is_told_what_was_looked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded_nvml.install(recorded_nvml.load("nvml-missing"), monkeypatch)
    text = ran(capsys)
    assert "No GPU found on this machine" in text
    assert "NVML Shared Library Not Found" in text
    assert "/sys/class/kfd/kfd/topology" in text
    assert "--simulate 4xL4:24GiB" in text
    answer = json.loads(ran(capsys, "--json"))
    assert answer["devices"] == answer["links"] == []
    assert len(answer["notes"]) == 2


def test_simulated_devices_as_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    head, first, second = (line.split() for line in ran(capsys, "--simulate", "2xL4:24GiB").splitlines())
    assert head[:4] == ["DEVICE", "STATE", "MODEL", "MEMORY"]
    assert (first[:4], second[:4]) == (["0", "ok", "L4", "24GB"], ["1", "ok", "L4", "24GB"])
    device = json.loads(ran(capsys, "--simulate", "2xL4:24GiB", "--json"))["devices"][1]
    assert (device["index"], device["memory_mib"], device["health"]) == (1, 24576, "Healthy")


def test_devices_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    links = [{"between": [0, 1], "kind": "NVLink", "bandwidth_gbps": 900, "label": "NV18"}]
    path.write_text(json.dumps({"devices": [{"count": 3}], "links": links}))
    rows = [line.split() for line in ran(capsys, "--devices-file", str(path), "--topology").splitlines()]
    assert rows[:4] == [
        ["GPU0", "GPU1", "GPU2", "ISLAND", "GB/S", "NUMA"],
        ["GPU0", "X", "NV18", "-", "0", "900", "-"],
        ["GPU1", "NV18", "X", "-", "0", "900", "-"],
        ["GPU2", "-", "-", "X", "1", "-", "-"],
    ]


@pytest.mark.parametrize(
    "words",
    [("--simulate", "L4"), ("--devices-file", "none.json"), ("--simulate", "1", "--devices-file", "x")],
)
def test_bad_description_is_one_line_and_ends_with_2(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.run(["devices", *words])
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_matrix_of_nvlink_quads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen("two-nvlink-quads", tmp_path, monkeypatch)
    rows = lines(device_rows.matrix(found))
    assert rows[2] == ["GPU1", "NV4", "X", "NV4", "NV4", *["SYS"] * 4, "0", "200", "-"]
    assert rows[5] == ["GPU4", *["SYS"] * 4, "X", "NV4", "NV4", "NV4", "1", "200", "-"]
    explained = [words.partition(":")[0] for words in device_rows.legend(found)]
    assert explained == ["NV#", "SYS", "GB/S"]


MACHINES = sorted(path.stem for path in recorded_nvml.FOLDER.glob("*.json"))


@pytest.mark.parametrize("name", MACHINES)
def test_every_recorded_machine_is_shown_in_every_form(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = seen(name, tmp_path, monkeypatch)
    head, *rows = lines(device_rows.matrix(found))
    names = [f"GPU{device.index}" for device in found.devices]
    assert head == [*names, "ISLAND", "GB/S", "NUMA"]
    assert [row[0] for row in rows] == names
    words = [row[1 : len(names) + 1] for row in rows]
    assert [row[at] for at, row in enumerate(words)] == ["X"] * len(names)
    assert words == [list(column) for column in zip(*words, strict=True)], "each pair is told twice, alike"
    explained = tuple(each.partition("#")[0].partition(":")[0] for each in device_rows.legend(found))
    told = {word for row in words for word in row} - {"X", "-"}
    assert all(word.startswith(explained) for word in told)
    assert len(lines(device_rows.table(found))) == len(names) + 1
    json.dumps(device_rows.as_json(found), allow_nan=False)


def test_json_of_a_machine_with_mig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen("mig-mixed", tmp_path, monkeypatch)
    answer = json.loads(json.dumps(device_rows.as_json(found)))
    assert answer["devices"][1]["mig"]["profile"] == "3g.40gb"
    assert [device["island"] for device in answer["devices"]] == [0, None, None, None]
    assert answer["devices"][1]["processes"] == [{"pid": 4242, "used_mib": 1024}]
    head, *_ = lines(device_rows.table(found))
    assert "MIG" in head
    assert "no instances" in answer["notes"][0]


def test_lost_device_is_faulty_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen("failing-mid-read", tmp_path, monkeypatch)
    lost = next(row for row in lines(device_rows.table(found)) if row[0] == "2")
    assert lost[1] == "faulty"
    assert lost[-3:] == ["GPU", "is", "lost"]


def test_mi300x_is_shown_with_its_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen("mi300x", tmp_path, monkeypatch)
    answer = device_rows.as_json(found)
    assert [(each["island"], each["bandwidth_gbps"]) for each in answer["devices"]] == [(0, 128)] * 8
    assert len(answer["fabric"]["hcas"]) == 8
    assert "mlx5_6 (1 × 400 Gbit/s), GPUDirect RDMA" in device_rows.fabric(found)

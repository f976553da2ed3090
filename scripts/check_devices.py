"""Compare `gpu-orchestrator devices --json` with `nvidia-smi -q -x`, field by field, on a machine with NVIDIA
GPUs.

`python scripts/check_devices.py MIB` lets a CUDA program hold that much memory meanwhile, so that there is a
process to see. Prints one line per device and field, and ends with 1 if one differs. Values that change all
the time may differ by a little: nvidia-smi is asked before and after.
"""

# ruff: noqa: S314, T201, TID251 - a script, outside the pure packages; nvidia-smi's own XML is trusted

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

HOLD = [sys.executable, "-m", "gpu_orchestrator.adapters.gpus.hold"]
DEVICES = [sys.executable, "-c", "from gpu_orchestrator.cli.main import main; main()", "devices", "--json"]
UNCORRECTED = (
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "sram_uncorrectable",
    "dram_uncorrectable",
)
CORRECTED = ("sram_correctable", "dram_correctable")


@dataclass(frozen=True, slots=True)
class Field:
    """`place` is where nvidia-smi has it; `slack` is how far it may move between two looks."""

    name: str
    place: str
    slack: float = 0.0


FIELDS = (
    Field("model", "product_name"),
    Field("memory_mib", "fb_memory_usage/total"),
    Field("used_mib", "fb_memory_usage/used", 1),
    Field("free_mib", "fb_memory_usage/free", 1),
    Field("utilization_percent", "utilization/gpu_util", 100),
    Field("memory_utilization_percent", "utilization/memory_util", 100),
    Field("temperature_c", "temperature/gpu_temp", 2),
    Field("power_w", "gpu_power_readings/instant_power_draw", 40),
    Field("sm_clock_mhz", "clocks/sm_clock", 1700),
    Field("memory_clock_mhz", "clocks/mem_clock", 700),
    Field("pcie_replays", "pci/replay_counter"),
)


@dataclass(frozen=True, slots=True)
class Row:
    device: int
    field: str
    ours: object
    theirs: object
    agrees: bool


def compare(ours: Mapping[str, Any], *xml: str) -> list[Row]:
    """Compare one answer of `devices --json` with one or more of nvidia-smi, made around the same time."""
    looks = [ElementTree.fromstring(each) for each in xml]
    rows = [_same(-1, "count", len(ours["devices"]), int(looks[0].findtext("attached_gpus") or 0))]
    for at, device in enumerate(ours["devices"]):
        gpus = [look.findall("gpu")[at] for look in looks]
        rows += _device(device, gpus, looks[0].findtext("driver_version") or "")
    return rows


def _device(device: Mapping[str, Any], gpus: Sequence[ElementTree.Element], driver: str) -> Iterator[Row]:
    number, first = device["index"], gpus[0]
    yield _same(number, "uuid", device["uuid"], first.findtext("uuid"))
    yield _same(number, "pci_bus_id", device["pci_bus_id"], first.get("id"))
    yield _same(number, "driver_version", device["driver_version"], driver)
    yield _same(
        number, "mig", device["mig"], None if first.findtext("mig_mode/current_mig") != "Enabled" else "?"
    )
    for field in FIELDS:
        yield _near(number, field, device[field.name], [_value(gpu, field.place) for gpu in gpus])
    yield _same(number, "ecc_errors", device["ecc_errors"], _errors(first, UNCORRECTED))
    yield _same(number, "ecc_corrected", device["ecc_corrected"], _errors(first, CORRECTED))
    yield _same(number, "processes", device["processes"], _processes(first))


def _same(device: int, field: str, ours: object, theirs: object) -> Row:
    return Row(device, field, ours, theirs, ours == theirs)


def _near(device: int, field: Field, ours: Any, theirs: list[Any]) -> Row:
    if isinstance(ours, int | float) and all(isinstance(each, float) for each in theirs):
        agrees = min(theirs) - field.slack <= ours <= max(theirs) + field.slack
        return Row(device, field.name, ours, theirs, agrees)
    return Row(device, field.name, ours, theirs, ours in theirs)


def _value(gpu: ElementTree.Element, place: str) -> float | str | None:
    """Return `1980 MHz` as 1980.0, `N/A` as None, and a name as it is."""
    words = gpu.findtext(place) or "N/A"
    try:
        return float(words.split()[0])
    except ValueError:
        return None if words == "N/A" else words


def _errors(gpu: ElementTree.Element, names: Sequence[str]) -> int | None:
    found = [_value(gpu, f"ecc_errors/volatile/{name}") for name in names]
    counts = [int(each) for each in found if isinstance(each, float)]
    return sum(counts) if counts else None


def _processes(gpu: ElementTree.Element) -> list[dict[str, Any]]:
    found = []
    for each in gpu.findall("processes/process_info"):
        size = _value(each, "used_memory")
        found.append(
            {
                "pid": int(each.findtext("pid") or 0),
                "used_mib": int(size) if isinstance(size, float) else None,
            }
        )
    return sorted(found, key=lambda each: int(each["pid"]))


def _smi() -> str:
    return subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, text=True, check=True).stdout


def _ours() -> dict[str, Any]:
    said = subprocess.run(DEVICES, capture_output=True, text=True, check=True).stdout
    return dict(json.loads(said))


def _while_held(mib: str, look: Callable[[], list[Row]]) -> list[Row]:
    with subprocess.Popen([*HOLD, mib], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        if holder.stdout is None or holder.stdout.readline() != b"held\n":
            sys.exit("no program could hold memory on the first device")
        rows = look()
        holder.communicate()
    return rows


def main() -> None:
    def look() -> list[Row]:
        before, ours = _smi(), _ours()
        return compare(ours, before, _smi())

    rows = _while_held(sys.argv[1], look) if len(sys.argv) > 1 else look()
    for row in rows:
        print("ok     " if row.agrees else "DIFFERS", row.device, row.field, row.ours, row.theirs)
    sys.exit(any(not row.agrees for row in rows))


if __name__ == "__main__":
    main()

"""The rate of one NVLink: as NVIDIA quotes it, from what the driver reports or from the generation."""

from typing import Any

import pytest

from gpu_orchestrator.adapters.gpus.nvml import Nvml
from tests.support import recorded_nvml

BLACKWELL, ADA = 10, 8


def pair(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> int:
    """Return the bandwidth of GPU 0 and 1 of an HGX board, 18 links each, with other answers."""
    library = recorded_nvml.load("8xh100-nvswitch")
    for device in ("0", "1"):
        library.gpus[device] |= {name: {"*": answer} for name, answer in answers.items()}
    recorded_nvml.install(library, monkeypatch)
    gpus = Nvml()
    gpus.devices()
    return gpus.links()[0].bandwidth_gbps


def speed(mbps: int, status: int = 0) -> list[Any]:
    return [{"nvmlReturn": status, "value": {"uiVal": mbps}}]


@pytest.mark.parametrize(
    ("mbps", "expected"),
    [
        pytest.param(19531, 18 * 40, id="P100"),
        pytest.param(25781, 18 * 50, id="V100 and A100"),
        pytest.param(26562, 18 * 50, id="H100"),
        pytest.param(53125, 18 * 100, id="B200"),
        pytest.param(13000, 18 * 26, id="a slow link as it is"),
    ],
)
def test_rate_is_what_nvidia_quotes(monkeypatch: pytest.MonkeyPatch, mbps: int, expected: int) -> None:
    assert pair(monkeypatch, nvmlDeviceGetFieldValues=speed(mbps)) == expected


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [pytest.param(BLACKWELL, 1800, id="Blackwell"), pytest.param(ADA, 0, id="a generation without NVLink")],
)
def test_rate_without_a_report_is_that_of_the_generation(
    monkeypatch: pytest.MonkeyPatch, architecture: int, expected: int
) -> None:
    unsupported = speed(0, status=3)
    gbps = pair(monkeypatch, nvmlDeviceGetFieldValues=unsupported, nvmlDeviceGetArchitecture=architecture)
    assert gbps == expected


def test_links_that_are_down_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    library = recorded_nvml.load("8xh100-nvswitch")
    down: dict[str, Any] = {"0": 0, "1": 0, "2": {"error": 3}}
    library.gpus["0"]["nvmlDeviceGetNvLinkState"] = down | {str(link): 1 for link in range(3, 18)}
    recorded_nvml.install(library, monkeypatch)
    gpus = Nvml()
    first, second, *_ = (device.uuid for device in gpus.devices())
    found = {frozenset((link.a, link.b)): link.bandwidth_gbps for link in gpus.links()}
    assert found[frozenset((first, second))] == 15 * 50
    assert sorted(set(found.values())) == [750, 900]


def test_virtual_machine_that_does_not_see_the_switches_still_counts_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unseen = {"error": 3}
    assert (
        pair(monkeypatch, nvmlDeviceGetNvLinkRemotePciInfo=unseen, nvmlDeviceGetNvLinkRemoteDeviceType=2)
        == 900
    )

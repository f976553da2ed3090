"""Settings of the agent."""

from pathlib import Path

import pytest
import yaml

from gpu_orchestrator.adapters import setting_file
from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.agent import settings
from gpu_orchestrator.apps.agent.settings import Settings
from tests.support.paths import ROOT


def test_node_must_be_named() -> None:
    with pytest.raises(BadSettings, match="NODE_NAME"):
        settings.load("", {})
    with pytest.raises(BadSettings, match="'no name' does not name"):
        settings.load("", {"node_name": "no name"})
    assert settings.load("", {"node_name": "a.b-1"}).node_name == "a.b-1"


def test_leases_that_are_named_after_the_node_can_exist() -> None:
    longest = "a" * settings.LONGEST_NODE
    assert settings.load("", {"node_name": longest}).node_name == longest
    for lease in (f"{names.AGENT_LEASE_PREFIX}{longest}", names.device_lease(longest, 1023)):
        assert names.is_object_name(lease)
    with pytest.raises(BadSettings, match="has 244 characters"):
        settings.load("", {"node_name": longest + "a"})


@pytest.mark.parametrize(
    "text",
    [
        "scanSeconds: 1e-9",
        "scanSeconds: .nan",
        "heartbeatSeconds: 1e-9",
        "refreshSeconds: 1e-9",
        "namespace: A B",
        "namespace: ''",
        "podName: x y",
    ],
)
def test_setting_that_cannot_work_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(BadSettings, match=text.partition(":")[0]):
        settings.load(str(tmp_path / "s.yaml"), {"node_name": "a"})


def test_one_description_of_simulated_devices() -> None:
    with pytest.raises(BadSettings, match="give one of them"):
        settings.load("", {"node_name": "a", "simulate": "8", "devices_file": "x.json"})


def test_unknown_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("scanSecond: 1\n")
    with pytest.raises(BadSettings, match="scanSecond"):
        settings.load(str(tmp_path / "s.yaml"), {"node_name": "a"})


def test_shipped_settings_are_the_defaults() -> None:
    (shipped,) = yaml.safe_load_all((ROOT / "config/agent/settings.yaml").read_text())
    values = yaml.safe_load(shipped["data"]["settings.yaml"])
    file = {**values, "nodeName": "a"}
    made = setting_file.load(Settings, "", file)
    assert made == Settings(node_name="a")

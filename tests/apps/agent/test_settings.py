"""Settings of the agent."""

from pathlib import Path

import pytest
import yaml

from gpu_orchestrator.adapters import setting_file
from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.apps.agent import settings
from gpu_orchestrator.apps.agent.settings import Settings
from tests.support.paths import ROOT


def test_node_must_be_named() -> None:
    with pytest.raises(BadSettings, match="NODE_NAME"):
        settings.load("", {})
    with pytest.raises(BadSettings, match="'no name' does not name"):
        settings.load("", {"node_name": "no name"})
    assert settings.load("", {"node_name": "a.b-1"}).node_name == "a.b-1"


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

"""Every plugin that kube-scheduler enables by default is in the list of what the gpu-scheduler obeys."""

import re
import subprocess
from pathlib import Path

import yaml

from controlplane.toolbox import Toolbox
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "constraints.md"
STATES = ("obeyed", "refused", "obeyed in part", "its own way", "ignored")
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
    "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
    "current-context": "none",
    "users": [{"name": "none", "user": {}}],
}


def enabled_plugins(toolbox: Toolbox, folder: Path) -> set[str]:
    """Let the real kube-scheduler write its default configuration, and return the plugins in it. It only
    reads the kubeconfig; it connects to nothing."""
    given, written = folder / "kubeconfig", folder / "defaults.yaml"
    given.write_text(yaml.safe_dump(KUBECONFIG))
    kube_scheduler = toolbox.get("kube-scheduler")["kube-scheduler"]
    command = [str(kube_scheduler), f"--kubeconfig={given}", f"--write-config-to={written}"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    (profile,) = yaml.safe_load(written.read_text())["profiles"]
    points = profile["plugins"].values()
    return {plugin["name"] for point in points for plugin in point.get("enabled", ())}


def test_page_says_for_every_default_plugin_what_becomes_of_it(toolbox: Toolbox, tmp_path: Path) -> None:
    plugins = enabled_plugins(toolbox, tmp_path)
    assert {"NodeAffinity", "InterPodAffinity", "VolumeBinding"} <= plugins
    listed = {name: state for name, state, _ in ROW.findall(PAGE.read_text())}
    assert plugins - set(listed) == set(), f"say in {PAGE.name} what the gpu-scheduler does about these"
    assert set(listed) - plugins == set(), f"{PAGE.name} lists plugins that kube-scheduler does not enable"
    assert {name: state for name, state in listed.items() if state not in STATES} == {}


def test_page_says_why_wherever_a_plugin_is_not_simply_obeyed() -> None:
    for name, _, text in ROW.findall(PAGE.read_text()):
        assert len(text.split()) >= 3, f"{name}: say what is done, and what is not"

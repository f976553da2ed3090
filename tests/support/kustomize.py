"""What kustomize makes of folders of config."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from controlplane.toolbox import Toolbox
from tests.support.paths import ROOT

CONFIG = ROOT / "config"
Json = dict[str, Any]


def build(toolbox: Toolbox, *folders: str) -> list[Json]:
    """Return the objects of these folders together, without the namespace, which belongs to no release.
    `-agent` leaves out a folder of config/default."""
    with TemporaryDirectory() as folder:
        listed = [os.path.relpath(CONFIG / each, folder) for each in _listed(folders)]
        overlay = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": listed,
        }
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        command = [str(toolbox.get("kubectl")["kubectl"]), "kustomize", folder]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each["kind"] != "Namespace"]


def _listed(folders: tuple[str, ...]) -> Iterator[str]:
    left_out = {each[1:] for each in folders if each.startswith("-")}
    for each in folders:
        if each == "default":
            default = yaml.safe_load((CONFIG / "default" / "kustomization.yaml").read_text())
            yield from (name[3:] for name in default["resources"] if name[3:] not in left_out)
        elif not each.startswith("-"):
            yield each

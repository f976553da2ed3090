"""Helm as the toolbox builds it, on the chart of this tree."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from controlplane.cluster import Cluster
from controlplane.toolbox import Toolbox
from gpu_orchestrator.api import names
from tests.support.paths import ROOT

CHART = ROOT / "charts" / "gpu-scheduler"
SYSTEM = names.NAMESPACE
WITH_MONITORING = ("--api-versions", "monitoring.coreos.com/v1")
WITH_CERT_MANAGER = ("--api-versions", "cert-manager.io/v1")
NEWEST = ("--kube-version", "1.36.0")

Json = dict[str, Any]


class HelmFailed(Exception):
    """Helm ended with an error; the text is what it printed."""


@dataclass(frozen=True)
class Helm:
    """`folder` has Helm's own files; it never reads those of the user."""

    toolbox: Toolbox
    folder: Path
    kubeconfig: Path | None = None
    chart: Path = CHART

    @classmethod
    def of(cls, cluster: Cluster, folder: Path, chart: Path = CHART) -> "Helm":
        return cls(cluster.toolbox, folder, cluster.kubeconfig, chart)

    def run(self, *words: str, stdin: str = "") -> str:
        """Return what `helm words` prints."""
        command = [str(self.toolbox.get("helm")["helm"]), *words]
        done = subprocess.run(
            command,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        if done.returncode:
            raise HelmFailed(done.stderr or done.stdout)
        return done.stdout

    @property
    def environment(self) -> Mapping[str, str]:
        kubeconfig = self.kubeconfig or self.folder / "no-cluster"
        return {"HOME": str(self.folder), "PATH": "/usr/bin:/bin", "KUBECONFIG": str(kubeconfig)}

    def template(self, values: Json | None = None, *words: str, namespace: str = SYSTEM) -> list[Json]:
        """Return what the chart renders without a cluster."""
        given = ("--namespace", namespace, "--values", "-", *words)
        text = self.run(
            "template", "gpu-scheduler", str(self.chart), *given, stdin=yaml.safe_dump(values or {})
        )
        return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]

    def apply(
        self,
        verb: str,
        values: Json | None = None,
        *words: str,
        release: str = "gpu-scheduler",
        space: str = SYSTEM,
    ) -> str:
        """Install or upgrade a release."""
        given = ("--namespace", space, "--values", "-", *words)
        return self.run(verb, release, str(self.chart), *given, stdin=yaml.safe_dump(values or {}))

    def of_release(self, what: str) -> str:
        """Return what Helm keeps of the release: its manifest, its notes, its values."""
        return self.run("get", what, "gpu-scheduler", "--namespace", SYSTEM)

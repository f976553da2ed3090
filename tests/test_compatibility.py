"""docs/compatibility.md promises what is tested, and what packages and CI say."""

import re
import tomllib
from typing import Any

import yaml

from controlplane import toolbox
from scripts import pythons
from tests.support import debian_stores
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/compatibility.md").read_text()


def promised(product: str) -> set[str]:
    return set(re.findall(rf"^\| {product} (\d+\.\d+) \| yes", PAGE, re.MULTILINE))


def test_kubernetes_versions_are_those_that_are_built() -> None:
    assert promised("Kubernetes") == set(toolbox.kubernetes_versions())


def test_pythons_are_those_of_the_package_of_make_and_of_ci() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert promised("Python") == set(pythons.PROMISED) == set(named)
    assert project["requires-python"] == f">={min(pythons.PROMISED)}"
    jobs: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    for name in ("lint", "test"):
        assert set(jobs[name]["strategy"]["matrix"]["python"]) == set(pythons.PROMISED)


def test_stores_are_those_that_contracts_run_on() -> None:
    named = {
        f"{product.lower()}-{version}" for product in ("Redis", "Valkey") for version in promised(product)
    }
    assert named == set(debian_stores.STORES)


def test_oldest_kubernetes_is_that_of_the_chart() -> None:
    chart = yaml.safe_load((ROOT / "charts/gpu-scheduler/Chart.yaml").read_text())
    oldest = re.search(r"^\| before (\d+\.\d+) \| no: the policies", PAGE, re.MULTILINE)
    assert oldest
    assert chart["kubeVersion"] == f">={oldest[1]}.0-0"

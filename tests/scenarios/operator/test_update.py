"""From an installation without webhook and policies to this one, and back, while pods have GPUs.

The API server asks them in all namespaces but those that are labelled for it here: taking that label from a
namespace is what `kubectl apply -k config/default` does to an older installation, and giving it back what
removing webhook and policies does. The manifests themselves are applied in test_deploy.py.
"""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from controlplane.api import ApiError, Json
from controlplane.cluster import Cluster
from tests.support import installation
from tests.support.paths import ROOT
from tests.support.scheduler_stage import Stage, claim, pod, until

QUICK: Json = {"leaderElect": False, "releaseSeconds": 0}
OLDER: Json = {"requireDeviceEnv": "Ignore", "requireCapacity": "Ignore", **QUICK}
SHIPPED: Json = {
    **yaml.safe_load(
        yaml.safe_load((ROOT / "config/scheduler/settings.yaml").read_text())["data"]["settings.yaml"]
    ),
    **QUICK,
}


@pytest.fixture
def older(operator_cluster: Cluster, scheduler_account: Path, tmp_path: Path) -> Iterator[Stage]:
    """A namespace as it was before webhook and policies came."""
    name = f"older-{uuid4().hex[:6]}"
    meta = {"name": name, "labels": installation.OPEN}
    operator_cluster.api.request("POST", "/api/v1/namespaces", {"metadata": meta})
    until(lambda: installation.is_let_in(operator_cluster, name), "pods come in as they are")
    stage = Stage(operator_cluster, name, tmp_path, account=scheduler_account)
    yield stage
    stage.close()
    operator_cluster.api.request("DELETE", f"/api/v1/namespaces/{name}")


def test_pods_of_an_older_installation_go_on_and_new_ones_are_filled_in(older: Stage) -> None:
    older.gpu_nodes(1, gpus=4)
    scheduler = older.scheduler(**OLDER)
    older.create(claim("held"), pod("claims", claim="held"), pod("runs", gpus=2))
    given = older.wait_bound()
    older.create(pod("waits", gpus=4))
    older.wait_event("waits", "FailedScheduling")
    scheduler.stop()

    update(older)
    scheduler = older.scheduler(**SHIPPED)
    older.wait_event("waits", "may see all GPUs of the node: NVIDIA_VISIBLE_DEVICES")
    assert older.bound() == given
    assert older.holds_exactly()
    assert older.claim("held")["status"]["phase"] == "Bound"
    label(older, "runs")
    older.create(pod("new", gpus=1))
    assert older.wait_bound("new")
    assert "gpu.scheduling/milligpu" in str(older.pod("new")["spec"])
    older.delete("waits", "runs")
    older.create(pod("next", gpus=2))
    assert older.wait_bound("next"), "devices of an older pod are free after its end"
    given = older.bound(["claims", "new", "next"])
    scheduler.stop()

    roll_back(older)
    older.scheduler(**OLDER)
    older.delete("new")
    older.create(pod("back", gpus=1))
    assert older.wait_bound("back")
    assert "gpu.scheduling/milligpu" not in str(older.pod("back")["spec"])
    assert older.bound(["claims", "next"]) == {name: given[name] for name in ("claims", "next")}
    label(older, "next")
    older.delete("claims", "next", "back")
    until(lambda: not older.leases(), "all devices are free")


def update(stage: Stage) -> None:
    """Put webhook and policies into force, and wait until they are: an unfilled pod is no longer let in."""
    installation.label(stage.cluster, stage.namespace, {installation.LABEL: None})
    until(lambda: installation.is_filled_in(stage.cluster, stage.namespace), "the webhook is called")
    until(lambda: "shows GPUs of others" in refusal(stage), "the policies are in force")


def roll_back(stage: Stage) -> None:
    installation.open_up(stage.cluster, stage.namespace)
    until(lambda: not refusal(stage), "no policy is in force")


def refusal(stage: Stage) -> str:
    """Return why a pod with the devices of its node is refused."""
    volumes = [{"name": "devices", "hostPath": {"path": "/dev"}}]
    try:
        made = pod("probe", gpus=1, volumes=volumes)
        stage.cluster.api.request("POST", f"{stage.pods_path}?dryRun=All", made)
    except ApiError as error:
        return str(error)
    return ""


def label(stage: Stage, name: str) -> None:
    """Change a pod as its owner may at any time."""
    body, merge = {"metadata": {"labels": {"team": "a"}}}, "application/merge-patch+json"
    stage.cluster.api.request("PATCH", f"{stage.pods_path}/{name}", body, content_type=merge)

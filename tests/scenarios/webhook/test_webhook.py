"""The real API server calls the real webhook over TLS, as the shipped configurations say."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from controlplane.api import ApiError
from controlplane.cluster import Cluster
from gpu_orchestrator.api import deviceenv, names
from tests.support import scheduler_stage
from tests.support.operator_process import SYSTEM, eventually
from tests.support.paths import ROOT
from tests.support.scheduler_stage import claim, pod
from tests.support.webhook_process import Webhook

Json = dict[str, Any]
OURS = deviceenv.confined({})["env"]
LITERALS = [{"name": name, "value": "all"} for name in names.DEVICE_ENV]
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
INSTALLED = "a moment after the configurations were created, the API server obeys them"
DRAIN_S = 6.0


class Site:
    """Two namespaces, of which one hides GPUs, and a webhook that serves them."""

    def __init__(self, cluster: Cluster, account: Path, folder: Path, drain_s: float) -> None:
        self.cluster, self.webhook = (
            cluster,
            Webhook(account, folder, drainSeconds=drain_s, claimReadSeconds=20),
        )
        self.open, self.hidden = (f"wh-{uuid4().hex[:8]}" for _ in range(2))
        self.untouched = self.before_the_webhook()

    def before_the_webhook(self) -> Json:
        labels = {names.HIDE_GPUS: "true"}
        for name, given in ((self.open, {}), (self.hidden, labels)):
            self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": given}})
        for name in (self.open, self.hidden):
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            eventually(partial(self._is_there, account), "the namespace has its ServiceAccount")
        return self.dry_run(plain_pod())

    def _is_there(self, path: str) -> bool:
        try:
            return bool(self.request("GET", path))
        except ApiError:
            return False

    def request(self, method: str, path: str, body: Json | None = None, **more: Any) -> Json:
        return self.cluster.api.request(method, path, body, **more)

    def dry_run(self, made: Json, *, namespace: str = "") -> Json:
        """Return what the API server would store."""
        return self.request("POST", f"/api/v1/namespaces/{namespace or self.open}/pods?dryRun=All", made)

    def create(self, made: Json) -> Json:
        plural = {"Pod": "/api/v1/namespaces/{}/pods", "GpuClaim": scheduler_stage.CLAIMS}[made["kind"]]
        return self.request("POST", plural.format(self.open), made)

    def is_called(self) -> bool:
        filled = self.dry_run(pod("a", gpus=1))["spec"]["schedulerName"] == names.SCHEDULER
        hidden = VOID in self.dry_run(pod("a"), namespace=self.hidden)["spec"]["containers"][0].get("env", [])
        return filled and hidden and self._validates()

    def _validates(self) -> bool:
        try:
            self.request("POST", scheduler_stage.CLAIMS.format(self.open) + "?dryRun=All", contradiction())
        except ApiError:
            return True
        return False


def plain_pod() -> Json:
    made = pod("plain", annotations={"team": "a", names.GANG: "g"})
    made["spec"]["containers"][0]["env"] = LITERALS
    made["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    return made


def contradiction() -> Json:
    return claim("odd", vendor="amd", model="NVIDIA-H100-80GB-HBM3")


@pytest.fixture(scope="module")
def account(cluster: Cluster) -> Path:
    """Return a kubeconfig of the shipped ServiceAccount, with the shipped rights."""
    scheduler_stage.install(cluster)
    for file in ("service_account", "role", "role_binding"):
        cluster.kubectl("apply", "-f", str(ROOT / "config" / "webhook" / f"{file}.yaml"))
    return cluster.service_account_kubeconfig(SYSTEM, names.WEBHOOK)


@pytest.fixture
def site(cluster: Cluster, account: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Yield a site; its webhook serves for this many seconds after SIGTERM, 0 if the test does not say."""
    with ExitStack() as stack:
        made = Site(cluster, account, tmp_path, getattr(request, "param", 0.0))
        stack.enter_context(made.webhook)
        stack.callback(made.webhook.uninstall, cluster)
        made.webhook.install(cluster, made.open, made.hidden)
        eventually(made.is_called, INSTALLED)
        yield made
        for name in (made.open, made.hidden):
            made.request("DELETE", f"/api/v1/namespaces/{name}")


def test_pods_come_out_as_they_should(site: Site) -> None:
    """One process and one configuration serve all of these: starting them is what takes the time."""
    claimed_pod_gets_what_it_needs(site)
    pod_may_come_right_after_its_claim(site)
    claim_that_does_not_exist_is_denied_with_advice(site)
    pod_without_claim_is_untouched_and_not_even_seen(site)
    pod_of_hidden_namespace_sees_no_gpu(site)
    debug_container_gets_the_device_variables(site)
    contradictory_claim_is_refused_with_advice(site)
    unfit_template_is_refused_with_advice(site)


def claimed_pod_gets_what_it_needs(site: Site) -> None:
    asking = pod("train", gpus=2)
    asking["spec"]["containers"] = [
        {"name": "main", "image": "a", "env": [{"name": "A", "value": "1"}, *LITERALS]},
        {"name": "side", "image": "a", "resources": {"limits": {names.MILLIGPU: "7"}}},
    ]
    asking["spec"]["initContainers"] = [{"name": "load", "image": "a", "env": LITERALS}]
    stored = site.dry_run(asking)["spec"]
    first, second = stored["containers"]
    assert stored["schedulerName"] == names.SCHEDULER
    assert first["env"] == [*OURS, {"name": "A", "value": "1"}]
    assert second["env"] == OURS
    assert stored["initContainers"][0]["env"] == OURS
    assert first["resources"] == {kind: {names.MILLIGPU: "2k"} for kind in ("limits", "requests")}
    assert names.MILLIGPU not in str(second["resources"])
    keys = {each["key"] for each in stored["tolerations"] if each["operator"] == "Exists"}
    assert keys >= set(names.GPU_RESOURCES)


def pod_may_come_right_after_its_claim(site: Site) -> None:
    """The watch may not have shown the claim yet."""
    for number in range(5):
        site.create(claim(f"share-{number}", 2, exclusivity="Shared", share=250))
        stored = site.dry_run(pod("train", claim=f"share-{number}"))["spec"]["containers"][0]
        assert stored["resources"]["limits"] == {names.MILLIGPU: "500"}
    stored = site.dry_run(pod("train", claim_template="share-0"))["spec"]["containers"][0]
    assert stored["resources"]["limits"] == {names.MILLIGPU: "500"}


def claim_that_does_not_exist_is_denied_with_advice(site: Site) -> None:
    with pytest.raises(ApiError, match=f"GpuClaim {site.open}/nobody does not exist; create it first"):
        site.dry_run(pod("train", claim="nobody"))
    with pytest.raises(ApiError, match="write a number from 1 to 64") as denied:
        site.dry_run(pod("train", gpus="many"))
    assert denied.value.status == 403


def pod_without_claim_is_untouched_and_not_even_seen(site: Site) -> None:
    before = site.webhook.requests()
    assert _as_written(site.dry_run(plain_pod())) == _as_written(site.untouched)
    assert site.webhook.requests() == before


def _as_written(stored: Json) -> Json:
    """Return a stored pod without what differs each time."""
    meta = {
        name: value
        for name, value in stored["metadata"].items()
        if name not in ("uid", "creationTimestamp", "managedFields")
    }
    spec, volumes = dict(stored["spec"]), stored["spec"].get("volumes", [])
    text = str(spec)
    for each in volumes:  # the token's volume has a name of its own in each pod
        text = text.replace(each["name"], "token")
    return {"metadata": meta, "spec": text}


def pod_of_hidden_namespace_sees_no_gpu(site: Site) -> None:
    stored = site.dry_run(plain_pod(), namespace=site.hidden)["spec"]
    assert stored["containers"][0]["env"] == [VOID, *LITERALS[1:]]
    claimed = site.dry_run(pod("train", gpus=1), namespace=site.hidden)["spec"]
    assert claimed["containers"][0]["env"] == OURS


def debug_container_gets_the_device_variables(site: Site) -> None:
    site.create(pod("debugged", gpus=1))
    path = f"/api/v1/namespaces/{site.open}/pods/debugged/ephemeralcontainers"
    merge = {"content_type": "application/strategic-merge-patch+json"}
    for name in ("first", "second"):
        added = {"name": name, "image": "busybox", "env": LITERALS, "targetContainerName": "main"}
        site.request("PATCH", path, {"spec": {"ephemeralContainers": [added]}}, **merge)
    stored = site.request("GET", path.removesuffix("/ephemeralcontainers"))["spec"]
    assert [each["env"] for each in stored["ephemeralContainers"]] == [OURS, OURS]


def contradictory_claim_is_refused_with_advice(site: Site) -> None:
    with pytest.raises(ApiError, match="is a model of nvidia and vendor is amd; leave one of them out"):
        site.create(contradiction())


def unfit_template_is_refused_with_advice(site: Site) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "a"}], "nodeName": "mine"}}
    workload = {
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "GPUWorkload",
        "metadata": {"name": "odd"},
        "spec": {"modelName": "a", "gpuCount": 1, "template": template},
    }
    path = f"/apis/gpu.warp.dev/v1alpha1/namespaces/{site.open}/gpuworkloads"
    with pytest.raises(ApiError, match="leave it out; the operator chooses the node"):
        site.request("POST", path, workload)
    del template["spec"]["nodeName"]
    stored = site.request("POST", path, workload)
    stored["metadata"]["labels"] = {"a": "b"}
    site.request("PUT", f"{path}/odd", stored)


@pytest.mark.parametrize("site", [DRAIN_S], indirect=True)
def test_stopped_webhook_serves_until_the_api_server_has_heard_and_then_nobody_waits(site: Site) -> None:
    asked_at = time.monotonic()
    site.webhook.terminate()
    assert site.is_called() or not site.webhook.is_running, "it goes on serving for a moment"
    assert site.webhook.wait() == 0
    assert time.monotonic() - asked_at > DRAIN_S - 0.1
    assert site.webhook.lines()[-1]["message"] == "stopped"
    assert _as_written(site.dry_run(plain_pod())) == _as_written(site.untouched)
    unfilled = site.dry_run(pod("train", gpus=1))["spec"]
    assert "env" not in unfilled["containers"][0], "failurePolicy Ignore; the policies refuse such a pod"

"""The shipped role grants exactly what the operator uses. The audit log shows what it uses."""

from contextlib import suppress
from pathlib import Path

import pytest

from controlplane.audit import Entry
from tests.faults.proxy import Answer, DropAnswer, Proxy
from tests.support import rights
from tests.support.operator_process import ACCOUNT, SYSTEM, Operator, Site, eventually
from tests.support.scale import Scale

USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"

Waits = dict[str, float] | None


GRANTED = rights.granted("rbac/role.yaml")


def used(site: Site) -> list[Entry]:
    """Return what the ServiceAccount has requested. Skip namespaces of other tests: they are being deleted
    and refuse everything."""
    ours = ("", SYSTEM, site.namespace)
    sent = [e for e in site.cluster.audit.entries(USER) if e.user == USER and e.namespace in ours]
    # `doctor` runs as the same account. It reads what every user may read, versions and its own rights, and
    # tries to read Deployments.
    return [e for e in sent if not e.resource.startswith(("/", "selfsubject", "deployments"))]


def use_every_right(site: Site, account: Path, log: Path, waits: Waits) -> None:
    """Make the operator send every request it can, including those after lost answers and on old servers."""
    with Proxy(account) as proxy:
        for resource in ("nodes", "pods", "jobs", "gpuworkloads"):  # a server that cannot stream lists
            proxy.on("watch", resource, do=Answer(422, reason="Invalid"))
        proxy.on("create", "jobs", do=DropAnswer())
        proxy.on("create", "gpuclaims", do=DropAnswer())
        with Operator(proxy.kubeconfig, log=log, waits=waits):
            (node,) = site.nodes(1, gpus=4)
            site.create("fits", run_for="100ms", ttlSecondsAfterFinished=600)
            site.create("big", gpus=8, retryPolicy={"maxRetries": 10, "backoffSeconds": 1})
            site.create("claimed", claim={"devices": {"policy": "packed"}})
            mount_volumes(site)
            has_no_pod(site)
            site.until("fits", "Succeeded")
            site.until("mounts", "Succeeded")
            site.event("podless", "FailedScheduling", "created no pod")
            site.until("claimed", "Scheduling", "Pending")
            assert node == site.status("fits")["assignedNode"]
            site.delete("fits")
            site.gone("fits")
            # The same refusal again: counted in one event, not written as a new one.
            eventually(lambda: ("patch", "events") in {(r[0], r[1]) for r in proxy.requests}, "a series")


def mount_volumes(site: Site) -> None:
    """Create a workload with one bound volume, and one that waits for its pod."""
    volumes = [site.volume("bound"), site.volume("unbound", mode="WaitForFirstConsumer")]
    spec = {"volumes": volumes, "containers": [{"name": "main", "image": "x"}]}
    site.create("mounts", run_for="100ms", template={"spec": spec})


def has_no_pod(site: Site) -> None:
    """Create a workload whose Job may not create its pod."""
    spec = {"serviceAccountName": "missing", "containers": [{"name": "main", "image": "x"}]}
    site.create("podless", template={"spec": spec}, retryPolicy={"maxRetries": 10, "backoffSeconds": 300})


def test_role_grants_exactly_the_used_rights(site: Site, account: Path, tmp_path: Path, scale: Scale) -> None:
    waits: Waits = scale(test={"podless_s": 5.0}, accept=None)
    use_every_right(site, account, tmp_path / "operator.log", waits)
    # The audit log gets a watch only when it ends.
    with suppress(AssertionError):
        eventually(lambda: not rights.unused(GRANTED, used(site)), "every right was used")
    assert rights.unused(GRANTED, used(site)) == []
    assert rights.beyond(GRANTED, used(site)) == []
    assert [entry for entry in used(site) if entry.code == 403] == []


@pytest.mark.parametrize(
    ("verb", "resource"), [("get", "secrets"), ("delete", "pods"), ("create", "pods"), ("patch", "nodes")]
)
def test_other_rights_are_refused(site: Site, verb: str, resource: str) -> None:
    spec = {
        "user": USER,
        "resourceAttributes": {"verb": verb, "resource": resource, "namespace": site.namespace},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    answer = site.request("POST", path, {"spec": spec})
    assert answer["status"]["allowed"] is False

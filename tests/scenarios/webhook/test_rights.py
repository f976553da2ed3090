"""The shipped role grants exactly what the webhook uses, as the audit log shows."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from controlplane.api import ApiError
from controlplane.audit import Entry
from controlplane.cluster import Cluster
from tests.faults.proxy import Answer, Proxy
from tests.support import installation, rights
from tests.support.certificate_site import CertificateSite
from tests.support.scheduler_stage import CLAIMS, QUEUES, claim, pod, until
from tests.support.webhook_process import SelfMadeWebhook

USER = f"{installation.PREFIX}gpu-scheduler-webhook"
READ = ("gpuclaims", "gpunodestatuses", "gpuqueues", "nodes")
SETTINGS = {"certificateNames": ["127.0.0.1"], "drainSeconds": 0}

GRANTED = rights.granted("webhook/role.yaml")


def sent(cluster: Cluster) -> list[Entry]:
    """Return what the webhook has requested but for its certificates: test_keeper.py has these."""
    return [each for each in cluster.audit.entries(USER) if each.user == USER and each.resource in READ]


def test_role_grants_exactly_the_rights_that_are_used(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """On a server that does not stream lists, and with a claim that the watch does not show."""
    webhook = SelfMadeWebhook(tmp_path, **SETTINGS)
    with CertificateSite(cluster, namespace, webhook.port) as site, Proxy(site.account()) as proxy:
        for resource in READ:
            proxy.on("watch", resource, do=Answer(422, reason="Invalid"))
        with webhook.using(proxy.kubeconfig):
            until(lambda: installation.is_filled_in(cluster, namespace), "the webhook is called")
            until(lambda: reads_a_claim(site, proxy), "a claim is read that the watch did not show yet")
            until(lambda: reads_queues(site, proxy), "the queues are read when one is checked")
    # The audit log records a watch when it ends.
    with suppress(AssertionError):
        until(lambda: not rights.unused(GRANTED, sent(cluster)), "every right was used")
    assert rights.unused(GRANTED, sent(cluster)) == []
    assert rights.beyond(GRANTED, sent(cluster)) == []
    assert [each for each in installation.refused(cluster) if "webhook" in each] == []


def reads_a_claim(site: CertificateSite, proxy: Proxy) -> bool:
    """Create a claim and at once a pod that names it; return whether the claim was read by name. The webhook
    that checks claims may be known to the API server a moment later than that which fills pods in."""
    name = f"claim-{uuid4().hex[:6]}"
    if not _is_called(lambda: site.request("POST", CLAIMS.format(site.namespace), claim(name))):
        return False
    path = f"/api/v1/namespaces/{site.namespace}/pods?dryRun=All"
    site.request("POST", path, pod("asks", claim=name))
    return ("get", "gpuclaims") in {(sent.verb, sent.resource) for sent in proxy.requests}


def _is_called(request: Callable[[], object]) -> bool:
    """Return False if the API server does not trust the webhook yet, so that it cannot be asked."""
    try:
        request()
    except ApiError as error:
        if "certificate signed by unknown authority" not in str(error):
            raise
        return False
    return True


def reads_queues(site: CertificateSite, proxy: Proxy) -> bool:
    body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuQueue", "metadata": {"name": "queue"}, "spec": {}}
    if not _is_called(lambda: site.request("POST", f"{QUEUES}?dryRun=All", body)):
        return False
    return ("list", "gpuqueues") in {(sent.verb, sent.resource) for sent in proxy.requests}


@pytest.mark.parametrize(
    ("verb", "resource"), [("list", "secrets"), ("get", "secrets"), ("create", "pods"), ("patch", "nodes")]
)
def test_other_rights_are_refused(cluster: Cluster, namespace: str, verb: str, resource: str) -> None:
    with CertificateSite(cluster, namespace):
        asked = {"verb": verb, "resource": resource, "namespace": namespace}
        spec = {"user": USER, "resourceAttributes": asked}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        assert cluster.api.request("POST", path, {"spec": spec})["status"]["allowed"] is False

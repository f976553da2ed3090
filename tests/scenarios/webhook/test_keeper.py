"""Keepers of certificates on a real API server, with exactly the shipped rights."""

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from controlplane.audit import Entry
from controlplane.cluster import Cluster
from controlplane.errors import ClusterError
from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.webhook.certificates.authority import issue
from gpu_orchestrator.apps.webhook.certificates.keeper import Keeper
from gpu_orchestrator.apps.webhook.certificates.rotation import Rules
from gpu_orchestrator.apps.webhook.metrics import Metrics
from tests.faults.proxy import Answer, Proxy
from tests.support import rights
from tests.support.certificate_site import OTHERS, SECRET, SECRETS, USER, CertificateSite
from tests.support.scheduler_stage import SYSTEM, until

GRANTED = rights.granted("webhook/certificates.yaml")
RULES = Rules(frozenset({"127.0.0.1"}), life_s=3600, rotate_after_s=2400, propagation_s=0.2)
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


@pytest.fixture
def site(cluster: Cluster, namespace: str) -> Iterator[CertificateSite]:
    with CertificateSite(cluster, namespace) as made:
        yield made


@asynccontextmanager
async def keeper(kubeconfig: Path, rules: Rules = RULES) -> AsyncIterator[Keeper]:
    async with Client.open(config.load(str(kubeconfig))) as client:
        made = Keeper(client, SYSTEM, rules, Metrics())
        tasks = [asyncio.create_task(each.run()) for each in made.watches]
        for each in made.watches:
            await each.synced()
        tasks.append(asyncio.create_task(made.keep()))
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def eventually_trusted(site: CertificateSite) -> dict[str, str]:
    """Wait until the configurations show the bundle of the Secret, and return the Secret."""
    await asyncio.to_thread(until, site.trusts_what_is_served, "the configurations show the bundle")
    return site.secret()


async def test_replicas_that_start_together_make_one_certificate(site: CertificateSite) -> None:
    account = site.account()
    async with keeper(account) as one, keeper(account) as two:
        for each in (one, two):
            await each.ready()
            assert each.unready == ""
        found = await eventually_trusted(site)
        assert found["ca.crt"].count("BEGIN CERTIFICATE") == 1
        assert "next.crt" not in found
        assert site.bundles(OTHERS) == {""}, "the entry of somebody else is left alone"
        assert "PRIVATE KEY" not in found["tls.crt"] + found["ca.crt"]
    async with keeper(account) as again:
        await again.ready()
        assert site.secret() == found


async def test_deleted_secret_is_restored_and_then_rotated(site: CertificateSite) -> None:
    async with keeper(site.account()) as replica:
        await replica.ready()
        before = await eventually_trusted(site)
        site.request("DELETE", SECRET)
        await asyncio.to_thread(until, site.secret, "the Secret is restored")
        after = site.secret()
        assert before["ca.crt"] in after["ca.crt"]
        await asyncio.to_thread(site.until_served_is_not, before["tls.crt"])
        after = await eventually_trusted(site)
        assert before["ca.crt"] in after["ca.crt"], "replicas may still serve with it"


async def test_rubbish_is_replaced_and_told(site: CertificateSite) -> None:
    site.request("POST", SECRETS, secret({"tls.crt": "rubbish", "tls.key": "rubbish"}))
    with capture_logs() as logged:
        async with keeper(site.account()) as replica:
            await replica.ready()
            found = await eventually_trusted(site)
    assert "BEGIN CERTIFICATE" in found["tls.crt"]
    told = [each["error"] for each in logged if each["log_level"] == "error"]
    assert told == [f"Secret {SYSTEM}/{names.WEBHOOK_SECRET} has no ca.crt; it is made again"]


async def test_certificate_of_somebody_else_is_left_alone_with_advice(site: CertificateSite) -> None:
    leaf = issue(["elsewhere"], now_s=time.time(), life_s=3600).leaf
    texts = {"tls.crt": leaf.pem, "tls.key": leaf.key_pem, "ca.crt": leaf.authority.pem}
    site.request("POST", SECRETS, secret(texts))
    async with keeper(site.account()) as replica:
        await asyncio.to_thread(until, lambda: "is not ours" in replica.unready, "the replica refuses it")
        assert "set certificates: files" in replica.unready
        assert site.secret() == texts
        assert site.bundles() == {""}
        site.request("DELETE", SECRET)
        await replica.ready()
        assert site.secret() != texts


def secret(texts: dict[str, str]) -> dict[str, object]:
    data = {name: b64encode(text.encode()).decode() for name, text in texts.items()}
    return {"metadata": {"name": names.WEBHOOK_SECRET}, "type": "kubernetes.io/tls", "data": data}


async def test_rights_are_exactly_those_that_are_used(site: CertificateSite) -> None:
    with Proxy(site.account()) as proxy:
        for resource in ("secrets", *CONFIGURATIONS):  # as a server that does not support streaming lists
            proxy.on("watch", resource, do=Answer(422, reason="Invalid"))
        fast = Rules(RULES.names, life_s=3600, rotate_after_s=0.1, propagation_s=0.2)
        async with keeper(proxy.kubeconfig, fast) as replica:
            await replica.ready()
            served = (await eventually_trusted(site))["tls.crt"]
            await asyncio.to_thread(site.until_served_is_not, served)
    # The audit log records a watch when it ends.
    with suppress(AssertionError):
        until(lambda: not rights.unused(GRANTED, sent(site.cluster)), "every right was used")
    assert rights.unused(GRANTED, sent(site.cluster)) == []
    assert rights.beyond(GRANTED, sent(site.cluster)) == []
    assert all(right.verb == "create" or len(right.names) == 1 for right in GRANTED)


def sent(cluster: Cluster) -> list[Entry]:
    """Return the requests of the ServiceAccount for Secrets and configurations. None was refused, but those
    of the test about other Secrets."""
    entries = [entry for entry in cluster.audit.entries(USER) if entry.user == USER]
    assert [entry for entry in entries if entry.code == 403 and entry.verb != "create"] == []
    return [entry for entry in entries if entry.resource in ("secrets", *CONFIGURATIONS)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("token-of-the-scheduler", "kubernetes.io/tls", id="another name"),
        pytest.param(names.WEBHOOK_SECRET, "kubernetes.io/service-account-token", id="a token"),
    ],
)
def test_other_secrets_cannot_be_created(site: CertificateSite, name: str, kind: str) -> None:
    """With the right to create Secrets, a webhook that was broken into could obtain others' tokens."""
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": names.WEBHOOK}},
        "type": kind,
        "stringData": {"tls.crt": "x", "tls.key": "x"},
    }
    account, words = site.account(), ("create", "--dry-run=server", "-n", SYSTEM, "-f", "-")

    def refusal() -> str:  # an API server obeys a new policy a moment later
        try:
            site.cluster.kubectl(*words, stdin=yaml.safe_dump(body), kubeconfig=account)
        except ClusterError as error:
            return str(error)
        return ""

    assert "the webhook creates no Secret but" in until(refusal, "the policy is obeyed")

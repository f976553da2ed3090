"""Two real webhooks rotate their certificates while a real API server calls them: no admission fails."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.api import ApiError
from controlplane.cluster import Cluster
from tests.support.certificate_site import OTHERS, SECRET, USER, CertificateSite, Stream
from tests.support.forwarder import Forwarder
from tests.support.operator_process import eventually
from tests.support.scale import Scale
from tests.support.webhook_process import SelfMadeWebhook

SETTINGS = {
    "certificateNames": ["127.0.0.1"],
    "certificateLifeSeconds": 3600,
    "certificateRotateSeconds": 1,
    "certificatePropagationSeconds": 3,
    "requestsPerConnection": 1,  # each admission checks a certificate
    "drainSeconds": 0,
}


@pytest.fixture
def replicas(tmp_path: Path) -> list[SelfMadeWebhook]:
    folders = [tmp_path / name for name in ("one", "two")]
    for each in folders:
        each.mkdir()
    return [SelfMadeWebhook(each, **SETTINGS) for each in folders]


def test_rotations_under_load_fail_no_admission(
    cluster: Cluster,
    namespace: str,
    replicas: list[SelfMadeWebhook],
    scale: Scale,
    figure: Callable[[str], None],
) -> None:
    first, second = replicas
    with (
        Forwarder(first.port, second.port) as balancer,
        CertificateSite(cluster, namespace, balancer.port) as site,
        first.using(site.account()),
        second.using(site.account()),
    ):
        stream = Stream(site)
        eventually(lambda: is_admitted(stream), "the first pod is admitted")
        with stream:
            began, served = time.monotonic(), site.secret()["tls.crt"]
            for _ in range(scale(test=0, accept=17)):
                served = site.until_served_is_not(served)
            served = replica_dies_in_a_rotation(site, balancer, second, served)
            secret_is_deleted(site, served)
            rubbish_is_put_into_the_secret(site)
            took_s = time.monotonic() - began
        assert stream.failed == []
        assert stream.admitted > 5
        figure(f"{stream.admitted:,} admissions in {took_s:.0f} s of rotations, none failed")
        bundles_are_emptied(site, stream)
    refused = [entry for entry in cluster.audit.entries(USER) if entry.user == USER and entry.code == 403]
    assert refused == []


def is_admitted(stream: Stream) -> bool:
    try:
        stream.admit()
    except (ApiError, AssertionError):
        return False
    return True


def replica_dies_in_a_rotation(
    site: CertificateSite, balancer: Forwarder, dying: SelfMadeWebhook, served: str
) -> str:
    """The other replica finishes the rotation; the one that starts again serves at once."""
    eventually(lambda: "next.crt" in site.secret(), "a rotation is under way")
    balancer.take_out(dying.port)
    dying.kill()
    served = site.until_served_is_not(served)
    dying.start()
    balancer.put_in(dying.port)
    return site.until_served_is_not(served)


def secret_is_deleted(site: CertificateSite, served: str) -> None:
    """The replicas still have what they serve with: it is restored, and a rotation follows."""
    uid = site.request("GET", SECRET)["metadata"]["uid"]
    site.request("DELETE", SECRET)
    eventually(lambda: site.secret().get("tls.crt"), "the Secret is there again")
    assert site.request("GET", SECRET)["metadata"]["uid"] != uid
    site.until_served_is_not(served)


def rubbish_is_put_into_the_secret(site: CertificateSite) -> None:
    site.patch_secret(data={"tls.crt": "cnViYmlzaA==", "ca.crt": None})
    site.until_served_is_not("rubbish")
    eventually(site.trusts_what_is_served, "the restored authorities are trusted")


def bundles_are_emptied(site: CertificateSite, stream: Stream) -> None:
    site.empty_bundles()
    eventually(site.trusts_what_is_served, "the bundles are repaired")
    assert site.bundles(OTHERS) == {""}
    eventually(lambda: is_admitted(stream), "pods are admitted again")

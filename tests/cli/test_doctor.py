"""`doctor` checks exactly the permissions that the shipped role grants, and judges what it reads."""

from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_orchestrator.adapters.kube.reviews import Access
from gpu_orchestrator.api.admission_policies import files
from gpu_orchestrator.api.kubernetes import Lease, LeaseSpec
from gpu_orchestrator.api.webhook_objects import ClientConfig, Secret, WebhookEntry
from gpu_orchestrator.api.wire import Json, ObjectMeta
from gpu_orchestrator.apps.webhook.certificates.authority import issue
from gpu_orchestrator.cli import doctor_manager, doctor_policies, doctor_webhook
from gpu_orchestrator.cli.doctor import has_kubernetes
from gpu_orchestrator.cli.doctor_kube import RIGHTS, judged
from gpu_orchestrator.cli.findings import Component, Finding, lines
from gpu_orchestrator.cli.tables import Page
from gpu_orchestrator.cli.where import Place
from tests.support import yaml_text
from tests.support.paths import ROOT

CONFIG = ROOT / "config"
Served = dict[str, Json]
"""Objects by their name."""
NOW = datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC)


def granted(role: dict[str, Any]) -> Iterator[Access]:
    namespace = role["metadata"].get("namespace", "")
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", [""]):
                    for verb in rule["verbs"]:
                        yield Access(verb, resource, group, namespace, name)


@pytest.mark.parametrize(
    ("component", "files"),
    [
        ("operator", ["rbac/role.yaml"]),
        ("scheduler", ["scheduler/role.yaml"]),
        ("webhook", ["webhook/role.yaml", "webhook/certificates.yaml"]),
        ("agent", ["agent/role.yaml"]),
    ],
)
def test_checked_permissions_match_the_shipped_role(component: Component, files: list[str]) -> None:
    found = [each for file in files for each in yaml_text.load_all((CONFIG / file).read_text())]
    shipped = {access for role in found if "rules" in role for access in granted(role)}
    checked = {access for right in RIGHTS[component] for access in right.each()}
    assert checked == shipped


def test_long_finding_goes_on_below_its_first_word_on_a_terminal() -> None:
    finding = Finding(True, "data directory: /var/lib/gpu-orchestrator, 74.0 GB left (27%)")
    assert lines(finding, Page()) == [f"ok      {finding.text}"]
    assert lines(finding, Page(60)) == [
        "ok      data directory: /var/lib/gpu-orchestrator, 74.0 GB",
        "        left (27%)",
    ]


@pytest.mark.parametrize(
    ("holder", "renewed", "is_good", "words"),
    [
        pytest.param("pod-1", "2026-11-16T11:59:55.000000Z", True, "pod-1 leads", id="live"),
        pytest.param(
            "pod-1", "2026-11-16T11:50:00.000000Z", False, "renewed 10m ago; pods wait", id="silent"
        ),
        pytest.param("pod-1", "", False, "renewed never", id="never renewed"),
        pytest.param("", "2026-11-16T11:59:55.000000Z", None, "it has stopped", id="released"),
    ],
)
def test_leader_is_judged_by_its_lease(holder: str, renewed: str, is_good: bool | None, words: str) -> None:
    lease = Lease(ObjectMeta(name="l"), LeaseSpec(holder, 15, renew_time=renewed))
    finding = judged(lease, "operator", "pods wait", NOW)
    assert finding.is_good is is_good
    assert words in finding.text


@pytest.mark.parametrize(
    ("environ", "has"),
    [({}, False), ({"KUBECONFIG": "x"}, True), ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True)],
)
def test_kubernetes_is_checked_where_it_is_configured(
    environ: dict[str, str], has: bool, tmp_path: Path
) -> None:
    assert has_kubernetes({"HOME": str(tmp_path), **environ}) is has
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("")
    assert has_kubernetes({"HOME": str(tmp_path)})


def worker(status: str = "online", *gpus: dict[str, Any]) -> dict[str, Any]:
    return {"worker_id": "vm", "status": status, "gpu_info": list(gpus)}


def gpu(**more: Any) -> dict[str, Any]:
    return {"index": 0, "model": "L4", "cordoned": False, "problem": "", **more}


@pytest.mark.parametrize(
    ("workers", "found"),
    [
        pytest.param([worker("online", gpu())], [(True, "1 online (vm)"), (True, "1 × L4")], id="good"),
        pytest.param([worker()], [(True, "1 online"), (None, "no worker has one")], id="without GPU"),
        pytest.param([], [(False, "none is online, so no task runs")], id="none"),
        pytest.param([worker("offline")], [(None, "vm offline"), (False, "none is online")], id="gone"),
        pytest.param(
            [worker("online", gpu(problem="fell off the bus"))],
            [(True, "1 online"), (True, "(1 faulty)"), (False, "GPU 0 of vm: fell off the bus")],
            id="faulty device",
        ),
    ],
)
def test_workers_are_judged(workers: list[dict[str, Any]], found: list[tuple[bool | None, str]]) -> None:
    told = list(doctor_manager._workers(workers, Place("http://h:1")))
    assert [each.is_good for each in told] == [is_good for is_good, _ in found]
    for each, (_, words) in zip(told, found, strict=True):
        assert words in each.text


def served(*, without: str = "", other: str = "", limited: str = "") -> tuple[Served, Served]:
    """Return the shipped policies and bindings as an API server shows them: with defaults. One policy may be
    of another version, one binding may be gone or limited."""
    policies, bindings = {}, {}
    for policy, binding in (each.manifests() for each in files.policies()):
        name = policy["metadata"]["name"]
        change = {"failurePolicy": "Ignore"} if name == other else {}
        policies[name] = {**policy, "spec": {"matchPolicy": "Equivalent", **policy["spec"], **change}}
        limits: Json = {"matchResources": {"namespaceSelector": {}}} if name == limited else {}
        bindings[name] = {**binding, "spec": {**binding["spec"], **limits}}
    bindings.pop(without, None)
    return policies, bindings


LEASES = "gpu-orchestrator-leases"


@pytest.mark.parametrize(
    ("policies", "bindings", "expected"),
    [
        pytest.param(*served(), [(True, "in force, of this version")], id="good"),
        pytest.param({}, {}, [(None, "not installed here")], id="none"),
        pytest.param(None, {}, [(None, "may not see them")], id="forbidden"),
        pytest.param(
            *served(other=LEASES), [(False, f"1 of another version ({LEASES}); install")], id="changed"
        ),
        pytest.param(*served(without=LEASES), [(False, f"1 not bound, so nothing is refused ({LEASES})")]),
        pytest.param(
            *served(limited=LEASES), [(True, "in force"), (None, f"some namespaces only: {LEASES}")]
        ),
        pytest.param(dict(list(served()[0].items())[1:]), served()[1], [(False, "1 missing (gpu-")]),
    ],
)
def test_policies_are_judged(
    policies: Served | None, bindings: Served | None, expected: list[tuple[bool | None, str]]
) -> None:
    found = list(doctor_policies.judged(policies, bindings))
    assert [each.is_good for each in found] == [is_good for is_good, _ in expected]
    for each, (_, words) in zip(found, expected, strict=True):
        assert words in each.text


LIFE_S = 90 * 86400.0
LEAF = issue(["webhook"], now_s=NOW.timestamp(), life_s=LIFE_S).leaf
STRANGER = issue(["webhook"], now_s=NOW.timestamp(), life_s=LIFE_S).leaf


def entry(*authorities: str) -> WebhookEntry:
    return WebhookEntry("fill.pods.gpu.scheduling", ClientConfig(encoded("".join(authorities))))


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("after_s", "bundle", "expected"),
    [
        pytest.param(0, [LEAF.authority.pem], [(True, "expires in 90d")], id="new"),
        pytest.param(
            LIFE_S / 2, [STRANGER.authority.pem, LEAF.authority.pem], [(True, "expires in")], id="rotating"
        ),
        pytest.param(0.9 * LIFE_S, [LEAF.authority.pem], [(False, "nothing has renewed it")], id="old"),
        pytest.param(LIFE_S + 86400, [LEAF.authority.pem], [(False, "expired 1d ago")], id="expired"),
        pytest.param(
            0,
            [STRANGER.authority.pem],
            [(True, "expires"), (False, "caBundle of fill.pods.gpu.scheduling has no authority")],
            id="another authority",
        ),
        pytest.param(0, [], [(True, "expires"), (False, "does not trust")], id="empty bundle"),
        pytest.param(0, ["rubbish"], [(True, "expires"), (False, "does not trust")], id="no bundle"),
    ],
)
def test_certificate_of_the_webhook_is_judged(
    after_s: float, bundle: list[str], expected: list[tuple[bool | None, str]]
) -> None:
    now = NOW + timedelta(seconds=after_s)
    found = list(doctor_webhook.judged(Secret(data={"tls.crt": encoded(LEAF.pem)}), [entry(*bundle)], now))
    assert [each.is_good for each in found] == [is_good for is_good, _ in expected]
    for each, (_, words) in zip(found, expected, strict=True):
        assert words in each.text


@pytest.mark.parametrize("data", [{}, {"tls.crt": "?"}, {"tls.crt": encoded("rubbish")}])
def test_secret_without_a_certificate_is_told_with_advice(data: dict[str, str]) -> None:
    (found,) = doctor_webhook.judged(Secret(data=data), [], NOW)
    assert (found.is_good, "kubectl delete secret" in found.text) == (False, True)


@pytest.mark.parametrize(
    ("entries", "is_good", "words"),
    [([entry()], False, "has made no certificate yet"), ([entry("x")], None, "was not checked")],
)
def test_missing_secret_is_no_failure_where_something_else_is_trusted(
    entries: list[WebhookEntry], is_good: bool | None, words: str
) -> None:
    found = doctor_webhook.judged_without_secret(entries)
    assert found.is_good is is_good
    assert words in found.text


def test_clocks_that_differ_are_reported() -> None:
    late = datetime(2026, 11, 16, 12, 2, 0, tzinfo=UTC)
    assert doctor_manager._clock(NOW, NOW).is_good
    finding = doctor_manager._clock(NOW, late)
    assert (finding.is_good, "2m apart" in finding.text) == (False, True)


def test_data_directory_that_others_may_read_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert any(
        each.is_good is False and "chmod 700" in each.text
        for each in doctor_manager._data_directory(tmp_path)
    )
    tmp_path.chmod(0o700)
    assert not any("chmod" in each.text for each in doctor_manager._data_directory(tmp_path))

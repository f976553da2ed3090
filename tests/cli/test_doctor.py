"""`doctor` checks exactly the permissions that the shipped role grants, and judges what it reads."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_orchestrator.adapters.kube.reviews import Access
from gpu_orchestrator.api.kubernetes import Lease, LeaseSpec
from gpu_orchestrator.api.wire import ObjectMeta
from gpu_orchestrator.cli import doctor_manager
from gpu_orchestrator.cli.doctor import has_kubernetes
from gpu_orchestrator.cli.doctor_kube import RIGHTS, judged
from gpu_orchestrator.cli.findings import Component, Finding, lines
from gpu_orchestrator.cli.tables import Page
from gpu_orchestrator.cli.where import Place
from tests.support.paths import ROOT

CONFIG = ROOT / "config"
NOW = datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC)


def granted(role: dict[str, Any]) -> Iterator[Access]:
    namespace = role["metadata"].get("namespace", "")
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", [""]):
                    for verb in rule["verbs"]:
                        yield Access(verb, resource, group, namespace, name)


@pytest.mark.parametrize(("component", "folder"), [("operator", "rbac"), ("scheduler", "scheduler")])
def test_checked_permissions_match_the_shipped_role(component: Component, folder: str) -> None:
    roles = yaml.safe_load_all((CONFIG / folder / "role.yaml").read_text())
    shipped = {access for role in roles for access in granted(role)}
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

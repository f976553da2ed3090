"""Rights that no role of ours may grant, in all that ships. That each right is also used is shown by tests in
tests/scenarios, each over the audit log of a real run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import yaml_text
from tests.support.paths import ROOT

CONFIG = ROOT / "config"
SHOWN_IN_USE = {
    "rbac/role.yaml": "operator/test_rights.py",
    "scheduler/role.yaml": "scheduler/test_rights.py",
    "scheduler-podgroups/role.yaml": "scheduler/test_pod_groups.py",
    "webhook/role.yaml": "webhook/test_rights.py",
    "webhook/certificates.yaml": "webhook/test_keeper.py",
    "agent/role.yaml": "agent/test_process.py",
    "agent-mps/role.yaml": "agent/test_mps.py",
    "autoscaler/role.yaml": "manager/test_autoscale_kubernetes.py",
}
"""Files with roles of our processes, each with the scenario that compares it with the audit log."""
OF_PEOPLE = "users/aggregated_roles.yaml"
GIVES_RIGHTS = {"escalate", "bind", "impersonate", "approve", "sign"}


def roles() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(CONFIG.rglob("*.yaml")):
        for each in yaml_text.load_all(file.read_text()):
            if isinstance(each, dict) and each.get("kind") in ("Role", "ClusterRole") and "rules" in each:
                yield file.relative_to(CONFIG).as_posix(), each


ROLES = [pytest.param(role, id=role["metadata"]["name"]) for _, role in roles()]


@pytest.mark.parametrize("role", ROLES)
def test_role_has_no_wildcard_and_gives_no_rights_on(role: dict[str, Any]) -> None:
    for rule in role["rules"]:
        assert "*" not in "".join([*rule["verbs"], *rule["resources"], *rule["apiGroups"]])
        assert not GIVES_RIGHTS & set(rule["verbs"])
        assert "nonResourceURLs" not in rule


@pytest.mark.parametrize("role", ROLES)
def test_no_role_reads_secrets_of_the_whole_cluster(role: dict[str, Any]) -> None:
    of_secrets = [rule for rule in role["rules"] if "secrets" in rule["resources"]]
    assert not of_secrets or role["kind"] == "Role"
    assert all(rule.get("resourceNames") or rule["verbs"] == ["create"] for rule in of_secrets)


def test_each_role_of_a_process_is_compared_with_what_it_uses() -> None:
    assert {file for file, _ in roles()} == {*SHOWN_IN_USE, OF_PEOPLE}
    for file, scenario in SHOWN_IN_USE.items():
        text = (Path(ROOT) / "tests" / "scenarios" / scenario).read_text()
        assert f'rights.granted("{file}")' in text
        assert "rights.unused(" in text
        assert "rights.beyond(" in text

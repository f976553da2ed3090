"""`doctor` checks exactly the permissions that the shipped role grants."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpu_orchestrator.adapters.kube.reviews import Access
from gpu_orchestrator.cli.doctor import RIGHTS, Component
from tests.support.paths import ROOT

CONFIG = ROOT / "config"


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

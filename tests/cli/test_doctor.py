"""What `doctor` asks for is what the shipped role grants, right by right."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gpu_orchestrator.adapters.kube.reviews import Access
from gpu_orchestrator.cli.doctor import RIGHTS

ROLES = Path(__file__).parents[2] / "config" / "rbac" / "role.yaml"


def granted(role: dict[str, Any]) -> Iterator[Access]:
    namespace = role["metadata"].get("namespace", "")
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", [""]):
                    for verb in rule["verbs"]:
                        yield Access(verb, resource, group, namespace, name)


def test_the_operators_rights_are_those_that_are_shipped() -> None:
    shipped = {access for role in yaml.safe_load_all(ROLES.read_text()) for access in granted(role)}
    asked = {access for right in RIGHTS["operator"] for access in right.each()}
    assert asked == shipped

"""The rights that our roles grant, rule by rule, beside the requests that the audit log shows."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.audit import Entry
from tests.support import yaml_text
from tests.support.paths import ROOT


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource by one rule of a role. An empty `namespace` stands for all, empty `names` for
    all objects but those that another rule of the same namespace names."""

    role: str
    verb: str
    resource: str
    namespace: str = ""
    names: frozenset[str] = frozenset()

    def is_for(self, entry: Entry) -> bool:
        is_there = self.namespace in ("", entry.namespace)
        is_named = not self.names or entry.name in self.names
        return (self.verb, self.resource) == (entry.verb, entry.resource) and is_there and is_named


def granted(*files: str) -> set[Right]:
    """Return what the roles in these files of config grant. None may have a wildcard."""
    found = (each for file in files for each in yaml_text.load_all((ROOT / "config" / file).read_text()))
    return {right for role in found for right in _of(role)}


def _of(role: dict[str, Any]) -> Iterator[Right]:
    meta = role["metadata"]
    for rule in role.get("rules", ()):
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]], meta["name"]
        for verb in rule["verbs"]:
            for resource in rule["resources"]:
                named = frozenset(rule.get("resourceNames", ()))
                yield Right(meta["name"], verb, resource, meta.get("namespace", ""), named)


def unused(rights: set[Right], entries: Iterable[Entry]) -> list[str]:
    """Return the rights that no request needed. A request for an object that a rule names needs that rule."""
    requests = {(each.verb, each.resource, each.namespace, each.name): each for each in entries}.values()
    used = {right for entry in requests for right in _needed(rights, entry)}
    return sorted(f"{right.role}: {right.verb} {right.resource}" for right in rights - used)


def _needed(rights: set[Right], entry: Entry) -> list[Right]:
    fitting = [right for right in rights if right.is_for(entry)]
    return [right for right in fitting if right.names] or fitting


def beyond(rights: set[Right], entries: Iterable[Entry]) -> list[str]:
    """Return the requests that no role grants, refused or not."""
    return sorted(
        {
            f"{entry.verb} {entry.resource} {entry.namespace}/{entry.name}"
            for entry in entries
            if not any(right.is_for(entry) for right in rights)
        }
    )

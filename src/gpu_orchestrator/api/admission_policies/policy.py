"""One ValidatingAdmissionPolicy and its binding as data, and the manifests that are made from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Manifest = dict[str, Any]
Operation = Literal["CREATE", "UPDATE", "DELETE"]

API_VERSION = "admissionregistration.k8s.io/v1"
NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Label that the API server itself keeps equal to a namespace's name: nobody can leave a selector by it."""
EXEMPT_NAMESPACES = ("kube-system", "kube-public", "kube-node-lease")
EXEMPT = {
    "matchExpressions": [{"key": NAMESPACE_NAME, "operator": "NotIn", "values": list(EXEMPT_NAMESPACES)}]
}


@dataclass(frozen=True, slots=True)
class Resources:
    """What the policy looks at: resources of one group, with subresources as `pods/status`."""

    resources: tuple[str, ...]
    operations: tuple[Operation, ...]
    group: str = ""
    version: str = "v1"

    def manifest(self) -> Manifest:
        return {
            "apiGroups": [self.group],
            "apiVersions": [self.version],
            "operations": list(self.operations),
            "resources": list(self.resources),
        }


@dataclass(frozen=True, slots=True)
class Validation:
    """`expression` must be true. Otherwise the request is refused with `message`, an expression of its own if
    `is_computed`, such as `'this is ' + object.metadata.name`."""

    expression: str
    message: str
    is_computed: bool = False
    reason: Literal["Forbidden", "Invalid"] = "Forbidden"

    def manifest(self) -> Manifest:
        key = "messageExpression" if self.is_computed else "message"
        return {"expression": self.expression, key: self.message, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Policy:
    """`about` is the comment above the manifest. A request is looked at if all `conditions` (name:
    expression) are true. `namespaces` is a selector; None for resources without a namespace."""

    name: str
    about: str
    resources: tuple[Resources, ...]
    validations: tuple[Validation, ...]
    conditions: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    namespaces: Mapping[str, Any] | None = field(default_factory=lambda: EXEMPT)

    def manifests(self) -> tuple[Manifest, Manifest]:
        """Return the policy and its binding."""
        return self._policy(), {
            "apiVersion": API_VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": self.name},
            "spec": {"policyName": self.name, "validationActions": ["Deny"]},
        }

    def _policy(self) -> Manifest:
        selector = {"namespaceSelector": dict(self.namespaces)} if self.namespaces else {}
        rules = [each.manifest() for each in self.resources]
        spec: Manifest = {"failurePolicy": "Fail", "matchConstraints": {**selector, "resourceRules": rules}}
        if self.conditions:
            spec["matchConditions"] = named(self.conditions)
        if self.variables:
            spec["variables"] = named(self.variables)
        return {
            "apiVersion": API_VERSION,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": self.name},
            "spec": {**spec, "validations": [each.manifest() for each in self.validations]},
        }


def named(expressions: Mapping[str, str]) -> list[Manifest]:
    return [{"name": name, "expression": text} for name, text in expressions.items()]

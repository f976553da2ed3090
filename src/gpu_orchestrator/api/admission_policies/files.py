"""The text of the manifests in config/policy and config/mutating-policy; `make policies` writes the files."""

from collections.abc import Iterable
from textwrap import indent
from typing import Any

import yaml

from gpu_orchestrator.api.admission_policies import (
    capacity,
    claimed_pods,
    components,
    filling,
    written_by_us,
)
from gpu_orchestrator.api.admission_policies.filling import Mutation
from gpu_orchestrator.api.admission_policies.policy import Manifest, Policy

HEADER = "# Made by `make policies` from src/gpu_orchestrator/api/admission_policies; changes belong there.\n"
LONGEST_IN_LINE = 60
VALIDATING: dict[str, tuple[Policy, ...]] = {
    "written_by_us.yaml": written_by_us.POLICIES,
    "claimed_pods.yaml": claimed_pods.POLICIES,
    "capacity.yaml": capacity.POLICIES,
    "components.yaml": components.POLICIES,
}


def files() -> dict[str, str]:
    """Return the text of each file by its path in config."""
    made = {
        f"policy/{name}": HEADER + "---\n".join(map(_text, policies)) for name, policies in VALIDATING.items()
    }
    return {
        **made,
        "policy/kustomization.yaml": _kustomization(VALIDATING),
        "mutating-policy/filling.yaml": HEADER + "---\n".join(map(_text, filling.MUTATIONS)),
        "mutating-policy/kustomization.yaml": _kustomization(["filling.yaml"]),
    }


def policies() -> tuple[Policy, ...]:
    return tuple(each for group in VALIDATING.values() for each in group)


def _text(policy: Policy | Mutation) -> str:
    made, binding = policy.manifests()
    return f"{indent(policy.about, '# ')}\n{dump(made)}---\n{dump(binding)}"


def _kustomization(names: Iterable[str]) -> str:
    return HEADER + dump(
        {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": list(names),
        }
    )


class _Dumper(yaml.SafeDumper):
    """Write a value that occurs twice in full both times."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _written(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Write long text as lines without quotes: most of it is CEL, which has quotes of its own."""
    style = ">" if len(text) > LONGEST_IN_LINE else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _written)


def dump(value: Manifest) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True)

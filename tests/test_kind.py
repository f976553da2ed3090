"""hack/kind-cluster.yaml: what kind reads, and nodes that an agent with simulated GPUs runs on."""

from typing import Any

import yaml

from tests.support.paths import ROOT

NODE = {"role", "labels", "image", "extraMounts", "extraPortMappings", "kubeadmConfigPatches"}
"""Fields of kind.x-k8s.io/v1alpha4; it refuses all others."""


def documents() -> Any:
    return yaml.safe_load((ROOT / "hack/kind-cluster.yaml").read_text())


def test_kind_knows_all_fields() -> None:
    cluster = documents()
    assert (cluster["apiVersion"], cluster["kind"]) == ("kind.x-k8s.io/v1alpha4", "Cluster")
    assert cluster.keys() == {"apiVersion", "kind", "name", "nodes"}
    assert all(node.keys() <= NODE for node in cluster["nodes"])
    assert [node["role"] for node in cluster["nodes"]] == ["control-plane", "worker", "worker"]


def test_agents_run_on_its_workers() -> None:
    agent = next(yaml.safe_load_all((ROOT / "config/agent/agent.yaml").read_text()))
    affinity = agent["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    asked = {
        each["key"] for term in terms for each in term["matchExpressions"] if "true" in each.get("values", ())
    }
    workers = [node for node in documents()["nodes"] if node["role"] == "worker"]
    assert all(
        asked & {name for name, value in node["labels"].items() if value == "true"} for node in workers
    )


def test_guide_uses_its_name() -> None:
    guide = (ROOT / "docs/install.md").read_text()
    assert "kind create cluster --config hack/kind-cluster.yaml" in guide
    assert f"--name {documents()['name']}\n" in guide

"""Releases of the Helm chart on a real control plane: install, upgrade, roll back, uninstall.

Nodes are simulated: pods are admitted, placed and shown as running, and nothing runs in them.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import gpu_orchestrator
from controlplane.cluster import OPTIONAL, Cluster
from controlplane.toolbox import Toolbox
from tests.support import documents
from tests.support.helm import SYSTEM, Helm
from tests.support.paths import ROOT
from tests.support.scale import Scale

Json = dict[str, Any]
Names = set[tuple[str, str]]

OPERATOR_ALONE: Json = {
    **{name: {"enabled": False} for name in ("scheduler", "webhook", "agent", "policies")},
    "networkPolicies": {"enabled": False},
}
EVERYTHING: Json = {
    "agent": {"mps": {"enabled": True}},
    "mutatingPolicy": {"enabled": True},
    "webhook": {"autoscaling": {"enabled": True}, "certificates": "cert-manager"},
    "monitoring": {each: {"enabled": True} for each in ("serviceMonitor", "prometheusRule", "dashboards")},
}
SETS = {"defaults": {}, "everything": EVERYTHING, "operator alone": OPERATOR_ALONE}
WAIT = ("--wait", "--timeout", "100s")
PASSING = (
    *("events", "leases", "pods", "endpoints", "endpointslices", "controllerrevisions", "replicasets"),
    *("apiservices", "ipaddresses"),
)
"""What is made for objects of ours, and removed with them, a moment later."""
OF_A_NAMESPACE = (SYSTEM, "default", "kube-root-ca.crt")
OF_HELM = "sh.helm.release"


@pytest.fixture(scope="module")
def fresh(toolbox: Toolbox) -> Iterator[Cluster]:
    """A cluster of these tests alone, where nothing of ours is installed."""
    with Cluster.start(parts=OPTIONAL, toolbox=toolbox) as cluster:
        cluster.gpu_nodes(1, labels={"type": "metal"})
        yield cluster


@pytest.fixture
def helm(fresh: Cluster, tmp_path: Path) -> Iterator[Helm]:
    made = Helm.of(fresh, tmp_path)
    yield made
    for each in made.run("list", "--all", "--all-namespaces", "--short").split():
        made.run("uninstall", each, "--namespace", SYSTEM, "--wait")
    fresh.kubectl("delete", "crd", "--all")
    fresh.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found")


@pytest.mark.parametrize("name", SETS)
def test_install_upgrade_roll_back_and_uninstall(fresh: Cluster, helm: Helm, name: str, scale: Scale) -> None:
    values = SETS[name]
    if name == "everything":
        define_foreign_kinds(fresh)
    before = objects(fresh)
    assert "is installed in namespace" in helm.apply("install", values, "--create-namespace", *WAIT)
    rendered = names(yaml.load_all(helm.of_release("manifest"), yaml.CSafeLoader))
    assert objects(fresh) - before == rendered
    assert images(fresh) == {f"gpu-orchestrator:{gpu_orchestrator.__version__}"}

    if name in scale(test=["everything"], accept=list(SETS)):
        helm.apply("upgrade", values | {"image": {"tag": "2"}}, *WAIT)
        assert images(fresh) == {"gpu-orchestrator:2"}
        assert objects(fresh) - before == rendered
        helm.run("rollback", "gpu-scheduler", "1", "--namespace", SYSTEM, *WAIT)
        assert images(fresh) == {f"gpu-orchestrator:{gpu_orchestrator.__version__}"}

    helm.run("uninstall", "gpu-scheduler", "--namespace", SYSTEM, "--wait")
    left = objects(fresh) - before
    assert {kind for kind, _ in left} <= {"CustomResourceDefinition"}
    assert left <= rendered


def objects(cluster: Cluster) -> Names:
    """Return kind and name of all objects that last, of all kinds, but those that Kubernetes and Helm make
    for others."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    lasting = ",".join(each for each in kinds if each.partition(".")[0] not in PASSING)
    shape = 'go-template={{range .items}}{{.kind}} {{.metadata.name}}{{"\\n"}}{{end}}'
    shown = cluster.kubectl("get", lasting, "--all-namespaces", "-o", shape).splitlines()
    found = {(kind, name) for kind, name in map(str.split, shown)}
    return {each for each in found if each[1] not in OF_A_NAMESPACE and not each[1].startswith(OF_HELM)}


def names(documents: Iterable[Json]) -> Names:
    return {(each["kind"], each["metadata"]["name"]) for each in documents if each}


def images(cluster: Cluster) -> set[str]:
    """Return the images that pods of ours will have."""
    shape = "jsonpath={.items[*].spec.template.spec.containers[*].image}"
    return set(cluster.kubectl("get", "deployments,daemonsets", "-n", SYSTEM, "-o", shape).split())


def test_guide_works_as_written(fresh: Cluster, helm: Helm) -> None:
    """docs/install.md: first with Helm, then with kustomize, and from that to Helm."""
    chosen = documents.run_by("tests/scenarios/kube/test_releases.py", "docs/install.md")
    assert len(chosen) >= 7
    tools = [str(Path(path).parent) for path in fresh.toolbox.get("kubectl", "helm").values()]
    env = {**helm.environment, "PATH": ":".join([*tools, os.environ["PATH"]])}
    documents.type_in(chosen, cwd=copy_of_the_tree(helm.folder), env=env)


def copy_of_the_tree(folder: Path) -> Path:
    """Return a folder with what an installation needs, which commands may write into."""
    for each in ("charts", "config", "scripts"):
        shutil.copytree(ROOT / each, folder / "tree" / each)
    return folder / "tree"


def define_foreign_kinds(cluster: Cluster) -> None:
    """Define the kinds of cert-manager and the Prometheus operator, without what makes them work."""
    for group, plural, kind in (
        ("cert-manager.io", "issuers", "Issuer"),
        ("cert-manager.io", "certificates", "Certificate"),
        ("monitoring.coreos.com", "servicemonitors", "ServiceMonitor"),
        ("monitoring.coreos.com", "prometheusrules", "PrometheusRule"),
    ):
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        spec = {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [version],
        }
        body = {"metadata": {"name": f"{plural}.{group}"}, "spec": spec}
        cluster.api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)

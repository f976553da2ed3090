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
from controlplane.api import ApiError
from controlplane.cluster import OPTIONAL, Cluster
from controlplane.toolbox import Toolbox
from scripts.chart import templates
from tests.support import documents
from tests.support.agent_fleet import REPORTS, Fleet
from tests.support.helm import CHART, SYSTEM, Helm
from tests.support.operator_process import Operator
from tests.support.paths import ROOT
from tests.support.scale import Scale
from tests.support.scheduler_stage import CLAIMS, Stage, claim, pod, until

Json = dict[str, Any]
Names = set[tuple[str, str]]

OPERATOR_ALONE: Json = {
    **{name: {"enabled": False} for name in ("scheduler", "webhook", "agent", "policies")},
    "networkPolicies": {"enabled": False},
}
EVERYTHING: Json = {
    "clusterManager": {"enabled": True, "persistence": {"enabled": False}},
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
    fresh.kubectl("delete", "crd", "--all", "--timeout=60s")
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


BEFORE = ROOT / "tests" / "data" / "definitions-before"
CONTROLLERS_ASIDE: Json = {
    **{name: {"enabled": False} for name in ("operator", "scheduler", "webhook", "policies")},
    "networkPolicies": {"enabled": False},
}
"""The controllers are processes of the test."""
WORKLOADS = "/apis/gpu.warp.dev/v1alpha1/namespaces/{}/gpuworkloads"
SCANS = "gpu_agent_scan_duration_seconds_count"
NEW = {"onUnhealthy": "Evict"}
"""What a claim could not say before."""


def test_nothing_is_lost_with_definitions_of_the_release_before(fresh: Cluster, helm: Helm) -> None:
    """Today's controllers work with them; an upgrade changes no object; after a rollback all goes on."""
    install_before(helm)
    stage = Stage(fresh, "default", helm.folder)
    (node,) = fresh.ready_nodes()
    with (
        Operator(fresh.kubeconfig, log=helm.folder / "operator.log"),
        Fleet(fresh, helm.folder, {"scan_seconds": 0.1}) as agents,
    ):
        stage.scheduler(leaderElect=False, releaseSeconds=0)
        agents.start(node, "8xH100:80GiB")
        put_to_work(stage, "before")
        stays_as_it_is(fresh, agents, node)

        made = ours(fresh)
        helm.apply("upgrade", CONTROLLERS_ASIDE)
        until(lambda: knows_the_new(fresh), "the new definitions are served")
        assert ours(fresh) == made
        put_to_work(stage, "since")
        answered(fresh, "POST", CLAIMS.format("default"), with_new("evicts"))
        assert stage.claim("evicts")["spec"]["onUnhealthy"] == "Evict"

        made = ours(fresh)
        helm.run("rollback", "gpu-scheduler", "1", "--namespace", SYSTEM)
        until(lambda: not knows_the_new(fresh), "the definitions of before are served")
        assert "onUnhealthy" not in stage.claim("evicts")["spec"], "what they do not know is not shown"
        put_to_work(stage, "again")
        helm.apply("upgrade", CONTROLLERS_ASIDE)
        until(lambda: knows_the_new(fresh), "the new definitions are served again")
        assert ours(fresh).items() >= made.items(), "nobody wrote the claim meanwhile, so it is whole again"

        stage.delete(*stage.pods(), force=True)
        fresh.kubectl("delete", "gpuworkloads,gpuclaims", "--all", "-n", "default", "--timeout=60s")
        until(stage.holds_exactly, "no device is held")
    stage.close()


def install_before(helm: Helm) -> None:
    chart = helm.folder / "before"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "crds.yaml").write_text(templates.crds(BEFORE))
    Helm(helm.toolbox, helm.folder, helm.kubeconfig, chart).apply(
        "install", CONTROLLERS_ASIDE, "--create-namespace"
    )


def put_to_work(stage: Stage, name: str) -> None:
    """Let a claim be bound and a workload succeed."""
    objects = (claim(name), pod(name, claim=name, schedulerName="gpu-scheduler"))
    for each, path in zip(objects, (CLAIMS.format(stage.namespace), stage.pods_path), strict=True):
        stage.cluster.api.request("POST", path, each)
    workload = {"modelName": "m", "gpuCount": 1, "claim": {"devices": {}}}
    path = WORKLOADS.format(stage.namespace)
    stage.cluster.api.request("POST", path, {**HEAD, "metadata": {"name": name}, "spec": workload})
    until(lambda: stage.claim(name).get("status", {}).get("phase") == "Bound", "the claim is bound")
    until(
        lambda: (
            stage.cluster.api.request("GET", f"{path}/{name}").get("status", {}).get("phase") == "Succeeded"
        ),
        "the workload succeeds",
    )


def stays_as_it_is(cluster: Cluster, agents: Fleet, node: str) -> None:
    """Check that the agent does not write its report again and again because some of it is not kept."""
    before = cluster.api.request("GET", f"{REPORTS}/{node}")
    scans = scanned(agents, node)
    until(lambda: scanned(agents, node) > scans + 5, "the agent has looked again")
    after = cluster.api.request("GET", f"{REPORTS}/{node}")
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def scanned(agents: Fleet, node: str) -> float:
    return agents.metrics[node].get_sample_value(SCANS) or 0


def ours(cluster: Cluster) -> dict[str, Json]:
    """Return what users and controllers wrote into objects of our kinds."""
    paths = (CLAIMS.format("default"), WORKLOADS.format("default"), REPORTS)
    return {
        f"{path} {each['metadata']['name']}": {
            "spec": each["spec"],
            "status": each.get("status"),
            "finalizers": each["metadata"].get("finalizers"),
        }
        for path in paths
        for each in answered(cluster, "GET", path)["items"]
    }


def answered(cluster: Cluster, method: str, path: str, body: Json | None = None) -> Json:
    """Ask until the API server answers: it has changed the definition, and its storage begins again."""

    def ask() -> Json | None:
        try:
            return cluster.api.request(method, path, body)
        except ApiError as error:
            if error.status != 429:
                raise
            return None

    return until(ask, f"{path} is answered")


HEAD = {"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload"}


def with_new(name: str) -> Json:
    made = claim(name)
    return {**made, "spec": {**made["spec"], **NEW}}


def knows_the_new(cluster: Cluster) -> bool:
    """Tell whether the API server keeps what only the definitions of today have."""
    kept = answered(cluster, "POST", f"{CLAIMS.format('default')}?dryRun=All", with_new("asks"))
    return "onUnhealthy" in kept["spec"]


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

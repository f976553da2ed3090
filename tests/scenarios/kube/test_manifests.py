"""What the manifests grant to people, and how they protect the controllers, on a real API server."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.api import ApiError
from controlplane.cluster import Cluster
from controlplane.errors import ClusterError
from gpu_orchestrator.api.admission_policies import files
from tests.support.doctor import doctor, of_walls
from tests.support.operator_process import SYSTEM, Operator, Site, eventually
from tests.support.paths import ROOT
from tests.support.scheduler_stage import EXAMPLES, REFUSE, Stage, pod, until

Json = dict[str, Any]
AGENT = "gpu-scheduler-agent"
CONTROLLERS = ("gpu-orchestrator-controller-manager", "gpu-scheduler", "gpu-scheduler-webhook")
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@pytest.fixture(scope="module")
def user(operator_cluster: Cluster) -> str:
    """A namespace `team` in which the users `viewer`, `editor` and `boss` have the roles of every cluster."""
    operator_cluster.kubectl("create", "namespace", "team")
    for name, role in (("viewer", "view"), ("editor", "edit"), ("boss", "admin")):
        grant = (f"--clusterrole={role}", f"--user={name}", "-n", "team")
        operator_cluster.kubectl("create", "rolebinding", name, *grant)
    operator_cluster.kubectl("create", "clusterrolebinding", "sees", "--clusterrole=view", "--user=watchman")
    return "team"


@pytest.mark.parametrize(
    ("who", "verb", "resource", "is_allowed"),
    [
        ("viewer", "list", "gpuworkloads.gpu.warp.dev", True),
        ("viewer", "watch", "gpuclaims.gpu.scheduling", True),
        ("viewer", "create", "gpuworkloads.gpu.warp.dev", False),
        ("viewer", "delete", "gpuclaims.gpu.scheduling", False),
        ("editor", "create", "gpuworkloads.gpu.warp.dev", True),
        ("editor", "patch", "gpuclaims.gpu.scheduling", True),
        ("editor", "delete", "gpuclaims.gpu.scheduling", True),
        ("boss", "create", "gpuworkloads.gpu.warp.dev", True),
        ("editor", "patch", "gpuclaims.gpu.scheduling/status", False),
        ("editor", "patch", "gpuworkloads.gpu.warp.dev/status", False),
        ("editor", "list", "gpunodestatuses.gpu.scheduling", False),
        ("watchman", "list", "gpunodestatuses.gpu.scheduling", True),
        ("watchman", "list", "gpuqueues.gpu.scheduling", True),
        ("editor", "patch", "gpuqueues.gpu.scheduling", False),
        ("editor", "create", "gpuqueues.gpu.scheduling", False),
        ("watchman", "patch", "gpunodestatuses.gpu.scheduling", False),
        ("stranger", "list", "gpuworkloads.gpu.warp.dev", False),
    ],
)
def test_roles_of_every_cluster_know_our_kinds(
    operator_cluster: Cluster, user: str, who: str, verb: str, resource: str, is_allowed: bool
) -> None:
    kind, _, subresource = resource.partition("/")
    name, _, group = kind.partition(".")
    asked = {"verb": verb, "resource": name, "group": group, "subresource": subresource}
    if name != "gpunodestatuses":
        asked["namespace"] = user
    spec = {"user": who, "resourceAttributes": asked}

    def answers() -> bool:  # a controller adds up the roles, a moment after they are applied
        status = operator_cluster.api.request("POST", REVIEWS, {"spec": spec})["status"]
        return bool(status["allowed"]) is is_allowed

    eventually(answers, f"{who} may {'' if is_allowed else 'not '}{verb} {resource}")


def test_second_scheduler_leads_beside_the_first(operator_cluster: Cluster, tmp_path: Path) -> None:
    """Under its own ServiceAccount, with the settings that the example gives it."""
    name = "canary-gpu-scheduler"
    operator_cluster.kubectl("apply", "-k", str(ROOT / "examples/second-scheduler"))
    operator_cluster.kubectl("delete", "deployment", name, "-n", SYSTEM, "--cascade=foreground")
    account = operator_cluster.service_account_kubeconfig(SYSTEM, name)
    with closing(Stage(operator_cluster, "default", tmp_path, scheduler_name=name)) as stage:
        stage.gpu_nodes(1, gpus=1, prefix="canary")
        stage.scheduler(kubeconfig=account, releaseSeconds=0, **REFUSE)
        stage.create(pod("canary", gpus=1))
        assert stage.wait_bound("canary") == {"canary": "canary-0:0"}
        assert "gpu-canary-0-0" in stage.leases()
        stage.delete("canary")
        until(lambda: "gpu-canary-0-0" not in stage.leases(), "the device is free")
    leaders = operator_cluster.kubectl("get", "lease", "-n", SYSTEM, "-o", "name").split()
    assert f"lease.coordination.k8s.io/{name}.gpu.scheduling" in leaders


def test_examples_are_let_in_and_filled_in(operator_cluster: Cluster, site: Site) -> None:
    """Also those that need the consent of an administrator, once they have it."""
    with pytest.raises(ClusterError, match="let an administrator label"):
        apply_example(site, "advanced-examples.yaml")
    site.allow_high_priority()
    for path in EXAMPLES.glob("*.yaml"):
        if path.name != "gpunodestatus-sample.yaml":
            apply_example(site, path.name)
    eventually(lambda: len(site.pods()) == 8, "a Deployment of six, and two pods")
    counted = [each["spec"]["containers"][0]["resources"]["requests"] for each in site.pods()]
    assert sorted(int(each["gpu.scheduling/milligpu"].replace("k", "000")) for each in counted) == [
        *[1000] * 7,  # the share of the Deployment has memory, and no node says how much a GPU has
        2000,
    ]


def test_doctor_finds_that_the_walls_stand(operator_cluster: Cluster) -> None:
    """Their bindings leave out the namespaces where tests want to be alone with the gpu-scheduler."""
    _, good, bad = doctor(operator_cluster.kubeconfig)
    count = len(files.policies())
    assert of_walls(bad) == []
    said, limited, expiry, tried = of_walls(good)
    assert said == f"policies: {count} in force, of this version"
    assert limited.startswith("policies: in force in some namespaces only: gpu-orchestrator-")
    assert expiry in [f"webhook: its certificate expires in {days}d" for days in (89, 90)]
    assert tried == "webhook: a pod that asks for a GPU is filled in (dry run)"


def apply_example(site: Site, name: str) -> None:
    site.cluster.kubectl("apply", "-n", site.namespace, "-f", str(EXAMPLES / name))


def shipped(kind: str) -> dict[str, Json]:
    """Return the objects of one kind that the folders of the processes and config/priority have."""
    found = {}
    for folder in ("manager", "scheduler", "webhook", "agent", "priority"):
        for path in (ROOT / "config" / folder).glob("*.yaml"):
            for each in yaml.safe_load_all(path.read_text()):
                if each["kind"] == kind:
                    found[each["metadata"]["name"]] = each
    return found


def test_gpu_work_does_not_preempt_and_ranks_below_the_controllers() -> None:
    classes = shipped("PriorityClass")
    assert {each["preemptionPolicy"] for each in classes.values()} == {"Never"}
    ours = classes.pop("gpu-orchestrator-controllers")["value"]
    assert max(each["value"] for each in classes.values()) < ours < 1_000_000_000


@pytest.mark.parametrize("name", CONTROLLERS)
def test_replicas_are_spread_and_not_drained_together(name: str) -> None:
    deployment, budget = shipped("Deployment")[name], shipped("PodDisruptionBudget")[name]
    template = deployment["spec"]["template"]
    assert template["spec"]["priorityClassName"] == "gpu-orchestrator-controllers"
    assert budget["spec"]["maxUnavailable"] == 1 < deployment["spec"]["replicas"]
    assert budget["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    spread = template["spec"]["topologySpreadConstraints"]
    assert {each["topologyKey"] for each in spread} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }
    for each in spread:
        assert each["labelSelector"]["matchLabels"] == template["metadata"]["labels"]
        assert each["whenUnsatisfiable"] == "ScheduleAnyway", "one node must be enough"


@pytest.mark.parametrize(("name", "is_allowed"), [*((each, True) for each in CONTROLLERS), (AGENT, False)])
def test_all_but_the_agent_would_run_in_a_restricted_namespace(
    operator_cluster: Cluster, name: str, is_allowed: bool
) -> None:
    """Ours is not, because of the agent: Pod Security knows no exception for one DaemonSet."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {"metadata": {"name": f"restricted-{name}", "labels": labels}}
    operator_cluster.api.request("POST", "/api/v1/namespaces", body)
    template = (shipped("Deployment") | shipped("DaemonSet"))[name]["spec"]["template"]
    spec = {**template["spec"], "serviceAccountName": "default", "automountServiceAccountToken": False}
    spec.pop("priorityClassName")
    made = {"metadata": {"name": "p", "labels": template["metadata"]["labels"]}, "spec": spec}
    path = f"/api/v1/namespaces/restricted-{name}/pods?dryRun=All"

    def answer() -> str:
        try:
            operator_cluster.api.request("POST", path, made)
        except ApiError as error:
            return str(error)
        return "allowed"

    until(lambda: "default" not in answer() or "not found" not in answer(), "the ServiceAccount is there")
    assert ("allowed" in answer()) if is_allowed else ("violates PodSecurity" in answer())


def test_leader_lease_of_the_operator_does_not_queue_with_tenants(
    operator_cluster: Cluster, account: Path, tmp_path: Path
) -> None:
    with Operator(account, "--leader-elect", log=tmp_path / "operator.log"):
        eventually(lambda: served(operator_cluster) > 0, "requests are served at the level of leaders")
    lease = operator_cluster.kubectl("get", "lease", "-n", SYSTEM, "-o", "name")
    assert "gpu-orchestrator.gpu.warp.dev" in lease


def served(cluster: Cluster) -> float:
    """Return how many requests the API server put through our FlowSchema to the level of leaders."""
    lines = cluster.kubectl("get", "--raw", "/metrics").splitlines()
    head = "apiserver_flowcontrol_dispatched_requests_total{"
    ours = 'flow_schema="gpu-orchestrator-leader-election",priority_level="leader-election"'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(head) and ours in line)

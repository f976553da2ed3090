"""Workers as replicas of a Deployment, on a real control plane and with the shipped rights alone."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from controlplane.audit import Entry
from controlplane.cluster import Cluster
from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.provisioners.deployment import Deployment
from gpu_orchestrator.adapters.provisioners.provisioner import CannotScale, Wish
from tests.faults.proxy import Answer, Proxy
from tests.support import rights
from tests.support.paths import ROOT
from tests.support.scheduler_stage import until

NAMESPACE = NAME = "gpu-workers"
ACCOUNT = "gpu-orchestrator-autoscaler"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
GRANTED = rights.granted("autoscaler/role.yaml")
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"


class Workers:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def pods(self) -> dict[str, Any]:
        items = self.cluster.api.request("GET", PODS)["items"]
        alive = (each for each in items if "deletionTimestamp" not in each["metadata"])
        return {each["metadata"]["name"]: each for each in alive}

    def until_pods(self, count: int) -> list[str]:
        until(lambda: len(self.pods()) == count, f"there are {count} pods")
        return sorted(self.pods())

    def replicas(self) -> int:
        return int(self.cluster.api.request("GET", f"{DEPLOYMENTS}/{NAME}")["spec"]["replicas"])

    def sent(self) -> list[Entry]:
        return [each for each in self.cluster.audit.entries(USER) if each.user == USER]


@pytest.fixture
def workers(cluster: Cluster) -> Iterator[Workers]:
    cluster.kubectl("apply", "-k", str(ROOT / "config/autoscaler"))
    labels = {"app": NAME}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "worker", "image": "worker"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": NAME}, "spec": spec}
    cluster.api.request("POST", DEPLOYMENTS, body)
    yield Workers(cluster)
    cluster.kubectl("delete", "deployment", NAME, "-n", NAMESPACE, "--cascade=foreground")


async def test_replicas_follow_and_the_drained_pod_is_the_one_that_goes(workers: Workers) -> None:
    account = workers.cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT)
    async with Client.open(config.load(str(account))) as client:
        scaled = Deployment(client, NAMESPACE, NAME)
        await scaled.scale(Wish(3))
        pods = workers.until_pods(3)
        drained = pods[1]
        online = frozenset(pods)
        await scaled.scale(Wish(2, online, (drained,)))
        left = workers.until_pods(2)
        assert left == [each for each in pods if each != drained]
        await scaled.scale(Wish(2, online, (drained,)))  # repeated until the worker is gone
        assert (workers.replicas(), workers.until_pods(2)) == (2, left)

        workers.cluster.kubectl("scale", "deployment", NAME, "-n", NAMESPACE, "--replicas=4")
        await scaled.scale(Wish(2, online - {drained}))
        assert workers.replicas() == 4, "somebody asked for them by hand"
        workers.until_pods(4)
        with pytest.raises(CannotScale, match="there is no pod other"):
            await scaled.scale(Wish(3, frozenset({"other"}), ("other",)))
        assert workers.replicas() == 4, "a pod with work could have been ended for it"

        missing = Deployment(client, NAMESPACE, f"x{uuid4().hex[:6]}")
        with pytest.raises(CannotScale, match="deployments/scale"):
            await missing.scale(Wish(1))
    refused = [each for each in workers.sent() if each.name == missing._deployment]
    used = [each for each in workers.sent() if each not in refused]
    assert rights.unused(GRANTED, used) == []
    assert rights.beyond(GRANTED, used) == []
    assert [each.name for each in used if each.verb == "patch" and each.resource == "pods"][:1] == [drained]


async def test_deployment_that_others_write_to_is_scaled_all_the_same(workers: Workers) -> None:
    account = workers.cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT)
    with Proxy(account) as proxy:
        refused = proxy.on("patch", "deployments/scale", do=Answer(409, reason="Conflict"), times=2)
        async with Client.open(config.load(str(proxy.kubeconfig))) as client:
            await Deployment(client, NAMESPACE, NAME).scale(Wish(2))
        assert refused.hits == 2
    assert workers.replicas() == 2

"""F15: a tenant without a quota creates as many pods that wait as it can. The others are served as before.

The tenant has only the right to create pods. Half of its pods ask for the same, half each for something else:
those that are alike are judged once, and of different ones `maxWaitingShapes` of a namespace are considered.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from controlplane.api import Api, Json
from tests.support.scale import Scale
from tests.support.scheduler_stage import Stage, pod, until

pytestmark = pytest.mark.open  # what keeps the tenant from others here is the scheduler alone

TENANT, TEAM = "tenant", "team"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def tenant(bare_stage: Stage) -> Iterator[Api]:
    """Yield the client of a user who may create pods in a namespace of its own, and nothing else."""
    cluster = bare_stage.cluster
    cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": TEAM}})
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]
    here = f"{RBAC}/namespaces/{TEAM}"
    cluster.api.request("POST", f"{here}/roles", {"metadata": {"name": "more"}, "rules": rules})
    who = [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": TENANT}]
    role = {"kind": "Role", "apiGroup": "rbac.authorization.k8s.io", "name": "more"}
    binding = {"metadata": {"name": "more"}, "roleRef": role, "subjects": who}
    cluster.api.request("POST", f"{here}/rolebindings", binding)
    made = Api(cluster.url, cluster.authority, cluster.authority.client(TENANT, ()))
    yield made
    made.close()


def test_pending_pods_of_one_tenant_hold_up_nobody(
    bare_stage: Stage,
    tenant: Api,
    scale: Scale,
    figure: Callable[[str], None],
) -> None:
    count, turns = scale(test=300, accept=100_000), scale(test=3, accept=30)
    bare_stage.gpu_nodes(scale(test=4, accept=50), gpus=8)
    scheduler = bare_stage.scheduler(maxWaitingShapes=scale(test=50, accept=1000), releaseSeconds=0)
    before = [bind_one(bare_stage, f"before-{number}") for number in range(turns)]
    began = time.monotonic()
    create = partial(tenant.request, "POST", f"/api/v1/namespaces/{TEAM}/pods")
    tenant.in_parallel(create, (unfit(number) for number in range(count)), threads=8)
    meanwhile = bind_one(bare_stage, "meanwhile")  # the scheduler has not yet told all of them why they wait
    took_s = time.monotonic() - began
    after = [bind_one(bare_stage, f"after-{number}") for number in range(turns)]
    figure(
        f"F15: {count:,} pending pods of one tenant within {took_s:.0f} s; a pod of another one is bound "
        f"after {meanwhile:.2f} s then, later {statistics.median(after):.3f} s "
        f"(before {statistics.median(before):.3f}), {scheduler.memory_mb:.0f} MB"
    )
    assert max(meanwhile, *after) <= scale(test=40.0, accept=5.0)
    assert scheduler.memory_mb <= 800
    assert scheduler.log.read_text().count('"leading"') == 1
    told(bare_stage, "pod-0", "0/")
    told(bare_stage, f"pod-{count - 1}", "maxWaitingShapes")


def unfit(number: int) -> Json:
    """Return a pod for which no node is large enough; every second one asks for a number of its own."""
    memory = f"{number}Mi" if number % 2 else "1Mi"
    made = pod(f"pod-{number}", gpus=8, resources={"requests": {"cpu": "997", "memory": memory}})
    made["spec"]["schedulerName"] = "gpu-scheduler"
    return made


def bind_one(stage: Stage, name: str) -> float:
    """Create a pod that fits; return how long it waited for its node, and delete it."""
    began = time.monotonic()
    stage.create(pod(name, gpus=1))
    until(lambda: stage.pod(name)["spec"].get("nodeName"), f"{name} is bound")
    took_s = time.monotonic() - began
    stage.delete(name, force=True)
    return took_s


def told(stage: Stage, name: str, words: str) -> None:
    """Wait until the condition of the tenant's pod says why it waits."""
    path = f"/api/v1/namespaces/{TEAM}/pods/{name}"

    def said() -> bool:
        conditions = stage.cluster.api.request("GET", path)["status"].get("conditions", [])
        return any(words in each.get("message", "") for each in conditions)

    until(said, f"{name} is told: {words}", 600)

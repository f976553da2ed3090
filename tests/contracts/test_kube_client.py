"""The client against a real API server: every verb, and the type of every error."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from controlplane.cluster import Cluster
from gpu_orchestrator.adapters.kube import errors, pods, reviews
from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder, Reference
from gpu_orchestrator.adapters.kube.reviews import Access, UserInfo
from gpu_orchestrator.api.kubernetes import PODS, Pod
from gpu_orchestrator.api.wire import Json, ObjectMeta, Resource
from tests.support.kube_objects import CONFIG_MAPS, MISSING, ConfigMap
from tests.support.scale import Scale

BUDGETS = Resource(ConfigMap, "PodDisruptionBudget", "poddisruptionbudgets", "policy")
CONTAINERS = [{"name": "main", "image": "none"}]


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client.open(config.load(cluster.kubeconfig)) as opened:
        yield opened


def named(name: str, namespace: str, **data: str) -> ConfigMap:
    return ConfigMap(ObjectMeta(name=name, namespace=namespace), data)


async def test_create_get_delete(client: Client, namespace: str) -> None:
    made = await client.create(CONFIG_MAPS, named("x", namespace, a="1"))
    assert made == await client.get(CONFIG_MAPS, "x", namespace)
    with pytest.raises(errors.AlreadyExists):
        await client.create(CONFIG_MAPS, named("x", namespace))
    with pytest.raises(errors.Conflict):
        await client.delete(CONFIG_MAPS, "x", namespace, uid="00000000-0000-0000-0000-000000000000")
    await client.delete(CONFIG_MAPS, "x", namespace, uid=made.metadata.uid)
    with pytest.raises(errors.NotFound):
        await client.get(CONFIG_MAPS, "x", namespace)


async def test_merge_patch(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, named("x", namespace, a="1", b="1"))
    merged = await client.patch(CONFIG_MAPS, "x", {"data": {"a": "2", "b": None}}, namespace)
    assert merged.data == {"a": "2"}
    with pytest.raises(errors.Conflict):
        await client.patch(CONFIG_MAPS, "x", {"metadata": {"resourceVersion": "1"}}, namespace)


async def test_ten_concurrent_patches_all_succeed(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, named("x", namespace))
    patches = (client.patch(CONFIG_MAPS, "x", {"data": {f"k{n}": "1"}}, namespace) for n in range(10))
    await asyncio.gather(*patches)
    assert len((await client.get(CONFIG_MAPS, "x", namespace)).data) == 10


async def test_list_by_pages_and_selectors(client: Client, namespace: str, scale: Scale) -> None:
    count = scale(test=60, accept=1200)
    for number in range(count):
        meta = {"name": f"x{number}", "labels": {"odd": str(number % 2)}}
        await client.create(CONFIG_MAPS, {"metadata": meta}, namespace)
    pages = [page async for page in client.pages(CONFIG_MAPS, namespace, labels="odd=1", size=7)]
    names = {obj.metadata.name for page in pages for obj in page.items or ()}
    assert names == {f"x{number}" for number in range(1, count, 2)}
    assert {len(page.items or ()) for page in pages[:-1]} == {7}
    one = await client.list(CONFIG_MAPS, namespace, fields="metadata.name=x7")
    assert [obj.metadata.name for obj in one.items] == ["x7"]


async def make_pod(client: Client, namespace: str, name: str, **labels: str) -> Pod:
    await ready_account(client, namespace)
    meta = {"name": name, "labels": labels}
    # No scheduler has this name, so only the test binds the pod.
    spec = {"schedulerName": "nobody", "containers": CONTAINERS}
    return await client.create(PODS, {"metadata": meta, "spec": spec}, namespace)


async def ready_account(client: Client, namespace: str) -> None:
    """Wait for the namespace's default ServiceAccount; until then the server refuses pods."""
    accounts = Resource(ConfigMap, "ServiceAccount", "serviceaccounts")
    async with asyncio.timeout(20):
        while not (await client.list(accounts, namespace, fields="metadata.name=default")).items:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_binding_writes_node_and_annotations_in_one_request(client: Client, namespace: str) -> None:
    pod = await make_pod(client, namespace, "p")
    stale = Pod(ObjectMeta(name="p", namespace=namespace, uid="00000000-0000-0000-0000-000000000000"))
    with pytest.raises(errors.Conflict):
        await pods.bind(client, stale, "node-a")
    await client.patch(PODS, "p", {"metadata": {"labels": {"changed": "yes"}}}, namespace)
    with pytest.raises(errors.Conflict):
        await pods.bind(client, pod, "node-a", at_version=True)
    await pods.bind(
        client, pod, "node-a", annotations={"gpu.scheduling/allocated": "0,1"}, labels={"ours": "yes"}
    )
    bound = await client.get(PODS, "p", namespace)
    assert bound.spec.node_name == "node-a"
    assert bound.metadata.annotations["gpu.scheduling/allocated"] == "0,1"
    assert bound.metadata.labels == {"changed": "yes", "ours": "yes"}
    with pytest.raises(errors.Conflict):
        await pods.bind(client, pod, "node-b")


async def test_eviction_respects_the_disruption_budget(client: Client, namespace: str) -> None:
    pod = await make_pod(client, namespace, "p", app="a")
    await pods.bind(client, pod, "no-such-node")
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(PODS, "p", {"status": ready}, namespace, subresource="status")
    budget: Json = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    await client.create(BUDGETS, {"metadata": {"name": "b"}, "spec": budget}, namespace)
    async with asyncio.timeout(20):
        while True:
            try:
                await pods.evict(client, pod, dry_run=True)
            except errors.BlockedByBudget:
                break
            await asyncio.sleep(0.1)
    await client.delete(BUDGETS, "b", namespace)
    await pods.evict(client, pod, grace_s=0)
    with pytest.raises(errors.NotFound):
        await client.get(PODS, "p", namespace)


async def test_reviews(client: Client, cluster: Cluster, namespace: str) -> None:
    assert await reviews.may_i(client, Access("delete", "pods/eviction", namespace=namespace))
    assert not await reviews.may(client, UserInfo("bob"), Access("get", "secrets", namespace=namespace))
    assert await reviews.may(client, UserInfo("bob", groups=("system:masters",)), Access("get", "secrets"))
    cluster.kubectl("create", "serviceaccount", "someone", "-n", namespace)
    someone = config.load(cluster.service_account_kubeconfig(namespace, "someone"))
    found = await reviews.review_token(client, (await someone.credentials.current()).token)
    assert found is not None
    assert found.username == f"system:serviceaccount:{namespace}:someone"
    assert await reviews.review_token(client, "rubbish") is None
    assert (await reviews.version(client)).startswith("v1.")
    assert "leases" in await reviews.served(client, "coordination.k8s.io", "v1")
    assert await reviews.served(client, "no.such.group", "v1") == frozenset()


async def test_refusals_raise_typed_errors(client: Client, cluster: Cluster, namespace: str) -> None:
    with pytest.raises(errors.NotServed, match=r"does not serve missings\.no\.such\.group"):
        await client.get(MISSING, "x", namespace)
    with pytest.raises(errors.NotFound, match="namespaces"):
        await client.create(CONFIG_MAPS, named("x", "no-such-namespace"))
    with pytest.raises(errors.Invalid, match=r"metadata\.name"):
        await client.create(CONFIG_MAPS, named("X_x", namespace))
    with pytest.raises(errors.BadRequest):
        await client.list(CONFIG_MAPS, namespace, labels="!!")
    async with Client.open(config.load(cluster.kubeconfig_for("bob"))) as bob:
        with pytest.raises(errors.Forbidden, match="grant verb 'get' on 'configmaps'"):
            await bob.get(CONFIG_MAPS, "x", namespace)


async def test_events_are_shown_on_the_object_and_repeats_are_counted(
    client: Client, cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_orchestrator.adapters.kube.events.SERIES_EVERY_S", 0.2)
    made = await client.create(CONFIG_MAPS, named("x", namespace))
    what = Reference("ConfigMap", "x", namespace, made.metadata.uid)
    recorder = Recorder(client, "tester")
    task = asyncio.create_task(recorder.run())
    recorder.warning(what, "TooSmall", "it does not fit")
    assert await recorder.drain()
    for _ in range(41):
        recorder.warning(what, "TooSmall", "it does not fit")
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    async with asyncio.timeout(60):
        while not (found := await counted(cluster, path, 42)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    task.cancel()
    assert [event["note"] for event in found] == ["it does not fit"]
    assert "it does not fit" in cluster.kubectl("describe", "configmap", "x", "-n", namespace)


async def counted(cluster: Cluster, path: str, count: int) -> list[Json]:
    items: list[Json] = (await asyncio.to_thread(cluster.api.request, "GET", path))["items"]
    ours = [item for item in items if item["reportingController"] == "tester"]
    return ours if any(item.get("series", {}).get("count") == count for item in ours) else []

"""The proxy in front of the real API server, with kubectl and a bare client as the components."""

import asyncio
import json
import signal
import subprocess
from typing import Literal

import aiohttp
import pytest

from controlplane.cluster import Cluster
from tests.faults.component import component
from tests.faults.proxy import Answer, Call, Cut, CutWatch, DropAnswer, DropEvents, Fault, Proxy

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}


def maps(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps" + (f"/{name}" if name else "")


def test_kubectl_works_through_the_proxy(cluster: Cluster, namespace: str) -> None:
    with Proxy(cluster.kubeconfig) as proxy:
        create = cluster.kubectl("create", "configmap", "x", "-n", namespace, kubeconfig=proxy.kubeconfig)
        cluster.kubectl("get", "configmap/x", "-n", namespace, kubeconfig=proxy.kubeconfig)
        assert ("get", "configmaps", "x", 200) in proxy.requests
    assert "created" in create


def test_token_keeps_its_identity(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "serviceaccount", "someone", "-n", namespace)
    kubeconfig = cluster.service_account_kubeconfig(namespace, "someone")
    with Proxy(kubeconfig) as proxy:
        path = "jsonpath={.status.userInfo.username}"
        username = cluster.kubectl("auth", "whoami", "-o", path, kubeconfig=proxy.kubeconfig)
    assert username == f"system:serviceaccount:{namespace}:someone"


@pytest.mark.parametrize(
    ("at", "then", "written"),
    [
        pytest.param("request", Cut(), False, id="not forwarded"),
        pytest.param("answer", DropAnswer(), True, id="applied, answer lost"),
    ],
)
def test_component_is_killed_at_its_write(
    cluster: Cluster, namespace: str, at: Literal["request", "answer"], then: Fault, written: bool
) -> None:
    running: list[subprocess.Popen[bytes]] = []
    with Proxy(cluster.kubeconfig) as proxy:
        trigger = proxy.on("create", "configmaps", do=Call(lambda _: running[0].kill(), at=at, then=then))
        command = [str(cluster.tools["kubectl"]), "--kubeconfig", str(proxy.kubeconfig)]
        running.append(subprocess.Popen([*command, "create", "configmap", "x", "-n", namespace]))
        trigger.wait(20)
        assert running[0].wait(20) == -signal.SIGKILL
    made = cluster.kubectl("get", "configmap", "-n", namespace, "-o", "name").split()
    assert ("configmap/x" in made) is written


async def test_dropped_answer_leaves_the_object_created(cluster: Cluster, namespace: str) -> None:
    with Proxy(cluster.kubeconfig) as proxy:
        proxy.on("create", "configmaps", name="x", do=DropAnswer())
        async with component(proxy.kubeconfig) as client:
            with pytest.raises(aiohttp.ClientError):
                await client.post(maps(namespace), json=CONFIG_MAP)
            async with client.get(maps(namespace, "x")) as answer:
                assert answer.status == 200


async def test_answer_fault_has_the_servers_format(cluster: Cluster, namespace: str) -> None:
    """A refusal from the proxy has every key of the real server's."""
    with Proxy(cluster.kubeconfig) as proxy:
        async with component(proxy.kubeconfig) as client:
            await client.post(maps(namespace), json=CONFIG_MAP)
            async with client.post(maps(namespace), json=CONFIG_MAP) as answer:
                real = await answer.json()
            proxy.on("create", "configmaps", do=Answer(409, reason="AlreadyExists"))
            async with client.post(maps(namespace), json=CONFIG_MAP) as answer:
                ours = await answer.json()
    assert {**real, "message": "", "details": {}} == {**ours, "message": "", "details": {}}


async def test_callback_runs_between_the_write_and_its_answer(cluster: Cluster, namespace: str) -> None:
    seen: list[str] = []

    def look(_: object) -> None:
        seen.append(cluster.api.request("GET", maps(namespace, "x"))["metadata"]["name"])

    with Proxy(cluster.kubeconfig) as proxy:
        proxy.on("create", "configmaps", name="x", do=Call(look, at="answer"))
        async with (
            component(proxy.kubeconfig) as client,
            client.post(maps(namespace), json=CONFIG_MAP) as answer,
        ):
            assert answer.status == 201
    assert seen == ["x"]


def create_delete_create(cluster: Cluster, namespace: str) -> None:
    cluster.api.request("POST", maps(namespace), CONFIG_MAP)
    cluster.api.request("DELETE", maps(namespace, "x"))
    cluster.api.request("POST", maps(namespace), CONFIG_MAP)


async def test_watch_loses_deletions_and_is_cut(cluster: Cluster, namespace: str) -> None:
    with Proxy(cluster.kubeconfig) as proxy:
        dropped = proxy.on("watch", "configmaps", do=DropEvents(lambda event: event["type"] == "DELETED"))
        proxy.on("watch", "configmaps", nth=2, do=CutWatch())
        async with component(proxy.kubeconfig) as client:
            watch = f"{maps(namespace)}?watch=true&fieldSelector=metadata.name=x"
            async with client.get(watch) as stream:
                await asyncio.to_thread(create_delete_create, cluster, namespace)
                kinds = [json.loads(await stream.content.readuntil(b"\n"))["type"] for _ in range(2)]
                assert kinds == ["ADDED", "ADDED"]
            async with client.get(watch) as stream:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await stream.read()
    assert dropped.hits == 1

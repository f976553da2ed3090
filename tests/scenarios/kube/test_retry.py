"""Retries against a real server: throttling, lost answers, rotated tokens."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from controlplane.cluster import Cluster
from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.api.wire import ObjectMeta
from tests.faults.proxy import Answer, Cut, DropAnswer, Proxy
from tests.support.kube_objects import CONFIG_MAPS, ConfigMap
from tests.support.scale import Scale


def named(name: str, namespace: str) -> ConfigMap:
    return ConfigMap(ObjectMeta(name=name, namespace=namespace))


async def test_many_429s_are_retried_until_success(cluster: Cluster, namespace: str, scale: Scale) -> None:
    """Send every kind of write, many at once; each takes effect exactly once."""
    count = scale(test=20, accept=200)
    with Proxy(cluster.kubeconfig) as proxy:
        storm = proxy.on("*", "configmaps", times=3 * count, do=Answer(429, retry_after=1))
        async with Client.open(config.load(proxy.kubeconfig)) as client:
            names = [f"x{number}" for number in range(count)]
            await asyncio.gather(*(client.create(CONFIG_MAPS, named(name, namespace)) for name in names))
            patch = {"data": {"a": "1"}}
            await asyncio.gather(*(client.patch(CONFIG_MAPS, name, patch, namespace) for name in names))
            listing = await client.list(CONFIG_MAPS, namespace, fields="metadata.name!=kube-root-ca.crt")
    assert storm.hits == 3 * count
    assert [obj.data for obj in listing.items] == [{"a": "1"}] * count


@pytest.mark.parametrize("fault", [DropAnswer(), Cut(), Answer(500), Answer(503), Answer(504)])
async def test_idempotent_requests_succeed_after_faults(
    cluster: Cluster, namespace: str, fault: DropAnswer | Cut | Answer
) -> None:
    with Proxy(cluster.kubeconfig) as proxy:
        async with Client.open(config.load(proxy.kubeconfig)) as client:
            await client.create(CONFIG_MAPS, named("x", namespace))
            for verb in ("get", "patch", "delete"):
                proxy.on(verb, "configmaps", do=fault)
            await client.get(CONFIG_MAPS, "x", namespace)
            patched = await client.patch(CONFIG_MAPS, "x", {"data": {"a": "1"}}, namespace)
            assert patched.data == {"a": "1"}
            await client.delete(CONFIG_MAPS, "x", namespace)
            with pytest.raises(errors.NotFound):
                await client.get(CONFIG_MAPS, "x", namespace)


async def test_create_is_retried_only_if_idempotent(cluster: Cluster, namespace: str) -> None:
    with Proxy(cluster.kubeconfig) as proxy:
        lost = proxy.on("create", "configmaps", times=2, do=DropAnswer())
        async with Client.open(config.load(proxy.kubeconfig)) as client:
            with pytest.raises(errors.LostAnswer):
                await client.create(CONFIG_MAPS, named("x", namespace))
            assert lost.hits == 1
            with pytest.raises(errors.AlreadyExists):
                await client.create(CONFIG_MAPS, named("y", namespace), idempotent=True)
            assert lost.hits == 2
            assert {"x", "y"} <= {
                obj.metadata.name for obj in (await client.list(CONFIG_MAPS, namespace)).items
            }


async def test_rotated_token_is_used_after_401(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """The old token stops working (its ServiceAccount is created again) and a new one appears in the file."""
    bind = ["create", "rolebinding", "edit", "--clusterrole=edit", f"--serviceaccount={namespace}:robot"]
    cluster.kubectl("create", "serviceaccount", "robot", "-n", namespace)
    cluster.kubectl(*bind, "-n", namespace)
    token = tmp_path / "token"
    kubeconfig = with_token_file(cluster, namespace, token)
    async with Client.open(config.load(kubeconfig)) as client:
        await granted(client, namespace)
        await client.create(CONFIG_MAPS, named("x", namespace))
        cluster.kubectl("delete", "serviceaccount", "robot", "-n", namespace)
        cluster.kubectl("create", "serviceaccount", "robot", "-n", namespace)
        await refused(client, namespace)
        token.write_text(fresh_token(cluster, namespace))
        await client.create(CONFIG_MAPS, named("y", namespace))


def fresh_token(cluster: Cluster, namespace: str) -> str:
    tree = yaml.safe_load(cluster.service_account_kubeconfig(namespace, "robot").read_text())
    token: str = tree["users"][0]["user"]["token"]
    return token


def with_token_file(cluster: Cluster, namespace: str, token: Path) -> Path:
    tree = yaml.safe_load(cluster.service_account_kubeconfig(namespace, "robot").read_text())
    token.write_text(tree["users"][0]["user"].pop("token"))
    tree["users"][0]["user"]["tokenFile"] = token.name
    path = token.with_name("kubeconfig")
    path.write_text(yaml.safe_dump(tree))
    return path


async def granted(client: Client, namespace: str) -> None:
    """Wait until the server applies the new binding, which it learns through a watch."""
    async with asyncio.timeout(30):
        while True:
            with suppress(errors.Forbidden):
                await client.list(CONFIG_MAPS, namespace)
                return
            await asyncio.sleep(0.05)


async def refused(client: Client, namespace: str) -> None:
    """Wait until the server refuses the old token; it caches valid ones for some seconds."""
    async with asyncio.timeout(30):
        while True:
            try:
                await client.get(CONFIG_MAPS, "x", namespace)
            except errors.Unauthorized:
                return
            await asyncio.sleep(0.2)

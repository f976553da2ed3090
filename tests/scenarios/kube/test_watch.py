"""The watch against a real server, with cuts, hangs, restarts and compaction.

After each, the watch's store and a copy built from the handler's calls alone equal a fresh list.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from controlplane.cluster import Cluster
from controlplane.process import Process
from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.api.wire import ObjectMeta
from tests.conftest import NewCluster
from tests.faults.proxy import Answer, Cut, CutWatch, DropEvents, Fault, Gone, HoldWatch, Proxy, RepeatEvents
from tests.support.kube_objects import CONFIG_MAPS, ConfigMap
from tests.support.scale import Scale
from tests.support.watch_follower import following


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client.open(config.load(cluster.kubeconfig)) as opened:
        yield opened


def named(name: str, namespace: str, **data: str) -> ConfigMap:
    return ConfigMap(ObjectMeta(name=name, namespace=namespace), data)


async def make(client: Client, namespace: str, *names: str) -> None:
    await asyncio.gather(*(client.create(CONFIG_MAPS, named(name, namespace)) for name in names))


async def test_cut_streams_lose_no_event(cluster: Cluster, client: Client, namespace: str) -> None:
    with Proxy(cluster.kubeconfig) as proxy:
        # The first stream breaks while it lists, the second while it watches, the third between two events.
        first = proxy.on("watch", "configmaps", do=CutWatch(after_events=2))
        second = proxy.on("watch", "configmaps", nth=2, do=CutWatch(after_events=20))
        third = proxy.on("watch", "configmaps", nth=3, do=CutWatch(after_events=3, mid_frame=False))
        await make(client, namespace, *(f"a{number}" for number in range(10)))
        async with following(proxy.kubeconfig, namespace) as follower:
            await make(client, namespace, *(f"b{number}" for number in range(20)))
            await second.wait_for_hit()
            await make(client, namespace, "c0", "c1", "c2", "c3", "c4")
            await third.wait_for_hit()
            await client.delete(CONFIG_MAPS, "a0", namespace)
            await follower.agrees_with(client, namespace)
    assert first.hits == second.hits == third.hits == 1
    assert follower.watch.counts.lists == 1


async def test_silent_connection_is_replaced(
    cluster: Cluster, client: Client, namespace: str, scale: Scale
) -> None:
    """Within a minute in full scale; the small scale has shorter streams."""
    times = scale(test={"turn_s": (2.0, 3.0), "grace_s": 6.0}, accept={})
    with Proxy(cluster.kubeconfig) as proxy:
        async with following(proxy.kubeconfig, namespace, **times) as follower:
            held = proxy.on("watch", "configmaps", do=HoldWatch())
            proxy.cut_watches()
            await held.wait_for_hit()
            await make(client, namespace, "unseen")
            await follower.agrees_with(client, namespace, within_s=60)
    assert follower.watch.counts.hangs == 1
    assert follower.watch.counts.lists == 1


async def test_watch_without_events_resumes_without_a_list(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with following(cluster.kubeconfig, namespace, turn_s=(1.0, 1.0)) as follower:
        while follower.watch.counts.streams < 4:  # noqa: ASYNC110  # no event to wait for
            await asyncio.sleep(0.1)
        await make(client, namespace, "x")
        await follower.agrees_with(client, namespace)
    assert follower.watch.counts.lists == 1
    assert follower.watch.counts.hangs == follower.watch.counts.failures == 0


async def test_gone_repeated_events_and_refusals_lose_nothing(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    with Proxy(cluster.kubeconfig) as proxy:
        await make(client, namespace, "a", "b")
        async with following(proxy.kubeconfig, namespace) as follower:
            faults: tuple[Fault, ...] = (
                Gone(),
                RepeatEvents(),
                Answer(503),
                Answer(429, retry_after=1),
                Gone(as_event=True),
            )
            for number, fault in enumerate(faults):
                trigger = proxy.on("watch", "configmaps", do=fault)
                proxy.cut_watches()
                await make(client, namespace, f"x{number}")
                await client.delete(CONFIG_MAPS, "a", namespace)
                await make(client, namespace, "a")  # another object of the same name
                await trigger.wait_for_hit()
                await follower.agrees_with(client, namespace)
                proxy.heal()
    assert follower.watch.counts.lists == 3
    assert len(follower.deleted_uids) == len(faults)


async def test_next_list_repairs_lost_events(cluster: Cluster, client: Client, namespace: str) -> None:
    """Lose a DELETED, both events of a short-lived object, and those of an object that was created again."""
    with Proxy(cluster.kubeconfig) as proxy:
        await make(client, namespace, "gone", "again")
        async with following(proxy.kubeconfig, namespace) as follower:
            lost = proxy.on("watch", "configmaps", do=DropEvents(is_lost))
            proxy.cut_watches()
            await make(client, namespace, "brief")
            for name in ("gone", "brief", "again"):
                await client.delete(CONFIG_MAPS, name, namespace)
            await make(client, namespace, "again")
            await make(client, namespace, "seen")
            await follower.knows(f"{namespace}/seen")
            assert lost.hits == 5
            assert f"{namespace}/gone" in follower.known  # wrong until the next list
            assert f"{namespace}/brief" not in follower.known

            trigger = proxy.on("watch", "configmaps", do=Gone())
            proxy.cut_watches()
            await trigger.wait_for_hit()
            await follower.agrees_with(client, namespace)
    assert set(follower.known) == {f"{namespace}/again", f"{namespace}/seen"}
    assert len(follower.deleted_uids) == 2
    assert follower.watch.counts.lists == 2


def is_lost(event: dict[str, Any]) -> bool:
    return event["object"]["metadata"].get("name") in ("gone", "brief", "again")


async def test_server_without_streamed_lists_is_listed_by_pages(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    with Proxy(cluster.kubeconfig) as proxy:
        proxy.on(
            "watch", "configmaps", do=Answer(422, reason="Invalid", message="sendInitialEvents is forbidden")
        )
        await make(client, namespace, "a", "b")
        async with following(proxy.kubeconfig, namespace) as follower:
            await make(client, namespace, "c")
            await follower.agrees_with(client, namespace)
        verbs = [sent.verb for sent in proxy.requests if sent.resource == "configmaps"]
    assert verbs[:3] == ["watch", "list", "watch"]


async def test_server_applies_selectors(cluster: Cluster, client: Client, namespace: str) -> None:
    async with following(cluster.kubeconfig, namespace, labels="ours=yes") as follower:
        await make(client, namespace, "other")
        await client.create(CONFIG_MAPS, {"metadata": {"name": "x", "labels": {"ours": "yes"}}}, namespace)
        await client.patch(CONFIG_MAPS, "x", {"metadata": {"labels": {"ours": "no"}}}, namespace)
        async with asyncio.timeout(30):
            while len(follower.deleted_uids) < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert follower.known == {}
    assert follower.watch.counts.events == 2


def restart(server: Process, scale: Scale) -> None:
    """Restart the server. The small scale kills it, because a clean stop takes ten seconds."""
    scale(test=server.kill, accept=server.stop)()
    server.start()


async def test_restart_and_compaction_lose_no_deletion(new_cluster: NewCluster, scale: Scale) -> None:
    """The watch reports deletions during the restart, even when the history is compacted."""
    cluster = new_cluster()
    server = cluster.parts["kube-apiserver"]
    async with Client.open(config.load(cluster.kubeconfig)) as client:
        await make(client, "default", *(f"x{number}" for number in range(20)))
        with Proxy(cluster.kubeconfig) as proxy:
            async with following(proxy.kubeconfig, "default") as follower:
                await asyncio.to_thread(restart, server, scale)
                await client.delete(CONFIG_MAPS, "x0", "default")
                await follower.agrees_with(client, "default")

                cut_off = proxy.on("watch", "configmaps", times=None, do=Cut())
                proxy.cut_watches()
                await cut_off.wait_for_hit()
                await client.delete(CONFIG_MAPS, "x1", "default")
                await make(client, "default", "y")
                await asyncio.to_thread(cluster.compact)
                await asyncio.to_thread(restart, server, scale)
                lists = follower.watch.counts.lists
                proxy.heal()
                await follower.agrees_with(client, "default")
                assert follower.watch.counts.lists > lists
    assert {"default/x0", "default/x1"}.isdisjoint(follower.known)


async def test_churn_with_all_faults_loses_no_change(new_cluster: NewCluster, scale: Scale) -> None:
    """Make thousands of changes during cuts, hangs, 410, restart and compaction."""
    cluster = new_cluster()
    count = scale(test=300, accept=2000)
    with Proxy(cluster.kubeconfig) as proxy:
        options = {"turn_s": (2.0, 4.0), "grace_s": 1.0}
        async with (
            Client.open(config.load(cluster.kubeconfig)) as client,
            following(proxy.kubeconfig, "default", **options) as follower,
        ):
            made = asyncio.Event()
            churn = asyncio.create_task(churn_all(client, count, over := asyncio.Event(), made))
            await made.wait()
            rng = random.Random(7)
            for step in range(scale(test=4, accept=20)):
                after = rng.randrange(1, 9)
                faults = (CutWatch(after), HoldWatch(after), Gone(), Gone(as_event=True, after_events=after))
                trigger = proxy.on("watch", "configmaps", do=faults[step % 4])
                proxy.cut_watches()
                await trigger.wait_for_hit()
            await asyncio.to_thread(cluster.compact)
            await asyncio.to_thread(restart, cluster.parts["kube-apiserver"], scale)
            over.set()
            changes = await churn
            await follower.agrees_with(client, "default", within_s=60)
    assert changes >= 2 * count
    assert len(follower.known) > count // 4
    assert len(follower.deleted_uids) > 0


async def churn_all(client: Client, count: int, over: asyncio.Event, made: asyncio.Event) -> int:
    """Create all objects, set `made`, then patch, delete or create them at random until `over`."""
    names = [f"x{number}" for number in range(count)]
    await asyncio.gather(*(lane(client, names[start::8]) for start in range(8)))
    made.set()
    lanes = (churn_some(client, names[start::8], random.Random(start), over) for start in range(8))
    return count + sum(await asyncio.gather(*lanes))


async def lane(client: Client, names: list[str]) -> None:
    for name in names:
        await try_until_done(client.create, CONFIG_MAPS, named(name, "default"))


async def churn_some(client: Client, names: list[str], rng: random.Random, over: asyncio.Event) -> int:
    changes = 0
    while not over.is_set() or changes < len(names):
        name, changes = rng.choice(names), changes + 1
        match rng.randrange(3):
            case 0:
                await try_until_done(client.delete, CONFIG_MAPS, name, "default")
            case 1:
                body = {"data": {"n": str(rng.random())}}
                await try_until_done(client.patch, CONFIG_MAPS, name, body, "default")
            case 2:
                await try_until_done(client.create, CONFIG_MAPS, named(name, "default"))
    return changes


async def try_until_done(action: object, *words: object) -> None:
    """Retry while the server is away. Accept that the object exists already or is missing."""
    while True:
        with suppress(errors.LostAnswer, errors.Unavailable):
            with suppress(errors.NotFound, errors.AlreadyExists):
                await action(*words)  # type: ignore[operator]
            return
        await asyncio.sleep(0.1)

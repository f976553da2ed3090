"""DURABILITY=strict over HTTP: changes are acknowledged when they are durable, many at once, and refused with
the reason while they cannot be."""

import asyncio
import signal
from pathlib import Path

import msgspec
import pytest

from gpu_orchestrator.adapters.store.valkey import durability
from gpu_orchestrator.api import session
from tests.apps.manager.conftest import NewSite
from tests.support import stores
from tests.support.fleet import eventually
from tests.support.replicated import Replicated

pytestmark = pytest.mark.real
CALLS = 50
TASK = {"task_type": "echo", "resources": {"gpus": 0}}


async def test_many_callers_share_the_disk_of_a_strict_store(new_site: NewSite, tmp_path: Path) -> None:
    """One wait for each change would keep the store's only connection busy for a minute."""
    async with stores.external(tmp_path, appendonly="yes", appendfsync="everysec") as url:
        site = await new_site(redis_url=url, durability="strict")
        worker = await site.join(max_concurrent=CALLS)

        async def answer_all() -> None:
            for _ in range(CALLS):
                assign = await worker.receive(session.Assign)
                await worker.send(session.Done(assign.task, assign.attempt, result=msgspec.Raw(b"1")))

        answering = asyncio.create_task(answer_all())
        answers = await asyncio.gather(*(site.call("POST", "/tasks?wait=60", TASK) for _ in range(CALLS)))
        await answering
        assert {(status, shown["status"]) for status, shown in answers} == {(200, "completed")}
        metrics = site.running.manager.metrics.registry
        assert metrics.get_sample_value("leader_terms_total") == 1, "the leader was never in doubt"


async def test_changes_are_refused_while_the_replica_is_away(
    new_site: NewSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "WAIT_S", 2.0)
    pair = Replicated(tmp_path / "stores", nodes=2, sentinels=0, fsync="always")
    try:
        await pair.start()
        primary, replica = pair.nodes
        site = await new_site(redis_url=primary.url, durability="strict", durability_replicas=1)

        async def submits() -> bool:
            return bool((await site.call("POST", "/tasks", TASK))[0] == 202)

        await eventually(submits, 30)
        replica.send(signal.SIGSTOP)
        status, refused = await site.call("POST", "/tasks", TASK)
        assert (status, refused["error"]["code"]) == (503, "unavailable")
        assert "0 of 1 replicas have it on disk" in refused["error"]["message"]
        status, health = await site.call("GET", "/health/ready")
        assert status == 503
        assert "0 of 1 replicas" in health["dependencies"]["store"]
        assert (await site.call("GET", "/tasks"))[0] == 200
        before = await primary.command("DBSIZE")
        assert (await site.call("POST", "/tasks", TASK))[0] == 503
        assert await primary.command("DBSIZE") == before, "refused before it took effect"
        replica.send(signal.SIGCONT)
        await eventually(submits, 30)
        metrics = site.running.manager.metrics.registry
        assert metrics.get_sample_value("leader_terms_total") == 1, "the leader was never in doubt"
    finally:
        pair.close()

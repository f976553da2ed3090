"""A replicated store whose primary is killed under load: with DURABILITY=strict nothing that was acknowledged
is lost; without it, what is lost is counted."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from tests.support import documents
from tests.support.failover_nemesis import FailoverNemesis, shown
from tests.support.fleet import Fleet, fleet
from tests.support.replicated import replicated
from tests.support.scale import Scale

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
Figure = Callable[[str], None]
LEASE = "20"
"""Seconds; longer than a failover, so that workers keep what they run."""


async def ends(manager: Fleet, faults: FailoverNemesis) -> list[str]:
    """Check that each acknowledged task that is there completed with its own result, and was committed once;
    return those that are not there."""
    lost, completed = [], 0
    found = await asyncio.gather(*(shown(manager, task) for task in faults.acknowledged))
    for (task, number), end in zip(faults.acknowledged.items(), found, strict=True):
        if end is None:
            lost.append(task)
            continue
        assert end["status"] == "completed", end
        assert end["result"] == {"number": number}
        completed += 1
    _, status = await manager.call("GET", "/cluster/status")
    assert status["committed"] == status["tasks"]["completed"] >= completed
    return lost


@asynccontextmanager
async def carried_by(executor: str, folder: Path) -> AsyncIterator[dict[str, str]]:
    """Yield the settings of an executor. Celery gets a broker of its own, which does not fail over."""
    if executor == "native":
        yield {}
        return
    async with embedded(folder) as broker:
        yield {"EXECUTOR": executor, "CELERY_BROKER_URL": f"redis+socket://{broker.socket}"}


async def test_nothing_acknowledged_is_lost_with_strict(
    tmp_path: Path, scale: Scale, figure: Figure, executor: str
) -> None:
    """Also when the replica was cut off as the primary died: then the writes before are refused, not lost."""
    kills = scale(test=1, accept=20)
    async with (
        carried_by(executor, tmp_path / "broker") as carried,
        replicated(tmp_path / "stores", sentinels=3) as stores,
    ):
        settings = {"DURABILITY": "strict", "DURABILITY_REPLICAS": "1", "WORKER_LEASE": LEASE, **carried}
        async with fleet(tmp_path / "manager", REDIS_URL=stores.url, **settings) as manager:
            await manager.worker("a", "--max-concurrent", "8", "--simulate", "1xL4:24GiB")
            env = {**os.environ, "URL": manager.url}
            typed = documents.run_by("tests/scenarios/manager/test_failover.py", "docs/operations.md")
            (printed,) = await asyncio.to_thread(documents.type_in, typed, cwd=tmp_path, env=env)
            assert '"store":"ok"' in printed
            faults = FailoverNemesis(manager, stores, Random(1))
            await faults.run(kills, pause_s=1.0)
            lost = await ends(manager, faults)
            figure(
                f"strict, {executor}: {kills} primaries killed, {len(faults.acknowledged)} tasks kept, "
                f"{faults.refused} refused, {len(lost)} lost"
            )
            assert faults.acknowledged
            assert not lost


async def test_loss_without_strict_is_counted(tmp_path: Path, scale: Scale, figure: Figure) -> None:
    kills = scale(test=1, accept=20)
    async with replicated(tmp_path / "stores") as stores:
        settings = {"REDIS_URL": stores.url, "WORKER_LEASE": LEASE}
        async with fleet(tmp_path / "manager", **settings) as manager:
            await manager.worker("a", "--max-concurrent", "8", "--simulate", "1xL4:24GiB")
            _, health = await manager.call("GET", "/health")
            assert "a failover loses what no replica has yet" in health["dependencies"]["store"]
            faults = FailoverNemesis(manager, stores, Random(1))
            await faults.run(kills, pause_s=1.0)
            lost = await ends(manager, faults)
            figure(
                f"normal: {kills} primaries killed, {len(faults.acknowledged)} tasks acknowledged, "
                f"{faults.refused} refused, {len(lost)} lost"
            )
            assert lost, "the replica was cut off before the first kill"

"""The current server loses nothing of an older data directory, and refuses a newer one."""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from gpu_orchestrator.adapters import settings
from gpu_orchestrator.adapters.store.errors import Unfit
from gpu_orchestrator.adapters.store.valkey import migrations
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from gpu_orchestrator.apps.manager import server
from gpu_orchestrator.apps.manager.access.keys import Keys, key_of
from gpu_orchestrator.cli import own_keys
from tests.apps.manager.conftest import KEY, TOKEN, Site
from tests.support.paths import ROOT

pytestmark = pytest.mark.real
BEFORE = ROOT / "tests" / "data" / "version-1"


@asynccontextmanager
async def site_on(folder: Path) -> AsyncIterator[Site]:
    chosen = settings.load({}, folder / "none", api_port=0, data_dir=str(folder))
    keys = Keys([key_of(KEY, "admin"), key_of(TOKEN, "worker")])
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(server.running(chosen, keys))
        headers = {"Authorization": f"Bearer {KEY}"}
        http = await stack.enter_async_context(aiohttp.ClientSession(running.url, headers=headers))
        yield Site(running, http, stack)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BEFORE, tmp_path / "data"))


async def test_upgrade_loses_nothing(before: Path) -> None:
    expected: dict[str, str] = json.loads((before / "tasks.json").read_text())
    waiting = [name for name, state in expected.items() if state == "queued"]
    async with site_on(before) as site:
        assert {name: (await site.task(name))["status"] for name in expected} == expected
        done = [await site.task(name) for name, state in expected.items() if state == "completed"]
        assert [each["result"] for each in done] == [{"n": 0}, {"n": 1}, {"n": 2}]
        manager = site.running.manager
        assert (await manager.store.tasks.page(owner="admin", offset=0, limit=50)).total == len(expected)
        repeated = {"task_type": "echo", "idempotency_key": "once-high"}
        again = await site.call(
            "POST", "/tasks", {**repeated, "priority": "high", "parameters": {"p": "high"}}
        )
        assert again[1]["task_id"] in waiting, "the same submission before and after the upgrade is one task"
        _, shown = await site.call("GET", "/workers/w")
        assert shown["status"] in ("offline", "suspect")
        worker = await site.join("w", instance="w-2")
        assert (await site.call("GET", "/workers/w"))[1]["status"] == "cordoned", (
            "the operator's cordon is kept"
        )
        await site.call("POST", "/workers/w/uncordon")
        for _ in waiting:
            await worker.finish(await worker.take(), "after")
        assert [(await site.wait(name))["result"] for name in waiting] == ["after"] * 4
    async with site_on(before) as site:
        assert (await site.wait(waiting[0]))["result"] == "after", "and again, with nothing left to migrate"


async def test_keys_survive_the_upgrade(before: Path) -> None:
    """Read them the way the command line does."""
    begun = own_keys.begin(settings.load({}, before / "none", data_dir=str(before)), before)
    assert Keys(begun.known).find(f"Bearer {KEY}").owner == "admin"


async def test_newer_data_is_refused_and_unchanged(before: Path) -> None:
    async with embedded(before / "store") as store, Database(store.url) as database:
        await database.set(migrations.KEY, b"99")
    with pytest.raises(Unfit, match="of version 99, and this program supports up to 2: run the newer"):
        async with site_on(before):
            pass
    async with embedded(before / "store") as store, Database(store.url) as database:
        assert await database.get(migrations.KEY) == b"99"


async def test_new_store_has_the_current_version(tmp_path: Path) -> None:
    async with site_on(tmp_path / "data") as site:
        written = await site.running.manager.store.database.get(migrations.KEY)
        assert written == str(migrations.VERSION).encode()

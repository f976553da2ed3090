"""Scaling end to end: a manager whose workers are processes here, or are run by a command."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.cluster import free_port
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.api import session
from tests.apps.manager.conftest import TOKEN, NewSite, Site, new_site
from tests.support.patience import PATIENCE_S
from tests.support.scale import Scale

pytestmark = pytest.mark.real
__all__ = ["new_site"]

QUICK: dict[str, Any] = {
    "auto_scale_interval": 0.1,
    "auto_scale_patience": 0.0,
    "auto_scale_cool_down": 0.0,
    "auto_scale_idle": 0.5,
    "auto_scale_target_wait": 0.5,
    "auto_scale_step": 2,
    "rate_limit_per_minute": 0,
    "rate_limit_per_hour": 0,
}


async def until(site: Site, found: Callable[[Any], bool], path: str = "/cluster/scaling") -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while not found(answer := (await site.call("GET", path))[1]):  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.05)
        return answer


async def steps(site: Site) -> list[dict[str, Any]]:
    _, page = await site.call("GET", "/cluster/events?limit=1000&after=0")
    return [each["data"] for each in page["events"] if each["event"] == "scale_event"]


async def test_local_workers_come_under_load_serve_everything_and_go(
    new_site: NewSite, tmp_path: Path, scale: Scale
) -> None:
    port, tasks = free_port(), scale(test=6, accept=200)
    options = f"--server http://127.0.0.1:{port} --simulate 1 --max-concurrent 1"
    site: Site = await new_site(
        api_port=port,
        worker_token=TOKEN,
        max_workers=scale(test=2, accept=4),
        auto_scale_provisioner="local",
        auto_scale_worker_options=options,
        **QUICK,
    )
    names = [await site.submit("sleep", parameters={"seconds": 0.4}) for _ in range(tasks)]
    ended = [await site.wait(name) for name in names]
    assert {(each["status"], each["attempt"]) for each in ended} == {("completed", 1)}
    shown = await until(site, lambda each: each["wanted_workers"] == 0 and not each["stopping_workers"])
    assert (shown["enabled"], shown["why"], shown["trouble"]) == (True, "nothing waits", "")
    told = await steps(site)
    actions = [each["action"] for each in told]
    assert (actions[0], actions[-1], {*actions} - {"up", "drain", "stop", "keep"}) == ("up", "stop", set())
    assert (told[0]["from_workers"], told[0]["predicted_wait_seconds"]) == (0, None)
    assert told[0]["waiting_tasks"] > 0
    assert told[-1]["to_workers"] == 0
    async with site.http.get("/metrics") as answer:
        metrics = await answer.text()
    assert f'scale_decisions_total{{action="stop"}} {actions.count("stop")}.0' in metrics
    _, audit = await site.call("GET", "/audit?limit=1000")
    assert "scale up" in {each["action"] for each in audit["entries"]}
    late = await site.wait(await site.submit("sleep", parameters={"seconds": 0.0}))  # from zero again
    assert late["status"] == "completed"


async def test_command_is_told_numbers_and_drained_workers_and_no_shell_reads_them(
    new_site: NewSite, tmp_path: Path
) -> None:
    said, program = tmp_path / "said", tmp_path / "scale.py"
    program.write_text("import sys; print(*sys.argv[2:], file=open(sys.argv[1], 'a'))")
    site: Site = await new_site(
        auto_scale_provisioner="command",
        auto_scale_command=f"{sys.executable} {program} {said} '$(touch {tmp_path}/bad)'",
        **QUICK,
    )
    await site.submit("echo")
    await until(site, lambda each: each["wanted_workers"] == 1)
    worker = await site.join("cloud-1", labels={"autoscaled": "true"}, max_concurrent=1)
    assign = await worker.take()
    await site.join("by-hand", max_concurrent=1)
    await until(site, lambda each: each["running_tasks"] == 1)
    await asyncio.sleep(2 * QUICK["auto_scale_idle"])
    assert not [each for each in worker.received if isinstance(each, session.Drain)], "it has work"
    await worker.finish(assign)
    assert (await worker.receive(session.Drain)).leave is False
    assert (await worker.receive(session.Drain)).leave is True
    await worker.close()
    await until(site, lambda each: not each["stopping_workers"])
    await state_is_the_leaders(site)
    lines = [line.rsplit(")", 1)[1].split() for line in said.read_text().splitlines()]
    assert lines[0] == ["1"]
    assert ["0", "cloud-1"] in lines
    assert not (tmp_path / "bad").exists()
    assert (await site.call("GET", "/workers/by-hand"))[1]["status"] == "online", "it is not ours"


async def state_is_the_leaders(site: Site) -> None:
    """Another process reads what was stored, and cannot write it."""
    database = site.running.manager.store.database
    other = Store(database, owner="other").scaling
    written = await other.read()
    assert b'"service_s":[["echo"' in written
    assert await other.save(b'{"state":{"wanted":9}}', [b"{}"]) is False
    assert await other.read() == written

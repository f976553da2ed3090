"""`/cluster/rebalance` on a whole manager: a full and an empty twin."""

from typing import Any

import pytest

from gpu_orchestrator.api import session
from tests.apps.manager.conftest import Site
from tests.apps.manager.models.test_model_routes import copy, has, join, until
from tests.support.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.real


async def twins(site: Site, *held: session.Copy) -> tuple[ScriptedWorker, ScriptedWorker]:
    full, empty = await join(site, "full"), await join(site, "empty")
    for each in held:
        status, answer = await site.call("PUT", f"/models/{each.model}", {"handler": "chat"})
        assert status == 200, answer
    await has(full, *held)
    await until(site, "/models/assignments", lambda each: each["total"] == len(held))
    return full, empty


async def rebalance(site: Site, expected: int = 202, **body: Any) -> Any:
    status, answer = await site.call("POST", "/cluster/rebalance", body)
    assert status == expected, answer
    return answer


async def events(site: Site) -> list[tuple[str, Any]]:
    _, page = await site.call("GET", "/cluster/events?limit=1000&after=0")
    return [(each["event"], each["data"]) for each in page["events"] if "rebalance" in each["event"]]


async def test_dry_run_says_what_and_why_and_changes_nothing(site: Site) -> None:
    full, empty = await twins(site, copy("a", 6), copy("b", 6, 2), copy("c", 6, 3))
    found = await rebalance(site, dry_run=True)
    assert (found["status"], found["affected_workers"]) == ("planned", ["empty", "full"])
    (move,) = found["operations"]
    assert (move["from_worker"], move["to_worker"], move["status"]) == ("full", "empty", "planned")
    assert "full: 94% of its memory is held, more than 80%; empty has 0%" in move["reason"]
    assert (found["estimated_seconds"], move["benefit"] > 0) == (3.0, True)
    assert (await site.call("GET", "/tasks"))[1]["total"] == 0
    assert not [each for each in (*full.received, *empty.received) if isinstance(each, session.Unload)]
    assert await events(site) == []
    assert (await site.call("GET", "/cluster/rebalance"))[0] == 404


async def test_move_loads_there_then_unloads_here_without_a_failed_task(site: Site) -> None:
    full, empty = await twins(site, copy("a", 6), copy("b", 6, 2), copy("c", 6, 3))
    found = await rebalance(site)
    assert found["status"] == "running"
    moved = found["operations"][0]["model_name"]
    assert "under way" in (await rebalance(site, 409))["error"]["message"]
    assign = await empty.take()
    assert (assign.model_name, assign.only_load) == (moved, True)
    assert not [each for each in full.received if isinstance(each, session.Unload)], "not before it is loaded"
    await has(empty, copy(moved, 6))
    await empty.finish(assign)
    assert await full.receive(session.Unload) == session.Unload(moved)
    ended = await until(site, "/cluster/rebalance", lambda each: each["status"] == "completed")
    assert [each["status"] for each in ended["operations"]] == ["moved"]
    _, tasks = await site.call("GET", "/tasks")
    assert [each["status"] for each in tasks["tasks"]] == ["completed"]
    told = await events(site)
    assert [name for name, _ in told] == ["cluster_rebalance_started", "cluster_rebalance_ended"]
    assert told[1][1] == {"rebalance_id": found["rebalance_id"], "moved": 1, "kept": 0, "failed": 0}


async def test_copy_that_got_busy_meanwhile_is_kept(site: Site) -> None:
    full, empty = await twins(site, copy("a", 9), copy("b", 9, 2))
    moved = (await rebalance(site))["operations"][0]["model_name"]
    load = await empty.take()
    task = await site.submit("chat", model_name=moved)
    used = await full.take()
    assert used.task == task
    await has(empty, copy(moved, 9))
    await empty.finish(load)
    ended = await until(site, "/cluster/rebalance", lambda each: each["status"] == "completed")
    (each,) = ended["operations"]
    assert (each["status"], "a task uses it there" in each["note"]) == ("kept", True)
    assert not [each for each in full.received if isinstance(each, session.Unload)]
    await full.finish(used)


async def test_nothing_to_do_and_bad_bodies(site: Site) -> None:
    await twins(site, copy("a", 6))
    assert (await rebalance(site))["status"] == "nothing_to_do"
    await rebalance(site, 422, strategy="magic")
    await rebalance(site, 422, dry_run="yes")

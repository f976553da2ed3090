"""Gangs on real workers: all members run together or none does, whatever is killed meanwhile."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from tests.support import documents, nemesis
from tests.support.fleet import Fleet, eventually, fleet
from tests.support.nemesis import Nemesis
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.scale import Scale

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
OPTIONS = ("--max-concurrent", "4", "--simulate", "2xL4:24GiB", "--allow-command")
PROGRAM = str(Path(__file__).parents[2] / "support" / "gang_program.py")


def program(
    journal: Path, seconds: float = 0.2, *more: object, gang: object = 4, **rest: Any
) -> dict[str, Any]:
    arguments = [sys.executable, PROGRAM, str(journal), str(seconds), *map(str, more)]
    size = {"size": gang} if isinstance(gang, int) else gang
    return {"task_type": "command", "parameters": {"arguments": arguments}, "gang": size, **rest}


async def submit(manager: Fleet, body: dict[str, Any]) -> list[str]:
    status, answer = await manager.call("POST", "/tasks", body)
    assert status == 202, answer
    members: list[str] = answer["members"]
    assert answer["task_id"] == members[0]
    return members


async def ended(manager: Fleet, members: list[str]) -> list[dict[str, Any]]:
    return [await manager.wait(name, PATIENCE_S) for name in members]


def entries(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


@pytest.mark.celery
async def test_members_meet_and_end_together(tmp_path: Path, executor: str) -> None:
    journal = tmp_path / "journal"
    async with fleet(tmp_path / "fleet", EXECUTOR=executor) as manager:
        for name in ("a", "b"):
            await manager.worker(name, *OPTIONS)
        members = await submit(manager, program(journal))
        final = await ended(manager, members)
        assert [each["status"] for each in final] == ["completed"] * 4, final
        assert [each["result"]["output"] for each in final] == [["6"]] * 4
        assert [each["gang_rank"] for each in final] == [0, 1, 2, 3]
        assert len({(each["assigned_worker"], each["devices"][0]["uuid"]) for each in final}) == 4
        status, gang = await manager.call("GET", f"/gangs/{final[0]['gang_id']}")
        assert (status, gang["status"], gang["size"], len(gang["members"])) == (200, "completed", 4, 4)


async def test_member_that_fails_once_has_all_begin_again(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with fleet(tmp_path / "fleet") as manager:
        for name in ("a", "b"):
            await manager.worker(name, *OPTIONS)
        failing = program(journal, 0.2, 2, max_retries=0)
        first = await ended(manager, await submit(manager, failing))
        assert [each["status"] for each in first] == ["failed"] * 4
        assert [each["error"]["type"] for each in first] == [
            "GangFailed",
            "GangFailed",
            "CommandFailed",
            "GangFailed",
        ]
        assert all(each["result"] is None for each in first)
        status, _ = await manager.call("POST", f"/tasks/{first[0]['gang_id']}/retry")
        assert status == 202
        again = await ended(manager, [each["task_id"] for each in first])
        assert [(each["status"], each["attempt"]) for each in again] == [("completed", 2)] * 4
        check_attempts(entries(journal))


async def test_lost_worker_and_dead_runner_have_all_begin_again(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with fleet(tmp_path / "fleet") as manager:
        for name in ("a", "b", "c"):
            await manager.worker(name, *OPTIONS)
        members = await submit(manager, program(journal, 6.0))
        worker = await manager.running(members[0])
        await until(lambda: words(journal, "met") == 4)
        worker.close()  # kill -9
        for name in members:
            await manager.until(name, attempt=2, status="running")
        await until(lambda: words(journal, "met") == 8)
        os.kill(parent_of(entries(journal)[-1]["pid"]), signal.SIGKILL)  # the runner of the program
        final = await ended(manager, members)
        assert [(each["status"], each["attempt"]) for each in final] == [("completed", 3)] * 4, final
        check_attempts(entries(journal))
        assert len([each for member in final for each in member["deaths"]]) == 2, "nobody else is blamed"


async def test_two_gangs_that_fit_alone_run_one_after_the_other(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with fleet(tmp_path / "fleet") as manager:
        for name in ("a", "b"):
            await manager.worker(name, *OPTIONS)
        gangs = [await submit(manager, program(journal, 0.5, gang=3)) for _ in range(6)]
        for members in gangs:
            assert [each["status"] for each in await ended(manager, members)] == ["completed"] * 3
        check_attempts(entries(journal))
        check_devices_at_once(entries(journal), 4)


async def test_gang_waits_without_holding_anything_and_says_why(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with fleet(tmp_path / "fleet") as manager:
        for name in ("a", "b"):
            await manager.worker(name, *OPTIONS)
        holder = await manager.submit("sleep", {"seconds": 60}, resources={"gpus": 1})
        await manager.running(holder)
        members = await submit(manager, program(journal))
        waits = await manager.until(members[3], status="queued")
        assert "all 4 members of its gang" in waits["reason"]
        for _ in range(3):
            small = await manager.submit("echo", {}, resources={"gpus": 1})
            assert (await manager.wait(small))["status"] == "completed", "three devices are free for others"
        await manager.call("DELETE", f"/tasks/{holder}")
        assert [each["status"] for each in await ended(manager, members)] == ["completed"] * 4
        status, refused = await manager.call("POST", "/tasks", program(journal, gang=5))
        assert (status, refused["error"]["details"]["task"]) == (409, 0)
        assert refused["error"]["message"].startswith(
            "the gang can never start: 4 of its 5 members fit together"
        )


async def test_gang_begins_beside_small_tasks_that_never_stop_coming(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with fleet(tmp_path / "fleet") as manager:
        for name in ("a", "b"):
            await manager.worker(name, *OPTIONS)

        async def small() -> None:
            """Keep one task waiting or running; eight of these want all four GPUs twice."""
            while True:
                await manager.wait(await manager.submit("sleep", {"seconds": 0.2}, resources={"gpus": 1}))

        stream = [asyncio.create_task(small()) for _ in range(8)]
        try:
            first = await manager.submit("sleep", {"seconds": 0.2}, resources={"gpus": 1})
            await manager.wait(first)  # all GPUs are busy by now
            members = await submit(manager, program(journal))
            final = await ended(manager, members)
            assert [each["status"] for each in final] == ["completed"] * 4, final
            assert not any(each.done() for each in stream), "small ones go on"
        finally:
            for each in stream:
                each.cancel()
            await asyncio.gather(*stream, return_exceptions=True)
        check_attempts(entries(journal))


async def test_members_of_a_batch_have_roles_and_share_a_worker_without_gpus(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with fleet(tmp_path / "fleet") as manager:
        await manager.worker("a", "--processes", "1", *OPTIONS)
        named = {"name": "roles"}
        launcher = program(journal, gang=named, resources={"gpus": 0}, labels={"role": "launcher"})
        workers = program(journal, gang={**named, "size": 2}, resources={"gpus": 0})
        other = {"task_type": "echo", "resources": {"gpus": 0}}
        status, answer = await manager.call("POST", "/tasks/batch", {"tasks": [launcher, other, workers]})
        assert status == 202, answer
        first, single, rest = answer["tasks"]
        assert (len(first["members"]), single["members"], len(rest["members"])) == (1, [], 2)
        assert first["gang_id"] == rest["gang_id"]
        final = await ended(manager, [*first["members"], *rest["members"]])
        assert [(each["status"], each["gang_rank"]) for each in final] == [
            ("completed", 0),
            ("completed", 1),
            ("completed", 2),
        ]
        assert final[0]["labels"] == {"role": "launcher"}


async def test_all_members_run_on_workers_with_the_same_label(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with fleet(tmp_path / "fleet") as manager:
        for name, rack in (("a", "r1"), ("b", "r2"), ("c", "r2")):
            await manager.worker(name, "--label", f"rack={rack}", *OPTIONS)
        members = await submit(manager, program(journal, gang={"size": 4, "same": "rack"}))
        final = await ended(manager, members)
        assert {each["assigned_worker"] for each in final} == {"b", "c"}
        status, refused = await manager.call(
            "POST", "/tasks", program(journal, gang={"size": 5, "same": "rack"})
        )
        assert status == 409, refused


async def test_cancel_of_one_member_ends_all(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with fleet(tmp_path / "fleet") as manager:
        for name in ("a", "b"):
            await manager.worker(name, *OPTIONS)
        members = await submit(manager, program(journal, 60.0))
        await until(lambda: words(journal, "met") == 4)
        status, answer = await manager.call("DELETE", f"/tasks/{members[2]}")
        assert (status, answer["status"]) == (200, "cancelling")
        assert [each["status"] for each in await ended(manager, members)] == ["cancelled"] * 4
        assert words(journal, "ends") == 0


@pytest.mark.parametrize("victim", ["server", "store"])
async def test_gang_outlives_a_kill_of(tmp_path: Path, victim: str) -> None:
    journal = tmp_path / "journal"
    async with fleet(tmp_path / "fleet") as manager:
        for name in ("a", "b"):
            await manager.worker(name, *OPTIONS)
        faults = Nemesis(manager, Random(1))
        members = await submit(manager, program(journal, 3.0))
        await until(lambda: words(journal, "met") == 4)
        await (faults.kill_server if victim == "server" else faults.kill_store)()
        final = [await nemesis.ended(manager, name) for name in members]
        assert [each["status"] for each in final] == ["completed"] * 4, final
        check_attempts(entries(journal))


async def test_gangs_under_random_faults_are_all_or_none(
    tmp_path: Path, scale: Scale, figure: Callable[[str], None]
) -> None:
    """Each gang completes whole, once; attempts of one gang never overlap, and no device has two tasks."""
    journal, rng = tmp_path / "journal", Random(scale(test=7, accept=77))
    async with fleet(tmp_path / "fleet") as manager:
        for name in ("a", "b", "c"):
            await manager.worker(name, *OPTIONS)
        faults = Nemesis(manager, rng, OPTIONS)
        injecting = asyncio.create_task(faults.inject(scale(test=6, accept=40), 1.5))
        gangs: list[list[str]] = []
        for number in range(scale(test=10, accept=100)):
            size = rng.choice((2, 3, 4, 6))
            body = program(journal, rng.uniform(0.1, 1.0), gang=size, max_retries=50, max_lost_workers=50)
            body["idempotency_key"] = f"gang-{number}"
            gangs.append(await submitted(manager, body))
        await injecting
        for members in gangs:
            final: list[Any] = [await nemesis.ended(manager, name) for name in members]
            while final[0]["status"] == "failed":  # a program was killed, and its handler said so
                assert {each["status"] for each in final} == {"failed"}
                status, answer = await manager.call("POST", f"/tasks/{members[0]}/retry")
                assert status == 202, answer
                final = [await nemesis.ended(manager, name) for name in members]
            assert [each["status"] for each in final] == ["completed"] * len(members), final
            assert len({each["attempt"] for each in final}) == 1, "one attempt of all of them counted"
            total = str(sum(range(len(members))))
            assert all(each["result"]["output"] == [total] for each in final), final
        found = entries(journal)
        # A stopped host may say the rest late.
        check_attempts([each for each in found if each["word"] == "began"])
        attempts = len({(each["gang"], each["attempt"]) for each in found})
        figure(f"{len(gangs)} gangs in {attempts} attempts, faults: {faults.faults}")


async def test_what_the_page_says_works(tmp_path: Path) -> None:
    async with fleet(tmp_path / "fleet") as manager:
        for name in ("a", "b"):
            await manager.worker(name, "--label", "rack=r1", *OPTIONS)
        env = {**os.environ, "GPU_ORCHESTRATOR_URL": manager.url, "API_KEY": manager.key}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        blocks = documents.run_by("tests/scenarios/manager/test_gangs.py", "docs/gangs.md")
        (printed,) = await asyncio.to_thread(documents.type_in, blocks, cwd=tmp_path, env=env)
        members = [line.split()[0] for line in printed.splitlines() if "-" in line.split()[0]][:4]
        final = await ended(manager, members)
        said = [each["result"]["output"][0].split(" at ")[0] for each in final]
        assert said == [f"{rank} of 4" for rank in range(4)]
        (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/gangs.md").read_text(), re.DOTALL)
        check = "\nassert results == [{'hello': 'gang'}] * 4, results\n"
        arguments = [sys.executable, "-c", example + check]
        done = await asyncio.to_thread(subprocess.run, arguments, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


async def submitted(manager: Fleet, body: dict[str, Any]) -> list[str]:
    """Submit until the server accepts; the gang exists once, however often it was sent."""
    async with asyncio.timeout(nemesis.LIMIT_S):
        while True:
            with suppress(aiohttp.ClientError, OSError):
                status, answer = await manager.call("POST", "/tasks", body)
                if status == 202:
                    members: list[str] = answer["members"]
                    return members
                assert status == 503, answer
            await asyncio.sleep(0.1)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def words(journal: Path, word: str) -> int:
    return sum(each["word"] == word for each in entries(journal))


async def until(check: Callable[[], bool]) -> None:
    async def shows() -> bool:
        return check()

    await eventually(shows, PATIENCE_S)


def check_attempts(found: list[dict[str, Any]]) -> None:
    """Check that a member of one attempt met only members of the same, and that a gang did not begin again
    before the attempt before was over."""
    by_gang: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in found:
        by_gang[each["gang"]].append(each)
    for gang, noted in by_gang.items():
        attempts = [each["attempt"] for each in sorted(noted, key=lambda each: each["at"])]
        assert attempts == sorted(attempts), gang


def check_devices_at_once(found: list[dict[str, Any]], devices: int) -> None:
    """Check that never more members ran than there are devices, each of which they had whole: as far as they
    lived to say when they ended."""

    def moments(word: str) -> dict[tuple[str, int, int], float]:
        noted = [each for each in found if each["word"] == word]
        return {(each["gang"], each["rank"], each["attempt"]): each["at"] for each in noted}

    began, ended = moments("began"), moments("ends")
    changes = [(began[key], 1) for key in ended] + [(at, -1) for at in ended.values()]
    assert max(accumulate(by for _, by in sorted(changes))) <= devices

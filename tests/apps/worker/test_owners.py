"""Tests that what one owner's task leaves in its process is not for tasks of another owner."""

import asyncio
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import session
from tests.apps.worker.conftest import NewWorker
from tests.support.scripted_server import Peer
from tests.support.workers import is_alive

pytestmark = pytest.mark.real
FUNCTIONS = tuple(
    part
    for name in ("marks", "leaves_fork_chain")
    for part in ("--function", f"{name}=tests.support.worker_functions:{name}")
)


async def marks(peer: Peer, task: str, owner: str, hello: session.Hello | None = None) -> dict[str, Any]:
    given = (session.Given(0, hello.devices[0].uuid),) if hello else ()
    parameters = {"function": "marks", "arguments": {"name": owner}}
    await peer.assign(task, "python", parameters, owner=owner, devices=given)
    found: dict[str, Any] = msgspec.json.decode((await peer.receive(session.Done, task, within_s=120)).result)
    return found


async def test_runner_serves_one_owner_and_ends_before_another_gets_its_device(
    peer: Peer, new_worker: NewWorker
) -> None:
    new_worker("--simulate", "1", "--max-concurrent", "4", *FUNCTIONS)
    hello = await peer.receive(session.Hello)
    first, again = await marks(peer, "a1", "ann", hello), await marks(peer, "a2", "ann", hello)
    assert (again["pid"], again["found"]) == (first["pid"], ["ann"]), "one owner's tasks share a runner"
    other = await marks(peer, "b1", "bob", hello)
    assert other["found"] == []
    assert not is_alive(first["pid"]), "its memory on the device is free before the other owner's task begins"
    assert (await marks(peer, "a3", "ann", hello))["found"] == []


async def test_owners_without_devices_have_runners_of_their_own_that_stay(
    peer: Peer, new_worker: NewWorker
) -> None:
    new_worker("--max-concurrent", "4", "--processes", "1", *FUNCTIONS)
    await peer.receive(session.Hello)
    owners = [f"owner-{number}" for number in range(3)]
    first = [await marks(peer, f"{owner}-1", owner) for owner in owners]
    again = [await marks(peer, f"{owner}-2", owner) for owner in owners]
    assert [each["found"] for each in first] == [[], [], []]
    assert [each["found"] for each in again] == [[owner] for owner in owners]
    assert [each["pid"] for each in again] == [each["pid"] for each in first]


async def test_no_more_runners_work_at_once_than_asked_for_and_few_stay(
    peer: Peer, new_worker: NewWorker
) -> None:
    worker = new_worker("--max-concurrent", "64", "--processes", "1", *FUNCTIONS)
    await peer.receive(session.Hello)
    found = await asyncio.gather(*(marks(peer, f"t{number}", f"owner-{number}") for number in range(10)))
    assert len({each["pid"] for each in found}) == 10
    async with asyncio.timeout(60):
        while len(worker.below()) > 2 * 9:  # noqa: ASYNC110 - a runner and its keeper each
            await asyncio.sleep(0.05)


async def test_operator_may_share_runners_between_owners(peer: Peer, new_worker: NewWorker) -> None:
    new_worker("--simulate", "1", "--share-runners", *FUNCTIONS)
    hello = await peer.receive(session.Hello)
    first = await marks(peer, "a", "ann", hello)
    other = await marks(peer, "b", "bob", hello)
    assert (other["pid"], other["found"]) == (first["pid"], ["ann"])


async def test_fork_chain_of_one_owner_never_prints_into_the_log_of_another(
    peer: Peer, new_worker: NewWorker
) -> None:
    """Such a chain is too young to be known as an earlier task's. It may reach the next task of its own
    owner."""
    new_worker("--max-concurrent", "4", "--processes", "1", "--simulate", "1", *FUNCTIONS)
    hello = await peer.receive(session.Hello)
    for number, devices in enumerate([(), (session.Given(0, hello.devices[0].uuid),)]):
        chain = {"name": "ANN", "links": 80, "pause_s": 0.02}
        parameters = {"function": "leaves_fork_chain", "arguments": chain}
        await peer.assign(f"a{number}", "python", parameters, owner="ann", devices=devices)
        await peer.receive(session.Done, f"a{number}")
        await peer.assign(f"b{number}", "sleep", {"seconds": 1.5}, owner="bob", devices=devices)
        await peer.receive(session.Done, f"b{number}")
    logs = [each for each in peer.received if isinstance(each, session.Log)]
    assert not [each for each in logs if each.task.startswith("b") and "ANN" in each.text]
